"""Partitions flash attention over devices.

Batch and heads are sharded without communication. With more devices than key heads, key heads are
replicated, and each device uses the one that its query heads share. Sharded queries stay sharded: keys
are gathered, and the plain form runs, which stores the scores. Cotangents of replicated keys and values
are all-reduced. A dimension that the number of devices does not divide is gathered.

Owns: the sharding rule and the per-device functions. Must not know: what an operation computes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jaxkernels._attention import plain
from jaxkernels._attention.flash_forms import Forms
from jaxkernels._attention.problem import Call, Operands, names_of, present
from jaxkernels._rows import partitioning as row_partitioning
from jaxkernels._rows import reference
from jaxkernels._rows.masked_kernels import Band

_QUERIES = ("batch", "queries", "heads", "depth")
_KEYS = ("batch", "keys", "key_heads", "depth")
_SCORES = ("batch", "heads", "queries", "keys")
_SUMS = ("batch", "heads", "queries")
_DIMS = {
    **dict.fromkeys(("q", "y", "dy"), _QUERIES),
    **dict.fromkeys(("k", "v"), _KEYS),
    **dict.fromkeys(("bias", "mask"), _SCORES),
    **dict.fromkeys(("q_lengths", "k_lengths"), ("batch",)),
    "sums": _SUMS,
}
# Dimensions that may be sharded.
_SPLIT = ("batch", "heads", "queries")

_Axes = tuple[str, ...]


def partitioned(
    call: Call, forms: Forms, shapes: Sequence[tuple[int, ...]], results: Sequence[str]
) -> Callable[..., Any]:
    """A `custom_partitioning` function for an operation.

    Args:
        call: the call to partition.
        forms: the two forms of the operation.
        shapes: the shapes of the operands.
        results: names of the results.
    """
    behind = ("sums", "y", "dy")[: len(shapes) - len(call.names)]
    names = (*call.names, *behind)
    q_heads, key_heads = shapes[0][2], shapes[1][2]

    def dims(name: str, shape: Sequence[int] | None = None) -> list[str]:
        """The dimension names; equal names have the same sharding."""
        found = list(_DIMS[name])
        if q_heads == key_heads:
            found = ["heads" if dim == "key_heads" else dim for dim in found]
        if name in ("bias", "mask") and shape is not None:
            found = [f"{name}{i}" if shape[i] == 1 else dim for i, dim in enumerate(found)]
        return found

    operand_dims = [dims(name, shape) for name, shape in zip(names, shapes, strict=True)]
    result_dims = [dims(name) for name in results]

    def shares_keys(mesh: Any, axes: dict[str, _Axes]) -> bool:
        return key_heads % math.prod(mesh.shape[axis] for axis in axes.get("heads", ())) != 0

    def partition(mesh: Any, operands: Any, result_info: Any) -> Any:
        del result_info  # XLA reshards the results if it wants another sharding
        axes = _axes(operands, operand_dims, mesh.shape, key_heads)

        def sharding_of(of: Sequence[str]) -> NamedSharding:
            known = axes | {"key_heads": () if shares_keys(mesh, axes) else axes.get("heads", ())}
            return NamedSharding(mesh, PartitionSpec(*(known.get(dim) or None for dim in of)))

        def lowered(*parts: jax.Array) -> list[jax.Array]:
            shared = axes["heads"] if shares_keys(mesh, axes) else ()
            return _local(call, forms, parts, axes.get("queries", ()), shared, results)

        found = [sharding_of(of) for of in result_dims]
        return mesh, lowered, found, tuple(map(sharding_of, operand_dims))

    function = custom_partitioning(lambda *operands: forms.cudnn(call, operands))
    rule = " -> ".join(
        ", ".join(" ".join(of) for of in group) for group in (operand_dims, result_dims)
    )
    function.def_partition(partition=partition, sharding_rule=rule)
    return function


def _axes(
    operands: Sequence[Any],
    dims: Sequence[Sequence[str]],
    sizes: Any,
    key_heads: int,
) -> dict[str, _Axes]:
    """The mesh axes of every dimension that may be sharded, from the first operand that shards it.

    Unsharded queries take the axes of sharded keys, so that the devices still share the work.
    """
    wanted: dict[str, _Axes] = {}
    lengths: dict[str, int] = {}
    for operand, of in zip(operands, dims, strict=True):
        spec = [*operand.sharding.spec, *[None] * (len(of) - len(operand.sharding.spec))]
        for dim, size, entry in zip(of, operand.shape, spec, strict=True):
            lengths[dim] = size
            axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            if axes and not wanted.get(dim):
                wanted[dim] = axes
    wanted["queries"] = wanted.get("queries") or wanted.get("keys", ())
    wanted["heads"] = wanted.get("heads") or wanted.get("key_heads", ())
    found: dict[str, _Axes] = {}
    taken: set[str] = set()
    for dim in _SPLIT:
        axes = tuple(axis for axis in wanted.get(dim, ()) if axis not in taken)
        devices = math.prod(sizes[axis] for axis in axes)
        fits = dim != "heads" or key_heads % devices == 0 or devices % key_heads == 0
        if axes and fits and lengths[dim] % devices == 0:
            found[dim] = axes
            taken |= set(axes)
    return found


def _local(
    call: Call,
    forms: Forms,
    operands: Sequence[jax.Array],
    query_axes: _Axes,
    shared_axes: _Axes,
    results: Sequence[str],
) -> list[jax.Array]:
    """The results of this device.

    Args:
        call: the call to partition.
        forms: the two forms of the operation.
        operands: this device's shards.
        query_axes: the mesh axes over which queries are sharded.
        shared_axes: the mesh axes over which query heads are sharded, if key heads are replicated and a
            device uses one of them; otherwise empty.
        results: names of the results.
    """
    given, behind = call.operands(operands), operands[len(call.names) :]
    key_heads, mine = given.k.shape[2], 0
    if shared_axes:
        devices = lax.axis_size(shared_axes)
        mine = row_partitioning.index(shared_axes) * key_heads // devices
        k, v = (lax.dynamic_slice_in_dim(x, mine, 1, 2) for x in (given.k, given.v))
        given = given._replace(k=k, v=v)
    if query_axes:
        found = _of_queries(call, forms, given, behind, query_axes)
    else:
        found = forms.cudnn(call, [*present(given), *behind])

    def whole(x: jax.Array) -> jax.Array:
        """The cotangent of all key heads, all-reduced over the devices that share them."""
        if shared_axes:
            zeros = jnp.zeros((*x.shape[:2], key_heads, x.shape[3]), x.dtype)
            x = lax.dynamic_update_slice_in_dim(zeros, x, mine, 2)
        axes = (*query_axes, *shared_axes)
        return lax.psum(x, axes) if axes else x

    return [whole(x) if name in ("k", "v") else x for name, x in zip(results, found, strict=True)]


def _of_queries(
    call: Call, forms: Forms, given: Operands, behind: Sequence[jax.Array], query_axes: _Axes
) -> list[jax.Array]:
    """The results of a shard of queries and all keys; the band becomes a mask for the shard's offset."""
    t, s = given.q.shape[1], given.k.shape[1]
    first = row_partitioning.index(query_axes) * t
    band = call.band
    if not band.is_open:
        own, keys = first + jnp.arange(t), jnp.arange(s)
        bounds = band.attributes()
        seen = reference.within_band(own, keys, bounds["left"], bounds["right"], 4)
        given = given._replace(mask=plain.both(given.mask, seen))
        band = Band(from_end=False)
    if given.q_lengths is not None:
        given = given._replace(q_lengths=given.q_lengths - first)
    here = dataclasses.replace(call, names=names_of(given), band=band)
    return forms.plain(here, [*present(given), *behind])
