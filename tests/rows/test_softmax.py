"""Values of softmax and log_softmax against the truth."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from row_parts_cases import in_parts

import jaxkernels as jk
from jaxkernels._rows.softmax import log_softmax_fwd, log_softmax_grad

FORWARD = ("softmax_fwd", "log_softmax_fwd")


@cases.tiers
@cases.dtypes
def test_largest_finite_values(dtype, tier):
    """The difference of opposite extremes overflows to -inf, not to NaN; sums of the largest may overflow, by log(cols)."""
    most, pairs = float(jnp.finfo(dtype).max), []
    for cols in (1, 2, 7, 40, 64, 257, 1030, cases.LONG):
        x = np.zeros((4, cols), oracle.storage(dtype))
        x[0, ::3], x[0, 1::3] = most, -most
        x[1], x[2], x[3, 0] = most, -most, most
        if cases.serves(tier, x.shape, dtype):
            pairs.append((x, cases.cotangents(*x.shape, dtype)))
    operations = (*FORWARD, "logsumexp_fwd", "logsumexp_grad", "logsumexp_jvp")
    cases.check_all(pairs, dtype, tier, operations)


@cases.dtypes
def test_subnormal_results(dtype):
    """Quotients around the end of the exponent range: float16 keeps its subnormals, no type makes garbage of them."""
    low, high = {"float16": (-18, -8), "float64": (-746, -700)}.get(dtype, (-105, -80))
    x = np.concatenate([[0.0], np.linspace(low, high, 254)])[None].astype(oracle.storage(dtype))
    cases.check_all([(x, x)], dtype, operations=("softmax_fwd",))
    if dtype == "float16":
        y = np.asarray(jk.softmax(x))
        subnormal = (y > 0) & (y < np.finfo(np.float16).tiny)
        assert subnormal.sum() > 50


@cases.tiers
@cases.dtypes
def test_what_is_far_below_the_maximum_is_zero(dtype, tier):
    """Exactly, so that the gradient of what a bias of finfo.min has hidden is."""
    for cols in (37, 1001, 40000):
        if not cases.serves(tier, (2, cols), dtype):
            continue
        x = cases.logits("normal", 2, cols, dtype)
        x[0, : cols // 2] = -1000
        x[1, cols // 2 :] = float(jnp.finfo(dtype).min)
        with cases.x64(dtype):
            y = np.asarray(jk.softmax(x, tier=tier), np.float64)
        assert (y[0, : cols // 2] == 0).all()
        assert (y[1, cols // 2 :] == 0).all()


AGAINST = [
    *((operation, dtype) for operation in FORWARD for dtype in oracle.DTYPES),
    *(("logsumexp_fwd", dtype) for dtype in ("float32", "bfloat16")),
]


@pytest.mark.half_on_a_cpu
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(("operation", "dtype"), AGAINST)
def test_error_is_never_worse_than_jax_nn(operation, dtype):
    """Largest error over the array in units in the last place, ours against jax.nn's, on the same input.

    Largest errors of two right implementations differ by luck: each has an exponential and a division (or a logarithm
    and a difference) of half a unit or more behind it. So one unit is a tie, and no more is allowed. A logarithm near 0
    is a difference: it is measured in the last place of numbers of order 1.
    """
    name, given = operation.removesuffix("_fwd"), {"axis": -1}
    given |= {"keepdims": True} if name == "logsumexp" else {}
    functions = [functools.partial(getattr(of, name), **given) for of in (jk, jax.nn)]
    for kind in ("normal", "wide", "outliers", "offset", "equal"):
        for rows, cols in ((64, 10), (64, 128), (16, 1000), (4, 32768)):
            x = cases.logits(kind, rows, cols, dtype, seed=7)
            with cases.x64(dtype):
                ours, theirs = (np.asarray(jax.jit(f)(x)) for f in functions)
            want = oracle.truth(operation, x)
            scale = 0.0 if operation == "softmax_fwd" else 1.0
            error, peer = (oracle.ulps(y, want, scale) for y in (ours, theirs))
            assert error <= peer + 1, f"{kind} {x.shape}: {error:.2f} ulp, jax.nn {peer:.2f} ulp"


@pytest.mark.parametrize("kind", ["normal", "offset"])
@pytest.mark.parametrize("cols", [24_576, 50_257, 131_072])
def test_long_float32_rows_lose_little_where_their_parts_meet(kind, cols):
    """Sums keep what they lose to rounding where parts of a row meet. Without that other such rows erred by 4.1 to 5.5."""
    x = cases.logits(kind, 32, cols, "float32", seed=3)
    y = np.asarray(jax.jit(jk.softmax)(x))
    assert oracle.ulps(y, oracle.truth("softmax_fwd", x)) < 4.25


@pytest.mark.xdist_group("large arrays")
@pytest.mark.parametrize(
    ("operation", "cols", "tier"),
    [
        (operation, cols, tier)
        for cols, tier in (
            *((1024, "warp"), (1001, "block_smem"), (16384, "block_smem")),
            *((151935, None), (524288, None)),
        )
        for operation in ("softmax_fwd", "softmax_grad", "logsumexp_fwd")
        if operation != "logsumexp_fwd" or tier != "block_smem"  # its rows need no shared memory
    ],
)
def test_more_than_two_to_the_31_elements(gpu, operation, cols, tier):
    """Offsets are 64-bit: rows on both sides of element 2^31, and the last one, are right; and all rows sum up."""
    rows = 2**31 // cols + 3
    if (gpu.memory_stats() or {}).get("bytes_limit", 2**34) < 30e9:
        from conftest import skip_or_fail

        skip_or_fail("this GPU has less than 30 GB")
    probe = np.unique(np.r_[0, 1, rows // 2, rows - 6 : rows])
    x = jax.random.normal(jax.random.key(0), (rows, cols), jnp.bfloat16)
    lanes = cases.accumulators(operation, x.shape, "bfloat16", tier)
    if operation == "logsumexp_fwd":
        t = jax.random.normal(jax.random.key(1), (rows,), jnp.bfloat16)
        y, pull = jax.vjp(functools.partial(jk.logsumexp, axis=-1, tier=tier), x)
        x, t, y, dx = (np.asarray(a[probe]) for a in (x, t, y, pull(t)[0]))
        oracle.check(y[:, None], operation, x, accumulators=lanes)
        oracle.check(dx, "logsumexp_grad", x, t[:, None], accumulators=lanes)
        return
    y = jk.softmax(x, tier=tier)
    if operation == "softmax_fwd":
        oracle.check(np.asarray(y[probe]), operation, np.asarray(x[probe]), accumulators=lanes)
        sums = jnp.sum(y, axis=-1, dtype=jnp.float32)
        assert float(jnp.max(jnp.abs(sums - 1))) < 2.0**-8  # every y is rounded by at most that
        return
    dx = jax.jit(lambda x, t: jax.vjp(functools.partial(jk.softmax, tier=tier), x)[1](t)[0])(x, x)
    operands = np.asarray(y[probe]), np.asarray(x[probe])
    oracle.check(np.asarray(dx[probe]), operation, *operands, accumulators=lanes)


@pytest.mark.parametrize("cols", [2, 3000], ids=["warp", "block_smem"])
def test_exponentials_of_doubles_at_their_edges(cols):
    """Edges: the range reduction changes its multiple of log 2, or the result is no normal number."""
    halves = np.log(2) * (np.arange(0, 1022, 97) + 0.5)
    edges = [708.39, 708.3964, 708.397, 709.0, 744.0, 745.2, 1e300, np.inf, 0.0]
    far = -np.concatenate([edges, *(np.nextafter(halves, h) for h in (0, np.inf)), halves])
    x = np.full((far.size, cols), -np.inf)
    x[:, 0], x[:, 1] = 0, far
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(jk.softmax)(x))[:, 1]
    term = np.exp(far.astype(np.longdouble))
    want = (term / (1 + term)).astype(np.float64)
    normal = want >= np.finfo(np.float64).tiny * (1 + 1e-12)
    assert (got[want < np.finfo(np.float64).tiny * (1 - 1e-12)] == 0).all()
    ulps = np.abs(got - want)[normal] / np.spacing(want[normal])
    assert ulps.max() <= 4


# log_softmax near 0: where all others together have the probability 1e-9, the largest has -1e-9, not 0.
# float32 and float64: half types sum all terms, and near 0 they err by about 2^-24.
MOST_ULPS = 4
# The sum of the exponentials of the other elements of a row, where the largest one has 1.
RESTS = np.array([0.5, *np.logspace(-4, -12, 9), 1e-20, 1e-30])
# Rows of some lanes, of a warp, of a block, of several; aligned and not.
COLS = (2, 7, 33, 100, 128, 1000, 2049, 4096, 20001, 32768, 100000)
exact = pytest.mark.parametrize("dtype", ["float32", "float64"])


def won_rows(cols, dtype, ties=0):
    """Rows that one element wins, at a random position, or that it shares with `ties` others."""
    rng = np.random.default_rng([cols, ties])
    x = np.log(rng.uniform(0.1, 2, (len(RESTS), cols)) * RESTS[:, None] / cols)
    for row in x:
        row[rng.permutation(cols)[: 1 + ties]] = 0
    return (x + rng.uniform(-3, 3, (len(x), 1))).astype(dtype)


def random_rows(cols):
    """Random rows of several spreads, rounded to float32."""
    rng = np.random.default_rng(cols)
    shape = (max(4, 20000 // cols), cols)
    normal, uniform = rng.standard_normal(shape), rng.uniform(0, 80, shape)
    return [x.astype(np.float32) for x in (normal, 10 * normal, 30 * normal, uniform)]


def check(y, x):
    error = oracle.ulps(y, oracle.truth("log_softmax_fwd", x))
    assert error <= MOST_ULPS, f"{x.dtype} {x.shape}: {error:.2f} ulp"


FORMS = {
    "kernels": jk.log_softmax,
    "parts": functools.partial(in_parts, "log_softmax_fwd"),
    "plain JAX": log_softmax_fwd.reference,
}
FORMS |= {tier: functools.partial(jk.log_softmax, tier=tier) for tier in cases.TIERS[1:]}


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("form", FORMS)
@exact
def test_rows_near_zero(dtype, form):
    """Rows that are won, and random ones. The fallback in plain JAX is as exact as the kernels."""
    tier = form if form in cases.TIERS else None
    served = [cols for cols in COLS if cases.serves(tier, (len(RESTS), cols), dtype)]
    groups = [[won_rows(cols, dtype, ties) for cols in served] for ties in (0, 1)]
    if dtype == "float32":
        served = [c for c in (100, 1003, 10000, 100000) if cases.serves(tier, (4, c), dtype)]
        groups += zip(*map(random_rows, served), strict=True)
    program = jax.jit(lambda xs: [FORMS[form](x) for x in xs])
    # Arrays of the same shapes, so that a program serves several groups.
    for xs in map(list, groups):
        with cases.x64(dtype):
            results = jax.device_get(program(xs))
        for y, x in zip(results, xs, strict=True):
            check(y, x)


@pytest.mark.usefixtures("optimized")
@exact
def test_rows_near_zero_over_eight_devices(dtype, line):
    """One device has the maximum, or two have it; terms relative to the maxima of the others join them."""
    sharding = NamedSharding(line, P(None, "a"))
    xs = [won_rows(cols, dtype, ties) for cols in (8, 4096) for ties in (0, 1)]
    if dtype == "float32":
        xs += [x for cols in (104, 10000) for x in random_rows(cols)]
    function = jax.jit(jk.log_softmax, in_shardings=sharding, out_shardings=sharding)
    with cases.x64(dtype):
        for x in xs:
            check(np.asarray(function(jax.device_put(x, sharding))), x)


@exact
def test_the_derivative_in_plain_jax(dtype):
    with cases.x64(dtype):
        x, t = won_rows(33, dtype, ties=1), cases.cotangents(len(RESTS), 33, dtype)
        y, pull = jax.vjp(log_softmax_fwd.reference, jnp.asarray(x))
        np.testing.assert_allclose(
            pull(jnp.asarray(t))[0], log_softmax_grad.reference(y, t), rtol=1e-5, atol=1e-5
        )


@exact
def test_elements_that_almost_tie(dtype):
    """Their terms round to 1, as that of the maximum is."""
    x = np.array([[1e-10, 0, -30], [0, -1e-9, -1e-10], [3, 3, 3], [1e-30, 0, -np.inf]], dtype)
    with cases.x64(dtype):
        check(np.asarray(jk.log_softmax(x)), x)
