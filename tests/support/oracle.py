"""A NumPy model of the kernels of the five row operations, beside their truth (`jaxkernels.verify.truth.rows`).

The model imitates the kernels' arithmetic step by step; a mistake can be planted into it, which is how
``test_tolerance.py`` shows that the tolerances are tight enough to notice.
"""

import jax.numpy as jnp
import numpy as np

from jaxkernels.verify.truth.compare import compute, storage, widen
from jaxkernels.verify.truth.rows import DTYPES, OPERATIONS, truth

__all__ = ["DTYPES", "MISTAKES", "OPERATIONS", "compute", "model", "storage", "truth", "widen"]

# Planted mistakes and the operations and storage types that each one spoils.
_ALL = DTYPES
_HALF = ("bfloat16", "float16")
MISTAKES = {
    "no max subtraction": (OPERATIONS[:2], _ALL),
    "uncompensated difference": (("softmax_fwd",), ("float32",)),
    "tail element lost from the sum": (OPERATIONS, _ALL),
    "neighbour's element in the sum": (OPERATIONS, _ALL),
    "tail element not stored": (OPERATIONS, _ALL),
    "sum of the row before": (OPERATIONS, _ALL),
    "row offset by one element": (OPERATIONS, _ALL),
    "sum kept in the storage type": (OPERATIONS, _HALF),
    "result rounded twice": (("softmax_fwd",), ("float32",)),
    "swapped sign": (OPERATIONS[2:], _ALL),
    "y for exp(y)": (OPERATIONS[3:], _ALL),
}


def model(operation, *operands, mistake=None):
    """The kernels' arithmetic in NumPy: compute type, compensated x - max in float32, one rounding at the end.

    Args:
      operation: one of ``OPERATIONS``.
      *operands: x, or y and the (co)tangent, of shape (rows, cols) in the storage type.
      mistake: None, or a key of ``MISTAKES``.

    Returns:
      The result in the storage type.
    """
    dtype = operands[0].dtype
    wide = compute(jnp.dtype(dtype).name)
    with np.errstate(all="ignore"):
        inputs = [np.asarray(a).astype(wide) for a in operands]
        forward = len(inputs) == 1
        result = (_model_forward if forward else _model_linear)(operation, inputs, dtype, mistake)
        if mistake == "result rounded twice":
            result = result.astype(np.float32) * np.float32(1 + 2**-18)
        if mistake == "tail element not stored":
            result[:, -1] = 0.5
        if mistake == "row offset by one element":
            result = np.roll(result.reshape(-1), 1).reshape(result.shape)
        return result.astype(dtype)


def _row_sum(terms, dtype, mistake):
    """The sum of a row's terms, in the order of NumPy's pairwise summation."""
    if mistake == "tail element lost from the sum":
        terms = terms[:, :-1]
    if mistake == "neighbour's element in the sum":
        terms = np.concatenate([terms, np.roll(terms[:, :1], -1, axis=0)], axis=-1)
    if mistake == "sum kept in the storage type":
        total = np.zeros((len(terms), 1), dtype)
        for column in terms.T:
            total = (total.astype(terms.dtype) + column[:, None]).astype(dtype)
        return total.astype(terms.dtype)
    total = terms.sum(-1, keepdims=True)
    return np.roll(total, 1, axis=0) if mistake == "sum of the row before" else total


def _model_forward(operation, inputs, dtype, mistake):
    (x,) = inputs
    peak = x.max(-1, keepdims=True)
    if mistake == "no max subtraction":
        peak = np.zeros_like(peak)
    d = x - peak
    error = np.zeros_like(d)
    if dtype == np.float32 and mistake != "uncompensated difference":
        part = x - d  # TwoDiff: x - peak == d + error exactly
        error = np.where(d > -128, (x - (d + (x - d))) + (part - peak), 0).astype(x.dtype)
    e = np.exp(d) * (1 + error)
    total = _row_sum(e, dtype, mistake)
    return e / total if operation == "softmax_fwd" else (d - np.log(total)) + error


def _model_linear(operation, inputs, dtype, mistake):
    y, t = inputs
    exp_y = y if mistake == "y for exp(y)" else np.exp(y)
    sign = -1 if mistake == "swapped sign" else 1
    if operation == "softmax_grad":
        return y * (t - sign * _row_sum(t * y, dtype, mistake))
    if operation == "log_softmax_grad":
        return t - sign * exp_y * _row_sum(t, dtype, mistake)
    return t - sign * _row_sum(exp_y * t, dtype, mistake)
