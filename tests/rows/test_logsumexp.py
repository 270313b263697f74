"""Values of logsumexp and of its derivatives against the truth.

Every row length, boundary of a plan and kind of input is tried with the other operations, in test_softmax_grad.py; here
is what they have not: numbers of rows in either width, and rows whose sum is 0 or infinite.
"""

import functools

import cases
import hlo
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels._rows import logsumexp

tiers = pytest.mark.parametrize("tier", cases.TIERS)
dtypes = pytest.mark.parametrize("dtype", oracle.DTYPES)
# A cluster's on a GPU. On a CPU the widest type of the truth is slow on infinities and NaN.
LONG = 40003 if cases.ON_GPU else 4499
OPERATIONS = ("logsumexp_fwd", "logsumexp_grad", "logsumexp_jvp")


@functools.partial(jax.jit, static_argnames=("tier", "wide"))
def results_of(calls, tier, wide):
    """The three kernels of many (x, dx, dy), in one program."""
    options = {"tier": tier or "auto", "require_kernel": True, "wide": wide}
    return [
        (
            logsumexp.logsumexp_fwd(x, **options),
            logsumexp.logsumexp_grad(x, dy, **options),
            logsumexp.logsumexp_jvp(x, dx, **options),
        )
        for x, dx, dy in calls
    ]


def check(xs, dtype, tier=None, wide=False):
    """Holds the kernels of rows that the tier can hold against the truth; returns x and their results."""
    xs = [x for x in xs if cases.serves(tier, x.shape, dtype)]
    of_rows = oracle.compute(dtype) if wide else dtype
    calls = [
        (x, cases.cotangents(*x.shape, dtype), cases.cotangents(x.shape[0], 1, of_rows)) for x in xs
    ]
    with cases.x64(dtype):
        found = jax.device_get(results_of(calls, tier, wide))
    for (x, dx, dy), results in zip(calls, found, strict=True):
        for operation, others, got in zip(OPERATIONS, ((), (dy,), (dx,)), results, strict=True):
            lanes = cases.accumulators(operation, x.shape, dtype, tier)
            is_wide = wide and operation != "logsumexp_grad"
            oracle.check(got, operation, x, *others, accumulators=lanes, wide=is_wide)
    return [(x, *results) for x, results in zip(xs, found, strict=True)]


@tiers
@dtypes
def test_numbers_of_rows_in_the_type_of_computation(dtype, tier):
    """Half types give and take float32 there: no rounding to 16 bits, in either direction."""
    shapes = ((33, 5), (17, 128), (35, 47), (9, 1001), (3, 4099), (2, 50257))
    xs = [cases.logits(kind, *s, dtype) for kind in ("normal", "offset") for s in shapes]
    wide, narrow = (check(xs, dtype, tier, wide) for wide in (True, False))
    for (_, y, *_), (_, rounded, *_) in zip(wide, narrow, strict=True):
        np.testing.assert_array_equal(y.astype(rounded.dtype), rounded)
        assert rounded.dtype == y.dtype or (y != rounded).any()


@pytest.mark.smoke
@tiers
@pytest.mark.parametrize("wide", [False, True])
@dtypes
def test_special_rows(dtype, tier, wide):
    """-inf alone gives -inf and a derivative of 0; +inf gives +inf, NaN gives NaN, and neighbours feel nothing."""
    xs = []
    for cols in (1, 2, 7, 48, 64, 257, 1030, LONG):
        x = cases.logits("normal", 11, cols, dtype)
        x[1] = -np.inf
        x[3, 0] = np.inf
        x[4, -1] = np.inf
        x[5, cols // 2] = np.nan
        x[6, 0] = -np.inf
        x[7, -1] = -np.inf
        x[8] = 3.25
        x[9] = float(jnp.finfo(dtype).max)
        x[10] = float(jnp.finfo(dtype).min)
        xs.append(x)
    for results in check(xs, dtype, tier, wide):
        x, y, dx, dy = map(oracle.widen, results)
        assert y[1] == -np.inf
        assert (dx[1] == 0).all()
        assert dy[1] == 0
        assert (y[[3, 4]] == np.inf).all()
        assert np.isnan(y[5])
        if x.shape[-1] > 1:
            others = np.isfinite(x)
            assert (dx[[3, 4]][others[[3, 4]]] == 0).all()
            assert np.isfinite(y[[0, 2, 6, 7, 8]]).all()


@dtypes
def test_opposite_extremes(dtype):
    """The difference overflows to -inf, not to NaN; the largest numbers alone may overflow, by log(cols)."""
    most = float(jnp.finfo(dtype).max)
    x = np.zeros((3, 40), oracle.storage(dtype))
    x[0, ::3], x[0, 1::3] = most, -most
    x[1], x[2, 0] = -most, most
    for results in check([x], dtype):
        _, y, dx, dy = map(oracle.widen, results)
        np.testing.assert_allclose(y[:, 0], [most, -most, most], rtol=1e-3)
        assert np.isfinite(dx).all()
        assert np.isfinite(dy).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_give_the_same_bits_whatever_the_batch(dtype):
    """Losses and gradients too. Few rows have several blocks each. Rows of whole cache lines apart begin alike."""

    @jax.jit
    def program(x, label):
        def loss(x):
            losses = jk.cross_entropy(x, label)
            return jnp.sum(losses**2), losses

        return jk.logsumexp(x, axis=-1), jax.grad(loss, has_aux=True)(x)

    for cols in (33, 1000, 5003, 50_003, 131_072) if cases.ON_GPU else (33, 1000, 50_003):
        x, label = jnp.asarray(cases.logits("normal", 72, cols, dtype)), np.arange(72) % cols
        of_all = jax.tree.leaves(program(x, label))
        for rows in (slice(0, 72), slice(0, 1), slice(0, 5), slice(64, 72)):
            for some, whole in zip(
                jax.tree.leaves(program(x[rows], label[rows])), of_all, strict=True
            ):
                np.testing.assert_array_equal(some, whole[rows])


@pytest.mark.usefixtures("on_a_cpu")
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
    oracle.check(y, "logsumexp_fwd", x, accumulators=4, wide=True)
    oracle.check(dx, "logsumexp_grad", x, dy, accumulators=4)
    oracle.check(tangents, "logsumexp_jvp", x, t, accumulators=4, wide=True)


def test_reverse_mode_runs_one_kernel():
    """The gradient needs x, and no result of the forward kernel."""
    gradient = jax.jit(lambda x, t: jax.vjp(lambda x: jk.logsumexp(x, -1), x)[1](t)[0])
    compiled = gradient.lower(jnp.ones((8, 24)), jnp.ones(8)).compile()
    assert hlo.operations(compiled.as_text()) == ["logsumexp_grad"]
