"""The loss of a row, from the few numbers that a kernel reduces the row to.

The numbers are `Residuals`. `Measures` are computed from them, and a loss is a sum of measures with
`Coefficients`. All have the compute dtype of the logits.

Owns: these three and their derivatives. Must not know: how rows are reduced, axes, primitives.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._rows.reference import quotient, widen
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


def split(kind: type[_Numbers], numbers: jax.Array) -> _Numbers:
    """The numbers of each row by name; the inverse of `joined`."""
    fields = len(kind._fields)
    more = numbers.shape[-1] - fields if kind is Measures else 0  # of further labels
    return kind(*jnp.split(numbers, [*range(1 + more, fields + more)], axis=-1))


# TOTAL_SCALE mirrors kTotalScale of ffi/rows/operations.h. It keeps the sum of a row of the largest
# finite numbers from overflowing.
TOTAL_SCALE = 2.0**-32

# Exponents below this bound have the exponential 0.
LEAST_EXPONENT = -1000.0


def measures_of(kept: jax.Array, *, all_sums: bool = True) -> jax.Array:
    """Converts residuals to measures; without `all_sums` the last two are 0."""
    row = split(Residuals, kept)
    log_sum = jnp.log1p(row.rest + (row.count - 1))
    # A label with the logit -inf has the probability 0, even in a row of -inf.
    is_empty = (row.labelled == -jnp.inf) & (log_sum == -jnp.inf)
    nll = jnp.where(is_empty, jnp.inf, log_sum + (row.largest - row.labelled))
    if not all_sums:
        zero = jnp.zeros_like(log_sum)
        return joined(Measures(nll, log_sum, zero, zero))
    entropy = log_sum - quotient(row.spread, row.rest + row.count)
    mean = jnp.maximum(quotient(row.total, row.seen), jnp.finfo(kept.dtype).min * TOTAL_SCALE)
    distance = log_sum - mean / TOTAL_SCALE
    distance = jnp.where(row.seen == 0, row.total, distance)
    return joined(Measures(nll, log_sum, entropy, distance))


def coefficients_of(
    weight: jax.Array, reduction: Reduction, smoothing: ArrayLike, z_loss: ArrayLike
) -> jax.Array:
    """The `Coefficients` of each row; "mean" divides the weights by their sum, so that losses are only summed."""
    if reduction == "mean":
        total = jnp.sum(weight)
        weight = jnp.where(total == 0, 0, weight / jnp.where(total == 0, 1, total))
    smoothing = jnp.asarray(smoothing, weight.dtype)
    of_all = (1 - smoothing, smoothing, jnp.asarray(z_loss, weight.dtype))
    # One concatenation lets XLA read each column where it is used, and fold the constant ones.
    no = jnp.zeros(1, bool)  # jnp.where, unlike a broadcast, keeps the sharding of the weight
    columns = (jnp.where(no, weight, number) for number in of_all)
    return joined(Coefficients(weight, *columns))


@jax.custom_jvp
def _z_term(z: jax.Array, lse: jax.Array) -> jax.Array:
    """The term z lse^2, and its derivative, without the product lse^2, which may overflow."""
    return z * lse * lse


@_z_term.defjvp
def _z_term_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (z, lse), (dz, dlse) = primals, tangents
    slope = 2 * (z * lse)
    # With an infinite lse, other parts of the gradient are NaN, or the cotangent is 0.
    return _z_term(z, lse), jnp.where(jnp.isfinite(lse), slope, 0) * dlse + dz * lse * lse


def loss_of(
    is_counted: jax.Array, measures: jax.Array, largest: jax.Array, numbers: jax.Array
) -> jax.Array:
    """The loss of each row, weight * (q nll + smoothing distance + z lse^2); 0 if not counted.

    A row with the weight 0 gives 0 even if its loss is not finite. If q is 0, a masked label contributes
    nothing.
    """
    weight, q, smoothing, z = split(Coefficients, numbers)
    # XLA fuses the split with the concatenation that made `measures`: less than half the time on a CPU.
    of_row = split(Measures, measures)
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
    weight, q, smoothing, z = split(Coefficients, numbers)
    lse = kept[..., :1] + measures_of(kept)[..., 1:2]
    of_row = Measures(weight * q, 2 * weight * z * lse, jnp.zeros_like(weight), weight * smoothing)
    is_counted = (label >= 0) & (weight != 0)
    return jnp.where(is_counted, joined(of_row), 0)


def softmax_terms(x: jax.Array, kept: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(p, log p, mask of elements that are not -inf) of elements x of rows; log p is finite even if p is 0."""
    log_sum = split(Measures, measures_of(kept)).log_sum
    is_seen = x != -jnp.inf
    difference = jnp.where(is_seen, widen(x) - kept[..., :1], 0)
    p = jnp.where(is_seen, jnp.exp(difference), 0) / jnp.exp(log_sum)
    return p, jnp.maximum(difference, LEAST_EXPONENT) - log_sum, is_seen


def grad_without_labels(
    x: jax.Array, kept: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The softmax of elements x of rows, and the gradient of all measures but the first."""
    _, of_lse, of_entropy, of_distance = split(Measures, cotangent)
    seen = split(Residuals, kept).seen
    p, log_p, is_seen = softmax_terms(x, kept)
    of_lse = of_lse + jnp.where(seen == 0, 0, of_distance)
    dx = p * (of_lse - of_entropy * (log_p + split(Measures, measures_of(kept)).entropy))
    return p, dx - jnp.where(is_seen, quotient(of_distance, seen), 0)
