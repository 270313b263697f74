"""Partitions flash attention over devices.

Batch and heads are sharded without communication. With more devices than key heads, key heads are
replicated, and each device uses the one that its query heads share; cotangents of keys and values are
then all-reduced. Mesh axes that shard another dimension shard heads or batch instead, if their size
divides one of them. Otherwise their devices compute the same.

Owns: the sharding rule and the per-device functions. Must not know: what an operation computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning

from jaxkernels._attention.problem import Call, present
from jaxkernels._core import partitioned_calls

_DIMS = {
    **dict.fromkeys(("q", "y", "dy"), ("batch", "queries", "heads", "depth")),
    **dict.fromkeys(("k", "v"), ("batch", "keys", "key_heads", "depth")),
    **dict.fromkeys(("bias", "mask"), ("batch", "heads", "queries", "keys")),
    **dict.fromkeys(("q_lengths", "k_lengths"), ("batch",)),
    "sums": ("batch", "heads", "queries"),
}

# An operation, as a function of a call and its operands.
Form = Callable[[Call, Sequence[jax.Array]], list[jax.Array]]
_Axes = tuple[str, ...]


def partitioned(
    call: Call, form: Form, shapes: Sequence[tuple[int, ...]], results: Sequence[str]
) -> Callable[..., Any]:
    """A `custom_partitioning` function for an operation with these operands' shapes and results' names."""
    names = (*call.names, *("sums", "y", "dy")[: len(shapes) - len(call.names)])
    key_heads = shapes[1][2]

    def dims(name: str, shape: Sequence[int] | None = None) -> list[str]:
        """The dimension names; equal names have the same sharding."""
        found = list(_DIMS[name])
        if shapes[0][2] == key_heads:
            found = ["heads" if dim == "key_heads" else dim for dim in found]
        if name in ("bias", "mask") and shape is not None:
            found = [f"{name}{i}" if shape[i] == 1 else dim for i, dim in enumerate(found)]
        return found

    operand_dims = [dims(name, shape) for name, shape in zip(names, shapes, strict=True)]
    result_dims = [dims(name) for name in results]

    def partition(mesh: Any, operands: Any, result_info: Any) -> Any:
        del result_info  # XLA reshards the results if it wants another sharding
        axes = _axes(operands[0], operands[1], mesh.shape)
        devices = math.prod(mesh.shape[axis] for axis in axes["heads"])
        shares_keys = key_heads % devices != 0
        axes["key_heads"] = () if shares_keys else axes["heads"]

        def local(*parts: jax.Array) -> list[jax.Array]:
            if not shares_keys:
                return form(call, parts)
            return _of_shared_keys(call, form, parts, axes["heads"], results)

        found, given = (
            partitioned_calls.named_shardings(mesh, dims, axes)
            for dims in (result_dims, operand_dims)
        )
        return mesh, local, found, tuple(given)

    function = custom_partitioning(lambda *operands: form(call, operands))
    rule = partitioned_calls.sharding_rule(operand_dims, result_dims)
    function.def_partition(partition=partition, sharding_rule=rule)
    return function


def _axes(q: Any, k: Any, sizes: Any) -> dict[str, _Axes]:
    """The mesh axes of batch and heads: all that shard q or k, as far as their sizes allow."""
    (batch, _, heads, _), key_heads = q.shape, k.shape[2]

    def fits(dim: str, axes: _Axes) -> bool:
        devices = math.prod(sizes[axis] for axis in axes)
        if dim == "batch":
            return batch % devices == 0
        return heads % devices == 0 and (key_heads % devices == 0 or devices % key_heads == 0)

    found: dict[str, _Axes] = {"batch": (), "heads": ()}
    for x in (q, k):
        spec = partitioned_calls.mesh_axes(x)
        for i, places in ((0, ("batch", "heads")), *((i, ("heads", "batch")) for i in (2, 1, 3))):
            for axis in spec[i]:
                is_free = axis not in (*found["batch"], *found["heads"])
                place = next((dim for dim in places if fits(dim, (*found[dim], axis))), None)
                if is_free and place is not None:
                    found[place] = (*found[place], axis)
    return found


def _of_shared_keys(
    call: Call, form: Form, operands: Sequence[jax.Array], axes: _Axes, results: Sequence[str]
) -> list[jax.Array]:
    """The results of a device whose query heads, sharded over `axes`, share one of all key heads."""
    given = call.operands(operands)
    key_heads = given.k.shape[2]
    mine = lax.axis_index(axes) * key_heads // lax.axis_size(axes)
    k, v = (lax.dynamic_slice_in_dim(x, mine, 1, 2) for x in (given.k, given.v))
    found = form(call, [*present(given._replace(k=k, v=v)), *operands[len(call.names) :]])

    def whole(x: jax.Array) -> jax.Array:
        zeros = jnp.zeros((*x.shape[:2], key_heads, x.shape[3]), x.dtype)
        return lax.psum(lax.dynamic_update_slice_in_dim(zeros, x, mine, 2), axes)

    return [whole(x) if name in ("k", "v") else x for name, x in zip(results, found, strict=True)]
