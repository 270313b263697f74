"""Elements at the labels of a row, and losses of rows with several labels.

Owns: how elements are read and written at labels, and how a call for rows without a label serves rows
with several labels. Must not know: axes, how labels are checked, primitives.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxkernels._core import compat
from jaxkernels._rows import last_axis
from jaxkernels._rows.loss_measures import (
    Measures,
    Residuals,
    grad_without_labels,
    joined,
    measures_of,
    split,
)
from jaxkernels._rows.reference import hidden, mask_of, row_sum, slope_of_scaled, transformed, widen


def is_label(x: jax.Array, label: jax.Array) -> jax.Array:
    """A mask of the element at the label of each row."""
    return jax.lax.broadcasted_iota(label.dtype, x.shape, x.ndim - 1) == label


def at_labels(x: jax.Array, label: jax.Array) -> jax.Array:
    """The elements of each row at its labels; 0 for a label outside of the row."""
    if x.shape[-1] == 0:
        return jnp.zeros(label.shape, x.dtype)
    take = functools.partial(jnp.take_along_axis, axis=-1, mode="clip")
    found = compat.split_by_xla(take, last_axis.unsharded_spec(x, 1), x, label)
    return jnp.where((label >= 0) & (label < x.shape[-1]), found, 0)


def transformed_at_labels(x: jax.Array, label: jax.Array, *options: jax.Array) -> jax.Array:
    """As `at_labels`, of transformed elements."""
    is_label = (label >= 0) & (label < x.shape[-1])
    given = [seen_at_labels(x, label, m) if m.dtype == bool else m for m in options]
    return jnp.where(is_label, transformed(at_labels(x, label), *given), 0)


def seen_at_labels(x: jax.Array, label: jax.Array, mask: jax.Array) -> jax.Array:
    """The mask at the labels of each row of x."""
    return at_labels(compat.broadcast_like(mask, x), label).astype(bool)


def sum_at_labels(x: jax.Array, label: jax.Array) -> jax.Array:
    """As `at_labels`; for one label by a sum, which XLA fuses with other sums of x."""
    is_one = label.shape[-1] == 1
    return row_sum(jnp.where(is_label(x, label), x, 0)) if is_one else at_labels(x, label)


def _without_label(label: jax.Array) -> jax.Array:
    return jnp.full((*label.shape[:-1], 1), -1, label.dtype)


def fwd_of_labels(
    call: Callable[..., Any], x: jax.Array, label: jax.Array, *options: jax.Array
) -> jax.Array:
    """The residuals of rows with several labels, from a call for rows without a label."""
    kept = call(x, _without_label(label), *options)
    found = widen(transformed_at_labels(x, label, *options))
    # XLA's tanh differs from the kernel's: a logarithm of a probability could be positive.
    if len(options) > len(mask_of(options)):
        found = jnp.where(label < 0, 0, jnp.minimum(found, kept[..., :1]))
    return joined([kept[..., :-1], jnp.where(label >= x.shape[-1], jnp.nan, found)])


def grad_of_labels(
    call: Callable[..., Any], x: jax.Array, label: jax.Array, *others: jax.Array
) -> jax.Array:
    """The gradient of rows with several labels: that of a call without labels, overwritten at the labels.

    The last of equal labels writes the sum of their gradients. x is not read here, because the call may
    overwrite it.
    """
    *options, kept, cotangent = others
    row, of = split(Residuals, kept), split(Measures, cotangent)
    of_nll = jnp.where(jnp.isnan(row.labelled) & (of.nll != 0), jnp.nan, of.nll)
    no = jnp.zeros_like(of.log_sum)
    of_lse = of.log_sum + row_sum(of_nll)
    without = joined(Measures(no, of_lse, of.entropy, of.distance))
    dx = call(x, _without_label(label), *options, joined([*row[:-1], no]), without)

    order = jnp.argsort(label, axis=-1)
    label, of_nll, z = (at_labels(array, order) for array in (label, of_nll, row.labelled))
    kept = joined([*row[:-1], z])
    own, of_others, is_last = _sums_of_equal(label, of_nll)
    p, dz = grad_without_labels(z, kept, cotangent)
    dz = dz + own * jnp.expm1(-split(Measures, measures_of(kept)).nll) + of_others * p
    dz = jnp.where(jnp.any(cotangent != 0, -1, keepdims=True), dz, 0)
    for option in options:
        if option.dtype == bool:
            dz = hidden(dz, seen_at_labels(x, label, option), 0)
        else:
            dz = dz * slope_of_scaled(z, option)
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
