"""How XLA's partitioner learns to split a call: from a callback, or from attributes where none can run.

Owns: whether there is a partitioner, both ways to tell it, and what of them JAX keeps for itself. Must
not know: which dimensions an operation can split, which its own `partitioning.py` says.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax._src import custom_partitioning, dispatch, sharding_impls
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxkernels._core import compat

# Shardy names the factors of a sharding rule i, j, ... z and then z_1, z_2, ...; no other name
# parses.
_FACTOR_LETTERS = "ijklmnopqrstuvwxyz"

# The callbacks of lowered programs, by the names that the programs give them. They are kept as long as
# the process: a program may be compiled at any time.
_partitioning_callbacks: dict[str, Any] = {}


def partitions_custom_calls(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether a `custom_partitioning` inside a lowering rule would be asked for its partitions.

    It is a Python callback, which no exported program can hold, and which the older partitioner
    (GSPMD) cannot use without a rule of its own. The call is then split by its attributes alone
    (`batch_partitioning_attributes`).
    """
    module = ctx.module_context
    axis_context = module.axis_context
    return bool(
        jax.config.jax_use_shardy_partitioner  # pyright: ignore[reportAttributeAccessIssue]
        and not module.lowering_parameters.for_export
        and isinstance(axis_context, mlir.ShardingContext)
        and axis_context.num_devices > 1
        and axis_context.device_assignment is not None
    )


