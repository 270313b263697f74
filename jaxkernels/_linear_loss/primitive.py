"""The primitives of linear_cross_entropy, with their rules for JAX's transformations.

z = x w + b are the logits of a row, before cap and temperature, and g is their gradient:
    dx = g w^T,   dw = sum x^T g,   db = sum g.
First derivatives store z and g for one chunk of rows at a time. Users' code differentiates `measures` and
`loss`. The tangent of the measures is the linear primitive `jvp`; its transpose `grad` recomputes the
logits. The tangent of a loss is (dx, x') + (dw, w') + ..., inner products of gradients and tangents, and `fwd_grad`
computes these gradients with the loss. For second and higher derivatives JAX differentiates one chunk of all rows.

Owns: the transformation rules. Must not know: what users may pass, or how a chunk is computed.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from jaxkernels._core import compat, partitioned_calls, registry, sharding
from jaxkernels._linear_loss import chunks, partitioning
from jaxkernels._linear_loss.chunks import SHARED, Arrays, Call, Options, RowCalls
from jaxkernels._rows import derivatives, loss_measures
from jaxkernels._rows.loss_measures import Measures, Residuals
from jaxkernels._rows.reference import compute_dtype

# Differentiable operands, in the order of the operands and of their gradients.
MOVING = ("x", "w", "bias", "scales")
_OPERATIONS = ("measures", "loss", "fwd_grad", "grad", "jvp")
# Results that are numbers of each row.
_NUMBERS = {"measures": Measures, "tangent": Measures, "kept": Residuals}
_PRIMITIVES = {name: Primitive(f"jaxkernels_linear_cross_entropy_{name}") for name in _OPERATIONS}


def measures(given: Arrays, options: Options) -> tuple[jax.Array, jax.Array]:
    """The measures and the maximum of each row, from the operands of `chunks` by name."""
    of_rows, kept = _bind("measures", given, ("measures", "kept"), options)
    return of_rows, kept[..., :1]


def loss(given: Arrays, options: Options) -> jax.Array:
    """The weighted loss, summed over all rows. Reverse mode computes its gradient in the forward pass."""
    return _bind("loss", given, ("loss",), options)[0]


def _bind(
    operation: str, given: Arrays, wanted: Sequence[str], options: Options, members: int = 0
) -> list[jax.Array]:
    """Binds a primitive to operands that vary over the same mesh axes; per-row ones are sharded like x."""
    call = Call(operation, tuple(given), tuple(wanted), options, members)
    equal = dict(zip(given, sharding.equalize_varying(list(given.values())), strict=True))
    of_rows = ["x", *(name for name in given if name not in SHARED and name != "x")]
    rows = sharding.equalize([equal[name] for name in of_rows], [name != "x" for name in of_rows])
    equal |= dict(zip(of_rows, rows, strict=True))
    return _PRIMITIVES[operation].bind(*equal.values(), call=call)


def _abstract_eval(*avals: Any, call: Call) -> list[Any]:
    given = call.named(avals)
    x = given["x"]
    rows, spec = x.shape[:-1], list(compat.aval_spec(x))[:-1]

    def of_rows(size: int) -> Any:
        like = compat.with_shape_and_spec(x, (*rows, size), (*spec, None))
        return like.update(dtype=compute_dtype(x))

    def of(name: str) -> Any:
        if name == "loss":
            members = call.members
            like = compat.with_shape_and_spec(x, rows[:members], spec[:members])
            return like.update(dtype=compute_dtype(x))
        if name in _NUMBERS:
            return of_rows(len(_NUMBERS[name]._fields))
        return given[name.removeprefix("d")].update(weak_type=False)

    return [of(name) for name in call.wanted]


def _jvp_of_measures(primals: Any, tangents: Any, *, call: Call) -> Any:
    results = _PRIMITIVES["measures"].bind(*primals, call=call)
    of_rows, kept = results
    dots = _dots(call, tangents)
    if dots:
        operands = call.named(primals) | {"kept": lax.stop_gradient(kept)} | dots
        (tangent,) = _bind("jvp", operands, ("tangent",), call.options)
    else:
        tangent = jnp.zeros_like(of_rows)
    return results, [tangent, ad.Zero(jax.typeof(kept).to_tangent_aval())]


def _dots(call: Call, tangents: Any) -> Arrays:
    """The nonzero tangents, by operand name."""
    moving = {n: t for n, t in call.named(tangents).items() if n in MOVING}
    return {f"{n}_dot": t for n, t in moving.items() if type(t) is not ad.Zero}


def _jvp_of_loss(primals: Any, tangents: Any, *, call: Call) -> Any:
    given, dots = call.named(primals), _dots(call, tangents)
    if call.members > 0:
        # Several losses would need one gradient of w each; differentiating their measures avoids that.
        return derivatives.jvp_of(functools.partial(_loss_by_measures, call), primals, tangents)
    wanted = ("kept", *(f"d{name.removesuffix('_dot')}" for name in dots))
    kept, *gradients = _bind("fwd_grad", given, wanted, call.options)
    numbers = given["numbers"]
    dnumbers = ad.instantiate_zeros(call.named(tangents)["numbers"])
    of_numbers = functools.partial(_weighted, given["label"], loss_measures.measures_of(kept), kept)
    value, tangent = jax.jvp(of_numbers, (numbers,), (dnumbers,))
    for gradient, dot in zip(gradients, dots.values(), strict=True):
        tangent += jnp.sum(gradient.astype(tangent.dtype) * dot.astype(tangent.dtype))
    return [value], [tangent]


def _weighted(
    label: jax.Array, of_rows: jax.Array, kept: jax.Array, numbers: jax.Array, members: int = 0
) -> jax.Array:
    """The weighted loss, summed over all row dimensions except the first `members`."""
    of_row = loss_measures.loss_of(label >= 0, of_rows, kept[..., :1], numbers)
    return jnp.sum(of_row, axis=tuple(range(members, of_row.ndim)))


def _loss_by_measures(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    given = call.named(operands)
    numbers = given.pop("numbers")
    of_rows, kept = _bind("measures", given, ("measures", "kept"), call.options)
    return [_weighted(given["label"], of_rows, kept, numbers, call.members)]


def _jvp_of_whole(primals: Any, tangents: Any, *, call: Call) -> Any:
    """The JVP of an operation, by JAX's JVP of one chunk of all rows."""

    def whole(operands: Sequence[jax.Array]) -> list[jax.Array]:
        return chunks.run(
            call, operands, _traced(call), chunks.Layout(algorithm=call.options.algorithm)
        )

    results = _PRIMITIVES[call.operation].bind(*primals, call=call)
    return results, derivatives.jvp_of(whole, primals, tangents)[1]


