"""The row operations of one array in exact arithmetic, but for the roundings of a much wider type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxkernels.verify.truth.compare import total, widen

EPSILON = 1e-6  # of rms_norm, by default
DTYPES = ("float32", "bfloat16", "float16", "float64")


def is_forward(operation: str) -> bool:
    """Whether an operation is a function of x alone."""
    return operation.endswith("_fwd")


def is_log_sum_exp(operation: str) -> bool:
    """Whether it is one of those of logsumexp, whose derivatives read x instead of y."""
    return operation.startswith("logsumexp")


def is_rms_norm(operation: str) -> bool:
    """Whether it is one of those of rms_norm, which take a scale of the columns."""
    return operation.startswith("rms_norm")


def reads_x_for_y(operation: str, dtype: np.dtype) -> bool:
    """Whether it is a derivative of log_softmax that reads x, because y is rounded to 16 bits."""
    return operation in ("log_softmax_grad", "log_softmax_jvp") and dtype.itemsize == 2


def truth(operation: str, *operands: Any, epsilon: float = EPSILON) -> np.ndarray:
    """The result of an operation along the last axis.

    The operands are x, or y (logsumexp, 16-bit log_softmax: x) and the (co)tangent, in the storage
    type, (..., cols). The cotangent of logsumexp and the results of logsumexp_fwd and logsumexp_jvp
    have the shape (..., 1). The operands of rms_norm are x, the scale (cols,) and the (co)tangent.

    Example:
        >>> truth("softmax_fwd", np.zeros((1, 2), np.float32))
        array([[0.5, 0.5]])
    """
    with np.errstate(all="ignore"):
        kept, *others = (widen(a) for a in operands)
        if reads_x_for_y(operation, operands[0].dtype):
            kept = _log_softmax_fwd(kept)
        if is_rms_norm(operation):
            return _rms_norm(operation, kept, *others, epsilon=epsilon)
        return _TRUTHS[operation](kept, *others)


def _shifted(x: np.ndarray) -> np.ndarray:
    return x - np.max(x, axis=-1, keepdims=True, initial=-np.inf)


def _softmax_fwd(x: np.ndarray) -> np.ndarray:
    e = np.exp(_shifted(x))
    return e / total(e)


def _log_softmax_fwd(x: np.ndarray) -> np.ndarray:
    # Terms of the maximum are counted apart: added to them, small ones would be lost.
    d = _shifted(x)
    is_largest = d == 0
    rest = total(np.where(is_largest, 0, np.exp(d)))
    return d - np.log1p(rest + (total(is_largest) - 1))


def log_sum_exp_terms(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The maximum where it is finite, and the exponentials of x relative to it.

    If the maximum is +inf, terms are relative to the largest number, and those of finite x vanish.
    """
    largest = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
    relative_to = np.clip(np.where(largest == -np.inf, 0, largest), None, np.finfo(x.dtype).max)
    return relative_to, np.exp(x - relative_to)


def _logsumexp_fwd(x: np.ndarray) -> np.ndarray:
    relative_to, e = log_sum_exp_terms(x)
    return relative_to + np.log(total(e))


def _logsumexp_grad(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    _, e = log_sum_exp_terms(x)
    s = total(e)
    return np.where(s == 0, 0, e * (dy / s))


def _logsumexp_jvp(x: np.ndarray, dx: np.ndarray) -> np.ndarray:
    _, e = log_sum_exp_terms(x)
    s = total(e)
    return np.where(s == 0, 0, total(e * dx) / s)


def over_square(x: np.ndarray, epsilon: float) -> np.ndarray:
    """1 / (mean(x^2) + epsilon) of each row."""
    return 1 / (total(x * x) / x.shape[-1] + epsilon)


def _rms_norm(
    operation: str, x: np.ndarray, scale: np.ndarray, *others: np.ndarray, epsilon: float
) -> np.ndarray:
    square = over_square(x, epsilon)
    if operation == "rms_norm_fwd":
        return x * np.sqrt(square) * scale
    (t,) = others
    inner, outer = (scale * t, 1) if operation == "rms_norm_grad" else (t, scale)
    mean = total(x * inner) / x.shape[-1]
    return outer * (np.sqrt(square) * (inner - x * (square * mean)))


_RMS_NORM = ("rms_norm_fwd", "rms_norm_grad", "rms_norm_jvp")
_TRUTHS: dict[str, Callable[..., np.ndarray]] = {
    "softmax_fwd": _softmax_fwd,
    "log_softmax_fwd": _log_softmax_fwd,
    "softmax_grad": lambda y, dy: y * (dy - total(dy * y)),
    "log_softmax_grad": lambda y, dy: dy - np.exp(y) * total(dy),
    "log_softmax_jvp": lambda y, dx: dx - total(np.exp(y) * dx),
    "logsumexp_fwd": _logsumexp_fwd,
    "logsumexp_grad": _logsumexp_grad,
    "logsumexp_jvp": _logsumexp_jvp,
}
OPERATIONS = (*_TRUTHS, *_RMS_NORM)
