"""How far a kernel's result may lie from the truth, derived from the kernels' arithmetic.

Notation: u is the unit roundoff of the compute type (float32, or float64 for float64 storage), us that of the storage
type, d = x - max, S = sum exp(d). Every bound is elementwise, in units of u, and never a fitted number:

* ``exp`` and ``log`` are good to one unit in the last place, which is at most 2 u of the value. For half storage the
  GPU's exp2 instruction serves: 2^-22 = 4 u, and its argument t = d log2(e) carries three relative roundings (of the
  difference, of the constant, of the product), which cost 3 |d| u.
* float32 storage compensates the difference, so that only the fused multiply-add's u is left of |d| u. float64
  does not: |d| u.
* A sum of n terms is added up by ``accumulators`` independent chains, followed by a tree. With k = n / accumulators +
  log2(accumulators) additions in a row, its error is at most k u sum|terms|; roundings of random sign add up to
  lambda sqrt(k) u with overwhelming probability (Higham and Mary 2019, lambda = 4). The smaller of the two holds, but
  for rows in which many terms are the same, or lie just below the last place of one: there all roundings may have one
  sign, and k u alone holds ("alike").
* A quotient is good to 2 u (reciprocal, then one correction step), other operations to u, the final store to us.
* XLA's CPU threads flush subnormals to zero and the GPU's half exponentials do so too: an absolute error of the
  smallest normal number is allowed where the exponent range is float32's. float16 results keep their subnormals.
  In a derivative every operand, product and sum of a row may be flushed: those of y or exp(y) cost that number times the
  (co)tangent.
* log_softmax of float32 and float64 counts the terms of the maximum, which are exactly 1, apart. So S errs only by what
  the other terms do, weighed by their share of it, and a result near 0 is right to a few units of its own last place. A
  term may be flushed, and one of a part of a row is multiplied by one more exponential (see below).
* The derivatives of 16-bit log_softmax read x. exp(y) is a term over S there, and S errs as that of logsumexp does (see
  below); the result is rounded once.
* logsumexp is max + log S. Both terms are rounded to u, and their sum once more; the relative error of S becomes an
  absolute error. Its derivatives are quotients by S, so that the errors of the exponentials and of S are relative. A
  part of a row that was summed relative to a smaller maximum is multiplied by one more exponential, which adds the
  error of a term.
* rms_norm divides by the root of a mean of squares. Each square, the sum, the mean, the epsilon and its addition are
  rounded, and a root halves their relative error. Its derivatives subtract x times another mean, whose terms have both
  signs. The GPU and the CPU may flush subnormal squares and products to zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from jaxkernels.verify.truth.compare import Bounded, compute, largest_ratio, total, widen
from jaxkernels.verify.truth.rows import (
    EPSILON,
    is_log_sum_exp,
    is_rms_norm,
    log_sum_exp_terms,
    over_square,
    reads_x_for_y,
    truth,
)

SUM_LAMBDA = 4.0
EXP_ERROR, LOG_ERROR, DIVIDE_ERROR = 2.0, 2.0, 2.0
HALF_EXP_ERROR, HALF_ARGUMENT_ERROR = 4.0, 3.0


@dataclass(frozen=True)
class Precision:
    """The precision and the error constants of a storage type."""

    u: float  # unit roundoff of the compute type
    us: float  # unit roundoff of the storage type
    smallest: float  # absolute error that the end of the exponent range costs a result
    flush: float  # the smallest normal number of the compute type
    exp_error: float  # error of an exponential, in u, apart from its argument's
    argument_error: float  # what each unit of |x - max| adds to it, in u


_HALF = HALF_EXP_ERROR, HALF_ARGUMENT_ERROR
PRECISION = {
    "float32": Precision(2.0**-24, 2.0**-24, 2.0**-126, 2.0**-126, EXP_ERROR + 1, 0),
    "bfloat16": Precision(2.0**-24, 2.0**-8, 2.0**-126, 2.0**-126, *_HALF),
    "float16": Precision(2.0**-24, 2.0**-11, 2.0**-25, 2.0**-126, *_HALF),
    "float64": Precision(2.0**-53, 2.0**-53, 2.0**-1022, 2.0**-1022, EXP_ERROR, 1),
}


def sum_error(cols: int, accumulators: int, alike: Any = False) -> Any:
    """Error of a row's sum in u * sum|terms|; all roundings may have one sign if `alike`."""
    chain = math.ceil(cols / accumulators) + math.ceil(math.log2(max(accumulators, 2)))
    random = min(chain, SUM_LAMBDA * math.sqrt(chain))
    return random if alike is False else np.where(alike, chain, random)


