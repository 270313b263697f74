"""Partitions linear_cross_entropy over devices.

Rows and classes may be sharded. If classes are sharded, devices exchange a few numbers per row, as in
`cross_entropy_kernels`, and the sum of dx. If rows are sharded, they exchange the sums of dw and dbias.
Rows and classes that the number of devices does not divide are gathered, because padding would enter the
sums. Features are gathered.

Owns: the sharding rule and the per-device functions. Must not know: what a chunk computes.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning

from jaxkernels._core import partitioned_calls
from jaxkernels._linear_loss import chunks, plan
from jaxkernels._linear_loss.chunks import CLASSES, FEATURES, Call, RowCalls


def partitioned(
    call: Call, shapes: Sequence[tuple[int, ...]], platform: str, uses_kernels: bool
) -> Callable[..., Any]:
    """A `custom_partitioning` function for a call with operands of these shapes.

    `uses_kernels` says that row kernels run, instead of plain JAX.
    """
    rank = len(shapes[call.names.index("x")]) - 1
    operand_dims = [call.dims(name, rank) for name in call.names]
    result_dims = [call.dims(name, rank) for name in call.wanted]

    def partition(mesh: Any, operands: Any, result_info: Any) -> Any:
        del result_info  # XLA reshards the results if it wants another sharding
        # The mesh axes over which rows and classes are sharded; rows take precedence for a shared axis.
        axes: dict[str, tuple[str, ...]] = {}
        in_parts = uses_kernels and call.operation != "jvp"
        for at in map(call.names.index, ("x", "w") if in_parts else ("x",)):
            taken = {axis for found in axes.values() for axis in found}
            of_dims = partitioned_calls.mesh_axes(operands[at])
            for dim, size, of_dim in zip(operand_dims[at], shapes[at], of_dims, strict=True):
                own = tuple(axis for axis in of_dim if axis not in taken)
                if dim != FEATURES and size % math.prod(mesh.shape[axis] for axis in own) == 0:
                    axes[dim] = own

        of_classes = axes.get(CLASSES, ())
        of_each = {int(dim[3:]): own for dim, own in sorted(axes.items()) if dim != CLASSES}
        of_rows = tuple(axis for own in of_each.values() for axis in own)
        summed = tuple(axis for i, own in of_each.items() if i >= call.members for axis in own)
        over = {"dw": of_rows, "dbias": of_rows, "loss": summed}
        over |= {"dx": of_classes, "dscales": of_classes}
        way = "in_place" if uses_kernels else "plain"
        rows = RowCalls(way, axes=of_classes)

        def reduced(*parts: jax.Array) -> list[jax.Array]:
            """This device's results; sums are all-reduced over the devices that contribute to them."""
            # XLA may call back on a thread where x64 is off.
            with jax.enable_x64(parts[0].dtype == jnp.float64):
                found = zip(call.wanted, local(call, rows, platform, *parts), strict=True)
                return [lax.psum(x, over[name]) if over.get(name) else x for name, x in found]

        results = partitioned_calls.named_shardings(mesh, result_dims, axes)
        given = partitioned_calls.named_shardings(mesh, operand_dims, axes)
        return mesh, reduced, results, tuple(given)

    rows = RowCalls("primitive" if uses_kernels else "plain")
    function = custom_partitioning(functools.partial(local, call, rows, platform))
    rule = partitioned_calls.sharding_rule(operand_dims, result_dims)
    function.def_partition(partition=partition, sharding_rule=rule)
    return function


def local(call: Call, rows: RowCalls, platform: str, *operands: jax.Array) -> list[jax.Array]:
    """The results from the rows of one device, in chunks."""
    return chunks.run(call, operands, rows, plan.layout(call, operands, platform))
