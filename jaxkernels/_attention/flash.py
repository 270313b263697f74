"""Attention as primitives that cuDNN computes on CUDA, and the plain form, with the scores, elsewhere.

The JVP of `attention` is the linear primitive `tangent`, whose transpose is `backward`. Reverse mode
saves the operands, y and the log-sum-exp of each row, never the scores. For the gradient of a bias, and
for second and higher derivatives, JAX differentiates the plain form, which stores the scores.

Owns: the transformation rules and lowerings. Must not know: what users may pass, or how an operation is
computed (`plain`, `cudnn`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from jaxkernels._attention import choice, cudnn, flash_partitioning, plain
from jaxkernels._attention.flash_partitioning import Form
from jaxkernels._attention.problem import MOVING, Call, Operands, present
from jaxkernels._core import compat, partitioned_calls, registry, sharding
from jaxkernels._rows import derivatives

attention_p = Primitive("jaxkernels_flash_attention")
tangent_p = Primitive("jaxkernels_flash_attention_tangent")
backward_p = Primitive("jaxkernels_flash_attention_backward")


def attention(given: Operands, call: Call) -> jax.Array:
    """The result of attention, of shape (B, T, N, H), for bfloat16 or float16 operands."""
    return attention_p.bind(*sharding.equalize_varying(present(given)), call=call)[0]


def _attention_abstract_eval(*avals: Any, call: Call) -> list[Any]:
    q = avals[0]
    y = q.update(weak_type=False)
    if not call.keeps_sums:
        return [y]
    (batch, t, heads, _), (of_batch, of_t, of_heads, _) = q.shape, compat.aval_spec(q)
    sums = compat.with_shape_and_spec(q, (batch, heads, t), (of_batch, of_heads, of_t))
    return [y, sums.update(dtype=jnp.dtype("float32"))]


def _like_first(count: int) -> Callable[..., list[Any]]:
    """The abstract evaluation of a primitive whose results are like its first operands."""
    return lambda *avals, call: [aval.update(weak_type=False) for aval in avals[:count]]


def _attention_jvp(primals: Any, tangents: Any, *, call: Call) -> Any:
    dots = dict(zip(call.names, tangents, strict=True))
    if "bias" in dots and type(dots["bias"]) is not ad.Zero:
        form = functools.partial(plain.forward, call)
        return derivatives.jvp_of(form, primals, tangents)
    moving = tuple(name for name in MOVING if type(dots[name]) is not ad.Zero)
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
    of_name: dict[str, Any] = dict(zip(MOVING, found, strict=True))
    return [*(None for _ in kept), *(of_name[name] for name in moving)]


def _backward_transpose(cotangents: Any, *operands: Any, call: Call) -> list[Any]:
    *kept, dy = operands
    of_name: dict[str, Any] = dict(zip(MOVING, cotangents, strict=True))
    moving = tuple(name for name in MOVING if type(of_name[name]) is not ad.Zero)
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
    """Folds a mapped dimension into the batch; an unmapped bias or mask may still broadcast."""
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
    folded = []
    for name, x, dim in zip(names, operands, dims, strict=True):
        if name in ("bias", "mask") and dim is None and x.shape[0] == 1:
            folded.append(x)
            continue
        x = compat.batch_at_front(axis_data, x, dim)
        x = jnp.broadcast_to(x, (members, batch, *x.shape[2:]))
        folded.append(x.reshape(members * batch, *x.shape[2:]))
    results = primitive.bind(*folded, call=call)
    unfolded = [x.reshape(members, batch, *x.shape[1:]) for x in results]
    return unfolded, [0] * len(unfolded)


def define(primitive: Primitive, abstract_eval: Any, form: Form) -> None:
    primitive.multiple_results = True
    compat.define(primitive, abstract_eval, functools.partial(_batch, primitive, form))
    partitioned_calls.needs_devices_for_lowering(primitive)
    ad.primitive_jvps[primitive] = functools.partial(_jvp_by_plain_form, primitive, form)


def _lower_form(form: Form, ctx: mlir.LoweringRuleContext, *operands: Any, call: Call) -> Any:
    lower = mlir.lower_fun(lambda *values: form(call, values), multiple_results=True)
    return lower(ctx, *operands)


def _lower_plain(form: Form, ctx: mlir.LoweringRuleContext, *operands: Any, call: Call) -> Any:
    if call.is_pinned:
        platforms = ", ".join(map(repr, compat.lowering_platforms(ctx)))
        raise NotImplementedError(
            f'dot_product_attention: implementation="cudnn" runs on CUDA devices, not on {platforms}'
        )
    return _lower_form(form, ctx, *operands, call=call)


def _lower_cuda(
    name: str,
    form: Form,
    cudnn_form: Form,
    results: tuple[str, ...],
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    call: Call,
) -> Any:
    """Lowers to cuDNN on one device, or on each device's shards.

    If no callback can partition the call, as in an exported program, every device would compute on whole
    arrays. The call then uses the plain form, unless the user asked for cuDNN.
    """
    # The batch is checked again, because vmap may have enlarged it, and jax.export may make it symbolic.
    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    batch = avals[0].shape[0]
    is_split = partitioned_calls.partitions_custom_calls(ctx)
    runs = is_split or call.is_pinned or partitioned_calls.runs_on_its_own(ctx)
    if not (runs and isinstance(batch, int) and 0 < batch <= choice.MOST_BLOCKS):
        return _lower_form(form, ctx, *operands, call=call)
    ctx = compat.without_types_of_shardings(ctx)
    if not is_split:
        return _lower_form(cudnn_form, ctx, *operands, call=call)
    names = results[: len(ctx.avals_out)]  # pyright: ignore[reportAttributeAccessIssue]
    shapes = [aval.shape for aval in avals]
    function = flash_partitioning.partitioned(call, cudnn_form, shapes, names)
    key = f"{name} {call} {registry.fingerprint()}"
    return partitioned_calls.lower_partitioned(function, ctx, operands, key, several=True)


define(attention_p, _attention_abstract_eval, plain.forward)
define(tangent_p, _like_first(1), plain.tangent)
define(backward_p, _like_first(3), plain.backward)
ad.primitive_jvps[attention_p] = _attention_jvp
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[backward_p] = _backward_transpose
mlir.register_lowering(tangent_p, functools.partial(_lower_form, plain.tangent))
for _primitive, _form, _cudnn_form, _results in (
    (attention_p, plain.forward, cudnn.forward, ("y", "sums")),
    (backward_p, plain.backward, cudnn.backward, MOVING),
):
    mlir.register_lowering(_primitive, functools.partial(_lower_plain, _form))
    _rule = functools.partial(_lower_cuda, _primitive.name, _form, _cudnn_form, _results)
    mlir.register_lowering(_primitive, _rule, platform="cuda")
