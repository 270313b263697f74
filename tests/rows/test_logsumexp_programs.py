"""logsumexp of arrays on many devices, of slices, and in exported programs."""

import cases
import hlo
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels._rows import logsumexp
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


def test_reverse_mode_runs_one_kernel():
    """The gradient needs x, and no result of the forward kernel."""
    gradient = jax.jit(lambda x, t: jax.vjp(lambda x: jk.logsumexp(x, -1), x)[1](t)[0])
    compiled = gradient.lower(X, T[..., 0]).compile()
    assert hlo.operations(compiled.as_text()) == ["logsumexp_grad"]
