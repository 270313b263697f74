"""Attention as primitives: cuDNN computes 16 bits on CUDA, our flash kernels float32, the plain form the rest.

The JVP of `attention` is the linear primitive `tangent`, whose transpose is `backward`. Reverse mode
saves the operands, y and the log-sum-exp of each row, never the scores. The plain form, which stores the
scores, computes `tangent`, and JAX differentiates it for second and higher derivatives, and for the
gradient of a bias in 16 bits.

Owns: the transformation rules and lowerings. Must not know: what users may pass, or how an operation is
computed (`plain`, `cudnn`, `tensor_cores`).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from jaxkernels._attention import choice, cudnn, flash_partitioning, plain, tensor_cores
from jaxkernels._attention.checks import NAME
from jaxkernels._attention.flash_partitioning import Form
from jaxkernels._attention.problem import MOVING, Call, Operands, present
from jaxkernels._core import compat, partitioned_calls, registry, sharding
from jaxkernels._rows import derivatives, masked
from jaxkernels._rows.masked_kernels import Band

attention_p = Primitive("jaxkernels_flash_attention")
tangent_p = Primitive("jaxkernels_flash_attention_tangent")
backward_p = Primitive("jaxkernels_flash_attention_backward")


def attention(
    given: Operands, scale: Any, band: Band, **asked: Any
) -> tuple[jax.Array, jax.Array | None] | None:
    """The result (B, T, N, H), and the log-sum-exps (B, N, T) if asked for; None if our softmax computes both.

    `asked` are the options of `choice.flash_call`.
    """
    call = choice.flash_call(given, scale, band, **asked)
    if call is None:
        return None
    if given.q.dtype.name == "float32":
        q, factor = masked.fused_scale(NAME, given.q, scale)
        bias = None if given.bias is None else given.bias.astype(jnp.float32)
        given, call = given._replace(q=q, bias=bias), dataclasses.replace(call, scale=factor)
    y, *pairs = attention_p.bind(*sharding.equalize_varying(present(given)), call=call)
    return y, plain.log_sum_exps(*pairs) if pairs else None


def _attention_abstract_eval(*avals: Any, call: Call) -> list[Any]:
    given = call.operands(avals)
    (batch, t, heads, _), (of_batch, of_t, of_heads, _) = given.q.shape, compat.aval_spec(given.q)
    shape, spec = (batch, t, heads, given.v.shape[-1]), (of_batch, of_t, of_heads, None)
    y = compat.with_shape_and_spec(given.q, shape, spec)
    if not call.keeps_sums:
        return [y]
    shape, spec = (batch, heads, t), (of_batch, of_heads, of_t)
    if y.dtype.name == "float32":
        shape, spec = (*shape, 2), (*spec, None)
    sums = compat.with_shape_and_spec(y, shape, spec)
    return [y, sums.update(dtype=jnp.dtype("float32"))]


def _tangent_abstract_eval(*avals: Any, call: Call) -> list[Any]:
    return [avals[len(call.names) + 1].update(weak_type=False)]


def _backward_abstract_eval(*avals: Any, call: Call) -> list[Any]:
    return [aval.update(weak_type=False) for aval in avals[: len(call.cotangents)]]


def _attention_jvp(primals: Any, tangents: Any, *, call: Call) -> Any:
    dots = dict(zip(call.names, tangents, strict=True))
    of_any = (name for name in (*MOVING, "bias") if name in dots)
    moving = tuple(name for name in of_any if type(dots[name]) is not ad.Zero)
    if "bias" in moving and primals[0].dtype.name != "float32":
        form = functools.partial(plain.forward, call)
        return derivatives.jvp_of(form, primals, tangents)
    keeping = dataclasses.replace(call, keeps_sums=True)
    y, sums = attention_p.bind(*primals, call=keeping)
    operands = sharding.equalize_varying([*primals, sums, y, *(dots[name] for name in moving)])
    results = [y]
    found = tangent_p.bind(*operands, call=dataclasses.replace(keeping, moving=moving))
    if call.keeps_sums:
        results.append(sums)
        found.append(ad.Zero(jax.typeof(sums).to_tangent_aval()))
    return results, found


def _jvp_by_plain_form(
    primitive: Primitive, form: Form, primals: Any, tangents: Any, *, call: Call
) -> Any:
    """JVP by the plain form, in all operands except y and the log-sums, which are recomputed."""
    whole = functools.partial(form, call)
    return primitive.bind(*primals, call=call), derivatives.jvp_of(whole, primals, tangents)[1]


def _tangent_transpose(cotangents: Any, *operands: Any, call: Call) -> list[Any]:
    (dy,), moving = cotangents, call.moving
    kept, linear = operands[: -len(moving)], operands[-len(moving) :]
    if type(dy) is ad.Zero:
        return [*(None for _ in kept), *(ad.Zero(x.aval) for x in linear)]
    found = backward_p.bind(*sharding.equalize_varying([*kept, dy]), call=call)
    of_name: dict[str, Any] = dict(zip(call.cotangents, found, strict=True))
    return [*(None for _ in kept), *(of_name[name] for name in moving)]


def _backward_transpose(cotangents: Any, *operands: Any, call: Call) -> list[Any]:
    *kept, dy = operands
    of_name: dict[str, Any] = dict(zip(call.cotangents, cotangents, strict=True))
    moving = tuple(name for name, dot in of_name.items() if type(dot) is not ad.Zero)
    if not moving:
        return [*(None for _ in kept), ad.Zero(dy.aval)]
    given = sharding.equalize_varying([*kept, *(of_name[name] for name in moving)])
    call = dataclasses.replace(call, moving=moving)
    return [*(None for _ in kept), *tangent_p.bind(*given, call=call)]


def _batch(
    primitive: Primitive,
    form: Form,
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    *,
    call: Call,
) -> Any:
    """Folds a mapped dimension into the batch; an unmapped bias or mask may still broadcast.

    A bias with a tangent or a cotangent may not, because each member has its own.
    """
    if all(dim is None for dim in dims):
        results = primitive.bind(*operands, call=call)
        return results, [None] * len(results)
    # Reshape cannot fold an explicitly sharded dimension, so JAX maps the plain form.
    if axis_data.explicit_mesh_axis is not None or compat.is_explicitly_sharded(*operands):
        several = jax.vmap(lambda *own: form(call, own), tuple(dims), axis_size=axis_data.size)
        results = several(*operands)
        return results, [0] * len(results)
    names = [*call.names, *(None for _ in operands[len(call.names) :])]
    q = compat.batch_at_front(axis_data, operands[0], dims[0])
    members, batch = q.shape[:2]
    shared = {"bias", "mask"}.difference(call.moving)
    folded = []
    for name, x, dim in zip(names, operands, dims, strict=True):
        if name in shared and dim is None and x.shape[0] == 1:
            folded.append(x)
            continue
        x = compat.batch_at_front(axis_data, x, dim)
        x = jnp.broadcast_to(x, (members, batch, *x.shape[2:]))
        folded.append(x.reshape(members * batch, *x.shape[2:]))
    results = primitive.bind(*folded, call=call)
    unfolded = [x.reshape(members, batch, *x.shape[1:]) for x in results]
    if primitive is backward_p and "bias" in call.moving:
        at = call.names.index("bias")
        of_member = operands[at].shape[1 if dims[at] == 0 else 0]
        if of_member < batch:
            unfolded[-1] = unfolded[-1].sum(1, keepdims=True)
    return unfolded, [0] * len(unfolded)


def _define(primitive: Primitive, abstract_eval: Any, form: Form) -> None:
    primitive.multiple_results = True
    compat.define(primitive, abstract_eval, functools.partial(_batch, primitive, form))
    partitioned_calls.needs_devices_for_lowering(primitive)
    ad.primitive_jvps[primitive] = functools.partial(_jvp_by_plain_form, primitive, form)


def _lower_form(form: Form, ctx: mlir.LoweringRuleContext, *operands: Any, call: Call) -> Any:
    lower = mlir.lower_fun(lambda *values: form(call, values), multiple_results=True)
    return lower(ctx, *operands)


def _lower(
    operation: str, on_cuda: bool, ctx: mlir.LoweringRuleContext, *operands: Any, call: Call
) -> Any:
    """Lowers "forward" or "backward".

    It runs cuDNN or our kernels on one CUDA device or on each device's shards, otherwise the plain form.

    If no callback can partition the call, as in an exported program, every device would compute on whole
    arrays. The call then uses the plain form, unless the user asked for an implementation.
    """
    # The batch is checked again, because vmap may have enlarged it, and jax.export may make it symbolic.
    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    batch, is_float32 = avals[0].shape[0], avals[0].dtype.name == "float32"
    is_backward, kernels = operation == "backward", tensor_cores if is_float32 else cudnn
    why = ""
    if not on_cuda:
        platforms = ", ".join(map(repr, compat.lowering_platforms(ctx)))
        why = f"it runs on CUDA devices, not on {platforms}"
    elif is_float32:
        why = tensor_cores.why_not_lowered(call, avals, backward=is_backward)
    if why and call.pinned and not (is_backward and on_cuda):
        raise NotImplementedError(f'{NAME}: implementation="{call.pinned}": {why}')
    is_split = on_cuda and partitioned_calls.partitions_custom_calls(ctx)
    runs = is_split or call.pinned or partitioned_calls.runs_on_its_own(ctx)
    is_served = is_float32 or (isinstance(batch, int) and 0 < batch <= choice.MOST_BLOCKS)
    if why or not (runs and is_served):
        return _lower_form(getattr(plain, operation), ctx, *operands, call=call)
    ctx = compat.without_types_of_shardings(ctx)
    form = getattr(kernels, operation)
    if not is_split:
        return _lower_form(form, ctx, *operands, call=call)
    names = call.cotangents if is_backward else ("y", "sums")
    found: Sequence[Any] = ctx.avals_out  # pyright: ignore[reportAttributeAccessIssue]
    results = {name: aval.shape for name, aval in zip(names, found, strict=False)}
    function = flash_partitioning.partitioned(
        call, form, [aval.shape for aval in avals], results, is_float32=is_float32
    )
    key = f"flash_attention {operation} {call} {registry.fingerprint()}"
    return partitioned_calls.lower_partitioned(function, ctx, operands, key, several=True)


_define(attention_p, _attention_abstract_eval, plain.forward)
_define(tangent_p, _tangent_abstract_eval, plain.tangent)
_define(backward_p, _backward_abstract_eval, plain.backward)
ad.primitive_jvps[attention_p] = _attention_jvp
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[backward_p] = _backward_transpose
mlir.register_lowering(tangent_p, functools.partial(_lower_form, plain.tangent))
for _primitive, _operation in ((attention_p, "forward"), (backward_p, "backward")):
    for _platform in (None, "cuda"):
        _rule = functools.partial(_lower, _operation, _platform == "cuda")
        mlir.register_lowering(_primitive, _rule, platform=_platform)