def _transpose_of_jvp(cotangents: Any, *operands: Any, call: Call) -> list[Any]:
    (cotangent,), given = cotangents, call.named(operands)
    linear = [name for name, x in given.items() if ad.is_undefined_primal(x)]
    if type(cotangent) is ad.Zero:
        found = {name: ad.Zero(given[name].aval) for name in linear}
    else:
        wanted = [f"d{name.removesuffix('_dot')}" for name in linear]
        given = {name: x for name, x in given.items() if not name.endswith("_dot")}
        gradients = _bind("grad", given | {"cotangent": cotangent}, wanted, call.options)
        found = dict(zip(linear, gradients, strict=True))
    return [found.get(name) for name in call.names]


def _batch(axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, call: Call) -> Any:
    """A mapped row dimension becomes a further row dimension; a mapped w or bias needs a loop."""
    given, of_name = call.named(operands), call.named(dims)
    mapped = [name for name, dim in of_name.items() if dim is not None]
    primitive = _PRIMITIVES[call.operation]
    if not mapped:
        return primitive.bind(*operands, call=call), [None] * len(call.wanted)

    def at_front(names: Iterable[str]) -> Arrays:
        return {n: compat.batch_at_front(axis_data, given[n], of_name[n]) for n in names}

    if SHARED.isdisjoint(mapped) and chunks.SUMS.isdisjoint(call.wanted):
        merged = dataclasses.replace(call, members=call.members + 1)
        placed = given | at_front(name for name in given if name not in SHARED)
        return primitive.bind(*placed.values(), call=merged), [0] * len(call.wanted)

    def member(own: Arrays) -> list[jax.Array]:
        return _bind(call.operation, given | own, call.wanted, call.options, call.members)

    return lax.map(member, at_front(mapped)), [0] * len(call.wanted)


def _traced(call: Call) -> RowCalls:
    implementation = call.options.implementation
    return RowCalls("plain" if implementation == "xla" else "primitive", implementation == "ffi")


def _lower(platform: str, ctx: mlir.LoweringRuleContext, *operands: Any, call: Call) -> Any:
    """Lowers to chunks of this device's rows, partitioned if XLA partitions."""
    has_kernels = registry.has_kernels(platform)
    platform = platform if has_kernels else ""
    ctx = compat.without_types_of_shardings(ctx)
    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    shapes = [aval.shape for aval in avals]
    has_elements = all(0 not in shape for shape in shapes)
    is_plain = call.options.implementation == "xla" or not has_elements
    uses_kernels = has_kernels and not is_plain
    # A required kernel that is missing is not partitioned: its primitive raises the error.
    can_split = has_kernels or call.options.implementation != "ffi"
    with jax.enable_x64(avals[0].dtype == jnp.float64):
        if can_split and has_elements and partitioned_calls.partitions_custom_calls(ctx):
            function = partitioning.partitioned(call, shapes, platform, uses_kernels)
            name = f"{_PRIMITIVES[call.operation].name} {call} {registry.fingerprint()}"
            return partitioned_calls.lower_partitioned(function, ctx, operands, name, several=True)
        rows = _traced(call)
        if is_plain:
            rows = RowCalls("plain")
        elif uses_kernels and partitioned_calls.runs_on_its_own(ctx):
            rows = RowCalls("in_place")
        return mlir.lower_fun(functools.partial(partitioning.local, call, rows, platform))(
            ctx, *operands
        )


for _operation, _primitive in _PRIMITIVES.items():
    _primitive.multiple_results = True
    compat.define(_primitive, _abstract_eval, _batch)
    mlir.register_lowering(_primitive, functools.partial(_lower, ""))
    for _platform in registry.registered_platforms():
        rule = functools.partial(_lower, _platform)
        mlir.register_lowering(_primitive, rule, platform=_platform)
    partitioned_calls.needs_devices_for_lowering(_primitive)
    ad.primitive_jvps[_primitive] = _jvp_of_whole
ad.primitive_jvps[_PRIMITIVES["measures"]] = _jvp_of_measures
ad.primitive_jvps[_PRIMITIVES["loss"]] = _jvp_of_loss
ad.primitive_transposes[_PRIMITIVES["jvp"]] = _transpose_of_jvp
