"""Values of the rung `thin`: few lines, or few k. On a CPU the same products are XLA's."""

import functools
import itertools

import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk

ALGORITHM = "thin" if cases.ON_GPU else None
transposes = pytest.mark.parametrize(
    ("trans_a", "trans_b"), cases.TRANSPOSES, ids=("NN", "NT", "TN", "TT")
)
kinds = pytest.mark.parametrize("kind", cases.EDGES_OF_THIN)
# A product for each form and each layout of the operands, with lines that are whole packs and that are not.
FORMS = (
    (4, 260, 1028),
    (259, 3, 1027),
    (1, 1001, 4099),
    (516, 1, 200),
    (130, 132, 32),
    (67, 129, 45),
)
# (batch, m, n, k) of few k: one stage of k and several, whole tiles and not, many columns and few. Stored rows
# lie multiples of 8 bytes apart, or of 16.
SLICED = (
    *((3, 66, 62, 62), (1, 514, 142, 34), (2, 258, 30, 6), (1, 1026, 14, 98)),
    *((1, 2050, 2, 2), (9, 34, 6, 38), (1, 2, 1030, 50)),
    *((3, 68, 64, 60), (1, 516, 144, 36), (1, 2052, 4, 4), (1, 4, 1032, 52)),
)


@kinds
def test_edges(kind):
    """Results that end within what a block, a warp and a thread have, with C and without."""
    cases.check_all(cases.edge_products(cases.EDGES_OF_THIN[kind]), ALGORITHM)


@transposes
def test_small_sizes(trans_a, trans_b):
    """Few lines by few k, 0 among them, around 4 and 16."""
    problems = []
    sizes = (0, 1, 2, 3, 4, 5, 15, 16, 17, 33) if cases.ON_GPU else (0, 1, 3, 17)
    for index, (m, n, k) in enumerate(itertools.product(sizes, repeat=3)):
        a = cases.operand("normal", (m, k), seed=index)
        b = cases.operand("normal", (k, n), seed=index + 1)
        problems.append((a, b, None, {"trans_a": trans_a, "trans_b": trans_b}))
    for first in range(0, len(problems), 250):
        cases.check_all(problems[first : first + 250], ALGORITHM)


@transposes
@pytest.mark.parametrize("shape", FORMS, ids=str)
def test_whole_numbers_are_exact(shape, trans_a, trans_b):
    """A term that is missing, or there twice, is within the bound of a deep sum."""
    m, n, k = shape
    a, b = cases.operand("integers", (3, m, k)), cases.operand("integers", (3, k, n), seed=1)
    c = cases.operand("integers", (3, m, n), seed=2)
    flags = {"trans_a": trans_a, "trans_b": trans_b, "alpha": -0.5, "beta": 3.0}
    stored = cases.stored(a, trans_a), cases.stored(b, trans_b)
    got = jk.sgemm(*stored, c, algorithm=ALGORITHM, **flags)
    assert np.array_equal(got, cases.truth(a, b, c, -0.5, 3.0))


@transposes
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_slices(offset, trans_a, trans_b):
    """Operands that XLA hands over in place, between NaN, and that begin anywhere within 16 bytes."""
    for batch, m, n, k in SLICED:
        a, b = cases.operand("integers", (batch, m, k)), cases.operand("integers", (batch, k, n))
        stored_a, stored_b = cases.stored(a, trans_a), cases.stored(b, trans_b)
        first_a = 4 + offset
        first_b = first_a + a.size + 4 + -a.size % 4  # as far from a multiple of 16 bytes
        flat = np.full(first_b + b.size + 4, np.nan, np.float32)
        flat[first_a:][: a.size], flat[first_b:][: b.size] = stored_a.ravel(), stored_b.ravel()

        @jax.jit
        def product(x, firsts=(first_a, first_b), shapes=(stored_a.shape, stored_b.shape)):
            operands = (
                jax.lax.dynamic_slice(x, (first,), (np.prod(shape),)).reshape(shape)
                for first, shape in zip(firsts, shapes, strict=True)
            )
            return jk.sgemm(*operands, trans_a=trans_a, trans_b=trans_b, algorithm=ALGORITHM)

        assert np.array_equal(product(flat), cases.truth(a, b)), (batch, m, n, k)


