"""How a row kernel is split over devices.

Dimensions of rows are split as those of the first operand, without communication; a dimension of
size 1 stays whole. Where the columns are split, the operation runs in two parts (`parts`), and a
maximum and one or two sums of each row cross the network. Columns that do not divide by the number
of devices are gathered, because padding would take part in the reductions.

Owns: the rule and the partitions. Must not know: which operations exist.
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
    """Where in a whole matrix, the last two dimensions of an array, that of this device lies.

    Attributes:
        shape: of the whole matrix.
        first_row: of the device.
        first_col: of the device.
    """

    shape: tuple[int, int]
    first_row: jax.Array | int
    first_col: jax.Array | int


@dataclasses.dataclass(frozen=True)
class SplitCall:
    """A call of a row kernel, as its partitions need to see it.

    Attributes:
        whole: the result of one device from whole rows, or a list of results; each has the shape of
            the first operand, or but for its last dimension.
        in_parts: from the operands of a device and the mesh axes over which rows are spread to its
            results.
        operands: their contracts.
        results: the contracts of the results.
        at_place: None, or, if a row's result depends on its place in its matrix, from the operands
            of a device and their place to the call and the operands that give it there.
    """

    whole: Callable[..., Any]
    in_parts: Callable[[Sequence[jax.Array], tuple[str, ...]], Any]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    at_place: Callable[[Sequence[jax.Array], Place], tuple[SplitCall, list[jax.Array]]] | None


def partitioned(call: SplitCall, shapes: Sequence[tuple[int, ...]]) -> Callable[..., Any]:
    """The call as a function that XLA's partitioner knows how to split.

    Args:
        call: what to split.
        shapes: those of the operands.
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
        del result_info  # where it asks for another split than the operands give, XLA reshards
        spec = [*operands[0].sharding.spec, *[None] * rank][:rank]
        axes = [() if e is None else e if isinstance(e, tuple) else (e,) for e in spec]
        if full[-1] % math.prod(mesh.shape[axis] for axis in axes[-1]):
            axes[-1] = ()
        axes_of = {f"d{i}": mesh_axes for i, mesh_axes in enumerate(axes) if mesh_axes}

        def sharding_of(dims: Sequence[str]) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*map(axes_of.get, dims)))

        def lowered(*parts: jax.Array) -> jax.Array:
            # XLA may ask in a thread where this is off.
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
    """The result of this device, which has a part of every dimension with mesh axes."""
    if call.at_place is not None and (axes[-2] or axes[-1]):
        rows, cols = operands[0].shape[-2:]
        place = Place((full[-2], full[-1]), index(axes[-2]) * rows, index(axes[-1]) * cols)
        call, operands = call.at_place(operands, place)
    if axes[-1]:
        return call.in_parts(operands, axes[-1])
    return call.whole(*operands)


def index(axes: tuple[str, ...]) -> jax.Array | int:
    """Which part of a dimension that is split over the mesh axes `axes` this device has."""
    return jax.lax.axis_index(axes) if axes else 0
