"""What JAX does not promise to keep: types of arrays, traces, rules of transformations.

Owns: every use of a private JAX module but those of `partitioned_calls.py`, and nothing else, so that a
new JAX release breaks little but these two files. The rules of primitives use `jax.interpreters` and
`custom_partitioning`, in the files that define them. Must not know: softmax, or any other operation.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
from jax._src import core
from jax._src.interpreters import ad
from jax._src.interpreters import batching as batching_traces
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec


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


def runs_at_once() -> bool:
    """Whether operations run at once, be they differentiated or mapped: no program is being traced."""
    trace = core.trace_ctx.trace
    while isinstance(trace, (ad.JVPTrace, ad.LinearizeTrace, batching_traces.BatchTrace)):
        trace = trace.parent_trace
    return trace is None or trace is core.eval_trace


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


def without_types_of_shardings(ctx: mlir.LoweringRuleContext) -> mlir.LoweringRuleContext:
    """The context with operands that are types of shape and dtype alone.

    What a lowering rule traces need not say how its values are sharded, or over which axes they vary.
    """
    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    return ctx.replace(avals_in=[core.ShapedArray(aval.shape, aval.dtype) for aval in avals])


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


def register_nan_check(primitive: Primitive) -> None:
    """Lets checkify report a NaN in the result of the primitive, if this JAX keeps its rules here."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import checkify

        checkify.error_checks[primitive] = functools.partial(checkify.nan_error_check, primitive)


def register_remat_rule(primitive: Primitive) -> None:
    """Lets policies of `jax.checkpoint` save the result of the primitive under `jax_remat3`, too.

    A JAX without that flag, or with other rules for it, computes the primitive again.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.ad_checkpoint import CheckpointName
        from jax._src.interpreters import remat

        given = inspect.signature(CheckpointName.remat).parameters
        if jax.__version_info__ < (0, 12) or "trace" not in given:
            return

        def rule(trace: Any, *operands: Any, **params: Any) -> Any:
            avals = [jax.typeof(x) for x in operands]

            def policy(*_: Any, **__: Any) -> Any:
                return trace.policy(primitive, *avals, **params)

            # The result is saved as a named value is, if the policy saves the primitive.
            result = primitive.bind(*operands, **params)
            name = CheckpointName(primitive.name, jax.typeof(result))
            asked = SimpleNamespace(policy=trace.policy and policy)
            result, saved, restore = name.remat(asked, result)  # pyright: ignore[reportAssignmentType]
            again = functools.partial(primitive.bind, **params)
            return result, saved, lambda saved, *operands: restore(saved, again(*operands))

        remat.rules[primitive] = rule


def einsum(product: Any, subscripts: Any, *operands: Any, **options: Any) -> jax.Array:
    """jnp.einsum with another product than lax.dot_general: its argument for that begins with an underscore."""
    return jax.numpy.einsum(subscripts, *operands, _dot_general=product, **options)
