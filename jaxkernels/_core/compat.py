"""The one module that touches what JAX does not promise to keep.

Owns: every use of a private JAX module, and nothing else, so that a new JAX release breaks little
but this file. The rules of primitives use `jax.interpreters` and `custom_partitioning`, in the
files that define them. Must not know: softmax, or any other operation.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax._src import core, custom_partitioning, dispatch, sharding_impls
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import batching, mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxkernels._core import import_hook

# Shardy names the factors of a sharding rule i, j, ... z and then z_1, z_2, ...; no other name
# parses.
_FACTOR_LETTERS = "ijklmnopqrstuvwxyz"


def running_ffi_api_version() -> tuple[int, int] | None:
    """Version of the XLA FFI that the installed jaxlib speaks, read from the header that it ships.

    Returns:
        (major, minor), or None when this jaxlib comes without its headers.
    """
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text(encoding="utf-8")
    except OSError:
        return None
    found = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    if found[0] is None or found[1] is None:
        return None
    return int(found[0].group(1)), int(found[1].group(1))


def outside_of_traces() -> bool:
    """Whether operations run at once: nothing is being traced, differentiated or mapped."""
    return core.trace_state_clean()


def varying_axes(x: Any) -> frozenset[Any]:
    """The manual mesh axes over which `x` differs between devices (shard_map with check_vma)."""
    return jax.typeof(x).manual_axis_type.varying


def explicit_spec(x: Any) -> PartitionSpec:
    """The sharding that is part of the type of `x`: all None unless its mesh has Explicit axes."""
    return jax.typeof(x).sharding.spec


def aval_spec(aval: Any) -> PartitionSpec:
    """The same of an abstract value."""
    return aval.sharding.spec


def is_explicitly_sharded(*arrays: Any) -> bool:
    """Whether the type of one of the arrays says that it is sharded."""
    return any(axis is not None for x in arrays for axis in explicit_spec(x))


def with_mesh(*avals: Any) -> Any:
    """The first of the abstract values whose type names a mesh; the first of all if none does.

    A mesh is in the type of an array that was placed on its explicit axes, and not in that of a
    constant beside it, unless the user has set the mesh (`jax.set_mesh`).
    """
    return next((aval for aval in avals if not aval.sharding.mesh.empty), avals[0])


def with_shape_and_spec(aval: Any, shape: Sequence[Any], spec: Sequence[Any]) -> Any:
    """`aval` with another shape and sharding; the mesh, and the axes it varies over, stay."""
    sharding = aval.sharding.update(spec=PartitionSpec(*spec))
    return aval.update(shape=tuple(shape), sharding=sharding, weak_type=False)


def sharding_like(spec: PartitionSpec, *arrays: jax.Array) -> NamedSharding:
    """`spec` on the mesh that the type of one of the arrays names."""
    return with_mesh(*map(jax.typeof, arrays)).sharding.update(spec=spec)


def reshard(x: jax.Array, spec: PartitionSpec, *others: jax.Array) -> jax.Array:
    """`x` with the sharding `spec` in its type, on the mesh of `x` or, if it has none, of `others`."""
    return jax.sharding.reshard(x, sharding_like(spec, x, *others))


def broadcast_like(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x` with the shape of `y`, and with the sharding in its type, if there is one.

    So that a gradient is summed before it is sent to other devices, and not after.
    """
    sharding = jax.typeof(y).sharding if is_explicitly_sharded(y) else None
    return jax.numpy.broadcast_to(x, y.shape, out_sharding=sharding)


def batch_at_front(axis_data: Any, x: jax.Array, batch_dim: int | None) -> jax.Array:
    """`x` with its vmapped dimension first; an unmapped `x` is broadcast, and sharded alike."""
    return batching.bdim_at_front(x, batch_dim, axis_data.size, axis_data.explicit_mesh_axis)


