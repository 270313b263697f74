"""How the cross entropy of a linear layer is split over devices.

A device has some rows and some classes. Of rows that are spread over classes a few numbers each cross
the network, as in `cross_entropy_kernels`, and the sum of dx; of classes the sums over rows, dw and
that of the bias. Rows and classes that their devices do not divide are gathered, because padding would
take part in sums. Features are gathered.

Owns: the rule and the partitions. Must not know: what a chunk computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jaxkernels._linear_loss import chunks, plan
from jaxkernels._linear_loss.chunks import Call
from jaxkernels._linear_loss.row_calls import InParts, InPlace, RowCalls, Traced

_CLASSES, _FEATURES = "classes", "features"


def partitioned(
    call: Call, shapes: Sequence[tuple[int, ...]], platform: str, uses_kernels: bool
) -> Callable[..., Any]:
    """The call as a function that XLA's partitioner knows how to split.

    Args:
        call: what to split.
        shapes: those of the operands.
        platform: JAX's name of it.
        uses_kernels: whether the row kernels are there and wanted.
    """
    at = call.names.index
    rank = len(shapes[at("x")]) - 1
    operand_dims = [_dims(call, name, rank) for name in call.names]
    result_dims = [_dims(call, name, rank) for name in call.wanted]

    def partition(mesh: Any, operands: Any, result_info: Any) -> Any:
        del result_info  # where it asks for another split than the operands give, XLA reshards
        axes = _axes(call, operands, operand_dims, mesh.shape, uses_kernels)
        of_classes = axes.pop(_CLASSES, ())

        def sharding_of(dims: Sequence[str]) -> NamedSharding:
            known = axes | {_CLASSES: of_classes}
            return NamedSharding(mesh, PartitionSpec(*(known.get(dim) or None for dim in dims)))

        def lowered(*parts: jax.Array) -> list[jax.Array]:
            # XLA may ask in a thread where this is off.
            with jax.enable_x64(parts[0].dtype == jnp.float64):
                return _local(call, parts, axes, of_classes, platform, uses_kernels)

        results = [sharding_of(dims) for dims in result_dims]
        return mesh, lowered, results, tuple(map(sharding_of, operand_dims))

    def whole(*operands: jax.Array) -> list[jax.Array]:
        rows = Traced(call.options.all_sums, not uses_kernels, False)
        return chunks.run(call, operands, rows, plan.chunk_rows(call, shapes, operands, platform))

    function = custom_partitioning(whole)
    rule = " -> ".join(
        ", ".join(" ".join(dims) for dims in of) for of in (operand_dims, result_dims)
    )
    function.def_partition(partition=partition, sharding_rule=rule)
    return function


def _dims(call: Call, name: str, rank: int) -> list[str]:
    """Names of the dimensions of an operand or a result."""
    rows = [f"row{i}" for i in range(rank)]
    if name == "loss":
        return rows[: call.members]
    of = name.removeprefix("d").removesuffix("_dot")
    if of == "w":
        pair = [_FEATURES, _CLASSES]
        return pair[::-1] if call.options.trans_w else pair
    if of == "bias":
        return [_CLASSES]
    return [*rows, _FEATURES if of == "x" else f"numbers_of_{of}"]


def _axes(
    call: Call,
    operands: Sequence[Any],
    dims: Sequence[Sequence[str]],
    sizes: Any,
    uses_kernels: bool,
) -> dict[str, tuple[str, ...]]:
    """The mesh axes over which rows and classes are spread; rows come first where both want one."""
    found: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    in_parts = uses_kernels and call.operation != "jvp"
    for name in ("x", "w") if in_parts else ("x",):
        operand = operands[call.names.index(name)]
        of_dims = dims[call.names.index(name)]
        spec = [*operand.sharding.spec, *[None] * len(of_dims)]
        for dim, size, entry in zip(of_dims, operand.shape, spec, strict=False):
            wanted = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            wanted = tuple(axis for axis in wanted if axis not in taken)
            if dim == _FEATURES or size % math.prod(sizes[axis] for axis in wanted):
                continue
            found[dim] = wanted
            taken |= set(wanted)
    return found


def _local(
    call: Call,
    parts: Sequence[jax.Array],
    axes: dict[str, tuple[str, ...]],
    of_classes: tuple[str, ...],
    platform: str,
    uses_kernels: bool,
) -> list[jax.Array]:
    """The results of this device, summed over the devices that have a part of the sum."""
    all_sums = call.options.all_sums
    rows: RowCalls = Traced(all_sums, is_plain=True, require_kernel=False)
    if of_classes:
        rows = InParts(all_sums, of_classes)
    elif uses_kernels:
        rows = InPlace(all_sums)
    shapes = [part.shape for part in parts]
    found = chunks.run(call, parts, rows, plan.chunk_rows(call, shapes, parts, platform))
    of_rows = tuple(axis for dim in sorted(axes) for axis in axes[dim])
    summed_rows = tuple(
        axis for dim in sorted(axes) if int(dim[3:]) >= call.members for axis in axes[dim]
    )
    over = {"dw": of_rows, "dbias": of_rows, "loss": summed_rows}
    over |= {"dx": of_classes, "dscales": of_classes}
    return [
        lax.psum(x, over[name]) if over.get(name) else x
        for name, x in zip(call.wanted, found, strict=True)
    ]
