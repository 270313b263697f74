"""Row operations on rows that are spread over devices.

Every device reduces the columns that it has. What crosses the network is the maximum (of
operations that find one) and the sums of each row, one all-reduce each. Then every device makes its
own columns of the result, or the row scalar that it is. Each of the two kernels reads the operands
once.

Owns: the calls of the two FFI targets, and how the statistics of devices meet. Must not know: how
arrays are split (`partitioning`).

Of float32 and float64 log_softmax also counts the terms of the maximum. Terms of a part whose
maximum is smaller than the row's join the others.

The maximum and the sum of parts of a row meet as in Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018, arXiv:1805.02867.
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
    """What the two kernels need to know of an operation.

    Attributes:
        operation: its name.
        scale: of attention scores.
        has_mask: whether a mask of attention scores is the second operand.
        wide: whether a row scalar that is the result has the dtype that rows are computed in.
    """

    operation: Operation
    scale: float = 1.0
    has_mask: bool = False
    wide: bool = False

    @property
    def traits(self) -> contract.RowOperation:
        """What the table of operations says."""
        return contract.OPERATIONS[self.operation]


def apply(parts: Parts, operands: Sequence[jax.Array], axes: tuple[str, ...]) -> jax.Array:
    """The operation on rows whose columns are spread over the mesh axes `axes`.

    Args:
        parts: the operation.
        operands: of this device, as the whole operation has them.
        axes: of the mesh, by name.
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
    """The maximum and the sums of whole rows from those of parts, side by side at the end of an array.

    The first `relative` sums are relative to the maximum; if there are none, there is no maximum.
    """
    largest, sums = own[..., :1], own[..., 1:]
    if relative > 0:
        own_largest, largest = largest, lax.pmax(largest, axes)
        has_largest = own_largest == largest
        if counts_max:  # terms of a smaller maximum join the others
            count = sums[..., 1:]
            joining = jnp.where(has_largest, 0, count)
            sums = jnp.concatenate([sums[..., :1] + joining, count - joining], axis=-1)
        # A part that has the maximum keeps its sums, also where that is infinite.
        both = (jnp.where(has_largest, 0, value) for value in (own_largest, largest))
        is_relative = np.arange(sums.shape[-1]) < relative
        sums = sums * jnp.where(is_relative, reference.exp_difference(*both), 1)
    return jnp.concatenate([largest, lax.psum(sums, axes)], axis=-1)
