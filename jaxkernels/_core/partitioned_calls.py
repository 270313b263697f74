"""Tells XLA's partitioner how to split a custom call: by a callback or, if none can run, by attributes.

Owns: whether a partitioner runs, both ways to inform it, and the private JAX state behind them. Must not
know: which dimensions an operation can split (each folder's `partitioning.py` knows).
"""

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

# Shardy parses only the factor names i, j, ... z, z_1, z_2, ... in a sharding rule.
_FACTOR_LETTERS = "ijklmnopqrstuvwxyz"

# Callbacks of lowered programs, by their key in the program. They live as long as the process, because
# a lowered program may be compiled at any time.
_partitioning_callbacks: dict[str, Any] = {}


def partitions_custom_calls(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether XLA would call the callback of a `custom_partitioning` inside a lowering rule.

    An exported program cannot hold a Python callback, and the older partitioner (GSPMD) needs another
    rule. Both split the call by its attributes instead (`batch_partitioning_attributes`).
    """
    module = ctx.module_context
    context = module.axis_context
    return bool(
        jax.config.jax_use_shardy_partitioner  # pyright: ignore[reportAttributeAccessIssue]
        and not module.lowering_parameters.for_export
        and isinstance(context, mlir.ShardingContext)
        and context.num_devices > 1
        and context.device_assignment is not None
    )


def runs_on_its_own(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether no partitioner splits the call: one device, or inside a shard_map over all mesh axes."""
    return not ctx.module_context.lowering_parameters.for_export and not may_be_split(ctx)


def may_be_split(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether XLA partitions the program, exported or not, over devices or over some mesh axes."""
    context = ctx.module_context.axis_context
    if isinstance(context, sharding_impls.SPMDAxisContext):
        return context.manual_axes != frozenset(context.mesh.axis_names)
    return not isinstance(context, mlir.ShardingContext) or context.num_devices > 1


def needs_devices_for_lowering(primitive: Primitive) -> None:
    """Lets the primitive's lowering rule use `custom_partitioning` in programs on several devices.

    JAX passes the device assignment only to primitives in this private set.
    """
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def mesh_axes(operand: Any) -> list[tuple[str, ...]]:
    """The mesh axes over which each dimension of a partitioned operand or result is sharded."""
    spec = [*operand.sharding.spec, *[None] * len(operand.shape)][: len(operand.shape)]
    return [() if e is None else tuple(e) if isinstance(e, tuple) else (e,) for e in spec]


def named_shardings(
    mesh: Any, arrays: Sequence[Sequence[str]], axes: dict[str, tuple[str, ...]]
) -> list[NamedSharding]:
    """The shardings of arrays with these names of dimensions; `axes` are the mesh axes of a name."""
    specs = (PartitionSpec(*(axes.get(dim) or None for dim in dims)) for dims in arrays)
    return [NamedSharding(mesh, spec) for spec in specs]


def sharding_rule(operands: Sequence[Sequence[str]], results: Sequence[Sequence[str]]) -> str:
    """The rule of `custom_partitioning` for operands and results with these names of dimensions."""
    sides = (", ".join(" ".join(dims) for dims in arrays) for arrays in (operands, results))
    return " -> ".join(sides)


def lower_partitioned(
    function: Callable[..., Any],
    ctx: mlir.LoweringRuleContext,
    operands: Any,
    name: str,
    several: bool = False,
) -> Any:
    """Lowers a `custom_partitioning` function so that the program can be cached and serialized.

    JAX identifies the callback by the address of a Python object, which it writes into the program and
    keeps with the executable. Then the persistent compilation cache never hits across processes, and the
    executable cannot be pickled. This function replaces the address with `name`, which identifies the
    callback's behaviour, except for devices and operand types. It writes the name twice, because a JAX
    option lets the cache ignore the first place. `several` says that the function returns a list.
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
    # The callback reads only these two fields; the full context would keep the program alive.
    callback.module_context = SimpleNamespace(platforms=module.platforms, backend=module.backend)
    kept = _partitioning_callbacks.setdefault(key, callback)
    custom_partitioning._sharding_callbacks[key.encode()] = kept
    call.attributes["backend_config"] = ir.StringAttr.get(key)
    call.attributes["mhlo.frontend_attributes"] = mlir.ir_attribute({"jaxkernels_call": key})
    return results


def _fine_mesh(axis_context: Any) -> Mesh:
    """The program's devices as a mesh with one axis per prime factor of each of its mesh axes.

    XLA may split a mesh axis, for example when a sharded dimension is reshaped into two. On this mesh a
    PartitionSpec can express that sharding. If the program has no mesh, the number of devices is
    factored.
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
    """Converts an HLO sharding to a NamedSharding; replicated if the mesh axes cannot express it."""
    if hlo_sharding is None:
        return None
    try:
        entries = tuple(sharding_impls.parse_flatten_op_sharding(hlo_sharding, mesh)[0])
    except (AssertionError, ValueError):
        entries = ()
    return NamedSharding(mesh, PartitionSpec(*entries, *[None] * (ndim - len(entries))))


def _partition_without_context(partition: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `partition`, and traces its per-device function outside of the user's mesh.

    XLA calls back while that mesh is set, but a per-device array is not sharded over it.
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

    All operands and results must have the shape of the first, except for the last dimension. If an
    operand broadcasts, the result is empty and XLA does not split the call. GSPMD reads the number of
    batch dimensions (the target must be registered as batch partitionable). Shardy reads a rule that
    ties equal dimensions together and replicates the last `row_dims`, because the kernel needs whole
    rows.
    """
    avals = [*ctx.avals_in, *ctx.avals_out]  # pyright: ignore[reportAttributeAccessIssue]
    shapes = [aval.shape for aval in avals]
    shape = shapes[0]
    # The rule cannot express symbolic (jax.export) or empty dimensions.
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
    """The Shardy rule for arrays of these shapes: `operands` operands, then the results."""
    overflow = (f"z_{k}" for k in itertools.count(1))
    letters = itertools.chain(_FACTOR_LETTERS, overflow)
    shape = shapes[0]
    factors = list(itertools.islice(letters, len(shape)))
    sizes = dict(zip(factors, shape, strict=True))
    last = {shape[-1]: factors[-1]}  # by size: per-row numbers have another one

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
