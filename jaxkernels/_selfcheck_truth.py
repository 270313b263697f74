"""What the self-test of ``python -m jaxkernels`` expects: the truth of each row operation, and its bound.

Owns: both, in NumPy's widest float. Must not know: what ran, or where.
"""

from __future__ import annotations

import math

import jax
import numpy as np

# An odd row length: misaligned rows, heads and tails are part of what is tested.
SHAPE = (48, 1001)
# Roundings of exp, division, subtraction and product, in units of the compute type's epsilon.
_ELEMENTARY = 4.0
# Of attention scores; a power of two, so that the product is exact.
SCALE = 0.5
# A label for each row.
LABELS = 37 * np.arange(SHAPE[0]) % SHAPE[1]


def widen(array: jax.Array) -> np.ndarray:
    """Returns the values in NumPy's widest float, in which the truth is computed.

    In float64 the rounding of x - max would make the truth of float64 worse than our result.
    """
    return np.asarray(array, np.float64).astype(np.longdouble)


def _sum(values: np.ndarray) -> np.ndarray:
    return values.sum(axis=-1, keepdims=True)


def expected(
    operation: str, x: np.ndarray, y: np.ndarray, t: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the true result and the scale of its rounding errors, element by element.

    Args:
        operation: which result.
        x: the input, widened.
        y: the forward's own result, widened: what the derivatives of softmax are computed from.
        t: cotangent or tangent, widened.
    """
    if operation == "masked_softmax_fwd":
        rows, cols = x.shape
        x = np.where(np.tri(rows, cols, cols - rows, bool), SCALE * x, -np.inf)
    shifted = x - x.max(axis=-1, keepdims=True)
    share = np.exp(shifted) / _sum(np.exp(shifted))
    if operation in ("softmax_fwd", "masked_softmax_fwd"):
        return share, share
    if operation == "log_softmax_fwd":
        truth = shifted - np.log(_sum(np.exp(shifted)))
        return truth, np.abs(truth) + 1.0
    if operation == "logsumexp_fwd":
        truth = x.max(axis=-1, keepdims=True) + np.log(_sum(np.exp(shifted)))
        return truth, np.abs(truth) + 1.0
    is_label = np.arange(x.shape[-1]) == LABELS[:, None]
    if operation == "cross_entropy_fwd":
        truth = np.log(_sum(np.exp(shifted))) - _sum(np.where(is_label, shifted, 0))
        return truth, truth + 1.0
    if operation == "cross_entropy_grad":
        return (share - is_label) * t[:, :1], (share + is_label) * np.abs(t[:, :1])
    if operation == "cross_entropy_fwd_grad":
        return share - is_label, share + is_label
    if operation == "logsumexp_grad":
        return share * t[:, :1], share * np.abs(t[:, :1])
    if operation == "logsumexp_jvp":
        return _sum(share * t), _sum(share * np.abs(t))
    if operation == "masked_softmax_grad":
        t = SCALE * t
    if operation in ("softmax_grad", "masked_softmax_grad"):
        return y * (t - _sum(t * y)), y * (np.abs(t) + _sum(np.abs(t) * y))
    if operation == "log_softmax_grad":
        return t - share * _sum(t), np.abs(t) + share * _sum(np.abs(t))
    return t - _sum(share * t), np.abs(t) + _sum(share * np.abs(t))


def bound(dtype: str, spread: float, cols: int) -> float:
    """Returns the allowed error in units of the storage type's epsilon.

    epsilon_compute * (spread + log2(cols) + elementary functions) + one rounding to storage, where
    spread is the largest x - max(x): its rounding is an absolute error of exp's argument.
    """
    storage = float(jax.numpy.finfo(dtype).eps)
    compute = max(float(np.finfo(np.float64).eps), min(storage, float(np.finfo(np.float32).eps)))
    return compute / storage * (spread + math.log2(cols) + _ELEMENTARY) + 1.0
