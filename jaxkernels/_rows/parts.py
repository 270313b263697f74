"""Row operations on column-sharded rows.

The statistics kernel reduces this device's columns. One all-reduce combines the maxima (if the operation
needs them), and another the sums. The finish kernel then computes this device's columns of the result;
per-row results need no finish kernel. Each kernel reads the operands once.

Owns: the calls of the two FFI targets, and the combination of statistics over devices. Must not know:
how arrays are sharded (`partitioning`).

For float32 and float64 log_softmax also counts the elements equal to the maximum. If a shard's maximum
is below the row's, its count moves to the other sum.

The maxima and sums of shards are combined as in Milakov and Gimelshein, "Online normalizer calculation
for softmax", 2018, arXiv:1805.02867.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkernels._core import registry
from jaxkernels._rows import contract, reference
from jaxkernels.typing import Operation


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parameters of the two kernels.

    Attributes:
        operation: name of the operation.
        scale: factor of the attention scores.
        has_mask: whether the second operand is a mask of attention scores.
        wide: whether a per-row result has the compute dtype instead of that of the first operand.
    """

    operation: Operation
    scale: float = 1.0
    has_mask: bool = False
    wide: bool = False

    @property
    def traits(self) -> contract.RowOperation:
        """The contract of the operation."""
        return contract.OPERATIONS[self.operation]


def apply(parts: Parts, operands: Sequence[jax.Array], axes: tuple[str, ...]) -> jax.Array:
    """The operation on rows whose columns are sharded over the mesh axes `axes`.

    Args:
        parts: the operation and its parameters.
        operands: this device's shards, in the order of the operation.
        axes: names of mesh axes.
    """
    first, traits = operands[0], parts.traits
    attributes = {
        "operation": parts.operation,
        "scale": np.float64(parts.scale),
        "has_mask": parts.has_mask,
        "all_sums": False,
    }
    computed = reference.compute_dtype(first)
    size = 1 + traits.sums_of(first.dtype)
    statistics = jax.ShapeDtypeStruct((*first.shape[:-1], size), computed)
    specs = traits.operands_of_call(has_mask=parts.has_mask)
    elements = [x for x, spec in zip(operands, specs, strict=True) if not spec.is_of_row]
    own = jax.ffi.ffi_call(registry.STATISTICS_TARGET, statistics)(*elements, **attributes)
    relative, counts_max = traits.relative_sums_of(first.dtype), traits.counts_max_of(first.dtype)
    whole = _of_all_devices(own, axes, relative, counts_max)
    if not traits.stores_elements:
        scalar = reference.FROM_STATISTICS[parts.operation](whole)
        return scalar if parts.wide else scalar.astype(first.dtype)
    result = jax.ShapeDtypeStruct(first.shape, first.dtype)
    return jax.ffi.ffi_call(registry.FINISH_TARGET, result)(whole, *operands, **attributes)


def _of_all_devices(
    own: jax.Array, axes: tuple[str, ...], relative: int, counts_max: bool
) -> jax.Array:
    """Combines shards' statistics (..., {maximum, sums}) into those of whole rows.

    The first `relative` sums are relative to the maximum. If it is 0, the maximum is unused.
    """
    largest, sums = own[..., :1], own[..., 1:]
    if relative > 0:
        own_largest, largest = largest, lax.pmax(largest, axes)
        has_largest = own_largest == largest
        if counts_max:  # move the count of a smaller maximum to the other sum
            count = sums[..., 1:]
            joining = jnp.where(has_largest, 0, count)
            sums = jnp.concatenate([sums[..., :1] + joining, count - joining], axis=-1)
        # A shard that has the row's maximum keeps its sums, even if the maximum is infinite.
        both = (jnp.where(has_largest, 0, value) for value in (own_largest, largest))
        is_relative = np.arange(sums.shape[-1]) < relative
        sums = sums * jnp.where(is_relative, reference.exp_difference(*both), 1)
    return jnp.concatenate([largest, lax.psum(sums, axes)], axis=-1)
