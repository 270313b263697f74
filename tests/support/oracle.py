"""The truth of row operations on one array, from `jaxkernels.verify.truth`."""

import ml_dtypes
import numpy as np

from jaxkernels._core.validate import DTYPES as DTYPES
from jaxkernels.verify.truth.compare import compute as compute
from jaxkernels.verify.truth.compare import ratios
from jaxkernels.verify.truth.compare import storage as storage
from jaxkernels.verify.truth.compare import widen as widen
from jaxkernels.verify.truth.rows import EPSILON as EPSILON
from jaxkernels.verify.truth.rows import OPERATIONS as OPERATIONS
from jaxkernels.verify.truth.rows import TANGENTS as TANGENTS
from jaxkernels.verify.truth.rows import bounded


def truth(operation, *operands):
    """The result of an operation, without its bound."""
    return bounded(operation, *operands, accumulators=1).value


def row_scalars(t):
    """One number per row: the first of its (co)tangent, or 0 for rows of no elements."""
    return t[:, :1] if t.shape[-1] else np.zeros((len(t), 1), t.dtype)


def largest_ratio(got, want, limit):
    """The largest error of an element in units of its bound, and where it is."""
    got, ratio = np.asarray(got), ratios(got, want, limit)
    if ratio.size == 0:
        return 0.0, "empty"
    place = tuple(int(i) for i in np.unravel_index(np.argmax(ratio), ratio.shape))
    worst = float(ratio[place])
    text = f"at {place}: {got[place]!r}, truth {want[place]!r}, {worst:.3g} times the bound"
    return worst, text


def assert_within(got, want, limit, what=""):
    """Asserts that every element lies within its bound."""
    ratio, text = largest_ratio(got, want, limit)
    assert ratio <= 1, f"{what} {text}"


def check(got, operation, *operands, accumulators, **how):
    """Asserts that a result lies within its bound, and has its dtype and shape."""
    got = np.asarray(got)
    want, limit = bounded(operation, *operands, accumulators=accumulators, **how)
    assert got.dtype == operands[0].dtype, f"{operation}: {got.dtype}, not {operands[0].dtype}"
    assert got.shape == want.shape, f"{operation}: {got.shape}, not {want.shape}"
    assert_within(got, want, limit, f"{operation} {got.dtype} {got.shape}")


def ulps(got, want, smallest_scale=0.0):
    """Largest error in units in the last place of the storage type.

    Elements that are not finite, or not normal numbers in the truth, do not count: XLA's CPU threads flush subnormal
    ones to zero. Elements below `smallest_scale` are measured in its last place. A logarithm that cancels to nearly 0 is
    as exact as the terms that cancelled, which are of order 1; its own last place would measure luck.
    """
    got, size = np.asarray(got), np.maximum(np.abs(want), smallest_scale)
    with np.errstate(all="ignore"):
        least = float(ml_dtypes.finfo(got.dtype).smallest_normal)
        counted = np.isfinite(widen(got)) & np.isfinite(want) & (size >= least)
        error = np.abs(widen(got) - want) / np.spacing(size.astype(got.dtype)).astype(want.dtype)
    return float(np.max(np.where(counted, error, 0), initial=0))
