"""Builds the FFI calls of row kernels in traced functions, and the attributes of all of them.

The statistics kernel reduces this device's columns. One all-reduce combines the maxima (if the operation
needs them), and another the sums. The finish kernel then computes this device's columns of the result;
per-row results need no finish kernel. Each kernel reads the operands once.

In float32 and float64, log_softmax also counts the elements equal to the maximum. If a shard's maximum
is below the row's, its count moves to the other sum.

The maxima and sums of shards are combined as in Milakov and Gimelshein, "Online normalizer calculation
for softmax", 2018, arXiv:1805.02867.

Owns: attributes, shapes and dtypes of the calls, and the combination of statistics over devices. Must not
know: JAX's transformations, how arrays are sharded (`partitioning`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkernels._core import registry
from jaxkernels._rows import reference
from jaxkernels._rows.contract import Operand, RowOperation
from jaxkernels._rows.reference import compute_dtype

# A band that hides nothing.
OPEN = {"left": -registry.UNBOUNDED, "right": registry.UNBOUNDED, "from_end": False}
# Attributes of the statistics and finish targets, at their neutral values.
_OF_PARTS = {"scale": 1.0, "has_mask": False, "all_sums": False}


def row_dims(attributes: dict[str, Any]) -> int:
    """The number of last dimensions that must be whole and in order: 2 if a row's index decides its band."""
    sides = ("left", "right")
    return 2 if any(attributes.get(side, OPEN[side]) != OPEN[side] for side in sides) else 1


def attributes_of(operation: RowOperation, tier: str = "auto", **given: Any) -> dict[str, Any]:
    """The attributes of a call of whole rows; others in `given` are dropped."""
    known = {name: given.get(name, value) for name, value in (_OF_PARTS | OPEN).items()}
    if operation.averages:  # the targets read the epsilon from the scale
        known["scale"] = np.float64(given["epsilon"])
    return {"operation": operation.name, "tier": tier, **known}


def dtype_of(result: Operand, first: Any, attributes: dict[str, Any]) -> Any:
    """The dtype of a result.

    A result with one number per row has the first operand's dtype, one with several its compute dtype, as
    has one that `is_wide`. Elements have the first operand's dtype, or `result_dtype`.
    """
    if result.is_of_row:
        return compute_dtype(first) if result.count > 1 or result.is_wide else first.dtype
    return jnp.dtype(attributes.get("result_dtype") or first.dtype)


def rows(
    operation: RowOperation,
    *operands: jax.Array,
    tier: str = "auto",
    aliases: dict[int, int] | None = None,
    **attributes: Any,
) -> Any:
    """The result, or the list of results, of whole rows. Not differentiable.

    Operands, tier and attributes are those of `RowKernel.__call__`; results overwrite the operands of
    `aliases`.
    """
    # Shapes are computed by hand, because tracing would lose float64 if x64 is off at lowering.
    first = operands[0]
    results = [
        jax.ShapeDtypeStruct(
            (*first.shape[:-1], x.count) if x.is_of_row else first.shape,
            dtype_of(x, first, attributes),
        )
        for x in operation.results
    ]
    call = jax.ffi.ffi_call(
        registry.ROWS_TARGET,
        results if len(results) > 1 else results[0],
        input_output_aliases=aliases,
    )
    return call(*operands, **attributes_of(operation, tier, **attributes))


def statistics(
    operation: RowOperation, operands: Sequence[jax.Array], **attributes: Any
) -> jax.Array:
    """(maximum, sums...) of this device's columns, of shape (..., 1 + sums) in the compute dtype.

    `operands` are all except per-row ones; scales, although per row, are included.
    """
    first = operands[0]
    shape = (*first.shape[:-1], 1 + operation.sums_of(first.dtype))
    result = jax.ShapeDtypeStruct(shape, compute_dtype(first))
    call = jax.ffi.ffi_call(registry.STATISTICS_TARGET, result)
    return call(*operands, operation=operation.name, **_OF_PARTS | attributes)


def in_parts(
    operation: RowOperation,
    from_statistics: Callable[[jax.Array], jax.Array] | None,
    operands: Sequence[jax.Array],
    axes: tuple[str, ...],
    *,
    scale: float = 1.0,
    has_mask: bool = False,
    **others: Any,
) -> jax.Array:
    """This device's result of an operation on rows whose columns are sharded over the mesh axes `axes`.

    `from_statistics` is that of the `RowKernel`, and the attributes are those of its calls.
    """
    first = operands[0]
    number = others["epsilon"] if operation.averages else scale
    attributes = {"scale": np.float64(number), "has_mask": has_mask}
    specs = operation.operands_of_call(has_mask=has_mask)
    elements = [x for x, spec in zip(operands, specs, strict=True) if not spec.is_of_row]
    own = statistics(operation, elements, **attributes)
    relative = operation.relative_sums_of(first.dtype)
    whole = _of_all_devices(own, axes, relative, operation.counts_max_of(first.dtype))
    if operation.averages:  # all shards have the same number of columns
        whole = whole / lax.psum(1, axes)
    if from_statistics is not None:
        return from_statistics(whole).astype(dtype_of(operation.results[0], first, others))
    result = jax.ShapeDtypeStruct(first.shape, first.dtype)
    call = jax.ffi.ffi_call(registry.FINISH_TARGET, result)
    return call(whole, *operands, operation=operation.name, **_OF_PARTS | attributes)


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