@transposes
@pytest.mark.parametrize("shape", FORMS, ids=str)
def test_nan_and_infinity_stay_in_their_rows_and_columns(shape, trans_a, trans_b):
    m, n, k = shape
    a, b = cases.operand("normal", (2, m, k)), cases.operand("normal", (2, k, n), seed=1)
    a[0], b[0] = np.nan, np.inf  # the neighbour in memory
    a[1, m - 1, k - 1], b[1, 0, n - 1] = np.inf, np.nan
    stored = cases.stored(a, trans_a), cases.stored(b, trans_b)
    got = np.asarray(jk.sgemm(*stored, trans_a=trans_a, trans_b=trans_b, algorithm=ALGORITHM))
    cases.check(got[1:], a[1:], b[1:])
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1]).sum() == (m - 1) * (n - 1)


@pytest.mark.parametrize("kind", ["wide", "outliers"])
@pytest.mark.parametrize("shape", FORMS, ids=str)
def test_kinds_of_input(kind, shape):
    m, n, k = shape
    a, b = cases.operand(kind, (m, k)), cases.operand(kind, (k, n), seed=1)
    cases.check(jk.sgemm(a, b, algorithm=ALGORITHM), a, b)


@transposes
@pytest.mark.parametrize("algorithm", [None, "thin"])
@pytest.mark.parametrize("shape", FORMS, ids=str)
def test_a_member_gets_the_bits_that_it_has_alone(gpu, shape, algorithm, trans_a, trans_b):
    m, n, k = shape
    a = cases.stored(cases.operand("normal", (40, m, k)), trans_a)
    b = cases.stored(cases.operand("normal", (40, k, n), seed=1), trans_b)
    product = functools.partial(jk.sgemm, trans_a=trans_a, trans_b=trans_b, algorithm=algorithm)
    together = np.asarray(product(a, b))
    for member in (0, 39):
        alone = np.asarray(product(a[member], b[member]))
        assert alone.tobytes() == together[member].tobytes()


@pytest.mark.parametrize(
    "shape",
    [(130, 132, 32), (67, 129, 45), (513, 16, 64), (1, 300, 7), (700, 3, 50), (1, 515, 33)],
)
def test_few_k_have_the_bits_of_pipelined(gpu, shape):
    """So that a batch may choose the rung: both sum in the order of k, one term after the other."""
    m, n, k = shape
    a, b = cases.operand("normal", (m, k)), cases.operand("normal", (k, n), seed=1)
    c = cases.operand("normal", (m, n), seed=2)
    thin, pipelined = (
        np.asarray(jk.sgemm(a, b, c, alpha=0.3, beta=0.7, algorithm=rung))
        for rung in ("thin", "pipelined")
    )
    assert thin.tobytes() == pipelined.tobytes()


def test_repeats_bit_for_bit(gpu):
    """Blocks that share k add up in one order."""
    for m, n, k in ((1024, 1, 65536), (16, 16, 65536), (4, 1000, 4096)):
        for trans_a, trans_b in cases.TRANSPOSES:
            a = jnp.asarray(cases.stored(cases.operand("wide", (m, k)), trans_a))
            b = jnp.asarray(cases.stored(cases.operand("wide", (k, n)), trans_b))
            product = functools.partial(jk.sgemm, trans_a=trans_a, trans_b=trans_b)
            first = np.asarray(product(a, b, algorithm="thin")).tobytes()
            for _ in range(5):
                assert np.asarray(product(a, b, algorithm="thin")).tobytes() == first
