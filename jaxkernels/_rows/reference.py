"""The row operations in plain JAX: the reference of the kernels, and their fallback.

Owns: the mathematics of one row, along the last axis. 16-bit types are computed in float32 and rounded
once, as in the kernels. JAX differentiates these functions with respect to the residual (x or y) for
second derivatives. Must not know: axes, masks, primitives.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from jaxkernels.typing import HasDtype

_LARGEST_INDEX = (1 << 31) - 1


def compute_dtype(x: HasDtype) -> Any:
    """The compute dtype of `x`: float64 for float64, otherwise float32."""
    return jnp.dtype("float64" if x.dtype == jnp.float64 else "float32")


def widen(x: jax.Array) -> jax.Array:
    """`x` in its compute dtype."""
    return x.astype(compute_dtype(x))


def row_sum(x: jax.Array) -> jax.Array:
    """The sum of each row."""
    return jnp.sum(x, axis=-1, keepdims=True)


def largest_of(x: jax.Array) -> jax.Array:
    """The maximum of each row; -inf for an empty row."""
    return jnp.max(x, axis=-1, keepdims=True, initial=-jnp.inf)


def _or_zero(x: jax.Array) -> jax.Array:
    """`x` where it is finite, else 0."""
    return jnp.where(jnp.isfinite(x), x, 0)


@jax.custom_jvp
def scaled(x: jax.Array, scales: jax.Array) -> jax.Array:
    """Applies an optional soft cap, then a temperature, to logits.

    Args:
        x: the logits.
        scales: the temperature of each row, of shape (..., 1), or (temperature, cap), of shape (..., 2).

    Returns:
        Array of the shape of x and the dtype of scales. A logit of -inf stays -inf.
    """
    x = x.astype(scales.dtype)
    if scales.shape[-1] == 2:
        cap = scales[..., 1:]
        x = jnp.where(x == -jnp.inf, x, cap * jnp.tanh(x / cap))
    return x / scales[..., :1]


# Non-finite factors become 0, so that a gradient of 0 stays 0. In a row that counts, the gradient that
# they multiply is NaN already.
@functools.partial(scaled.defjvp, symbolic_zeros=True)
def _scaled_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    x, scales = primals
    dx, dscales = tangents
    y = scaled(x, scales)
    temperature = scales[..., :1]
    scales_move = not isinstance(dscales, SymbolicZero)
    tangent = jnp.zeros_like(y) if isinstance(dx, SymbolicZero) else dx.astype(y.dtype)
    if scales.shape[-1] == 2:
        ratio = x.astype(y.dtype) / scales[..., 1:]
        capped = jnp.tanh(ratio)
        slope = _or_zero((1 - capped) * (1 + capped))
        tangent *= slope
        if scales_move:
            of_cap = jnp.where(x == -jnp.inf, 0, _or_zero(capped - _or_zero(ratio) * slope))
            tangent += of_cap * dscales[..., 1:]
    if scales_move:
        tangent -= _or_zero(y) * dscales[..., :1]
    return y, tangent / jnp.where(jnp.abs(temperature) > 0, temperature, 1)


def _difference_error(a: jax.Array, b: jax.Array, difference: jax.Array) -> jax.Array:
    """The rounding error of a - b (Knuth's TwoDiff); 0 if the difference is not finite."""
    is_finite = jnp.isfinite(difference)
    a, b, difference = (jnp.where(is_finite, value, 0) for value in (a, b, difference))
    b_part = a - difference
    return (a - (difference + b_part)) + (b_part - b)


def exp_difference(x: jax.Array, largest: jax.Array) -> jax.Array:
    """exp(x - largest), corrected for the rounding of x - largest, which costs up to 90 ulp alone."""
    difference = x - largest
    exponential = jnp.exp(difference)
    return exponential + exponential * _difference_error(x, largest, difference)


def softmax_fwd(x: jax.Array) -> jax.Array:
    """Softmax: y = exp(x - max x) / sum exp(x - max x)."""
    wide = widen(x)
    unnormalized = jnp.exp(wide - largest_of(wide))  # the shift prevents overflow
    return (unnormalized / row_sum(unnormalized)).astype(x.dtype)


def log_softmax_fwd(x: jax.Array) -> jax.Array:
    """Log of softmax: y = x - max x - log sum exp(x - max x).

    The terms of the maximum are exactly 1 and are counted apart. Added to them, a term such as 1e-9
    would be lost, and results near 0 with it.
    """
    wide = widen(x)
    largest = largest_of(wide)
    shifted = wide - largest
    terms = exp_difference(wide, largest)
    is_largest = (terms == 1).astype(terms.dtype)
    log_sum = jnp.log1p(row_sum(terms - is_largest) + (row_sum(is_largest) - 1))
    y = (shifted - log_sum) + _difference_error(wide, largest, shifted)
    return y.astype(x.dtype)


def softmax_grad(y: jax.Array, dy: jax.Array) -> jax.Array:
    """Gradient: dx = J^T dy = y * (dy - sum(dy * y)), with J = diag(y) - y y^T.

    J is symmetric, so this is also the JVP.
    """
    wide_y, wide_dy = widen(y), widen(dy)
    return (wide_y * (wide_dy - row_sum(wide_dy * wide_y))).astype(y.dtype)


def _softmax_of_kept(kept: jax.Array) -> jax.Array:
    """Softmax from the residual: exp(y), or from x for 16-bit dtypes, where exp(y) errs by |y| eps."""
    if kept.dtype.itemsize > 2:
        return jnp.exp(kept)
    wide = widen(kept)
    terms = jnp.exp(wide - jax.lax.stop_gradient(largest_of(wide)))
    return terms / row_sum(terms)


def log_softmax_grad(kept: jax.Array, dy: jax.Array) -> jax.Array:
    """Gradient: dx = J^T dy = dy - p * sum(dy), with J = I - 1 p^T and p the softmax of x."""
    wide_dy = widen(dy)
    return (wide_dy - _softmax_of_kept(kept) * row_sum(wide_dy)).astype(kept.dtype)


def log_softmax_jvp(kept: jax.Array, dx: jax.Array) -> jax.Array:
    """Tangent: dy = J dx = dx - sum(p * dx), with J = I - 1 p^T and p the softmax of x."""
    wide_dx = widen(dx)
    return (wide_dx - row_sum(_softmax_of_kept(kept) * wide_dx)).astype(kept.dtype)


def _log_sum_exp_terms(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(shift, exp(x - shift)) of each row; the shift is the maximum, made finite."""
    relative_to = _finite(largest_of(x))
    return relative_to, jnp.exp(x - relative_to)


def _finite(largest: jax.Array) -> jax.Array:
    most = jnp.finfo(largest.dtype).max
    return jnp.where(largest == -jnp.inf, 0, jnp.where(largest == jnp.inf, most, largest))


def quotient(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """The quotient; 0 if the denominator is 0, as for a row of -inf."""
    is_zero = denominator == 0
    return jnp.where(is_zero, 0, numerator / jnp.where(is_zero, 1, denominator))


def _narrow(scalar: jax.Array, x: jax.Array, wide: bool) -> jax.Array:
    return scalar if wide else scalar.astype(x.dtype)


def logsumexp_fwd(x: jax.Array, *, wide: bool) -> jax.Array:
    """Log-sum-exp of each row: y = max x + log sum exp(x - max x)."""
    relative_to, terms = _log_sum_exp_terms(widen(x))
    return _narrow(jnp.log(row_sum(terms)) + relative_to, x, wide)


def logsumexp_grad(x: jax.Array, dy: jax.Array, *, wide: bool) -> jax.Array:
    """Gradient: dx = dy * exp(x - max x) / sum exp(x - max x), for dy of shape (..., 1)."""
    del wide  # decides only the dtype of dy
    _, terms = _log_sum_exp_terms(widen(x))
    return (terms * quotient(dy.astype(terms.dtype), row_sum(terms))).astype(x.dtype)


def logsumexp_jvp(x: jax.Array, dx: jax.Array, *, wide: bool) -> jax.Array:
    """Tangent: dy = sum(exp(x - max x) * dx) / sum exp(x - max x)."""
    _, terms = _log_sum_exp_terms(widen(x))
    return _narrow(quotient(row_sum(terms * widen(dx)), row_sum(terms)), x, wide)


# Functions from the statistics of whole rows, (..., {maximum, sums}), to the per-row results.
FROM_STATISTICS = {
    "logsumexp_fwd": lambda found: jnp.log(found[..., 1:]) + _finite(found[..., :1]),
    "logsumexp_jvp": lambda found: quotient(found[..., 2:], found[..., 1:2]),
}


def _over_rms(x: jax.Array, epsilon: float) -> jax.Array:
    """1 / sqrt(mean(x^2) + epsilon) of each row."""
    return jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon)


def _along_columns(column: jax.Array, x: jax.Array) -> jax.Array:
    """A vector along the columns of `x`, in its dtype and rank."""
    return jnp.expand_dims(column.astype(x.dtype), range(x.ndim - 1))


def rms_norm_fwd(x: jax.Array, scale: jax.Array, *, epsilon: float) -> jax.Array:
    """RMSNorm: y = scale * r x, with r = 1 / sqrt(mean(x^2) + epsilon)."""
    wide = widen(x)
    return (wide * _over_rms(wide, epsilon) * _along_columns(scale, wide)).astype(x.dtype)


def rms_norm_grad(x: jax.Array, scale: jax.Array, dy: jax.Array, *, epsilon: float) -> jax.Array:
    """Gradient: dx = J^T dy = A (scale * dy), with the symmetric A = r (I - x x^T r^2 / cols)."""
    wide = widen(x)
    dx = _rms_jacobian_times(wide, _along_columns(scale, wide) * widen(dy), epsilon)
    return dx.astype(x.dtype)


def rms_norm_jvp(x: jax.Array, scale: jax.Array, dx: jax.Array, *, epsilon: float) -> jax.Array:
    """Tangent: dy = J dx = scale * (A dx), with A as for `rms_norm_grad`."""
    wide = widen(x)
    dy = _along_columns(scale, wide) * _rms_jacobian_times(wide, widen(dx), epsilon)
    return dy.astype(x.dtype)


def _rms_jacobian_times(x: jax.Array, t: jax.Array, epsilon: float) -> jax.Array:
    r = _over_rms(x, epsilon)
    return r * (t - x * (r * r * jnp.mean(x * t, axis=-1, keepdims=True)))


def rms_norm_scale_grad(x: jax.Array, dy: jax.Array, *, epsilon: float) -> jax.Array:
    """Gradient of the scale: the sum of r x dy over all rows, in the compute dtype."""
    wide = widen(x)
    terms = wide * _over_rms(wide, epsilon) * widen(dy)
    return jnp.sum(terms, axis=tuple(range(x.ndim - 1)))


def band(shape: Sequence[int], left: int, right: int, from_end: bool) -> jax.Array:
    """A mask (1, ..., q, k) of the columns visible to row i of (q, k) matrices: i + left <= j <= i + right.

    `from_end` aligns the last row with the last column, instead of the first with the first.
    """
    q, k = shape[-2:]
    own = jnp.arange(q) + (k - q if from_end else 0)
    return within_band(own, jnp.arange(k), left, right, len(shape))


def within_band(own: jax.Array, cols: jax.Array, left: int, right: int, ndim: int) -> jax.Array:
    """As `band`, for rows whose diagonal columns are `own` and columns `cols`, with rank `ndim`."""
    distance = cols[None, :] - own[:, None]
    # Unbounded sides may exceed the index dtype, so they are clipped.
    left, right = max(left, -_LARGEST_INDEX), min(right, _LARGEST_INDEX)
    return jnp.expand_dims((distance >= left) & (distance <= right), range(ndim - 2))


def masked_softmax_fwd(
    scores: jax.Array,
    *mask_and_bias: jax.Array,
    scale: float,
    left: int,
    right: int,
    from_end: bool,
    has_mask: bool,
    has_bias: bool,
    result_dtype: str | None = None,
) -> jax.Array:
    """Softmax of t = scale * scores + bias over the visible columns; a fully masked row is 0."""
    t = widen(scores) * scale
    if has_bias:
        t = t + widen(mask_and_bias[-1])
    seen = band(scores.shape, left, right, from_end)
    if has_mask:
        seen = seen & mask_and_bias[0]
    t = jnp.where(seen, t, -jnp.inf)
    largest = largest_of(t)
    unnormalized = jnp.exp(t - jnp.where(largest == -jnp.inf, 0, largest))
    total = row_sum(unnormalized)
    y = unnormalized / jnp.where(total == 0, 1, total)
    return y.astype(result_dtype or scores.dtype)


def masked_softmax_grad(
    y: jax.Array, dy: jax.Array, *, scale: float, left: int, right: int, from_end: bool
) -> jax.Array:
    """Gradient of the scores: dx = scale * y * (dy - sum(dy * y)); dy is ignored if y is 0."""
    del left, right, from_end  # y is 0 outside the band
    wide_y = widen(y)
    wide_dy = jnp.where(wide_y == 0, 0, widen(dy))
    difference = jnp.where(wide_y == 0, 0, wide_dy - row_sum(wide_dy * wide_y))
    return (scale * (wide_y * difference)).astype(y.dtype)
