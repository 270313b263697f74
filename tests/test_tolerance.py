"""The tolerances accept correct arithmetic and reject planted mistakes, so that the other tests mean something."""

import cases
import numpy as np
import oracle
import pytest
import tolerance

ACCUMULATORS = 8  # NumPy's pairwise summation keeps eight


def operands_for(operation, kind, rows, cols, dtype):
    x = cases.logits(kind, rows, cols, dtype)
    if operation.endswith("_fwd"):
        return (x,)
    forward = "log_softmax_fwd" if operation.startswith("log") else "softmax_fwd"
    return oracle.model(forward, x), cases.cotangents(rows, cols, dtype)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("operation", oracle.OPERATIONS)
def test_accepts_correct_arithmetic(operation, dtype):
    for kind in cases.KINDS:
        for cols in (1, 2, 7, 64, 300, 4097):
            operands = operands_for(operation, kind, 8, cols, dtype)
            got = oracle.model(operation, *operands)
            tolerance.check(got, operation, *operands, accumulators=ACCUMULATORS)


PLANTED = [
    pytest.param(mistake, operation, dtype, id=f"{mistake}-{operation}-{dtype}".replace(" ", "_"))
    for mistake, (operations, dtypes) in oracle.MISTAKES.items()
    for operation in operations
    for dtype in dtypes
]


@pytest.mark.parametrize(("mistake", "operation", "dtype"), PLANTED)
def test_rejects_planted_mistake(mistake, operation, dtype):
    """Each mistake is seen on at least one kind of input at every size, not only on a lucky one."""
    for cols in (63, 300):
        ratios = []
        for kind in ("normal", "wide", "outliers", "offset"):
            operands = operands_for(operation, kind, 16, cols, dtype)
            got = oracle.model(operation, *operands, mistake=mistake)
            ratios.append(tolerance.worst(got, operation, *operands, accumulators=ACCUMULATORS)[0])
        assert max(ratios) > 1, f"{mistake!r} passes at cols={cols}: {ratios} times the bound"


def test_nan_and_infinity_have_to_stand_where_the_truth_has_them():
    x = cases.logits("normal", 4, 16, "float32")
    x[1, 3] = np.nan
    got = oracle.model("softmax_fwd", x)
    assert np.isnan(got[1]).all()
    tolerance.check(got, "softmax_fwd", x, accumulators=ACCUMULATORS)
    for wrong in (0.0, np.inf):
        spoiled = got.copy()
        spoiled[1, 3] = wrong
        assert tolerance.worst(spoiled, "softmax_fwd", x, accumulators=ACCUMULATORS)[0] == np.inf
    spoiled = got.copy()
    spoiled[0, 0] = np.nan
    assert tolerance.worst(spoiled, "softmax_fwd", x, accumulators=ACCUMULATORS)[0] == np.inf


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_ulps_counts_units_in_the_last_place(dtype):
    one = np.ones(3, oracle.storage(dtype))
    step = {"float32": 2**-23, "bfloat16": 2**-7, "float16": 2**-10, "float64": 2**-52}[dtype]
    assert tolerance.ulps(one, oracle.widen(one)) == 0
    assert tolerance.ulps(one, oracle.widen(one) + step) == 1
