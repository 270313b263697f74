"""Compares a result with the truth, element by element."""

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np


def storage(dtype: Any) -> np.dtype:
    """NumPy dtype of a storage type's name; bfloat16 included."""
    return np.dtype(jnp.dtype(dtype))


def compute(dtype: Any) -> np.dtype:
    """NumPy dtype that the kernels calculate with."""
    return np.dtype(np.float64 if dtype == "float64" else np.float32)


def widen(array: Any) -> np.ndarray:
    """The same values in the type of the truth."""
    array = np.asarray(array)
    return array.astype(np.longdouble if array.dtype == np.float64 else np.float64)


def total(values: np.ndarray) -> np.ndarray:
    """The sum of each row."""
    return np.sum(values, axis=-1, keepdims=True)


def finite(values: np.ndarray) -> np.ndarray:
    """The absolute values, 0 where they are infinite or NaN."""
    return np.where(np.isfinite(values), np.abs(values), 0)


def ratios(got: Any, want: Any, limit: Any) -> np.ndarray:
    """The error of every element in units of its bound.

    NaN, infinities and overflow of the storage type have to be exactly where the truth has them; otherwise the
    result is infinitely wrong there. The bound broadcasts against the truth, which has a wider type.

    Example:
        >>> ratios(np.float32([1.0, np.nan, 3.0]), np.array([1.5, np.nan, np.inf]), 1.0)
        array([0.5, 0. , inf])
    """
    got = np.asarray(got)
    wide = widen(got)
    # Values beyond half a unit after the largest number round to infinity.
    most = np.asarray(ml_dtypes.finfo(got.dtype).max, got.dtype)
    largest = widen(most) + widen(np.spacing(most / np.asarray(2, got.dtype)))
    with np.errstate(all="ignore"):
        # Here the truth is so near the end of the range that correct arithmetic may overflow or not.
        at_end = np.abs(np.abs(want) - largest) <= limit
        kept = np.where((np.abs(want) > largest) & ~at_end, np.copysign(np.inf, want), want)
        ratio = np.abs(wide - kept) / limit
    same = (wide == kept) | (np.isnan(wide) & np.isnan(kept))
    same |= at_end & (wide == np.copysign(np.inf, want))
    return np.where(same, 0, np.where(np.isnan(ratio), np.inf, ratio))
