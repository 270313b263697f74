"""A NumPy model of the kernels of row operations on one array; their truth is `jaxkernels.verify.truth.rows`.

The model imitates the kernels' arithmetic step by step; a mistake can be planted into it, which is how
``test_tolerance.py`` shows that the tolerances are tight enough to notice.
"""

import jax.numpy as jnp
import numpy as np

from jaxkernels.verify.truth.compare import compute, storage, widen
from jaxkernels.verify.truth.rows import (
    DTYPES,
    EPSILON,
    OPERATIONS,
    is_forward,
    is_log_sum_exp,
    is_rms_norm,
    reads_x_for_y,
    truth,
)

__all__ = [
    "DTYPES",
    "MISTAKES",
    "OPERATIONS",
    "compute",
    "is_forward",
    "is_log_sum_exp",
    "model",
    "reads_x_for_y",
    "row_scalars",
    "storage",
    "truth",
    "widen",
]

# Planted mistakes and the operations and storage types that each one spoils.
_ALL = DTYPES
_HALF = ("bfloat16", "float16")
_LOG_SUM_EXP = tuple(filter(is_log_sum_exp, OPERATIONS))
_RMS_NORM = tuple(filter(is_rms_norm, OPERATIONS))
_OF_SOFTMAX = tuple(o for o in OPERATIONS if not is_log_sum_exp(o) and not is_rms_norm(o))
_SOFTMAX_LINEAR = tuple(o for o in _OF_SOFTMAX if not is_forward(o))
_STORE_ELEMENTS = tuple(o for o in OPERATIONS if o not in ("logsumexp_fwd", "logsumexp_jvp"))
MISTAKES = {
    "maximum summed with the others": (("log_softmax_fwd",), ("float32", "float64")),
    "no max subtraction": ((*filter(is_forward, _OF_SOFTMAX), *_LOG_SUM_EXP), _ALL),
    "uncompensated difference": (("softmax_fwd",), ("float32",)),
    "tail element lost from the sum": (OPERATIONS, _ALL),
    "neighbour's element in the sum": (OPERATIONS, _ALL),
    "tail element not stored": (_STORE_ELEMENTS, _ALL),
    "sum of the row before": (OPERATIONS, _ALL),
    "row offset by one element": (OPERATIONS, _ALL),
    "sum kept in the storage type": (OPERATIONS, _HALF),
    "result rounded twice": (("softmax_fwd",), ("float32",)),
    "swapped sign": ((*_SOFTMAX_LINEAR, "logsumexp_fwd", *_RMS_NORM[1:]), _ALL),
    "y for exp(y)": (_SOFTMAX_LINEAR[1:], ("float32", "float64")),
    "rounded y for x": (_SOFTMAX_LINEAR[1:], _HALF),
    "number of the row before": (("logsumexp_grad",), _ALL),
    "number narrowed": (("logsumexp_grad",), ("float32",)),
    "no division": (_LOG_SUM_EXP[1:], _ALL),
    "maximum left out": (("logsumexp_fwd",), _ALL),
    "logarithm to base two": (("logsumexp_fwd",), _ALL),
    "scale of the column before": (_RMS_NORM, _ALL),
    "scale in the wrong place": (_RMS_NORM[1:], _ALL),
    "sum for a mean": (_RMS_NORM, _ALL),
}


def row_scalars(t):
    """A number for each row, out of a (co)tangent for each element; rows of no elements have it too."""
    return t[:, :1] if t.shape[-1] else np.zeros((len(t), 1), t.dtype)


def model(operation, *operands, mistake=None):
    """The kernels' arithmetic in NumPy: compute type, compensated x - max in float32, one rounding at the end.

    Args:
      operation: one of ``OPERATIONS``.
      *operands: as for ``truth``, with rows in one dimension, in the storage type.
      mistake: None, or a key of ``MISTAKES``.

    Returns:
      The result in the storage type.
    """
    dtype = operands[0].dtype
    wide = compute(jnp.dtype(dtype).name)
    with np.errstate(all="ignore"):
        inputs = [np.asarray(a).astype(wide) for a in operands]
        if is_rms_norm(operation):
            result = _model_rms_norm(operation, inputs, dtype, mistake)
        elif is_log_sum_exp(operation):
            result = _model_log_sum_exp(operation, inputs, dtype, mistake)
        else:
            of = _model_forward if is_forward(operation) else _model_linear
            result = of(operation, inputs, dtype, mistake)
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


