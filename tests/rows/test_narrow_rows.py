"""Short rows on a CPU: some are computed side by side, and no bit tells in which company."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jaxkernels as jk
from jaxkernels._rows import cross_entropy_kernels as kernels

# Around the longest rows in a lane of their own, 15, 20, 23, 24, 31 and 40 columns by dtype and operation,
# around rows of 2, 3 and 4 vectors, around a tile, 512, and around the longest of a half type that is widened once, 8192.
COLS = (1, 3, 15, 16, 20, 21, 23, 24, 25, 31, 32, 33, 40, 41, 48, 49, 64, 65, 512, 513, 8192, 8193)
# For losses these are 47, 199 and 255 columns. The buffer of kept terms holds several rows of 520
# columns, but one of 4100.
COLS_OF_LOSSES = (1, 3, 16, 47, 48, 199, 200, 255, 256, 520, 4100)
ROWS = 37  # two groups, and a part of one
OPTIONS = {"tier": "auto", "require_kernel": False}


@pytest.fixture(autouse=True)
def on_the_cpu(on_a_cpu):
    """Runs the tests on the CPU, even if there is a GPU."""


def mixed(cols, dtype):
    """Rows near 0 and far from it, with infinities and NaN, next to one another."""
    x = np.array(cases.logits("normal", ROWS, cols, "float32"))
    x[1::4] *= 300
    x[2::4] += 1000
    x[3::8, 0] = -np.inf
    x[5] = -np.inf
    x[9, cols // 2] = np.nan
    x[13, cols - 1] = np.inf
    return jnp.asarray(x, dtype)


@jax.jit
def results(x, t):
    y, pull = jax.vjp(jk.softmax, x)
    log_y, log_pull = jax.vjp(jk.log_softmax, x)
    sums = functools.partial(jk.logsumexp, axis=-1, keepdims=True)
    of_row, sums_pull = jax.vjp(sums, x)
    _, tangent = jax.jvp(sums, (x,), (t,))
    return y, pull(t)[0], log_y, log_pull(t)[0], of_row, sums_pull(t[:, :1])[0], tangent


@jax.jit
def losses(x, label):
    """Residuals and gradients of the kernels, with and without all sums: XLA's own arithmetic has other bits in a row alone."""
    coefficients = jnp.broadcast_to(
        jnp.asarray([0.7, 0.9, 0.02, 0.1], oracle.compute(x.dtype)), (len(x), 4)
    )
    found = []
    for all_sums in (False, True):
        kept = kernels.cross_entropy_fwd(x, label, all_sums=all_sums, **OPTIONS)
        found += [kept, kernels.cross_entropy_grad(x, label, kept, coefficients, **OPTIONS)]
        found += kernels.cross_entropy_fwd_grad(
            x, label, coefficients, all_sums=all_sums, **OPTIONS
        )
    return found


def bits(arrays):
    """As float64, with one NaN for all, and 0 and -0 apart."""
    wide = (np.asarray(a, np.float64) for a in arrays)
    return [np.where(np.isnan(a), np.nan, a).view(np.int64) for a in wide]


def check_bits(run, x, others):
    """Each row has the bits that it has alone, wherever it lies among the others."""
    among = bits(run(x, others))
    turned = bits(run(jnp.roll(x, 5, 0), jnp.roll(others, 5, 0)))
    for row in (0, 1, 2, 3, 4, 5, 9, 13, 15, 16, 33, ROWS - 1):
        alone = bits(run(x[row : row + 1], others[row : row + 1]))
        for one, many, other in zip(alone, among, turned, strict=True):
            np.testing.assert_array_equal(many[row], one[0])
            np.testing.assert_array_equal(np.roll(other, -5, 0)[row], one[0])


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("cols", COLS)
def test_a_row_has_its_bits_in_any_company(dtype, cols):
    with cases.x64(dtype):
        x, t = mixed(cols, dtype), cases.cotangents(ROWS, cols, dtype)
        check_bits(results, x, t)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("cols", COLS_OF_LOSSES)
def test_a_loss_has_its_bits_in_any_company(dtype, cols):
    with cases.x64(dtype):
        x = mixed(cols, dtype)
        labels = (jnp.arange(ROWS, dtype=jnp.int32) * 7) % cols
        check_bits(losses, x, labels.at[4].set(-1)[:, None])


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_values(dtype):
    """Every operation at every length, with rows near 0 and rows far from it in one array."""
    pairs = []
    with cases.x64(dtype):
        for cols in COLS:
            x = np.array(cases.logits("normal", ROWS, cols, "float32"))
            x[1::3] *= 30
            x[2::3] += 300
            pairs.append((jnp.asarray(x, dtype), cases.cotangents(ROWS, cols, dtype)))
        cases.check_all(pairs, dtype)
