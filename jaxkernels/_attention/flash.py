"""Attention as primitives that cuDNN's flash attention can serve, and their derivatives.

The JVP of `attention` is the linear primitive `tangent`, whose transpose is `backward`. Reverse mode
saves the operands, y and the log-sum-exp of each row, never the scores. For the gradient of a bias, and
for second and higher derivatives, JAX differentiates the plain form, which stores the scores.

Owns: the transformation rules. Must not know: what users may pass, how an operation is computed
(`flash_forms`), or where (`flash_lowering`).
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

from jaxkernels._attention import flash_forms, flash_lowering
from jaxkernels._attention.problem import MOVING, Call, Operands, present
from jaxkernels._core import compat, partitioned_calls, sharding
from jaxkernels._rows import derivatives

attention_p = Primitive("jaxkernels_flash_attention")
tangent_p = Primitive("jaxkernels_flash_attention_tangent")
backward_p = Primitive("jaxkernels_flash_attention_backward")


def attention(given: Operands, call: Call) -> jax.Array:
    """The result of attention, of shape (B, T, N, H).

    Args:
        given: the operands; q, k and v are bfloat16 or float16.
        call: the static parameters.
    """
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
        form = functools.partial(flash_forms.FORWARD.plain, call)
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
    primitive: Primitive, form: flash_forms.Form, primals: Any, tangents: Any, *, call: Call
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
    form: flash_forms.Form,
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


def _define(primitive: Primitive, abstract_eval: Any, form: flash_forms.Form) -> None:
    primitive.multiple_results = True
    compat.define(primitive, abstract_eval, functools.partial(_batch, primitive, form))
    partitioned_calls.needs_devices_for_lowering(primitive)
    ad.primitive_jvps[primitive] = functools.partial(_jvp_by_plain_form, primitive, form)


_define(attention_p, _attention_abstract_eval, flash_forms.FORWARD.plain)
_define(tangent_p, _like_first(1), flash_forms.tangent)
_define(backward_p, _like_first(3), flash_forms.BACKWARD.plain)
ad.primitive_jvps[attention_p] = _attention_jvp
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[backward_p] = _backward_transpose
flash_lowering.define(attention_p, flash_forms.FORWARD)
flash_lowering.define(backward_p, flash_forms.BACKWARD)
mlir.register_lowering(tangent_p, functools.partial(flash_lowering.lower_form, flash_forms.tangent))