def _exponentials(x, peak, dtype, mistake):
    """Exp(x - peak), the difference, and what its rounding lost."""
    d = x - peak
    error = np.zeros_like(d)
    if dtype == np.float32 and mistake != "uncompensated difference":
        part = x - d  # TwoDiff: x - peak == d + error exactly
        error = np.where(d > -128, (x - (d + (x - d))) + (part - peak), 0).astype(x.dtype)
    return np.exp(d) * (1 + error), d, error


def _model_forward(operation, inputs, dtype, mistake):
    (x,) = inputs
    peak = x.max(-1, keepdims=True)
    if mistake == "no max subtraction":
        peak = np.zeros_like(peak)
    e, d, error = _exponentials(x, peak, dtype, mistake)
    if operation == "softmax_fwd":
        return e / _row_sum(e, dtype, mistake)
    return (d - _log_sum(e, dtype, mistake)) + error


def _log_sum(e, dtype, mistake):
    """Log of the sum of a row's terms; those of the maximum, which are exactly 1, are counted apart."""
    if dtype.itemsize == 2 or mistake == "maximum summed with the others":
        return np.log(_row_sum(e, dtype, mistake))
    is_largest = (e == 1).astype(e.dtype)
    rest, count = (_row_sum(terms, dtype, mistake) for terms in (e - is_largest, is_largest))
    return np.log1p(rest + (count - 1))


def _model_linear(operation, inputs, dtype, mistake):
    y, t = inputs
    if reads_x_for_y(operation, dtype):
        y = _model_forward("log_softmax_fwd", [y], dtype, mistake)
        if mistake == "rounded y for x":
            y = y.astype(dtype).astype(t.dtype)
    exp_y = y if mistake == "y for exp(y)" else np.exp(y)
    sign = -1 if mistake == "swapped sign" else 1
    if operation == "softmax_grad":
        return y * (t - sign * _row_sum(t * y, dtype, mistake))
    if operation == "log_softmax_grad":
        return t - sign * exp_y * _row_sum(t, dtype, mistake)
    return t - sign * _row_sum(exp_y * t, dtype, mistake)


def _model_log_sum_exp(operation, inputs, dtype, mistake):
    x, *others = inputs
    peak = x.max(-1, keepdims=True)
    peak = np.where(np.isneginf(peak), 0, peak).astype(x.dtype)
    if mistake == "no max subtraction":
        peak = np.zeros_like(peak)
    e, _, _ = _exponentials(x, peak, dtype, mistake)
    total = _row_sum(e, dtype, mistake)
    if operation == "logsumexp_fwd":
        log = np.log2(total) if mistake == "logarithm to base two" else np.log(total)
        if mistake == "maximum left out":
            return log
        return peak - log if mistake == "swapped sign" else peak + log
    (t,) = others
    divide_by = np.ones_like(total) if mistake == "no division" else np.where(total == 0, 1, total)
    if operation == "logsumexp_jvp":
        return _row_sum(e * t, dtype, mistake) / divide_by
    if mistake == "number of the row before":
        t = np.roll(t, 1, axis=0)
    if mistake == "number narrowed":
        t = t.astype(storage("bfloat16")).astype(t.dtype)
    return e * (t / divide_by)


def _model_rms_norm(operation, inputs, dtype, mistake):
    x, scale, *others = inputs
    if mistake == "scale of the column before":
        scale = np.roll(scale, 1)
    cols = x.dtype.type(1 if mistake == "sum for a mean" else x.shape[-1])
    square = 1 / (_row_sum(x * x, dtype, mistake) / cols + x.dtype.type(EPSILON))
    if operation == "rms_norm_fwd":
        return x * np.sqrt(square) * scale
    (t,) = others
    is_grad = (operation == "rms_norm_grad") != (mistake == "scale in the wrong place")
    inner = scale * t if is_grad else t
    sign = -1 if mistake == "swapped sign" else 1
    mean = sign * square * (_row_sum(x * inner, dtype, mistake) / cols)
    result = np.sqrt(square) * (inner - x * mean)
    return result if is_grad else scale * result
