"""Partitions a row kernel over devices.

Row dimensions are sharded like those of the first operand, without communication; a dimension of size 1
is replicated. If the columns are sharded, the operation runs in two kernels (`parts`), and devices
exchange one maximum and one or two sums per row. Columns that the number of devices does not divide are
gathered, because padding would take part in the reductions.

Owns: the sharding rule and the per-device functions. Must not know: which operations exist.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jaxkernels._rows.contract import Operand


@dataclasses.dataclass(frozen=True)
class Place:
    """The offset of this device's shard in a matrix (the last two dimensions of an array).

    Attributes:
        shape: the shape of the whole matrix.
        first_row: the index of the shard's first row.
        first_col: the index of the shard's first column.
    """

    shape: tuple[int, int]
    first_row: jax.Array | int
    first_col: jax.Array | int


@dataclasses.dataclass(frozen=True)
class SplitCall:
    """A call of a row kernel, as the partitioner needs it.

    Attributes:
        whole: f(*operands) -> one device's result, or list of results, from whole rows. Each result has
            the shape of the first operand, except possibly for the last dimension.
        in_parts: f(operands, axes) -> one device's results from rows that are sharded over the mesh axes.
        operands: the contracts of the operands.
        results: the contracts of the results.
        at_place: f(operands, place) -> (call, operands) for a shard at this offset, if a row's result
            depends on its index in its matrix; otherwise None.
    """

    whole: Callable[..., Any]
    in_parts: Callable[[Sequence[jax.Array], tuple[str, ...]], Any]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    at_place: Callable[[Sequence[jax.Array], Place], tuple[SplitCall, list[jax.Array]]] | None


def partitioned(call: SplitCall, shapes: Sequence[tuple[int, ...]]) -> Callable[..., Any]:
    """A `custom_partitioning` function for the call.

    Args:
        call: the call to partition.
        shapes: the shapes of the operands.
    """
    full = shapes[0]
    rank = len(full)
    names = [
        [
            f"d{i}" if size == full_size else f"o{n}x{i}"
            for i, (size, full_size) in enumerate(zip(shape, full, strict=True))
        ]
        for n, shape in enumerate(shapes)
    ]
    for n, spec in enumerate(call.operands):
        if spec.is_of_row:
            names[n][-1] = f"scalars{n}"
    results = [[*names[0][:-1], "result"] if x.is_of_row else names[0] for x in call.results]

    def partition(mesh: Any, operands: Any, result_info: Any) -> Any:
        del result_info  # XLA reshards the result if it wants another sharding
        spec = [*operands[0].sharding.spec, *[None] * rank][:rank]
        axes = [() if e is None else e if isinstance(e, tuple) else (e,) for e in spec]
        if full[-1] % math.prod(mesh.shape[axis] for axis in axes[-1]):
            axes[-1] = ()
        axes_of = {f"d{i}": mesh_axes for i, mesh_axes in enumerate(axes) if mesh_axes}

        def sharding_of(dims: Sequence[str]) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*map(axes_of.get, dims)))

        def lowered(*parts: jax.Array) -> jax.Array:
            # XLA may call back on a thread where x64 is off.
            with jax.enable_x64(parts[0].dtype == np.float64):
                return _local(call, parts, full, axes)

        shardings = [sharding_of(result) for result in results]
        whole = shardings if len(shardings) > 1 else shardings[0]
        return mesh, lowered, whole, tuple(map(sharding_of, names))

    function = custom_partitioning(lambda *operands: call.whole(*operands))
    operands = ", ".join(" ".join(dims) for dims in names)
    of_results = ", ".join(" ".join(dims) for dims in results)
    function.def_partition(partition=partition, sharding_rule=f"{operands} -> {of_results}")
    return function


def _local(
    call: SplitCall,
    operands: Sequence[jax.Array],
    full: tuple[int, ...],
    axes: Sequence[tuple[str, ...]],
) -> Any:
    """The result of this device from its shards; `axes` are the mesh axes of each dimension."""
    if call.at_place is not None and (axes[-2] or axes[-1]):
        rows, cols = operands[0].shape[-2:]
        place = Place((full[-2], full[-1]), index(axes[-2]) * rows, index(axes[-1]) * cols)
        call, operands = call.at_place(operands, place)
    if axes[-1]:
        return call.in_parts(operands, axes[-1])
    return call.whole(*operands)


def index(axes: tuple[str, ...]) -> jax.Array | int:
    """The index of this device's shard in a dimension that is sharded over `axes`."""
    return jax.lax.axis_index(axes) if axes else 0
