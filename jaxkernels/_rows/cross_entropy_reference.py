"""Cross entropy in plain JAX: the reference of its kernels.

Owns: residuals, gradient and tangents of one row, along the last axis. JAX differentiates these functions
for second and higher derivatives. Must not know: axes, how arguments are checked, primitives.
"""

import functools

import jax
import jax.numpy as jnp

from jaxkernels._rows.loss_labels import grad_of_labels, is_label, sum_at_labels
from jaxkernels._rows.loss_measures import (
    LEAST_EXPONENT,
    TOTAL_SCALE,
    Measures,
    Residuals,
    cotangent_of,
    grad_without_labels,
    joined,
    measures_of,
    softmax_terms,
    split,
)
from jaxkernels._rows.reference import (
    below,
    has_finite_max,
    hidden,
    largest_of,
    mask_of,
    quotient,
    row_sum,
    transformed,
    widen,
)


def _logit_terms(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(max, x - max, exp(x - max)) of each row; the maximum of a row of -inf is taken as 0.

    The maximum has no gradient, because the results do not depend on the shift.
    """
    wide = widen(x)
    largest = jax.lax.stop_gradient(largest_of(wide))
    largest = jnp.where(largest == -jnp.inf, 0, largest)
    difference = below(wide, largest)
    return largest, difference, jnp.exp(difference)


@jax.custom_jvp
def bounded_below(difference: jax.Array) -> jax.Array:
    """Clips a difference of finite numbers that overflowed to -inf; its derivative is that of the difference."""
    return jnp.maximum(difference, jnp.finfo(difference.dtype).min)


bounded_below.defjvp(lambda primals, tangents: (bounded_below(*primals), *tangents))


def without_spoiled_rows(x: jax.Array, *options: jax.Array) -> jax.Array:
    """Stops gradients of rows whose maximum is not finite, because 0 times their derivative is NaN.

    The first gradient of such a row is NaN already, or the row is excluded. `options` are those of `transformed`.
    """
    is_sound = has_finite_max(transformed(x, *mask_of(options)))
    return jnp.where(is_sound, x, jax.lax.stop_gradient(x))


def _row_sum_where(where: jax.Array, x: jax.Array) -> jax.Array:
    return row_sum(jnp.where(where, x, 0))


def cross_entropy_fwd(
    x: jax.Array, label: jax.Array, *options: jax.Array, all_sums: bool, **flags: bool
) -> jax.Array:
    """The residuals (..., 6 + labels) of each row of logits.

    `options` are the mask and the scales, if `flags` (`has_mask`, `has_scales`) say so; `transformed` applies them.
    The spread, total and seen are 0 without `all_sums`.
    """
    del flags
    x = widen(transformed(x, *options))  # once, so that its gradient is rounded once
    largest, difference, terms = _logit_terms(x)
    is_largest = (terms == 1).astype(terms.dtype)
    if all_sums:
        is_seen = x != -jnp.inf
        bounded = jnp.where(is_seen, jnp.maximum(difference, LEAST_EXPONENT), 0)
        total = _row_sum_where(is_seen, bounded_below(difference) * TOTAL_SCALE)
        more = [row_sum(terms * bounded), total, row_sum(is_seen.astype(terms.dtype))]
    else:
        more = [jnp.zeros_like(largest)] * 3
    labelled = sum_at_labels(x, label)
    rest, count = row_sum(terms - is_largest), row_sum(is_largest)
    labelled = jnp.where(label >= x.shape[-1], jnp.nan, labelled)
    return joined(Residuals(largest, rest, count, *more, labelled=labelled))


def cross_entropy_fwd_grad(
    x: jax.Array, label: jax.Array, *others: jax.Array, all_sums: bool, **flags: bool
) -> list[jax.Array]:
    """Gradient of the weighted loss, and the residuals.

    `others`: the options of `cross_entropy_fwd`, then the `Coefficients`. Without `all_sums` their smoothing must be 0.
    """
    *options, numbers = others
    x = without_spoiled_rows(x, *options)
    kept = cross_entropy_fwd(x, label, *options, all_sums=all_sums, **flags)
    cotangent = cotangent_of(label, kept, numbers)
    return [cross_entropy_grad(x, label, *options, kept, cotangent, **flags), kept]


def cross_entropy_loss_jvp(
    x: jax.Array, label: jax.Array, *others: jax.Array, **flags: bool
) -> list[jax.Array]:
    """Tangents of the weighted loss, by its gradient, and of the measures.

    `others` are the options, the `Coefficients`, the residuals, the gradient, and the tangent of x.
    """
    *options, numbers, kept, gradient, dx = others
    dx = hidden(dx, *mask_of(options), value=0) if mask_of(options) else dx
    along = row_sum(widen(gradient) * widen(dx))
    # The tangent of an infinite loss is NaN, although the gradient of hidden classes is 0.
    row, cotangent = split(Residuals, kept), cotangent_of(label, kept, numbers)
    is_spoiled = (row.rest + row.count == 0) & jnp.any(cotangent != 0, -1, keepdims=True)
    along = jnp.where(is_spoiled, jnp.nan, along)
    return [along, cross_entropy_jvp(x, label, *options, kept, dx, **flags)]


def cross_entropy_grad(
    x: jax.Array, label: jax.Array, *others: jax.Array, **flags: bool
) -> jax.Array:
    """Gradient of the measures; rows whose cotangents are 0 have the gradient 0.

    `others` are the options, the residuals, and the cotangents of the measures. The residuals are recomputed.
    """
    *options, _, cotangent = others
    has_part = jnp.any(cotangent != 0, -1, keepdims=True)
    x = jnp.where(has_part, x, jax.lax.stop_gradient(x))
    if label.shape[-1] != 1:
        kept = cross_entropy_fwd(x, label, *options, all_sums=True)
        call = functools.partial(cross_entropy_grad, **flags)
        return grad_of_labels(call, x, label, *options, kept, cotangent)
    z, pull_back = jax.vjp(lambda x: transformed(x, *options), x)
    return pull_back(_grad_of_logits(z, label, cotangent, has_part))[0]


def _grad_of_logits(
    x: jax.Array, label: jax.Array, cotangent: jax.Array, has_part: jax.Array
) -> jax.Array:
    of_loss = split(Measures, cotangent).nll
    kept = cross_entropy_fwd(x, label, all_sums=True)
    loss = split(Measures, measures_of(kept)).nll
    p, dx = grad_without_labels(x, kept, cotangent)
    # expm1 gives p - 1 at the label without the rounding of a p near 1.
    dx = dx + of_loss * jnp.where(is_label(x, label), jnp.expm1(-loss), p)
    dx = jnp.where((label >= x.shape[-1]) & (of_loss != 0), jnp.nan, dx)
    return jnp.where(has_part, dx, 0).astype(x.dtype)


def cross_entropy_jvp(
    x: jax.Array, label: jax.Array, *others: jax.Array, **flags: bool
) -> jax.Array:
    """Tangents of the measures, the transpose of `cross_entropy_grad`.

    `others` are the options, the residuals, which are recomputed, and the tangent of x.
    """
    del flags
    *options, _, dx = others
    x, dx = jax.jvp(lambda x: transformed(x, *options), (x,), (dx,))
    kept = cross_entropy_fwd(x, label, all_sums=True)
    entropy, seen = split(Measures, measures_of(kept)).entropy, split(Residuals, kept).seen
    p, log_p, is_seen = softmax_terms(x, kept)
    wide = widen(dx)
    of_lse = row_sum(p * wide)
    of_entropy = -row_sum(p * (log_p + entropy) * wide)
    mean = quotient(_row_sum_where(is_seen, wide), seen)
    of_distance = jnp.where(seen == 0, 0, of_lse - mean)
    return joined(Measures(of_lse - sum_at_labels(wide, label), of_lse, of_entropy, of_distance))
