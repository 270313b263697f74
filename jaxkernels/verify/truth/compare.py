"""A result held to the truth, element by element."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
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

    NaN, infinities and overflow of the storage type have to stand exactly where the truth has them; otherwise the
    result is infinitely wrong there. The bound broadcasts against the truth, which has a wider
    type.

    Example:
        >>> ratios(np.float32([1.0, np.nan, 3.0]), np.array([1.5, np.nan, np.inf]), 1.0)
        array([0.5, 0. , inf])
    """
    got = np.asarray(got)
    wide = widen(got)
    largest = _largest(got.dtype)
    with np.errstate(all="ignore"):
        # The truth is so near the end of the range that correct arithmetic may overflow or not.
        at_end = np.abs(np.abs(want) - largest) <= limit
        kept = np.where((np.abs(want) > largest) & ~at_end, np.copysign(np.inf, want), want)
        ratio = np.abs(wide - kept) / limit
    same = (wide == kept) | (np.isnan(wide) & np.isnan(kept))
    same |= at_end & (wide == np.copysign(np.inf, want))
    return np.where(same, 0, np.where(np.isnan(ratio), np.inf, ratio))


def largest_ratio(got: Any, want: Any, limit: Any) -> tuple[float, str]:
    """The largest of the `ratios`, and where it is."""
    got = np.asarray(got)
    ratio = ratios(got, want, limit)
    if ratio.size == 0:
        return 0.0, "empty"
    place = np.unravel_index(np.argmax(ratio), ratio.shape)
    index = tuple(int(i) for i in place)
    times = f"{float(ratio[place]):.3g} times the bound"
    return float(ratio[place]), f"at {index}: {got[place]!r}, truth {want[place]!r}, {times}"


def _largest(dtype: np.dtype) -> Any:
    """Values beyond this round to infinity."""
    largest = {
        "float16": 65520.0,
        "bfloat16": float.fromhex("0x1.ffp127"),
        "float64": np.finfo(np.longdouble).dtype.type(np.finfo(np.float64).max),
    }
    return largest.get(dtype.name, float.fromhex("0x1.ffffffp127"))
