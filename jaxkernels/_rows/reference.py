"""The row operations in plain JAX: what the kernels compute, or runs in their stead.

Owns: the mathematics of one row, along the last axis. 16-bit types are computed in float32 and
rounded once, as in the kernels. Also differentiated by JAX when a kernel's derivative with respect
to what reverse mode keeps (x or y) is wanted. Must not know: axes, masks, primitives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

_LARGEST_INDEX = (1 << 31) - 1


def compute_dtype(x: jax.Array | jax.ShapeDtypeStruct) -> Any:
    """The type in which `x` is computed with: float32 for the 16-bit types, otherwise its own."""
    return jnp.dtype("float64" if x.dtype == jnp.float64 else "float32")


def widen(x: jax.Array) -> jax.Array:
    """`x` in the type in which it is computed with."""
    return x.astype(compute_dtype(x))


def row_sum(x: jax.Array) -> jax.Array:
    """The sum of each row."""
    return jnp.sum(x, axis=-1, keepdims=True)


def largest_of(x: jax.Array) -> jax.Array:
    """The maximum of each row; `initial` lets rows of no columns pass."""
    return jnp.max(x, axis=-1, keepdims=True, initial=-jnp.inf)


def _difference_error(a: jax.Array, b: jax.Array, difference: jax.Array) -> jax.Array:
    """The rounding error of a - b (Knuth's TwoDiff), 0 where the difference is not finite."""
    is_finite = jnp.isfinite(difference)
    a, b, difference = (jnp.where(is_finite, value, 0) for value in (a, b, difference))
    b_part = a - difference
    return (a - (difference + b_part)) + (b_part - b)


def exp_difference(x: jax.Array, largest: jax.Array) -> jax.Array:
    """exp(x - largest). The rounding error of x - largest alone would cost up to 90 units in the last place."""
    difference = x - largest
    exponential = jnp.exp(difference)
    return exponential + exponential * _difference_error(x, largest, difference)


def softmax_fwd(x: jax.Array) -> jax.Array:
    """Softmax: y = exp(x - max x) / sum exp(x - max x)."""
    wide = widen(x)
    unnormalized = jnp.exp(wide - largest_of(wide))  # so that no exponential overflows
    return (unnormalized / row_sum(unnormalized)).astype(x.dtype)


def log_softmax_fwd(x: jax.Array) -> jax.Array:
    """Log of softmax: y = x - max x - log sum exp(x - max x).

    In 1 + 1e-9 the small terms would be lost, and with them results near 0. So terms of the maximum,
    which are exactly 1, are counted apart.
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

    J is symmetric, so this is the jvp too.
    """
    wide_y, wide_dy = widen(y), widen(dy)
    return (wide_y * (wide_dy - row_sum(wide_dy * wide_y))).astype(y.dtype)


def _softmax_of_kept(kept: jax.Array) -> jax.Array:
    """Softmax of x: of a 16-bit x itself, as a rounded y would err by |y| eps, of others exp(y)."""
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
    """What the terms are relative to, the maximum where it is finite, and the terms."""
    relative_to = _finite(largest_of(x))
    return relative_to, jnp.exp(x - relative_to)


def _finite(largest: jax.Array) -> jax.Array:
    most = jnp.finfo(largest.dtype).max
    return jnp.where(largest == -jnp.inf, 0, jnp.where(largest == jnp.inf, most, largest))


def quotient(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """The quotient, 0 where the denominator is: of a row of -inf alone."""
    is_zero = denominator == 0
    return jnp.where(is_zero, 0, numerator / jnp.where(is_zero, 1, denominator))


def _narrow(scalar: jax.Array, x: jax.Array, wide: bool) -> jax.Array:
    return scalar if wide else scalar.astype(x.dtype)


def logsumexp_fwd(x: jax.Array, *, wide: bool) -> jax.Array:
    """Log of a sum of exponentials, for each row: y = max x + log sum exp(x - max x)."""
    relative_to, terms = _log_sum_exp_terms(widen(x))
    return _narrow(jnp.log(row_sum(terms)) + relative_to, x, wide)


def logsumexp_grad(x: jax.Array, dy: jax.Array, *, wide: bool) -> jax.Array:
    """Gradient: dx = dy * exp(x - max x) / sum exp(x - max x), for a dy of shape (..., 1)."""
    del wide  # is the dtype of dy
    _, terms = _log_sum_exp_terms(widen(x))
    return (terms * quotient(dy.astype(terms.dtype), row_sum(terms))).astype(x.dtype)


def logsumexp_jvp(x: jax.Array, dx: jax.Array, *, wide: bool) -> jax.Array:
    """Tangent: dy = sum(exp(x - max x) * dx) / sum exp(x - max x)."""
    _, terms = _log_sum_exp_terms(widen(x))
    return _narrow(quotient(row_sum(terms * widen(dx)), row_sum(terms)), x, wide)


# Row scalars from the statistics of whole rows, (..., {maximum, sums}).
FROM_STATISTICS = {
    "logsumexp_fwd": lambda found: jnp.log(found[..., 1:]) + _finite(found[..., :1]),
    "logsumexp_jvp": lambda found: quotient(found[..., 2:], found[..., 1:2]),
}


def band(shape: Sequence[int], left: int, right: int, from_end: bool) -> jax.Array:
    """Which columns the rows of (q, k) matrices see: i + left <= j <= i + right for row i.

    Args:
        shape: of the matrices, (..., q, k).
        left: the first column that a row sees, counted from its own.
        right: the last one.
        from_end: the last row stands on the last column, instead of the first on the first.

    Returns:
        Array of bool of shape (1, ..., q, k), with as many dimensions as `shape`.
    """
    q, k = shape[-2:]
    own = jnp.arange(q) + (k - q if from_end else 0)
    return within_band(own, jnp.arange(k), left, right, len(shape))


def within_band(own: jax.Array, cols: jax.Array, left: int, right: int, ndim: int) -> jax.Array:
    """The same for rows that stand on the columns `own`, for the columns `cols`, in `ndim` dimensions."""
    distance = cols[None, :] - own[:, None]
    # Bounds beyond any distance need not fit the type of the indices.
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
    """Softmax of t = scale * scores + bias over what each row sees; a row that sees nothing is 0."""
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
    """Gradient of the scores: dx = scale * y * (dy - sum(dy * y)); where y is 0, dy is ignored."""
    del left, right, from_end  # y is 0 outside the band
    wide_y = widen(y)
    wide_dy = jnp.where(wide_y == 0, 0, widen(dy))
    difference = jnp.where(wide_y == 0, 0, wide_dy - row_sum(wide_dy * wide_y))
    return (scale * (wide_y * difference)).astype(y.dtype)
