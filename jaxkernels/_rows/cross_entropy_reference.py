"""Cross entropy in plain JAX: the reference of its kernels, and the per-row arithmetic after them.

Owns: the mathematics of one row, along the last axis. Per-row numbers have the compute dtype of the
logits. JAX differentiates these functions for second and higher derivatives. Must not know: axes, how
arguments are checked, primitives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import compat
from jaxkernels._rows import last_axis
from jaxkernels._rows.reference import (
    largest_of,
    quotient,
    row_sum,
    scaled,
    slope_of_scaled,
    widen,
)
from jaxkernels.typing import Reduction

_Numbers = TypeVar("_Numbers", "Residuals", "Measures", "Coefficients")


class Residuals(NamedTuple):
    """The numbers that the forward kernel reduces a row to, each of shape (..., 1); t = exp(x - max).

    If rest + count is 2 or more, a kernel may count one maximum only and add the others to `rest`.

    Attributes:
        largest: the maximum of x.
        rest: the sum of t over the elements below the maximum.
        count: the number of elements equal to the maximum; their t is exactly 1.
        spread: the sum of t * (x - max).
        total: the sum of (x - max) * TOTAL_SCALE over the elements that are not -inf.
        seen: the number of elements that are not -inf.
        labelled: the element at each label; 0 without a label, NaN for a label beyond the row.
    """

    largest: jax.Array
    rest: jax.Array
    count: jax.Array
    spread: jax.Array
    total: jax.Array
    seen: jax.Array
    labelled: jax.Array


class Measures(NamedTuple):
    """The terms of a loss, each of shape (..., 1), or their cotangents.

    Attributes:
        nll: lse - x_label of each label.
        log_sum: lse - max.
        entropy: the entropy of the softmax.
        distance: mean (lse - x) over the elements that are not -inf.
    """

    nll: jax.Array
    log_sum: jax.Array
    entropy: jax.Array
    distance: jax.Array


class Coefficients(NamedTuple):
    """The numbers of weight * (q nll + smoothing distance + z lse^2), each of shape (..., 1)."""

    weight: jax.Array
    q: jax.Array
    smoothing: jax.Array
    z: jax.Array


def joined(numbers: Sequence[jax.Array]) -> jax.Array:
    """The array (..., count) of numbers of each row."""
    return jnp.concatenate(numbers, axis=-1)


def _split(kind: type[_Numbers], numbers: jax.Array) -> _Numbers:
    """The numbers of each row by name; the inverse of `joined`."""
    fields = len(kind._fields)
    more = numbers.shape[-1] - fields if kind is Measures else 0  # of further labels
    return kind(*jnp.split(numbers, [*range(1 + more, fields + more)], axis=-1))


# TOTAL_SCALE mirrors kTotalScale of ffi/rows/operations.h. It keeps the sum of a row of the largest
# finite numbers from overflowing.
TOTAL_SCALE = 2.0**-32

# Exponents below this bound have the exponential 0.
_LEAST_EXPONENT = -1000.0


def _logit_terms(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(max, x - max, exp(x - max)) of each row; the maximum of a row of -inf is taken as 0.

    The maximum has no gradient, because the results do not depend on the shift.
    """
    wide = widen(x)
    largest = jax.lax.stop_gradient(largest_of(wide))
    largest = jnp.where(largest == -jnp.inf, 0, largest)
    difference = wide - largest
    return largest, difference, jnp.exp(difference)


def bounded_below(difference: jax.Array) -> jax.Array:
    """Clips a difference of finite numbers that overflowed to -inf."""
    return jnp.maximum(difference, jnp.finfo(difference.dtype).min)


def without_spoiled_rows(x: jax.Array) -> jax.Array:
    """Stops gradients of rows whose maximum is not finite, because 0 times their derivative is NaN.

    The first gradient of such a row is NaN already, or the row is excluded.
    """
    return jnp.where(jnp.isfinite(largest_of(x)), x, jax.lax.stop_gradient(x))


