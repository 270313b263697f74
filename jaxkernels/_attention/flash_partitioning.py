"""Partitions flash attention over devices.

Batch and heads are sharded without communication. With more devices than key heads, key heads are
replicated, and each device uses the one that its query heads share; cotangents of keys and values are
then all-reduced. Our flash kernels also keep sharded queries; cotangents of keys and values are then
all-reduced as well. In the forward pass keys stay sharded if queries are few, and the results are merged by
the sums of their rows. Mesh axes that shard another dimension shard heads or batch instead, or queries in float32,
if their size divides one of them. Otherwise their devices compute the same.

Owns: the sharding rule and the per-device functions. Must not know: what an operation computes.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning

from jaxkernels._attention.problem import Call, both, present
from jaxkernels._core import partitioned_calls
from jaxkernels._rows import reference
from jaxkernels._rows.masked_kernels import Band

_DIMS = {
    "q": ("batch", "queries", "heads", "depth"),
    "k": ("batch", "keys", "key_heads", "depth"),
    "v": ("batch", "keys", "key_heads", "value_depth"),
    **dict.fromkeys(("y", "dy"), ("batch", "queries", "heads", "value_depth")),
    **dict.fromkeys(("bias", "mask"), ("batch", "heads", "queries", "keys")),
    **dict.fromkeys(("q_lengths", "k_lengths"), ("batch",)),
    "sums": ("batch", "heads", "queries", "pair"),
}

# An operation, as a function of a call and its operands.
Form = Callable[[Call, Sequence[jax.Array]], list[jax.Array]]
_Axes = tuple[str, ...]


def partitioned(
    call: Call,
    form: Form,
    shapes: Sequence[tuple[int, ...]],
    results: Mapping[str, tuple[int, ...]],
    *,
    is_float32: bool,
) -> Callable[..., Any]:
    """A `custom_partitioning` function for an operation with these shapes of operands and of results."""
    names = (*call.names, *("sums", "y", "dy")[: len(shapes) - len(call.names)])
    key_heads = shapes[1][2]

    def dims(name: str, shape: Sequence[int]) -> list[str]:
        """The dimension names; equal names have the same sharding."""
        found = list(_DIMS[name][: len(shape)])
        if shapes[0][2] == key_heads:
            found = ["heads" if dim == "key_heads" else dim for dim in found]
        if name in ("bias", "mask"):
            found = [f"{name}{i}" if shape[i] == 1 else dim for i, dim in enumerate(found)]
        return found

    operand_dims = [dims(name, shape) for name, shape in zip(names, shapes, strict=True)]
    result_dims = [dims(name, shape) for name, shape in results.items()]

    def partition(mesh: Any, operands: Any, result_info: Any) -> Any:
        del result_info  # XLA reshards the results if it wants another sharding
        axes = _axes(operands[0], operands[1], mesh.shape, is_float32, is_forward="y" in results)
        devices = math.prod(mesh.shape[axis] for axis in axes["heads"])
        shares_keys = key_heads % devices != 0
        axes["key_heads"] = () if shares_keys else axes["heads"]

        without: dict[str, tuple[str, ...]] = {"k": ("queries",), "v": ("queries",)}
        if "bias" in results:
            sides = zip(("batch", "heads"), results["bias"], strict=False)
            without["bias"] = tuple(dim for dim, size in sides if size == 1)

        def local(*parts: jax.Array) -> list[jax.Array]:
            own, given = call, list(parts)
            if axes["queries"] or axes["keys"]:
                own, given = _of_own_rows(call, parts, axes)
            if shares_keys:
                found = _of_shared_keys(own, form, given, axes["heads"], tuple(results))
            else:
                found = form(own, given)
            if axes["keys"]:
                found = _merged(found, axes["keys"])[: len(results)]
            # A cotangent is a sum over devices that share its operand.
            for i, name in enumerate(results):
                for axis in (axis for dim in without.get(name, ()) for axis in axes[dim]):
                    found[i] = lax.psum(found[i], axis)
            return found

        found, given = (
            partitioned_calls.named_shardings(mesh, dims, axes)
            for dims in (result_dims, operand_dims)
        )
        return mesh, local, found, tuple(given)

    function = custom_partitioning(lambda *operands: form(call, operands))
    rule = partitioned_calls.sharding_rule(operand_dims, result_dims)
    function.def_partition(partition=partition, sharding_rule=rule)
    return function


def _axes(q: Any, k: Any, sizes: Any, is_float32: bool, *, is_forward: bool) -> dict[str, _Axes]:
    """The mesh axes of batch, heads, queries and keys: all that shard q or k, as far as their sizes allow."""
    (batch, t, heads, _), (_, s, key_heads, _) = q.shape, k.shape
    lengths = {"batch": batch, "queries": t, "keys": s}

    def devices(axes: _Axes) -> int:
        return math.prod(sizes[axis] for axis in axes)

    def fits(dim: str, axes: _Axes) -> bool:
        count = devices(axes)
        if dim != "heads":
            return lengths[dim] % count == 0
        return heads % count == 0 and (key_heads % count == 0 or count % key_heads == 0)

    found: dict[str, _Axes] = {"batch": (), "heads": (), "queries": (), "keys": ()}
    for x in (q, k):
        spec = partitioned_calls.mesh_axes(x)
        for i, places in ((0, ("batch", "heads")), *((i, ("heads", "batch")) for i in (2, 1, 3))):
            if is_float32 and i == 1:
                # An all-reduce of y sends less than the keys and values of other heads.
                is_less = is_forward and t * heads * devices(spec[i]) <= s * key_heads
                kept = "queries" if x is q else "keys"
                places = (kept, *places) if x is q or is_less else (*places, "queries")
            for axis in spec[i]:
                is_free = not any(axis in axes for axes in found.values())
                place = next((dim for dim in places if fits(dim, (*found[dim], axis))), None)
                if is_free and place is not None:
                    found[place] = (*found[place], axis)
    return found


def _of_own_rows(
    call: Call, operands: Sequence[jax.Array], axes: Mapping[str, _Axes]
) -> tuple[Call, list[jax.Array]]:
    """The call and operands of a device's queries and keys; the band becomes a mask."""
    given, kept = call.operands(operands), operands[len(call.names) :]
    t, s = given.q.shape[1], given.k.shape[1]
    first_q = lax.axis_index(axes["queries"]) * t if axes["queries"] else 0
    first_k = lax.axis_index(axes["keys"]) * s if axes["keys"] else 0
    for name, first in (("q_lengths", first_q), ("k_lengths", first_k)):
        if (lengths := getattr(given, name)) is not None:
            given = given._replace(**{name: jnp.maximum(lengths - first, 0)})
    if not call.band.is_open:
        bounds = call.band.attributes()
        sides = bounds["left"], bounds["right"]
        rows, cols = (
            first + jnp.arange(size, dtype="int32") for first, size in ((first_q, t), (first_k, s))
        )
        band = reference.within_band(rows, cols, *sides, ndim=4)
        given = given._replace(mask=both(given.mask, band))
    keeps_sums = call.keeps_sums or bool(axes["keys"])
    names, band = given.names(), Band(from_end=False)
    call = dataclasses.replace(call, names=names, band=band, keeps_sums=keeps_sums)
    return call, [*present(given), *kept]


def _merged(found: Sequence[jax.Array], axes: _Axes) -> list[jax.Array]:
    """The result and the pairs (m, l) of all keys, from those of each device's keys."""
    y, pairs = found
    m, sums = pairs[..., 0], pairs[..., 1]
    top = lax.pmax(m, axes)
    own = jnp.where(sums == 0, 0, sums * jnp.exp2(m - top))  # m is -inf for rows that see nothing
    total = lax.psum(own, axes)
    weights = jnp.where(total == 0, 0, own / total).swapaxes(1, 2)[..., None]
    return [lax.psum(y * weights, axes), jnp.stack([top, total], axis=-1)]


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