def bound(
    operation: str,
    *operands: Any,
    accumulators: int,
    alike: Any = False,
    wide: bool = False,
    epsilon: float = EPSILON,
) -> np.ndarray:
    """The largest error of correct arithmetic, elementwise; NaN where `rows.truth` is.

    A row has `accumulators` partial sums at least. A `wide` result, a number for each row, is not
    rounded to the storage type. An array `alike` (see `sum_error`) broadcasts against the operands.
    """
    p = PRECISION[np.asarray(operands[0]).dtype.name]
    if wide:
        p = replace(p, us=p.u, smallest=p.flush)
    sigma = sum_error(operands[0].shape[-1], accumulators, alike)
    given = [widen(a) for a in operands]
    result = truth(operation, *operands, epsilon=epsilon)
    with np.errstate(all="ignore"):
        if is_rms_norm(operation):
            return _rms_norm_bound(operation, given, result, p, sigma, epsilon) + p.smallest
        if is_log_sum_exp(operation):
            return _log_sum_exp_bound(operation, given, result, p, sigma) + p.smallest
        if len(given) == 1:
            return _forward_bound(operation, given[0], result, p, sigma) + p.smallest
        if reads_x_for_y(operation, np.asarray(operands[0]).dtype):
            d = given[0].max(-1, keepdims=True, initial=-np.inf) - given[0]
            given[0] = truth("log_softmax_fwd", operands[0])
            # A term errs by its exponential, by one more where parts meet, and by the division.
            each = 2 * p.exp_error + p.argument_error * np.where(np.isfinite(d), d, 0)
            s_error = sigma + np.sum(each * np.exp(given[0]), axis=-1, keepdims=True)
            exp_error = each + s_error + DIVIDE_ERROR
        else:
            y = np.where(np.isfinite(given[0]), given[0], 0)
            exp_error = p.exp_error + p.argument_error * np.abs(y)
        t = np.abs(given[1])
        flushed = t + t.sum(-1, keepdims=True) + 2 * (result.shape[-1] + 1)
        limit = _linear_bound(operation, given[0], given[1], result, p, sigma, exp_error)
        return limit + p.smallest + p.flush * flushed


def _forward_bound(
    operation: str, x: np.ndarray, y: np.ndarray, p: Precision, sigma: Any
) -> np.ndarray:
    d = np.abs(x - x.max(-1, keepdims=True, initial=-np.inf))
    d = np.where(np.isfinite(d), d, 0)
    weight = y if operation == "softmax_fwd" else np.exp(y)
    exp_error = p.exp_error + p.argument_error * d
    # Relative error of S: the terms' errors, weighed by their share, and the additions.
    s_error = sigma + np.sum(exp_error * weight, axis=-1, keepdims=True)
    if operation == "softmax_fwd":
        relative = p.u * (exp_error + s_error + DIVIDE_ERROR)
        return y * (relative + (p.us if p.us > p.u else 0))
    flushed = 0.0
    if p.us == p.u:
        others = -np.expm1(np.max(y, axis=-1, keepdims=True, initial=-np.inf))
        each = np.where(d > 0, exp_error + p.exp_error + 1, 0)
        s_error = (sigma + 2) * others + np.sum(each * weight, axis=-1, keepdims=True)
        flushed = p.flush * x.shape[-1]
    size = np.where(np.isfinite(y), np.abs(y), 0)
    log_s = np.abs(d - size)
    lost = d if p.argument_error else 0
    return p.us * size + p.u * (size + lost + (1 + LOG_ERROR) * log_s + s_error) + flushed