def _at_label(x: jax.Array, label: jax.Array) -> jax.Array:
    """A mask of the element at the label of each row."""
    return jax.lax.broadcasted_iota(label.dtype, x.shape, x.ndim - 1) == label


def _row_sum_where(where: jax.Array, x: jax.Array) -> jax.Array:
    return row_sum(jnp.where(where, x, 0))


def at_labels(x: jax.Array, label: jax.Array) -> jax.Array:
    """The elements of each row at its labels; 0 for a label outside of the row."""
    if x.shape[-1] == 0:
        return jnp.zeros(label.shape, x.dtype)
    take = functools.partial(jnp.take_along_axis, axis=-1, mode="clip")
    found = compat.split_by_xla(take, last_axis.unsharded_spec(x, 1), x, label)
    return jnp.where((label >= 0) & (label < x.shape[-1]), found, 0)


def _sum_at_labels(x: jax.Array, label: jax.Array) -> jax.Array:
    """As `at_labels`; for one label by a sum, which XLA fuses with other sums of x."""
    is_one = label.shape[-1] == 1
    return _row_sum_where(_at_label(x, label), x) if is_one else at_labels(x, label)


def _without_label(label: jax.Array) -> jax.Array:
    return jnp.full((*label.shape[:-1], 1), -1, label.dtype)


def fwd_of_labels(
    call: Callable[..., Any], x: jax.Array, label: jax.Array, *scales: jax.Array
) -> jax.Array:
    """The residuals of rows with several labels, from a call for rows without a label."""
    kept = call(x, _without_label(label), *scales)
    found = at_labels(x, label)
    found = scaled(found, *scales) if scales else widen(found)
    return joined([kept[..., :-1], jnp.where(label >= x.shape[-1], jnp.nan, found)])


def grad_of_labels(
    call: Callable[..., Any], x: jax.Array, label: jax.Array, *others: jax.Array
) -> jax.Array:
    """The gradient of rows with several labels: that of a call without, then overwritten at labels.

    The last of equal labels writes the sum of their gradients. x is not read here, because the call may
    overwrite it.
    """
    *scales, kept, cotangent = others
    row, of = _split(Residuals, kept), _split(Measures, cotangent)
    of_nll = jnp.where(jnp.isnan(row.labelled) & (of.nll != 0), jnp.nan, of.nll)
    no = jnp.zeros_like(of.log_sum)
    of_lse = of.log_sum + row_sum(of_nll)
    without = joined(Measures(no, of_lse, of.entropy, of.distance))
    dx = call(x, _without_label(label), *scales, joined([*row[:-1], no]), without)

    order = jnp.argsort(label, axis=-1)
    label, of_nll, z = (at_labels(array, order) for array in (label, of_nll, row.labelled))
    kept = joined([*row[:-1], z])
    own, of_others, is_last = _sums_of_equal(label, of_nll)
    p, dz = _grad_without_labels(z, kept, cotangent)
    dz = dz + own * jnp.expm1(-_split(Measures, measures_of(kept)).nll) + of_others * p
    dz = jnp.where(jnp.any(cotangent != 0, -1, keepdims=True), dz, 0)
    dz = dz * slope_of_scaled(z, *scales) if scales else dz
    return _with_elements(dx, jnp.where(is_last, label, -1), dz.astype(dx.dtype))