def runs_on_one_device(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether the whole program is one device's, so that no partitioner sees it.

    An exported program may be called on any number of devices.
    """
    module = ctx.module_context
    axis_context = module.axis_context
    return (
        not module.lowering_parameters.for_export
        and isinstance(axis_context, mlir.ShardingContext)
        and axis_context.num_devices == 1
    )


def runs_on_its_own(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether no partitioner splits what is lowered: one device, or a shard_map over all mesh axes."""
    module = ctx.module_context
    axis_context = module.axis_context
    return runs_on_one_device(ctx) or (
        not module.lowering_parameters.for_export
        and isinstance(axis_context, sharding_impls.SPMDAxisContext)
        and axis_context.manual_axes == frozenset(axis_context.mesh.axis_names)
    )


def needs_devices_for_lowering(primitive: Primitive) -> None:
    """Lets the primitive's lowering rule use `custom_partitioning`, which asks for the devices.

    JAX keeps a set of such primitives for itself. Without it a program on several devices could not
    be lowered with the partitioned form.
    """
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def lower_partitioned(
    function: Callable[..., Any],
    ctx: mlir.LoweringRuleContext,
    operands: Any,
    name: str,
    several: bool = False,
) -> Any:
    """Lowers a function made by `custom_partitioning`, so that its program can be cached and stored.

    JAX writes the address of a Python object into the program, to find the callback by, and keeps
    the object with the executable. So no process would find the program of another in the persistent
    compilation cache, and the executable could not be pickled. Here a name takes the place of the
    address. It is written twice, because an option of JAX lets the cache ignore the address.

    Args:
        function: the function.
        ctx: of the lowering rule.
        operands: of the lowering rule.
        name: says all that decides what the callback does, but for the devices and types of the
            operands.
        several: whether the function returns a list of results.

    Returns:
        What the lowering rule returns.
    """
    results = mlir.lower_fun(function, multiple_results=several)(ctx, *operands)
    module = ctx.module_context
    call = results[0].owner
    address = ir.StringAttr(call.attributes["backend_config"]).value
    callback = custom_partitioning._sharding_callbacks.pop(address.encode())
    module.keepalives.remove(callback)
    mesh = callback.mesh = _fine_mesh(module.axis_context)
    callback.to_mesh_pspec_sharding = functools.partial(_named_sharding, mesh)
    callback.partition = functools.partial(_partition_without_context, callback.partition)
    devices = (mesh.devices.shape, [d.id for d in mesh.devices.flat])
    shapes = [(a.shape, str(a.dtype)) for a in ctx.avals_in]  # pyright: ignore[reportAttributeAccessIssue]
    full_name = repr((name, shapes, devices, compat.lowering_platforms(ctx)))
    key = hashlib.sha256(full_name.encode()).hexdigest()
    # All that a callback asks of its program; the rest would keep the program alive.
    callback.module_context = SimpleNamespace(platforms=module.platforms, backend=module.backend)
    kept = _partitioning_callbacks.setdefault(key, callback)
    custom_partitioning._sharding_callbacks[key.encode()] = kept
    call.attributes["backend_config"] = ir.StringAttr.get(key)
    call.attributes["mhlo.frontend_attributes"] = mlir.ir_attribute({"jaxkernels_call": key})
    return results


def _fine_mesh(axis_context: Any) -> Mesh:
    """The devices of a program as a mesh with an axis for every prime factor of their number.

    XLA may split a mesh axis, as where a dimension that it shards is reshaped into two; such shardings
    have names here. Where the program knows a mesh, its axes come one after the other.
    """
    devices = np.array(axis_context.device_assignment)
    known = axis_context.abstract_mesh or jax.sharding.get_abstract_mesh()
    sizes = known.axis_sizes if math.prod(known.axis_sizes) == devices.size else (devices.size,)
    factors = [factor for size in sizes for factor in _prime_factors(size)]
    return Mesh(devices.reshape(factors), [f"axis{i}" for i in range(len(factors))])


def _prime_factors(number: int) -> list[int]:
    for factor in range(2, number):
        if number % factor == 0:
            return [factor, *_prime_factors(number // factor)]
    return [number] if number > 1 else []


def _named_sharding(mesh: Mesh, hlo_sharding: Any, ndim: int) -> NamedSharding | None:
    """A sharding of XLA's by names of mesh axes; replicated where they cannot say it."""
    if hlo_sharding is None:
        return None
    try:
        entries = tuple(sharding_impls.parse_flatten_op_sharding(hlo_sharding, mesh)[0])
    except (AssertionError, ValueError):
        entries = ()
    return NamedSharding(mesh, PartitionSpec(*entries, *[None] * (ndim - len(entries))))


def _partition_without_context(partition: Callable[..., Any], *arguments: Any) -> Any:
    """`partition`, whose program of one device is traced outside the mesh that the user has set.

    XLA asks for it while that mesh is set, but what one device has is not sharded over it.
    """
    mesh, local, result_sharding, operand_shardings = partition(*arguments)

    def outside(*operands: jax.Array) -> jax.Array:
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return local(*operands)

    return mesh, outside, result_sharding, operand_shardings


def batch_partitioning_attributes(
    ctx: mlir.LoweringRuleContext, row_dims: int
) -> dict[str, ir.Attribute]:
    """Attributes that let XLA split a custom call along every dimension but the last `row_dims`.

    All operands and results have the shape of the first, or but for its last dimension. Both
    partitioners are told: GSPMD by the number of batch dimensions (its target must be registered as
    batch partitionable), Shardy by a rule that ties equal dimensions of all arrays together and asks
    for the last ones to be gathered, because a row must be whole where it is reduced. Where an
    operand broadcasts in other dimensions, neither would split the call.
    """
    avals = [*ctx.avals_in, *ctx.avals_out]  # pyright: ignore[reportAttributeAccessIssue]
    shapes = [aval.shape for aval in avals]
    shape = shapes[0]
    # A symbolic dimension (jax.export) cannot be written into the rule, nor can an empty one.
    if not all(isinstance(dim, int) and dim > 0 for dim in shape):
        return {}
    if any(other[:-1] != shape[:-1] for other in shapes):
        return {}
    batch = {"num_batch_dims": str(max(len(shape) - row_dims, 0))}
    attributes = {"mhlo.frontend_attributes": mlir.ir_attribute(batch)}
    if jax.config.jax_use_shardy_partitioner:  # pyright: ignore[reportAttributeAccessIssue]
        rule = _shardy_rule(shapes, len(ctx.avals_in), row_dims)  # pyright: ignore[reportAttributeAccessIssue]
        attributes["sdy.sharding_rule"] = ir.Attribute.parse(rule)
    return attributes


def _shardy_rule(shapes: Sequence[Sequence[int]], operands: int, row_dims: int) -> str:
    """The rule for operands and results, of which the first shape is that of whole rows."""
    overflow = (f"z_{k}" for k in itertools.count(1))
    letters = itertools.chain(_FACTOR_LETTERS, overflow)
    shape = shapes[0]
    factors = list(itertools.islice(letters, len(shape)))
    sizes = dict(zip(factors, shape, strict=True))
    last = {shape[-1]: factors[-1]}  # by its size; what has numbers for each row has another

    def array(of: Sequence[int]) -> str:
        if of[-1] not in last:
            last[of[-1]] = next(letters)
            sizes[last[of[-1]]] = of[-1]
        return "[" + ", ".join([*factors[:-1], last[of[-1]]]) + "]"

    arrays = list(map(array, shapes))
    whole = [*factors[-row_dims:], *(name for name in sizes if name not in factors)]
    sized = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return (
        f"#sdy.op_sharding_rule<({', '.join(arrays[:operands])})->({', '.join(arrays[operands:])}) "
        f"{{{sized}}} need_replication={{{', '.join(whole)}}}, custom>"
    )
