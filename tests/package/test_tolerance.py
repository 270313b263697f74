"""The tolerances accept correct arithmetic and reject planted mistakes, so that the other tests mean something."""

import cases
import gemm_cases
import numpy as np
import oracle
import pytest

from jaxkernels.verify.truth import tolerance


def test_nan_and_infinity_have_to_stand_where_the_truth_has_them():
    x = cases.logits("normal", 4, 16, "float32")
    x[1, 3] = np.nan
    got = oracle.truth("softmax_fwd", x).astype(np.float32)
    assert np.isnan(got[1]).all()
    tolerance.check(got, "softmax_fwd", x, accumulators=8)
    for place, wrong in (((1, 3), 0.0), ((1, 3), np.inf), ((0, 0), np.nan)):
        spoiled = got.copy()
        spoiled[place] = wrong
        assert tolerance.worst(spoiled, "softmax_fwd", x, accumulators=8)[0] == np.inf


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_ulps_counts_units_in_the_last_place(dtype):
    one = np.ones(3, oracle.storage(dtype))
    step = {"float32": 2**-23, "bfloat16": 2**-7, "float16": 2**-10, "float64": 2**-52}[dtype]
    assert tolerance.ulps(one, oracle.widen(one)) == 0
    assert tolerance.ulps(one, oracle.widen(one) + step) == 1


def _tf32(x):
    """Rounds to the 11 significant bits that a tensor core takes of a float32."""
    bits = x.view(np.uint32) + np.uint32(1 << 12)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


# Mistakes of a matrix product, as functions of (a, b, c) with alpha = 0.5 and beta = 2.
PRODUCT_MISTAKES = {
    "last k lost": lambda a, b, c: 0.5 * (a[:, :-1] @ b[:-1]) + 2 * c,
    "k counted twice": lambda a, b, c: 0.5 * (a @ b + a[:, -1:] @ b[-1:]) + 2 * c,
    "neighbour's column at the edge": lambda a, b, c: (
        0.5 * (a @ np.concatenate([b[:, :-1], b[:, -2:-1]], 1)) + 2 * c
    ),
    "neighbour's row at the edge": lambda a, b, c: (
        0.5 * (np.concatenate([a[:-1], a[-2:-1]]) @ b) + 2 * c
    ),
    "TF32": lambda a, b, c: 0.5 * (_tf32(a) @ _tf32(b)) + 2 * c,
    "no alpha": lambda a, b, c: a @ b + 2 * c,
    "no beta": lambda a, b, c: 0.5 * (a @ b) + c,
    "C left out": lambda a, b, c: 0.5 * (a @ b),
    "C added twice": lambda a, b, c: 0.5 * (a @ b) + 4 * c,
}


def test_whole_numbers_notice_mistakes_at_any_depth():
    """The bound cannot: at 65536 terms it exceeds one term. TF32 keeps whole numbers exactly."""
    k = 65536
    a, b = (
        gemm_cases.operand("integers", (33, k)),
        gemm_cases.operand("integers", (k, 35), seed=1),
    )
    c = gemm_cases.operand("integers", (33, 35), seed=2)
    want = gemm_cases.bounded(a, b, c, 0.5, 2.0).value
    assert np.array_equal(np.float32(0.5) * (a @ b) + 2 * c, want)
    for name, mistake in PRODUCT_MISTAKES.items():
        assert np.array_equal(mistake(a, b, c), want) == (name == "TF32"), name


@pytest.mark.parametrize(
    ("kind", "k"),
    [("normal", 4), ("normal", 64), ("normal", 1000), ("wide", 4), ("wide", 64), ("outliers", 64)],
)
def test_bound_of_products_notices_mistakes(kind, k):
    a, b = gemm_cases.operand(kind, (33, k)), gemm_cases.operand(kind, (k, 35), seed=1)
    c = gemm_cases.operand(kind, (33, 35), seed=2)
    right = np.float32(0.5) * (a @ b) + 2 * c
    assert gemm_cases.worst(right, a, b, c, 0.5, 2.0)[0] <= 1
    for name, mistake in PRODUCT_MISTAKES.items():
        wrong = mistake(a, b, c).astype(np.float32)
        assert gemm_cases.worst(wrong, a, b, c, 0.5, 2.0)[0] > 1, name
