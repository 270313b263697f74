"""Row operations on rows that are spread over devices.

Every device reduces the columns that it has. What crosses the network is the maximum (of forward
operations) and the sum of each row, one all-reduce each. Then every device makes its own columns of
the result. Each of the two kernels reads the operands once.

Owns: the calls of the two FFI targets, and how the statistics of devices meet. Must not know: how
arrays are split (`partitioning`).

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
from jaxkernels.typing import Operation


@dataclasses.dataclass(frozen=True)
class Parts:
    """What the two kernels need to know of an operation.

    Attributes:
        operation: its name.
        scale: of attention scores.
        has_mask: whether a mask of attention scores is the second operand.
    """

    operation: Operation
    scale: float = 1.0
    has_mask: bool = False

    @property
    def finds_max(self) -> bool:
        """Whether the operation finds a maximum before it sums."""
        return registry.ROW_OPERATIONS[self.operation].finds_max


def apply(parts: Parts, operands: Sequence[jax.Array], axes: tuple[str, ...]) -> jax.Array:
    """The operation on rows whose columns are spread over the mesh axes `axes`.

    Args:
        parts: the operation.
        operands: of this device, as the whole operation has them.
        axes: of the mesh, by name.
    """
    first = operands[0]
    attributes = {
        "operation": parts.operation,
        "scale": np.float64(parts.scale),
        "has_mask": parts.has_mask,
    }
    computed = np.float64 if first.dtype == np.float64 else np.float32
    pairs = jax.ShapeDtypeStruct((*first.shape[:-1], 2), computed)
    own = jax.ffi.ffi_call(registry.STATISTICS_TARGET, pairs)(*operands, **attributes)
    result = jax.ShapeDtypeStruct(first.shape, first.dtype)
    whole = _of_all_devices(own, axes, parts.finds_max)
    return jax.ffi.ffi_call(registry.FINISH_TARGET, result)(whole, *operands, **attributes)


def _of_all_devices(own: jax.Array, axes: tuple[str, ...], finds_max: bool) -> jax.Array:
    """The maximum and the sum of whole rows from those of parts, each a pair at the end of an array."""
    largest, total = own[..., 0], own[..., 1]
    if finds_max:
        own_largest, largest = largest, lax.pmax(largest, axes)
        # A part of nothing but -inf has the sum 0 and must add nothing, also where all parts are so.
        total = total * jnp.exp(own_largest - jnp.where(largest == -jnp.inf, 0, largest))
    return jnp.stack([largest, lax.psum(total, axes)], axis=-1)