def lowering_platforms(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    """The platforms ("cpu", "cuda", "tpu", ...) that a lowering rule is asked to serve."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


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


def without_types_of_shardings(ctx: mlir.LoweringRuleContext) -> mlir.LoweringRuleContext:
    """The context with operands that are types of shape and dtype alone.

    What a lowering rule traces need not say how its values are sharded, or over which axes they vary.
    """
    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    return ctx.replace(avals_in=[core.ShapedArray(aval.shape, aval.dtype) for aval in avals])


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


# The callbacks of lowered programs, by the names that the programs give them. They are kept as long as
# the process: a program may be compiled at any time.
_partitioning_callbacks: dict[str, Any] = {}


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
    full_name = repr((name, shapes, devices, lowering_platforms(ctx)))
    key = hashlib.sha256(full_name.encode()).hexdigest()
    # All that a callback asks of its program; the rest would keep the program alive.
    callback.module_context = SimpleNamespace(platforms=module.platforms, backend=module.backend)
    kept = _partitioning_callbacks.setdefault(key, callback)
    custom_partitioning._sharding_callbacks[key.encode()] = kept
    call.attributes["backend_config"] = ir.StringAttr.get(key)
    call.attributes["mhlo.frontend_attributes"] = mlir.ir_attribute({"jaxkernels_call": key})
    return results


def needs_devices_for_lowering(primitive: Primitive) -> None:
    """Lets the primitive's lowering rule use `custom_partitioning`, which asks for the devices.

    JAX keeps a set of such primitives for itself. Without it a program on several devices could not
    be lowered with the partitioned form.
    """
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def is_donated(value: ir.Value) -> bool:
    """Whether a value is an argument of the whole program, whose memory the caller has given away.

    That of a function within the program, or of a loop, is not known to be.
    """
    block = value.owner
    if not isinstance(block, ir.Block) or "arg_attrs" not in block.owner.attributes:
        return False
    about = ir.ArrayAttr(block.owner.attributes["arg_attrs"])
    about = ir.DictAttr(about[ir.BlockArgument(value).arg_number])
    return "tf.aliasing_output" in about or "jax.buffer_donor" in about


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


def register_nan_check(primitive: Primitive) -> None:
    """Lets checkify report a NaN in the result of the primitive."""

    def register(checkify: ModuleType) -> None:
        checkify.error_checks[primitive] = functools.partial(checkify.nan_error_check, primitive)

    _when_imported("jax._src.checkify", register)


def register_jet_rule(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Gives jet `rule(jet, primals, series, **params)`, from which come the result and its series."""

    def register(module: ModuleType) -> None:
        module.jet_rules[primitive] = functools.partial(rule, module.jet)

    _when_imported("jax.experimental.jet", register)


def register_sparse_rule(primitive: Primitive, function: Callable[..., Any]) -> None:
    """Lets sparsify run `function`, of the same operands and parameters, in the primitive's place."""

    def register(transform: ModuleType) -> None:
        def rule(env: Any, *values: Any, **params: Any) -> Any:
            with_params = functools.partial(function, **params)
            return transform.sparsify_raw(with_params)(env, *values)[0]

        transform.sparse_rules_bcoo[primitive] = rule
        transform.sparse_rules_bcsr[primitive] = rule

    _when_imported("jax.experimental.sparse.transform", register)


def _when_imported(module: str, register: Callable[[ModuleType], None]) -> None:
    """Registers a rule once its transformation is there: to import sparse takes longer than this package.

    A JAX that has the rules elsewhere does without.
    """

    def register_if_possible(loaded: ModuleType) -> None:
        with contextlib.suppress(AttributeError):
            register(loaded)

    import_hook.after_import(module, register_if_possible)


def einsum(product: Any, subscripts: Any, *operands: Any, **options: Any) -> jax.Array:
    """jnp.einsum with another product than lax.dot_general: its argument for that begins with an underscore."""
    return jax.numpy.einsum(subscripts, *operands, _dot_general=product, **options)
