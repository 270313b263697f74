"""logsumexp of arrays on many devices, of slices, and in exported programs."""

import functools
import itertools

import cases
import hlo
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from slice_cases import cut, flat_arrays, lanes_of, offsets

import jaxkernels as jk
from jaxkernels._rows import logsumexp
from jaxkernels._rows import reference as plain
from jaxkernels.verify.truth import tolerance

X = cases.logits("normal", 16 * 8, 24, "float32").reshape(16, 8, 24)
T = cases.cotangents(16 * 8, 24, "float32").reshape(16, 8, 24)
on_a_cpu = pytest.mark.usefixtures("on_a_cpu")


@on_a_cpu
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [*((dtype, AxisType.Auto) for dtype in oracle.DTYPES), ("float32", AxisType.Explicit)],
    ids=str,
)
def test_special_values_in_sharded_columns(dtype, kind, cpu_devices):
    """Some devices have only -inf; one or several have +inf, also together with -inf, or NaN. The bounds are those of
    one device's kernels."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(kind,), devices=cpu_devices)
    x = cases.logits("normal", 11, 64, dtype)
    most = float(jnp.finfo(dtype).max)
    x[0] = -np.inf
    x[1, :56], x[1, 56:] = -np.inf, -300
    x[2, 5] = np.nan
    x[3, 17] = np.inf
    x[4, [1, 60]] = np.inf
    x[5, :8], x[5, 8] = -np.inf, np.inf
    x[6, :8], x[6, 8:16] = 300, -300
    x[7] = -most
    x[8, 1] = most
    x[9, 8:16], x[9, 20] = np.nan, np.inf
    t = cases.cotangents(11, 64, dtype)

    def program(x, t, t_rows):
        y, pull = jax.vjp(lambda x: jk.logsumexp(x, -1, keepdims=True), x)
        dy = jax.jvp(lambda x: jk.logsumexp(x, -1, keepdims=True), (x,), (t,))[1]
        return y, pull(t_rows)[0], dy

    with cases.x64(dtype):
        columns, whole = NamedSharding(mesh, P(None, "a")), NamedSharding(mesh, P())
        given = [jax.device_put(a, columns) for a in (x, t)]
        t_rows = oracle.row_scalars(t)
        y, dx, dy = jax.device_get(jax.jit(program)(*given, jax.device_put(t_rows, whole)))
    tolerance.check(y, "logsumexp_fwd", x, accumulators=4)
    tolerance.check(dx, "logsumexp_grad", x, t_rows, accumulators=4)
    tolerance.check(dy, "logsumexp_jvp", x, t, accumulators=4)


@on_a_cpu
@pytest.mark.parametrize("spec", [P("a"), P(None, "a"), P("b", "a")], ids=str)
def test_sharded_numbers_of_rows_in_the_type_of_computation(spec, mesh):
    """float32 in and out of rows of bfloat16, whole ones and parts."""
    x, t = cases.logits("normal", 8, 64, "bfloat16"), cases.cotangents(8, 64, "bfloat16")
    dy = cases.cotangents(8, 1, "float32")
    options = {"tier": "auto", "require_kernel": True, "wide": True}

    @jax.jit
    def program(x, t, dy):
        y, pull = jax.vjp(lambda x: logsumexp.logsumexp_fwd(x, **options), x)
        return y, pull(dy)[0], logsumexp.logsumexp_jvp(x, t, **options)

    given = [jax.device_put(a, NamedSharding(mesh, spec)) for a in (x, t)]
    rows = jax.device_put(dy, NamedSharding(mesh, P(*spec[:1])))
    y, dx, tangents = jax.device_get(program(*given, rows))
    tolerance.check(y, "logsumexp_fwd", x, accumulators=4, wide=True)
    tolerance.check(dx, "logsumexp_grad", x, dy, accumulators=4)
    tolerance.check(tangents, "logsumexp_jvp", x, t, accumulators=4, wide=True)


def explicit_spec(f, x, axis):
    return jax.eval_shape(lambda x: f(x, axis), x).sharding.spec


@on_a_cpu
@pytest.mark.parametrize("spec", [P("a", "b"), P(None, "a", "b")], ids=str)
def test_any_axes_of_sharded_arrays(spec, mesh):
    """Sums over dimensions that devices share, or that are merged; an explicit sharding of a result is jax.nn's."""
    all_axes = (0, (0, 2), (1, 2), None)
    x = jax.device_put(X, NamedSharding(mesh, spec))

    def program(f, x):
        def loss(x, axis):
            y = f(x, axis, keepdims=True)
            return jnp.sum(y**2), y

        return [jax.value_and_grad(loss, has_aux=True)(x, axis) for axis in all_axes]

    got, want = (
        jax.jit(functools.partial(program, f))(x) for f in (jk.logsumexp, jax.nn.logsumexp)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if mesh.axis_types[0] == AxisType.Explicit:
        for axis in all_axes:
            assert explicit_spec(jk.logsumexp, x, axis) == explicit_spec(jax.nn.logsumexp, x, axis)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_results_of_slices_and_into_slices(dtype):
    """Operands and numbers of rows from anywhere in a buffer, results into the midst of one, as a loop writes them."""
    shape = (5, 37)

    @jax.jit
    def program(flat_x, flat_t):
        def body(i, kept):
            x = jax.lax.dynamic_slice(flat_x, (i,), (185,)).reshape(shape)
            t = jax.lax.dynamic_slice(flat_t, (2 * i,), (5,))
            y, pull = jax.vjp(lambda x: jk.logsumexp(x, -1), x)
            ys, dxs = kept
            return ys.at[i, 1:6].set(y), dxs.at[i].set(pull(t)[0])

        count = len(offsets(dtype))
        ys, dxs = jnp.zeros((count, 7), dtype), jnp.zeros((count, *shape), dtype)
        return jax.lax.fori_loop(0, count, body, (ys, dxs))

    flat_x, flat_t = flat_arrays(dtype, shape, 5)
    with cases.x64(dtype):
        ys, dxs = jax.device_get(program(flat_x, flat_t))
    for offset, y, dx in zip(offsets(dtype), ys, dxs, strict=True):
        x, t = cut(flat_x, offset, shape), cut(flat_t, 2 * offset, (5, 1))
        lanes = lanes_of(x, 37)
        tolerance.check(y[1:6, None], "logsumexp_fwd", x, accumulators=lanes)
        tolerance.check(dx, "logsumexp_grad", x, t, accumulators=lanes)
        assert (y[[0, 6]] == 0).all()


def test_the_reference_computes_the_same():
    """The reference, which other platforms lower to, gives the same results, also for special rows."""
    x = X[:3].copy()
    x[0, 0], x[0, 1, 3], x[0, 2, 3] = -np.inf, np.inf, np.nan
    t = T[:3]
    for kernel, operands in (
        ("logsumexp_fwd", (x,)),
        ("logsumexp_grad", (x, t[..., :1])),
        ("logsumexp_jvp", (x, t)),
    ):
        for dtype, wide in itertools.product(("float32", "bfloat16"), (False, True)):
            given = [jnp.asarray(a, dtype) for a in operands]
            call = functools.partial(getattr(logsumexp, kernel), tier="auto", require_kernel=True)
            got, want = call(*given, wide=wide), getattr(plain, kernel)(*given, wide=wide)
            assert got.dtype == want.dtype
            eps = float(jnp.finfo(got.dtype).eps)
            np.testing.assert_allclose(
                *(np.asarray(a, np.float64) for a in (got, want)),
                rtol=16 * eps,
                atol=16 * eps,
                err_msg=f"{kernel} {dtype} {wide}",
            )


def test_reverse_mode_runs_one_kernel():
    """The gradient needs x, and no result of the forward kernel."""
    gradient = jax.jit(lambda x, t: jax.vjp(lambda x: jk.logsumexp(x, -1), x)[1](t)[0])
    compiled = gradient.lower(X, T[..., 0]).compile()
    assert hlo.operations(compiled.as_text()) == ["logsumexp_grad"]
