"""Partitions a matrix product over devices.

Rows of op(a), columns of op(b) and the batch are sharded without communication. If the contracted
dimension is sharded, each device multiplies its shards and one all-reduce adds the products. If the
result is to be sharded over the same devices, a reduce-scatter replaces the all-reduce. beta * c is added
once, after it.

Owns: the sharding rule and the per-device functions. Must not know: the primitive, or how a local product
is computed.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning

from jaxkernels._core import partitioned_calls
from jaxkernels._sgemm.options import Options

# Mesh axes over which a dimension is sharded, in order.
_Axes = tuple[str, ...]


def partitioned(
    local: Callable[..., jax.Array], shapes: Sequence[tuple[int, ...]], options: Options
) -> Callable[..., jax.Array]:
    """A `custom_partitioning` function of a, b and optionally c; `local` is the product of one device."""

    def whole(*operands: jax.Array) -> jax.Array:
        return local(*operands, options=options)

    names = _names(shapes, options)
    result = _result_names(names)

    def partition(mesh: Any, operands: Any, result_info: Any) -> Any:
        axes = _assign(names[:2], [partitioned_calls.mesh_axes(x) for x in operands[:2]])
        # XLA pads shards of unequal size with arbitrary values. It discards padded rows, columns and
        # batch elements, but padding along k would enter the sums, so such a k is gathered.
        depth = operands[0].shape[names[0].index("k")]
        if depth % math.prod(mesh.shape[axis] for axis in axes.get("k", ())):
            del axes["k"]
        contracted = axes.get("k", ())
        # Dimensions that no operand shards take the sharding of the result: the operands are
        # replicated, and each device computes less.
        wanted = partitioned_calls.mesh_axes(result_info)
        for dim, wanted_axes in zip(result, wanted, strict=True):
            taken = {axis for assigned in axes.values() for axis in assigned}
            if dim not in axes and wanted_axes and taken.isdisjoint(wanted_axes):
                axes[dim] = wanted_axes
        # A reduce-scatter serves a dimension of the result that has no other sharding. The number of
        # devices must divide it, because a reduce-scatter does not pad.
        devices = math.prod(mesh.shape[axis] for axis in contracted)
        sizes = zip(result, wanted, result_info.shape, strict=True)
        fits = [
            dim not in axes and set(of_dim) == set(contracted) and size % devices == 0
            for dim, of_dim, size in sizes
        ]
        scattered = fits.index(True) if contracted and True in fits else None

        def lowered(*parts: jax.Array) -> jax.Array:
            if not contracted:
                return local(*parts, options=options)
            product = local(*parts[:2], options=dataclasses.replace(options, beta=0.0))
            if scattered is None:
                total = jax.lax.psum(product, contracted)
            else:
                sums = functools.partial(jax.lax.psum_scatter, product, wanted[scattered])
                total = sums(scatter_dimension=scattered, tiled=True)
            return total + options.beta * parts[2] if options.beta else total

        given = partitioned_calls.named_shardings(mesh, names[:2], axes)
        if scattered is not None:
            axes[result[scattered]] = wanted[scattered]
        # c has the sharding of the result.
        of_result, *of_c = partitioned_calls.named_shardings(mesh, [result, *names[2:]], axes)
        return mesh, lowered, of_result, (*given, *of_c)

    function = custom_partitioning(whole)
    rule = partitioned_calls.sharding_rule(names, [result])
    function.def_partition(partition=partition, sharding_rule=rule, reduction_factors=("k",))
    return function


def _names(shapes: Sequence[tuple[int, ...]], options: Options) -> list[list[str]]:
    """The dimension names of every operand; equal names have the same sharding.

    A batch dimension of size 1 that broadcasts against the other operand has a name of its own.
    """
    rank = len(shapes[0])
    batches = [[], []]
    for d in range(rank - 2):
        size_a, size_b = shapes[0][d], shapes[1][d]
        batches[0].append(f"x{d}" if size_a == 1 and size_b != 1 else f"b{d}")
        batches[1].append(f"y{d}" if size_b == 1 and size_a != 1 else f"b{d}")
    a = ["k", "m"] if options.trans_a else ["m", "k"]
    b = ["n", "k"] if options.trans_b else ["k", "n"]
    names = [batches[0] + a, batches[1] + b]
    return [*names, _result_names(names)] if len(shapes) == 3 else names


def _result_names(names: Sequence[Sequence[str]]) -> list[str]:
    return [f"b{d}" for d in range(len(names[0]) - 2)] + ["m", "n"]


def _assign(names: Sequence[Sequence[str]], specs: Sequence[Sequence[_Axes]]) -> dict[str, _Axes]:
    """The mesh axes of every dimension name, from the first operand that shards it.

    A mesh axis is used once. Batch, rows and columns take precedence over the contracted dimension,
    because they need no communication.
    """
    wanted: dict[str, _Axes] = {}
    for dims, spec in zip(names, specs, strict=True):
        for dim, axes in zip(dims, spec, strict=True):
            if axes and not wanted.get(dim):
                wanted[dim] = axes
    assigned: dict[str, _Axes] = {}
    used: set[str] = set()
    for dim in sorted(wanted, key=lambda dim: dim == "k"):
        axes = tuple(axis for axis in wanted[dim] if axis not in used)
        if dim[0] in "xy" or axes != wanted[dim]:
            continue  # replicated: its size is 1, or its axes are in use
        assigned[dim] = axes
        used.update(axes)
    return assigned
