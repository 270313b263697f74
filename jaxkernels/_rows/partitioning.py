"""Partitions a row kernel over devices.

Row dimensions are sharded like those of the first operand, without communication; a dimension of size 1
is replicated. If the columns are sharded, the operation runs in two kernels (`calls.in_parts`), and devices
exchange one maximum and one or two sums per row. Columns that the number of devices does not divide are
gathered, because padding would take part in the reductions.

Owns: the sharding rule and the per-device functions. Must not know: which operations exist.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning

from jaxkernels._core import partitioned_calls
from jaxkernels._rows import calls, reference
from jaxkernels._rows.contract import RowKernel


def partitioned(
    kernel: RowKernel,
    whole: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    attributes: dict[str, Any],
) -> Callable[..., Any]:
    """A `custom_partitioning` function for a call with operands of these shapes.

    `whole(*operands, **attributes)` returns one device's result, or list of results, from whole rows.
    """
    full = shapes[0]
    names = [
        [
            f"d{i}" if size == full_size else f"o{n}x{i}"
            for i, (size, full_size) in enumerate(zip(shape, full, strict=False))
        ]
        for n, shape in enumerate(shapes)
    ]
    for n, spec in enumerate(kernel.operands_of(**attributes)):
        if spec.is_of_row:
            names[n][-1] = f"scalars{n}"
        elif spec.role == "column":
            names[n] = names[0][-1:]
    results = [
        [*names[0][:-1], "result"] if x.is_of_row else names[0] for x in kernel.operation.results
    ]

    def partition(mesh: Any, operands: Any, result_info: Any) -> Any:
        del result_info  # XLA reshards the result if it wants another sharding
        axes = partitioned_calls.mesh_axes(operands[0])
        if full[-1] % math.prod(mesh.shape[axis] for axis in axes[-1]):
            axes[-1] = ()
        axes_of = {f"d{i}": mesh_axes for i, mesh_axes in enumerate(axes)}

        def local(*parts: jax.Array) -> Any:
            # XLA may call back on a thread where x64 is off.
            with jax.enable_x64(parts[0].dtype == np.float64):
                own, given = parts, attributes
                if calls.row_dims(given) == 2 and (axes[-2] or axes[-1]):
                    own, given = _without_band(kernel, parts, full, axes, attributes)
                if not axes[-1]:
                    return whole(*own, **given)
                if kernel.in_parts is not None:
                    return kernel.in_parts(own, axes[-1], **given)
                operation = kernel.operation_of(**given)
                return calls.in_parts(operation, kernel.from_statistics, own, axes[-1], **given)

        shardings = partitioned_calls.named_shardings(mesh, results, axes_of)
        given = partitioned_calls.named_shardings(mesh, names, axes_of)
        return mesh, local, shardings if len(shardings) > 1 else shardings[0], tuple(given)

    function = custom_partitioning(lambda *operands: whole(*operands, **attributes))
    function.def_partition(
        partition=partition, sharding_rule=partitioned_calls.sharding_rule(names, results)
    )
    return function


def _without_band(
    kernel: RowKernel,
    operands: Sequence[jax.Array],
    full: tuple[int, ...],
    axes: Sequence[tuple[str, ...]],
    attributes: dict[str, Any],
) -> tuple[list[jax.Array], dict[str, Any]]:
    """Turns the band into a mask for a shard of each matrix, whose offset is known only at run time.

    The mask has the size of one shard of a matrix, and all matrices share it. A gradient needs no mask:
    y is 0 outside of the band, which only saves reads.
    """
    first, *others = operands
    if all(x.role != "mask" for x in kernel.operation.operands):
        return [first, *others], {**attributes, **calls.OPEN}
    (q, k), (rows, cols) = full[-2:], first.shape[-2:]
    own = index(axes[-2]) * rows + jnp.arange(rows) + (k - q if attributes["from_end"] else 0)
    columns = index(axes[-1]) * cols + jnp.arange(cols)
    seen = reference.within_band(own, columns, attributes["left"], attributes["right"], first.ndim)
    if attributes["has_mask"]:
        seen = seen & others.pop(0)
    return [first, seen, *others], {**attributes, **calls.OPEN, "has_mask": True}


def index(axes: tuple[str, ...]) -> jax.Array | int:
    """The index of this device's shard in a dimension that is sharded over `axes`."""
    return jax.lax.axis_index(axes) if axes else 0