def _linear_bound(
    operation: str,
    y: np.ndarray,
    t: np.ndarray,
    result: np.ndarray,
    p: Precision,
    sigma: Any,
    exp_error: np.ndarray,
) -> np.ndarray:
    stored = (p.us + p.u) * np.abs(result)
    if operation == "softmax_grad":
        s, size = total(t * y), total(np.abs(t * y))
        return np.abs(y) * p.u * ((sigma + 1) * size + 2 * np.abs(t - s)) + stored
    if operation == "log_softmax_grad":
        s, size = total(t), total(np.abs(t))
        return np.exp(y) * p.u * (sigma * size + (exp_error + 1) * np.abs(s)) + stored
    size = np.abs(np.exp(y) * t)
    return p.u * (sigma * total(size) + total(size * (exp_error + 1))) + stored


def _log_sum_exp_bound(
    operation: str, operands: list[np.ndarray], result: np.ndarray, p: Precision, sigma: Any
) -> np.ndarray:
    relative_to, e = log_sum_exp_terms(operands[0])
    # Infinite results are exact, or NaN; so are those of a row that is -inf throughout.
    e = np.where(np.isfinite(e), e, 0)
    s = np.where(total(e) > 0, total(e), 1)
    weight = e / s
    d = np.where(np.isfinite(operands[0]), np.abs(relative_to - operands[0]), 0)
    exp_error = p.exp_error + p.argument_error * d
    if operation != "logsumexp_grad" and p.u > PRECISION["float64"].u:
        # No term is a result: float32 takes the exponential of half types.
        exp_error = HALF_EXP_ERROR + HALF_ARGUMENT_ERROR * d
    s_error = sigma + total(exp_error * weight) + p.exp_error
    size = np.where(np.isfinite(result), np.abs(result), 0)
    stored = (p.us + p.u if p.us > p.u else p.u) * size
    if operation == "logsumexp_fwd":
        return stored + p.u * (s_error + LOG_ERROR * np.log(s))
    t = np.abs(operands[1])
    if operation == "logsumexp_grad":
        relative = exp_error + s_error + DIVIDE_ERROR
        return p.u * size * relative + stored + p.flush * (t + 2)
    terms = weight * t
    numerator = sigma * total(terms) + total(terms * (exp_error + p.exp_error + 1))
    flushed = total(t) / s + result.shape[-1] + operands[0].shape[-1] + 1
    return p.u * (numerator + size * (s_error + DIVIDE_ERROR)) + stored + p.flush * flushed


def _root_error(square: np.ndarray, p: Precision, sigma: Any) -> np.ndarray:
    """The relative error in u of the root of square = 1 / (mean(x^2) + epsilon)."""
    return (sigma + 4) / 2 + DIVIDE_ERROR + 1 + square * (p.flush / p.u)


def rms_norm_scale_grad(
    x: np.ndarray, t: np.ndarray, dtype: np.dtype, *, epsilon: float, alike: np.ndarray
) -> Bounded:
    """The gradient of a scale of some dtype, and its bound, from (members, rows, cols).

    XLA sums over rows, and over the columns of each row, in any order.
    """
    p, stored, alike = PRECISION[x.dtype.name], PRECISION[dtype.name], alike[:, None, None]
    x, t = widen(x), widen(t)
    square = over_square(x, epsilon)
    root = np.sqrt(square)
    terms = root * x * t
    value, size = terms.sum(axis=1), np.abs(terms)
    root_error = _root_error(square, p, sum_error(x.shape[-1], 1, alike))
    error = (size * (root_error + 3 + sum_error(x.shape[1], 1, alike))).sum(axis=1)
    flushed = ((1 + root) * (1 + np.abs(t)) + np.abs(x)).sum(axis=1) * p.flush
    rounded = stored.us * np.abs(value) if stored.us > p.u else 0
    return Bounded(value, p.u * error + rounded + flushed + stored.smallest)


