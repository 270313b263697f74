"""Results held to the truth of `rows`, whose bounds `bounded` derives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from jaxkernels.verify.truth.bounded import PRECISION as PRECISION
from jaxkernels.verify.truth.compare import compute, largest_ratio, widen
from jaxkernels.verify.truth.rows import bounded


def check(got: Any, operation: str, *operands: Any, accumulators: int, wide: bool = False) -> None:
    """Asserts that a result lies within its bound, and has its dtype and shape."""
    got = np.asarray(got)
    dtype = compute(operands[0].dtype.name) if wide else operands[0].dtype
    want, limit = bounded(operation, *operands, accumulators=accumulators, wide=wide)
    assert got.dtype == dtype, f"{operation}: {got.dtype}, not {dtype}"
    assert got.shape == want.shape, f"{operation}: {got.shape}, not {want.shape}"
    ratio, place = largest_ratio(got, want, limit)
    assert ratio <= 1, f"{operation} {got.dtype} {got.shape} {place}"


def ulps(got: Any, want: Any, smallest_scale: float = 0.0) -> float:
    """Largest error in units in the last place of the storage type.

    Elements that are not finite, or not normal numbers in the truth, do not count: XLA's CPU
    threads flush subnormal ones to zero. Elements below `smallest_scale` are measured in its last
    place. A logarithm that cancels to nearly 0 is as exact as the terms that cancelled, which are
    of order 1; its own last place would measure luck.
    """
    got = np.asarray(got)
    limits = ml_dtypes.finfo(got.dtype)
    digits, least = limits.nmant + 1, limits.minexp
    wide, size = widen(got), np.maximum(np.abs(want), smallest_scale)
    with np.errstate(all="ignore"):
        counted = np.isfinite(wide) & np.isfinite(want) & (size >= np.exp2(least, dtype=want.dtype))
        exponent = np.floor(np.log2(np.where(counted, size, 1), dtype=want.dtype))
        error = np.abs(wide - want) / np.exp2(exponent - (digits - 1), dtype=want.dtype)
    return float(np.max(np.where(counted, error, 0), initial=0))
