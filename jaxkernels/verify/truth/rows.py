"""The row operations of one array, computed in a much wider type than the kernels', and their bounds."""

from typing import Any

import numpy as np

from jaxkernels.verify.truth.bounded import PRECISION, Bounded, known, sum_error
from jaxkernels.verify.truth.compare import total

EPSILON = 1e-6  # of rms_norm, by default
OPERATIONS = (
    *("softmax_fwd", "log_softmax_fwd", "softmax_grad", "log_softmax_grad"),
    *("logsumexp_fwd", "logsumexp_grad", "rms_norm_fwd", "rms_norm_grad"),
)
TANGENTS = ("log_softmax_jvp", "logsumexp_jvp", "rms_norm_jvp")  # in plain JAX


@np.errstate(all="ignore")
def bounded(
    operation: str, *operands: Any, accumulators: int, alike: Any = False, epsilon: float = EPSILON
) -> Bounded:
    """The result of an operation along the last axis, with the largest error of correct arithmetic.

    The operands are x, or y (logsumexp, 16-bit log_softmax: x) and the (co)tangent, in the storage
    type, (..., cols), or `Bounded`. The cotangent of logsumexp and the results of logsumexp_fwd and
    logsumexp_jvp have the shape (..., 1). The operands of rms_norm are x, the scale (cols,) and the (co)tangent.

    A row has `accumulators` partial sums at least. An array `alike` (see `sum_error`) broadcasts against
    the operands.

    Example:
        >>> bounded("softmax_fwd", np.zeros((1, 2), np.float32), accumulators=1).value
        array([[0.5, 0.5]])
    """
    x = operands[0]
    # Tests pass numbers of the wider type, too.
    p = getattr(x, "precision", None) or PRECISION.get(
        np.asarray(x).dtype.name, PRECISION["float64"]
    )
    given = [a if isinstance(a, Bounded) else known(a, p) for a in operands]
    sigma = sum_error(given[0].value.shape[-1], accumulators, alike)
    if operation.startswith("rms_norm"):
        result = _rms_norm(operation, *given, sigma=sigma, epsilon=epsilon)
    elif operation.startswith("logsumexp"):
        result = _log_sum_exp(operation, *given, sigma=sigma)
    elif operation.endswith("fwd"):
        result = _forward(operation, *given, sigma=sigma)
    else:
        result = _linear(operation, *given, sigma=sigma)
    return result.stored(p)


def _shifted(x: Bounded) -> Bounded:
    """X - max, whose rounding the exponential counts."""
    largest = np.max(x.value, axis=-1, keepdims=True, initial=-np.inf)
    return Bounded(x.value - largest, 0, x.precision)


def _forward(operation: str, x: Bounded, sigma: Any) -> Bounded:
    p, d = x.precision, _shifted(x)
    if operation == "softmax_fwd":
        e = d.exp()
        return e / e.sum(sigma)
    if p.us > p.u:
        log_s = d.exp().sum(sigma).log()
    else:
        log_s = log1p_of_rest(d, d.exp(more=p.exp_error + 1), sigma)
    # A compensated difference loses nothing; it costs an addition more.
    lost = p.u * np.abs(d.value) if p.argument_error else 0
    y = d.plus_error(lost) - log_s
    return y.plus_error(p.u * np.abs(y.value))


def log1p_of_rest(d: Bounded, e: Bounded, sigma: Any) -> Bounded:
    """Log of a sum of exponentials e of d = x - max: terms of the maximum, which are exactly 1, are counted apart.

    So S errs only by what the other terms do, weighed by their share of it, and a result near 0 is
    right to a few units of its own last place. The exponentials have the error of one more, which
    multiplies those of a part of a row.
    """
    is_largest = d.value == 0
    rest = e.where(~is_largest).sum(sigma + 2)
    count = total(is_largest) - 1
    return Bounded(rest.value + count, rest.limit, rest.precision).log1p()


def _linear(operation: str, y: Bounded, t: Bounded, sigma: Any) -> Bounded:
    if operation == "softmax_grad":
        return y * (t - (t * y).sum(sigma))
    p = y.precision
    if p.us > p.u:  # y is x; a term errs by one more exponential where parts meet
        e = _shifted(y).exp(more=p.exp_error)
        exp_y = e / e.sum(sigma)
    else:
        exp_y = y.exp()
    if operation == "log_softmax_grad":
        return t - exp_y * t.sum(sigma)
    return t - (exp_y * t).sum(sigma)


def _log_sum_exp(operation: str, x: Bounded, *others: Bounded, sigma: Any) -> Bounded:
    """Max + log S; its derivatives are quotients by S.

    If the maximum is +inf, terms are relative to the largest number, and those of finite x vanish.
    """
    largest = np.max(x.value, axis=-1, keepdims=True, initial=-np.inf)
    most = np.finfo(x.value.dtype).max
    relative_to = np.clip(np.where(largest == -np.inf, 0, largest), None, most)
    d, more = Bounded(x.value - relative_to, 0, x.precision), x.precision.exp_error
    e = d.exp(fast=operation != "logsumexp_grad", more=more)
    s = e.sum(sigma)
    if operation == "logsumexp_fwd":
        return s.log() + relative_to
    (t,) = others
    result = e * (t / s) if operation == "logsumexp_grad" else (e * t).sum(sigma) / s
    return result.where(s.value != 0)


def _root(x: Bounded, sigma: Any, epsilon: float) -> tuple[Bounded, Bounded]:
    """1 / (mean(x^2) + epsilon) of each row, and its root."""
    square = 1 / ((x * x).sum(sigma) / x.value.shape[-1] + epsilon).rounded()
    return square, square.sqrt().rounded()


def _rms_norm(
    operation: str, x: Bounded, scale: Bounded, *others: Bounded, sigma: Any, epsilon: float
) -> Bounded:
    square, root = _root(x, sigma, epsilon)
    if operation == "rms_norm_fwd":
        return x * root * scale
    (t,) = others
    inner = scale * t if operation == "rms_norm_grad" else t
    mean = square * ((x * inner).sum(sigma) / x.value.shape[-1])
    result = root * (inner - x * mean)
    return result if operation == "rms_norm_grad" else scale * result


@np.errstate(all="ignore")
def rms_norm_scale_grad(
    x: np.ndarray, t: np.ndarray, dtype: np.dtype, *, epsilon: float, alike: np.ndarray
) -> Bounded:
    """The gradient of a scale of some dtype, and its bound, from (members, rows, cols).

    XLA sums over rows, and over the columns of each row, in any order.
    """
    p, alike = PRECISION[x.dtype.name], alike[:, None, None]
    x_, t_ = known(x, p), known(t, p)
    _, root = _root(x_, sum_error(x.shape[-1], 1, alike), epsilon)
    of_columns = (root * x_ * t_).sum(sum_error(x.shape[1], 1, alike), axis=1)
    return of_columns.apply(lambda a: a[:, 0]).stored(PRECISION[dtype.name])
