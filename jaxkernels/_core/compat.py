"""Wraps the parts of JAX that have no stability guarantee: avals, traces, transformation rules.

Owns: every use of a private JAX module, except those in `partitioned_calls.py` and
`_attention/cudnn.py`, and nothing else, so that a new JAX release breaks few files besides these
three. The files that define primitives use `jax.interpreters` and `custom_partitioning` themselves.
Must not know: any operation.
"""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
from jax._src import config, core, util
from jax._src.interpreters import ad
from jax._src.interpreters import batching as batching_traces
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import batching, mlir, partial_eval, xla
from jax.sharding import NamedSharding, PartitionSpec


def running_ffi_api_version() -> tuple[int, int] | None:
    """The XLA FFI version (major, minor) in the headers of the installed jaxlib; None without headers."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text(encoding="utf-8")
    except OSError:
        return None
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", text))
    return (int(found["MAJOR"]), int(found["MINOR"])) if len(found) == 2 else None


# Caches a function by the identity of its first argument while that lives, by the others, and by JAX's
# trace context.
cached_by_identity: Callable[[Callable[..., Any]], Callable[..., Any]] = util.weakref_lru_cache


@contextlib.contextmanager
def context_of(eqn_context: Any, aval: Any) -> Iterator[None]:
    """Traces as an equation was traced: on its mesh, and with the varying axes of its operand."""
    with eqn_context.manager, config._check_vma(bool(aval.manual_axis_type.varying)):
        yield


def runs_at_once() -> bool:
    """Whether operations execute eagerly (also under grad, jvp or vmap), not in a jaxpr trace."""
    trace = core.trace_ctx.trace
    while isinstance(trace, (ad.JVPTrace, ad.LinearizeTrace, batching_traces.BatchTrace)):
        trace = trace.parent_trace
    return trace is None or trace is core.eval_trace


def varying_axes(x: Any) -> frozenset[Any]:
    """The manual mesh axes over which `x` varies (shard_map with check_vma)."""
    return jax.typeof(x).manual_axis_type.varying


def explicit_spec(x: Any) -> PartitionSpec:
    """The PartitionSpec in the type of `x`: all None unless its mesh has Explicit axes."""
    return jax.typeof(x).sharding.spec


def aval_spec(aval: Any) -> PartitionSpec:
    """The PartitionSpec in an abstract value."""
    return aval.sharding.spec


def is_explicitly_sharded(*arrays: Any) -> bool:
    """Whether an array has an explicit sharding in its type."""
    return any(axis is not None for x in arrays for axis in explicit_spec(x))


def with_mesh(*avals: Any) -> Any:
    """The first abstract value whose type has a mesh; the first of all if none has.

    An array that was placed on explicit axes has their mesh in its type. A constant in the same
    operation has none, unless the user has called `jax.set_mesh`.
    """
    return next((aval for aval in avals if not aval.sharding.mesh.empty), avals[0])


def with_shape_and_spec(aval: Any, shape: Sequence[Any], spec: Sequence[Any]) -> Any:
    """`aval` with another shape and PartitionSpec, but the same mesh and varying axes."""
    sharding = aval.sharding.update(spec=PartitionSpec(*spec))
    return aval.update(shape=tuple(shape), sharding=sharding, weak_type=False)


def sharding_like(spec: PartitionSpec, *arrays: jax.Array) -> NamedSharding:
    """`spec` on the mesh in the type of the first array that has one."""
    return with_mesh(*map(jax.typeof, arrays)).sharding.update(spec=spec)


def reshard(x: jax.Array, spec: PartitionSpec, *others: jax.Array) -> jax.Array:
    """Reshards `x` to `spec`, on the mesh in the type of `x` or, if it has none, of `others`."""
    return jax.sharding.reshard(x, sharding_like(spec, x, *others))


def broadcast_like(x: jax.Array, y: jax.Array) -> jax.Array:
    """Broadcasts `x` to the shape and the explicit sharding of `y`.

    With that sharding, each device sums its part of the gradient before the all-reduce.
    """
    sharding = jax.typeof(y).sharding if is_explicitly_sharded(y) else None
    return jax.numpy.broadcast_to(x, y.shape, out_sharding=sharding)


def split_by_xla(
    function: Callable[..., jax.Array], spec: PartitionSpec, *arrays: jax.Array
) -> jax.Array:
    """`function(*arrays)`, which XLA also splits over explicit mesh axes; the result has `spec` there."""
    if not is_explicitly_sharded(*arrays):
        return function(*arrays)
    split: Any = jax.sharding.auto_axes(function, out_sharding=sharding_like(spec, *arrays))
    return split(*arrays)


def batch_at_front(axis_data: Any, x: jax.Array, batch_dim: int | None) -> jax.Array:
    """`x` with its vmapped dimension first; an unmapped `x` is broadcast with the same sharding."""
    return batching.bdim_at_front(x, batch_dim, axis_data.size, axis_data.explicit_mesh_axis)


def lowering_platforms(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    """The platforms ("cpu", "cuda", "tpu", ...) that a lowering rule lowers for."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def without_types_of_shardings(ctx: mlir.LoweringRuleContext) -> mlir.LoweringRuleContext:
    """The context with operand avals reduced to shape and dtype.

    A function that is traced inside a lowering rule needs neither shardings nor varying axes.
    """
    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    return ctx.replace(avals_in=[core.ShapedArray(aval.shape, aval.dtype) for aval in avals])