def _rms_norm_bound(
    operation: str,
    operands: list[np.ndarray],
    result: np.ndarray,
    p: Precision,
    sigma: Any,
    epsilon: float,
) -> np.ndarray:
    x, scale, *others = operands
    square = over_square(x, epsilon)
    root = np.sqrt(square)
    root_error = _root_error(square, p, sigma)
    size = np.where(np.isfinite(result), np.abs(result), 0)
    stored = (p.us + p.u if p.us > p.u else p.u) * size
    if operation == "rms_norm_fwd":
        flushed = np.abs(scale) * (1 + root)
        return stored + p.u * size * (root_error + 2) + p.flush * flushed
    (t,) = others
    inner, outer = (scale * t, 1) if operation == "rms_norm_grad" else (t, np.abs(scale))
    cols = max(x.shape[-1], 1)
    mean = square * total(x * inner) / cols
    terms = square * total(np.abs(x * inner)) / cols
    mean_error = (sigma + 2) * terms + (2 * root_error + 3) * np.abs(mean)
    difference = np.abs(inner - x * mean)
    rounded = np.abs(x) * (mean_error + np.abs(mean)) + 2 * np.abs(inner) + difference
    flushed = np.abs(x) * square * (3 + total(np.abs(inner) + np.abs(x)) / cols) + np.abs(mean) + 4
    error = p.u * rounded + p.flush * flushed
    return outer * (root * error + p.flush) + p.u * size * (root_error + 2) + stored


def masked_bound(
    p: Precision,
    y: np.ndarray,
    product: np.ndarray,
    bias: np.ndarray,
    distance: np.ndarray,
    total: np.ndarray,
    sigma: Any,
) -> np.ndarray:
    """The largest error of a softmax of t = product + bias over what a row sees, before it is stored.

    t is not exact: the factor, the product, a bias that changes units and their sum are rounded once each, which makes
    (2 |product| + 2 |bias| + |t|) u of absolute error. It is the same in the maximum, which therefore cancels, and
    in the exponent: a relative error of y, and by way of the sum that of all y, weighed by them. Half types divide
    within the exponent: log2 of the sum is subtracted there. The rest is as in `bound`. `distance`
    is max t - t, 0 where that is infinite, `total` the sum of the exponentials of a row, and
    `sigma` the error of a sum.
    """
    t_error = 2 * np.abs(product) + 2 * np.abs(bias) + np.abs(product + bias)
    each = np.where(y > 0, p.exp_error + p.argument_error * distance + t_error, 0)
    s_error = sigma + np.sum(each * y, axis=-1, keepdims=True)
    divide = DIVIDE_ERROR
    if p.us > p.u:
        divide = divide + LOG_ERROR + 2 * np.log2(np.where(total > 1, total, 1))
    return p.u * y * (each + s_error + divide)


def worst(
    got: np.ndarray, operation: str, *operands: Any, accumulators: int, wide: bool = False
) -> tuple[float, str]:
    """The largest error of a result in units of its bound, with a description of the place."""
    limit = bound(operation, *operands, accumulators=accumulators, wide=wide)
    ratio, place = largest_ratio(got, truth(operation, *operands), limit)
    return ratio, f"{operation} {got.dtype} {got.shape} {place}"


def check(got: Any, operation: str, *operands: Any, accumulators: int, wide: bool = False) -> None:
    """Asserts that a result lies within its bound, and has its dtype and shape."""
    got = np.asarray(got)
    x = operands[0]
    dtype = compute(x.dtype.name) if wide else x.dtype
    shape = truth(operation, *operands).shape
    assert got.dtype == dtype, f"{operation}: {got.dtype}, not {dtype}"
    assert got.shape == shape, f"{operation}: {got.shape}, not {shape}"
    ratio, text = worst(got, operation, *operands, accumulators=accumulators, wide=wide)
    assert ratio <= 1, text


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
