"""The five row operations in exact arithmetic, but for the roundings of a much wider type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxkernels.verify.truth.compare import widen

DTYPES = ("float32", "bfloat16", "float16", "float64")
OPERATIONS = (
    "softmax_fwd",
    "log_softmax_fwd",
    "softmax_grad",
    "log_softmax_grad",
    "log_softmax_jvp",
)


def truth(operation: str, *operands: Any) -> np.ndarray:
    """The result of an operation along the last axis.

    Args:
        operation: one of `OPERATIONS`.
        *operands: x, or y and the (co)tangent, in the storage type, shape (..., cols).

    Example:
        >>> truth("softmax_fwd", np.zeros((1, 2), np.float32))
        array([[0.5, 0.5]])
    """
    with np.errstate(all="ignore"):
        return _TRUTHS[operation](*(widen(a) for a in operands))


def _sum(x: np.ndarray) -> np.ndarray:
    return x.sum(-1, keepdims=True)


def _shifted(x: np.ndarray) -> np.ndarray:
    return x - np.max(x, axis=-1, keepdims=True, initial=-np.inf)


def _softmax_fwd(x: np.ndarray) -> np.ndarray:
    e = np.exp(_shifted(x))
    return e / _sum(e)


def _log_softmax_fwd(x: np.ndarray) -> np.ndarray:
    d = _shifted(x)
    return d - np.log(_sum(np.exp(d)))


_TRUTHS: dict[str, Callable[..., np.ndarray]] = {
    "softmax_fwd": _softmax_fwd,
    "log_softmax_fwd": _log_softmax_fwd,
    "softmax_grad": lambda y, dy: y * (dy - _sum(dy * y)),
    "log_softmax_grad": lambda y, dy: dy - np.exp(y) * _sum(dy),
    "log_softmax_jvp": lambda y, dx: dx - _sum(np.exp(y) * dx),
}
