"""log_softmax near 0: where all others together have the probability 1e-9, the largest has -1e-9, not 0.

float32 and float64. Half types sum all terms: near 0 they err by about 2^-24, but for short rows on a CPU.
"""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from row_parts_cases import in_parts

import jaxkernels as jk
from jaxkernels._rows import reference
from jaxkernels.verify.truth import tolerance

MOST_ULPS = 4
# All that else is won by: the sum of the exponentials of the other elements of a row.
RESTS = np.array([0.5, *np.logspace(-4, -12, 9), 1e-20, 1e-30])
# Rows of some lanes, of a warp, of a block, of several; aligned and not.
COLS = (2, 7, 33, 100, 128, 1000, 2049, 4096, 20001, 32768, 100000)
EXACT = ("float32", "float64")
dtypes = pytest.mark.parametrize("dtype", EXACT)


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
    error = tolerance.ulps(y, oracle.truth("log_softmax_fwd", x))
    assert error <= MOST_ULPS, f"{x.dtype} {x.shape}: {error:.2f} ulp"


FORMS = {
    "kernels": jk.log_softmax,
    "parts": functools.partial(in_parts, "log_softmax_fwd"),
    "plain JAX": reference.log_softmax_fwd,
}
FORMS |= {tier: functools.partial(jk.log_softmax, tier=tier) for tier in cases.TIERS[1:]}


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("form", FORMS)
@dtypes
def test_rows(dtype, form):
    """Rows that are won, and random ones. The fallback in plain JAX is as exact as the kernels."""
    tier = form if form in cases.TIERS else None
    served = [cols for cols in COLS if cases.serves(tier, (len(RESTS), cols), dtype)]
    xs = [won_rows(cols, dtype, ties) for cols in served for ties in (0, 1)]
    if dtype == "float32":
        served = [c for c in (100, 1003, 10000, 100000) if cases.serves(tier, (4, c), dtype)]
        xs += [x for cols in served for x in random_rows(cols)]
    with cases.x64(dtype):
        results = jax.device_get(jax.jit(lambda xs: [FORMS[form](x) for x in xs])(xs))
    for y, x in zip(results, xs, strict=True):
        check(y, x)


@pytest.mark.usefixtures("optimized")
@dtypes
def test_rows_over_eight_devices(dtype, cpu_devices):
    """One device has the maximum, or two have it; terms relative to the maxima of the others join them."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)
    sharding = NamedSharding(mesh, P(None, "a"))
    xs = [won_rows(cols, dtype, ties) for cols in (8, 4096) for ties in (0, 1)]
    if dtype == "float32":
        xs += [x for cols in (104, 10000) for x in random_rows(cols)]
    function = jax.jit(jk.log_softmax, in_shardings=sharding, out_shardings=sharding)
    with cases.x64(dtype):
        for x in xs:
            check(np.asarray(function(jax.device_put(x, sharding))), x)


@dtypes
def test_the_derivative_in_plain_jax(dtype):
    with cases.x64(dtype):
        x, t = won_rows(33, dtype, ties=1), cases.cotangents(len(RESTS), 33, dtype)
        y, pull = jax.vjp(reference.log_softmax_fwd, jnp.asarray(x))
        np.testing.assert_allclose(
            pull(jnp.asarray(t))[0], reference.log_softmax_grad(y, t), rtol=1e-5, atol=1e-5
        )


@dtypes
def test_elements_that_almost_tie(dtype):
    """Their terms round to 1, as that of the maximum is."""
    x = np.array([[1e-10, 0, -30], [0, -1e-9, -1e-10], [3, 3, 3], [1e-30, 0, -np.inf]], dtype)
    with cases.x64(dtype):
        check(np.asarray(jk.log_softmax(x)), x)
