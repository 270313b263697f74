"""Rows on a CPU: short ones are computed side by side, threads share few long ones, and both keep the bits."""

import functools
import os

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from rows_of_losses import check_kernels

import jaxkernels as jk
from jaxkernels._rows import cross_entropy_kernels as kernels
from jaxkernels._rows import masked, masked_kernels

pytestmark = pytest.mark.usefixtures("on_a_cpu")
# Around the longest rows in a lane of their own, 15, 20, 23, 24, 31 and 40 columns by dtype and operation,
# around rows of 2, 3 and 4 vectors, around a tile, 512, and around the longest of a half type that is widened once, 8192.
COLS = (1, 3, 15, 16, 20, 21, 23, 24, 25, 31, 32, 33, 40, 41, 48, 49, 64, 65, 512, 513, 8192, 8193)
# For losses these are 47, 199 and 255 columns. The buffer of kept terms holds several rows of 520
# columns, but one of 4100.
COLS_OF_LOSSES = (1, 3, 16, 47, 48, 199, 200, 255, 256, 520, 4100)
ROWS = 37  # two groups, and a part of one
OPTIONS = {"tier": "auto", "require_kernel": False}


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
def results(x, t, labels=None):
    y, pull = jax.vjp(jk.softmax, x)
    log_y, log_pull = jax.vjp(jk.log_softmax, x)
    sums = functools.partial(jk.logsumexp, axis=-1, keepdims=True)
    of_row, sums_pull = jax.vjp(sums, x)
    return y, pull(t)[0], log_y, log_pull(t)[0], of_row, sums_pull(t[:, :1])[0]


@jax.jit
def losses(x, label):
    """Residuals and gradients of the kernels themselves, because XLA's arithmetic has other bits in a row alone."""
    coefficients = jnp.array([0.7, 0.9, 0.02, 0.1], oracle.compute(x.dtype))
    coefficients, found = jnp.tile(coefficients, (len(x), 1)), []
    for all_sums in (False, True):
        options = OPTIONS | {"all_sums": all_sums}
        kept = kernels.cross_entropy_fwd(x, label, **options)
        found += [kept, kernels.cross_entropy_grad(x, label, kept, coefficients, **OPTIONS)]
        found += kernels.cross_entropy_fwd_grad(x, label, coefficients, **options)
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


# One segment, two with and without a rest, a last one that is nearly twice as long, segments of twice the size.
LONG_COLS = (32767, 32768, 32773, 49151, 300001, 4_194_304 + 7)
# More than any pool has threads.
MANY = 4 * (os.cpu_count() or 1)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("cols", LONG_COLS[:-1])
def test_values_of_long_rows(dtype, cols):
    """Every kernel, with kept terms and without, against the truth."""
    for kind in ("normal", "wide", "minus_inf") if cols == 32773 else ("normal",):
        pair = cases.logits(kind, 1, cols, dtype), cases.cotangents(1, cols, dtype)
        cases.check_all([pair], dtype, operations=oracle.OPERATIONS)


def of_scores(x, t, labels):
    """The mask shows nothing of the last segments."""
    cols = x.shape[-1]
    rng = np.random.default_rng(cols)
    mask = (rng.random((1, cols)) < 0.9) & (np.arange(cols) < cols // 2)
    bias = rng.standard_normal((1, cols)).astype(x.dtype)

    def softmax(x, mask=mask, bias=None):
        return masked.apply("test", x, mask, bias, scale=0.5, band=masked_kernels.Band())

    y, pull = jax.vjp(softmax, x)
    nothing = jnp.where(mask, 0, y), softmax(x, jnp.zeros((1, cols), bool))
    return y, pull(t)[0], softmax(x, None), softmax(x, mask, bias), *nothing


def of_losses(x, t, labels):
    def total(x, smoothing):
        return jk.cross_entropy(x, labels, label_smoothing=smoothing, reduction="sum")

    loss, pull = jax.vjp(lambda x: jk.cross_entropy(x, labels), x)
    return loss, pull(jnp.ones_like(loss))[0], jax.grad(total)(x, 0.0), jax.grad(total)(x, 0.1)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize(
    ("program", "cols"),
    [
        *((results, cols) for cols in LONG_COLS),
        *((of_scores, cols) for cols in LONG_COLS[:-1]),
        *((of_losses, cols) for cols in LONG_COLS[1:-1]),
    ],
)
def test_a_long_row_has_the_same_bits_alone_and_among_many(dtype, program, cols):
    rows = MANY if cols < 1_000_000 else min(MANY, 8)
    row = cases.logits("wide", 1, cols, dtype), cases.cotangents(1, cols, dtype)
    run = jax.jit(program)
    with cases.x64(dtype):
        for label in (0, 20000, cols - 1) if program is of_losses else (0,):
            labels = jnp.full(rows, label, jnp.int32)
            alone = run(*row, labels[:1])
            among = run(*(jnp.tile(a, (rows, 1)) for a in row), labels)
            assert program is not of_scores or not any(map(np.any, alone[-2:]))
            for one, many in zip(alone, among, strict=True):
                one, many = (np.asarray(a).view(f"u{a.dtype.itemsize}") for a in (one, many))
                assert (many == one).all()


def test_losses_of_long_rows():
    """Segments whose maxima lie far apart, or are near 0, or are -inf."""
    for dtype in ("float32", "bfloat16"):
        kinds = ("normal", "wide", "outliers", "offset", "minus_inf")
        xs = [cases.logits(kind, 1, 70001, dtype) for kind in kinds]
        steps = np.array(cases.logits("normal", 1, 70001, "float32"))
        steps[:, :20000] -= 400
        steps[:, 30000:] += 300
        check_kernels([*xs, jnp.asarray(steps, dtype)], dtype)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 20000, 70000])
def test_special_values_in_any_segment(special, place):
    x = np.zeros((1, 70001), np.float32)
    x[0, place] = special
    got, want = jk.softmax(x), jax.nn.softmax(x)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(jk.logsumexp(x, axis=-1), jax.nn.logsumexp(x, axis=-1), rtol=1e-6)


EDGES = (250.0, -250.0, *(np.nextafter(np.float32(e), np.float32(2 * e)) for e in (250, -250)))


@pytest.mark.parametrize("largest", [0.0, 0.35, -0.34, 1.04, 249.9, -249.9])
def test_results_near_the_smallest_normal_number(largest):
    """None that is normal is 0; the terms of float32 rows near 0 have another factor than the results."""
    below = np.linspace(-88, -86.5, 400, dtype=np.float32)
    x = np.concatenate([[largest], largest + below, np.full(200, -np.inf)]).astype(np.float32)[None]
    want = np.exp(x.astype(np.float64) - x.max())
    want /= want.sum()
    is_normal = want > 1.0001 * np.finfo(np.float32).tiny
    got = np.asarray(jk.softmax(x))
    np.testing.assert_allclose(got[is_normal], want[is_normal], rtol=1e-6)


@pytest.mark.parametrize("edge", EDGES)
def test_both_ways_to_an_exponential(edge):
    """Terms of float32 rows near 0 are not made of a difference: where the ways meet both are right."""
    x = cases.logits("normal", 3, 1001, "float32") * 20
    x += edge - x.max(axis=-1, keepdims=True)
    x[:, 5] = edge
    cases.check_all([(x, cases.cotangents(3, 1001, "float32"))], "float32")
