"""How flash attention is split over devices.

A device has some members of the batch and some heads, for which it needs no other. Where there are more
devices than key heads, it has all of these and takes the one that its queries share. Queries that are
spread over devices stay so: each sees all keys, which are gathered, with the scores in memory. The
cotangents of keys and values that several devices have are summed. A dimension that its devices do not
divide is gathered.

Owns: the rule and the partitions. Must not know: what an operation computes.
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
# What a device may have a part of.
_SPLIT = ("batch", "heads", "queries")

_Axes = tuple[str, ...]


def partitioned(
    call: Call, forms: Forms, shapes: Sequence[tuple[int, ...]], results: Sequence[str]
) -> Callable[..., Any]:
    """An operation as a function that XLA's partitioner knows how to split.

    Args:
        call: what to split.
        forms: what computes it.
        shapes: those of the operands.
        results: their names.
    """
    behind = ("sums", "y", "dy")[: len(shapes) - len(call.names)]
    names = (*call.names, *behind)
    q_heads, key_heads = shapes[0][2], shapes[1][2]

    def dims(name: str, shape: Sequence[int] | None = None) -> list[str]:
        """The names of the dimensions, which are equal where they are split alike."""
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
        del result_info  # where it asks for another split than the operands give, XLA reshards
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
    """The mesh axes of every dimension that may be split. The first operand that splits it decides.

    Queries take the axes of the keys where they have none: the work is shared all the same.
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
        call: what is split.
        forms: what computes it.
        operands: of this device.
        query_axes: the mesh axes over which queries are spread.
        shared_axes: those over which heads are, if a device takes one of the key heads, of which it has
            all.
        results: their names.
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
        """A cotangent of all key heads, summed over the devices that have them."""
        if shared_axes:
            zeros = jnp.zeros((*x.shape[:2], key_heads, x.shape[3]), x.dtype)
            x = lax.dynamic_update_slice_in_dim(zeros, x, mine, 2)
        axes = (*query_axes, *shared_axes)
        return lax.psum(x, axes) if axes else x

    return [whole(x) if name in ("k", "v") else x for name, x in zip(results, found, strict=True)]


def _of_queries(
    call: Call, forms: Forms, given: Operands, behind: Sequence[jax.Array], query_axes: _Axes
) -> list[jax.Array]:
    """The results of some of the queries and all keys: a band depends on the place of these queries."""
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