def is_donated(value: ir.Value) -> bool:
    """Whether a value is a donated argument of the whole program.

    Arguments of inner functions and loops return False, because their donation is not known.
    """
    block = value.owner
    if not isinstance(block, ir.Block) or "arg_attrs" not in block.owner.attributes:
        return False
    about = ir.ArrayAttr(block.owner.attributes["arg_attrs"])
    about = ir.DictAttr(about[ir.BlockArgument(value).arg_number])
    return "tf.aliasing_output" in about or "jax.buffer_donor" in about


def define(
    primitive: Primitive, abstract_eval: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    """Gives a primitive its evaluation, its batching rule and, for checkify, a check of NaNs."""
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(abstract_eval)
    batching.fancy_primitive_batchers[primitive] = batch
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import checkify

        checkify.error_checks[primitive] = functools.partial(checkify.nan_error_check, primitive)


def register_dce_rule(
    primitive: Primitive, rule: Callable[[Sequence[bool], Any], tuple[list[bool], Any]]
) -> None:
    """Sets `rule(used_results, equation)`, which returns the used operands and the equation to run.

    JAX applies it before it lowers a program. JAX 0.12 passes a third argument.
    """
    rules: Any = partial_eval.dce_rules
    rules[primitive] = lambda used, *others: rule(used, others[-1])


def register_remat_rule(primitive: Primitive) -> None:
    """Lets `jax.checkpoint` policies save the primitive's result under `jax_remat3`.

    A JAX without that flag, or with another rule signature, recomputes the primitive.
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

            # JAX saves the result like a named value if the policy saves the primitive.
            result = primitive.bind(*operands, **params)
            name = CheckpointName(primitive.name, jax.typeof(result))
            asked = SimpleNamespace(policy=trace.policy and policy)
            result, saved, restore = name.remat(asked, result)  # pyright: ignore[reportAssignmentType]
            again = functools.partial(primitive.bind, **params)
            return result, saved, lambda saved, *operands: restore(saved, again(*operands))

        remat.rules[primitive] = rule


def einsum(product: Any, subscripts: Any, *operands: Any, **options: Any) -> jax.Array:
    """jnp.einsum with `product` in place of lax.dot_general (a private argument of JAX)."""
    return jax.numpy.einsum(subscripts, *operands, _dot_general=product, **options)