def _sums_of_equal(label: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """At the last of equal labels, which are sorted: the sum of their values, and of all others.

    The third result is the mask of the last ones. No sum is a difference, which would cancel.
    """
    edge, no = jnp.ones_like(label[..., :1], bool), jnp.zeros_like(values[..., :1])
    is_new = label[..., 1:] != label[..., :-1]
    before = joined([no, jnp.cumsum(values[..., :-1], -1)])
    after = joined([jax.lax.cumsum(values[..., 1:], values.ndim - 1, reverse=True), no])

    def join(a: Any, b: Any) -> Any:
        (a_starts, a_sum, a_before), (b_starts, b_sum, b_before) = a, b
        together = jnp.where(b_starts, b_sum, a_sum + b_sum)
        return a_starts | b_starts, together, jnp.where(b_starts, b_before, a_before)

    of_all = (joined([edge, is_new]), values, before)
    _, own, before = jax.lax.associative_scan(join, of_all, axis=-1)
    return own, before + after, joined([is_new, edge])


def _with_elements(x: jax.Array, columns: jax.Array, values: jax.Array) -> jax.Array:
    """`x` with `values` in `columns` of each row; columns outside of the row are dropped."""

    def put(x: jax.Array, columns: jax.Array, values: jax.Array) -> jax.Array:
        return x.at[columns].set(values, mode="drop")

    for _ in range(x.ndim - 1):
        put = jax.vmap(put)
    columns = jnp.where(columns < 0, x.shape[-1], columns)
    return compat.split_by_xla(put, compat.explicit_spec(x), x, columns, values)


def cross_entropy_fwd(
    x: jax.Array, label: jax.Array, *scales: jax.Array, all_sums: bool, has_scales: bool = False
) -> jax.Array:
    """The residuals of each row, (..., 7), of logits that `scaled` has transformed if there are scales.

    Without `all_sums` spread, total and seen are 0.
    """
    del has_scales
    x = scaled(x, *scales) if scales else x
    largest, difference, terms = _logit_terms(x)
    is_largest = (terms == 1).astype(terms.dtype)
    if all_sums:
        is_seen = x != -jnp.inf
        bounded = jnp.where(is_seen, jnp.maximum(difference, _LEAST_EXPONENT), 0)
        total = _row_sum_where(is_seen, bounded_below(difference) * TOTAL_SCALE)
        more = [row_sum(terms * bounded), total, row_sum(is_seen.astype(terms.dtype))]
    else:
        more = [jnp.zeros_like(largest)] * 3
    labelled = _sum_at_labels(widen(x), label)
    rest, count = row_sum(terms - is_largest), row_sum(is_largest)
    labelled = jnp.where(label >= x.shape[-1], jnp.nan, labelled)
    return joined(Residuals(largest, rest, count, *more, labelled=labelled))


def measures_of(kept: jax.Array, *, all_sums: bool = True) -> jax.Array:
    """Converts residuals to measures; without `all_sums` the last two are 0."""
    row = _split(Residuals, kept)
    log_sum = jnp.log1p(row.rest + (row.count - 1))
    # A label with the logit -inf has the probability 0, even in a row of -inf.
    is_hidden = (row.labelled == -jnp.inf) & ~jnp.isnan(log_sum)
    above_label = row.largest - jnp.where(is_hidden, 0, row.labelled)
    nll = jnp.where(is_hidden, jnp.inf, log_sum + above_label)
    if not all_sums:
        zero = jnp.zeros_like(log_sum)
        return joined(Measures(nll, log_sum, zero, zero))
    entropy = log_sum - quotient(row.spread, row.rest + row.count)
    mean = jnp.maximum(quotient(row.total, row.seen), jnp.finfo(kept.dtype).min * TOTAL_SCALE)
    distance = log_sum - mean / TOTAL_SCALE
    distance = jnp.where(row.seen == 0, row.total, distance)
    return joined(Measures(nll, log_sum, entropy, distance))


def cross_entropy_fwd_grad(
    x: jax.Array, label: jax.Array, *others: jax.Array, all_sums: bool, has_scales: bool = False
) -> list[jax.Array]:
    """Gradient of the weighted loss, and the residuals.

    `others`: the scales, if any, then the `Coefficients`. Without `all_sums` their smoothing must be 0.
    """
    del has_scales
    *scales, numbers = others
    x = without_spoiled_rows(x)
    kept = cross_entropy_fwd(x, label, *scales, all_sums=all_sums)
    cotangent = cotangent_of(label, kept, numbers)
    return [cross_entropy_grad(x, label, *scales, kept, cotangent), kept]


def coefficients_of(
    weight: jax.Array, reduction: Reduction, smoothing: ArrayLike, z_loss: ArrayLike
) -> jax.Array:
    """The `Coefficients` of each row, whose losses are summed: a "mean" divides by the sum of weights."""
    if reduction == "mean":
        total = jnp.sum(weight)
        weight = jnp.where(total == 0, 0, weight / jnp.where(total == 0, 1, total))
    smoothing = jnp.asarray(smoothing, weight.dtype)
    of_all = (1 - smoothing, smoothing, jnp.asarray(z_loss, weight.dtype))
    # One concatenation lets XLA read each column where it is used, and fold the constant ones.
    no = jnp.zeros(1, bool)  # jnp.where, unlike a broadcast, keeps the sharding of the weight
    columns = (jnp.where(no, weight, number) for number in of_all)
    return joined(Coefficients(weight, *columns))


def cross_entropy_loss_jvp(
    x: jax.Array, label: jax.Array, *others: jax.Array, has_scales: bool = False
) -> list[jax.Array]:
    """Tangents of the weighted loss, by its gradient, and of the measures.

    `others` are the scales, if any, the `Coefficients`, the residuals, the gradient, and the tangent of x.
    """
    *scales, _, kept, gradient, dx = others
    along = row_sum(widen(gradient) * widen(dx))
    return [along, cross_entropy_jvp(x, label, *scales, kept, dx, has_scales=has_scales)]


@jax.custom_jvp
def _z_term(z: jax.Array, lse: jax.Array) -> jax.Array:
    """Z lse^2, and its derivative, without the product lse^2, which may overflow."""
    return z * lse * lse


@_z_term.defjvp
def _z_term_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (z, lse), (dz, dlse) = primals, tangents
    return _z_term(z, lse), 2 * (z * lse) * dlse + dz * lse * lse


def loss_of(
    is_counted: jax.Array, measures: jax.Array, largest: jax.Array, numbers: jax.Array
) -> jax.Array:
    """Weight * (q nll + smoothing distance + z lse^2) of each row; 0 if not counted.

    A row with the weight 0 gives 0 even if its loss is not finite. If q is 0, a masked label contributes
    nothing.
    """
    weight, q, smoothing, z = _split(Coefficients, numbers)
    # XLA fuses the split with the concatenation that made `measures`: less than half the time on a CPU.
    of_row = _split(Measures, measures)
    is_finite = functools.reduce(jnp.logical_and, map(jnp.isfinite, of_row))
    is_counted = is_counted & ((weight != 0) | is_finite)
    nll, log_sum, _, distance = (jnp.where(is_counted, m, 0) for m in of_row)
    nll = jnp.where((q == 0) & (nll == jnp.inf), 0, nll)
    lse = jnp.where(is_counted, largest, 0) + log_sum
    lse = jnp.where((z == 0) & ~jnp.isfinite(lse), 0, lse)
    loss = q * nll + smoothing * distance + _z_term(z, lse)
    is_counted = is_counted & ((weight != 0) | jnp.isfinite(loss))
    return weight * jnp.where(is_counted, loss, 0)


def results_of(
    loss: jax.Array,
    measures: jax.Array,
    largest: jax.Array,
    reduction: Reduction,
    return_lse: bool,
    return_entropy: bool,
) -> list[jax.Array]:
    """The per-row losses or their sum, then the requested log-sum-exp and entropy of each row."""
    results = [jnp.squeeze(loss, -1) if reduction == "none" else jnp.sum(loss)]
    if return_lse:
        results.append(jnp.squeeze(largest + measures[..., 1:2], -1))
    if return_entropy:
        results.append(jnp.squeeze(measures[..., 2:3], -1))
    return results


def cotangent_of(label: jax.Array, kept: jax.Array, numbers: jax.Array) -> jax.Array:
    """The derivative of `loss_of` with respect to the measures."""
    weight, q, smoothing, z = _split(Coefficients, numbers)
    lse = kept[..., :1] + measures_of(kept)[..., 1:2]
    of_row = Measures(weight * q, 2 * weight * z * lse, jnp.zeros_like(weight), weight * smoothing)
    is_counted = (label >= 0) & (weight != 0)
    return jnp.where(is_counted, joined(of_row), 0)


def _softmax_terms(x: jax.Array, kept: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(p, log p, mask of elements that are not -inf) of elements x of rows; log p is finite even if p is 0."""
    log_sum = _split(Measures, measures_of(kept)).log_sum
    is_seen = x != -jnp.inf
    difference = jnp.where(is_seen, widen(x) - kept[..., :1], 0)
    p = jnp.where(is_seen, jnp.exp(difference), 0) / jnp.exp(log_sum)
    return p, jnp.maximum(difference, _LEAST_EXPONENT) - log_sum, is_seen


def _grad_without_labels(
    x: jax.Array, kept: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The softmax of elements x of rows, and the gradient of all measures but the first."""
    _, of_lse, of_entropy, of_distance = _split(Measures, cotangent)
    seen = _split(Residuals, kept).seen
    p, log_p, is_seen = _softmax_terms(x, kept)
    of_lse = of_lse + jnp.where(seen == 0, 0, of_distance)
    dx = p * (of_lse - of_entropy * (log_p + _split(Measures, measures_of(kept)).entropy))
    return p, dx - jnp.where(is_seen, quotient(of_distance, seen), 0)


def cross_entropy_grad(
    x: jax.Array, label: jax.Array, *others: jax.Array, has_scales: bool = False
) -> jax.Array:
    """Gradient of the measures; rows whose cotangents are 0 have the gradient 0.

    `others` are the scales, if any, the residuals, and the cotangents of the measures. The residuals
    are recomputed.
    """
    del has_scales
    *scales, _, cotangent = others
    has_part = jnp.any(cotangent != 0, -1, keepdims=True)
    x = jnp.where(has_part, x, jax.lax.stop_gradient(x))
    if label.shape[-1] != 1:
        kept = cross_entropy_fwd(x, label, *scales, all_sums=True)
        return grad_of_labels(cross_entropy_grad, x, label, *scales, kept, cotangent)
    if scales:
        z, pull_back = jax.vjp(lambda x: scaled(x, *scales), x)
        return pull_back(_grad_of_logits(z, label, cotangent, has_part))[0]
    return _grad_of_logits(x, label, cotangent, has_part)


def _grad_of_logits(
    x: jax.Array, label: jax.Array, cotangent: jax.Array, has_part: jax.Array
) -> jax.Array:
    of_loss = _split(Measures, cotangent).nll
    kept = cross_entropy_fwd(x, label, all_sums=True)
    loss = _split(Measures, measures_of(kept)).nll
    p, dx = _grad_without_labels(x, kept, cotangent)
    # expm1 gives p - 1 at the label without the rounding of a p near 1.
    dx = dx + of_loss * jnp.where(_at_label(x, label), jnp.expm1(-loss), p)
    dx = jnp.where((label >= x.shape[-1]) & (of_loss != 0), jnp.nan, dx)
    return jnp.where(has_part, dx, 0).astype(x.dtype)


def cross_entropy_jvp(
    x: jax.Array, label: jax.Array, *others: jax.Array, has_scales: bool = False
) -> jax.Array:
    """Tangents of the measures, the transpose of `cross_entropy_grad`.

    `others` are the scales, if any, the residuals, which are recomputed, and the tangent of x.
    """
    del has_scales
    *scales, _, dx = others
    if scales:
        x, dx = jax.jvp(lambda x: scaled(x, *scales), (x,), (dx,))
    kept = cross_entropy_fwd(x, label, all_sums=True)
    entropy, seen = _split(Measures, measures_of(kept)).entropy, _split(Residuals, kept).seen
    p, log_p, is_seen = _softmax_terms(x, kept)
    wide = widen(dx)
    of_lse = row_sum(p * wide)
    of_entropy = -row_sum(p * (log_p + entropy) * wide)
    mean = quotient(_row_sum_where(is_seen, wide), seen)
    of_distance = jnp.where(seen == 0, 0, of_lse - mean)
    return joined(Measures(of_lse - _sum_at_labels(wide, label), of_lse, of_entropy, of_distance))
