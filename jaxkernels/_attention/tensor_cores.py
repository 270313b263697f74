"""Float32 attention by this package's kernels for Hopper's tensor cores, which keep no scores.

The kernels multiply pairs of float16 (`ffi/attention`). Derivatives are those of the plain form.

Owns: the primitive, its lowering, and which problems the kernels serve. Must not know: what users may pass.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxkernels._attention import flash, plain
from jaxkernels._attention.problem import Call, Operands, present
from jaxkernels._core import compat, devices, partitioned_calls, registry, sharding
from jaxkernels._cpu import AttentionKernelPlan
from jaxkernels._rows.masked_kernels import Band

attention_p = Primitive("jaxkernels_attention")
_LOG2_E = math.log2(math.e)


def attention(given: Operands, scale: float, band: Band) -> tuple[jax.Array, jax.Array]:
    """The result (B, T, N, H), and the log-sum-exp of each row (B, N, T), -inf for one that sees nothing.

    Operands are float32, the bias too. A scale that is not positive becomes a factor of the queries.
    """
    if not 0 < scale < math.inf:
        given, scale = given._replace(q=given.q * jnp.float32(scale)), 1.0
    call = Call(given.names(), scale, band)
    y, rows = attention_p.bind(*sharding.equalize_varying(present(given)), call=call)
    return y, rows[..., 0] / _LOG2_E + jnp.log(rows[..., 1])


def why_not(given: Operands) -> str:
    """The reason why no kernel serves these operands on the default GPU; empty if one does."""
    if given.q.dtype.name != "float32":
        return "it multiplies float32 alone"
    if given.bias is not None and given.bias.dtype.name != "float32":
        return "its bias must be float32"
    sizes = (*given.q.shape, *given.k.shape, *given.v.shape)
    if not all(isinstance(size, int) for size in sizes):
        return "sizes are not known"
    try:
        _plan(given)
    except ValueError as error:
        return str(error)
    return ""


def _plan(given: Operands, backward: bool = False) -> AttentionKernelPlan:
    (batch, queries, heads, depth), (_, keys, key_heads, _) = given.q.shape, given.k.shape
    limits = devices.limits_of(None)
    sizes = (batch, queries, keys, heads, key_heads, depth, given.v.shape[-1])
    return registry.cpu_module.plan_attention_kernel(*sizes, limits, backward)


def plain_form(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """The result, and (r, s) of each row, so that its probabilities are exp2(score - r) / s."""
    y, sums = plain.attention(call.operands(operands), call.scale, call.band, floor=-math.inf)
    assert sums is not None
    is_empty = sums == -math.inf
    return [y, jnp.stack([sums * _LOG2_E, jnp.where(is_empty, 0.0, 1.0)], axis=-1)]


def kernel_form(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """`plain_form` by the kernels; only for lowering rules, because it has no derivatives."""
    given = call.operands(operands)
    (batch, queries, heads, _), depth = given.q.shape, given.v.shape[-1]
    results = (
        jax.ShapeDtypeStruct((batch, queries, heads, depth), jnp.float32),
        jax.ShapeDtypeStruct((batch, heads, queries, 2), jnp.float32),
        jax.ShapeDtypeStruct((_plan(given).scratch_bytes,), jnp.uint8),
    )
    kernel = jax.ffi.ffi_call(registry.ATTENTION_TARGET, results)
    y, rows, _ = kernel(*operands, **_attributes(call, given))
    return [y, rows]


def kernel_backward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """The cotangents of q, k, v, and of a bias of all queries and keys, by the kernels.

    Operands: those of the call, y, (r, s), dy. Without such a bias there are three results.
    """
    given = call.operands(operands)
    plan = _plan(given, backward=True)
    of_bias = (0, 0, 0, 0) if given.bias is None else given.bias.shape
    has_gradient = of_bias[2:] == (given.q.shape[1], given.k.shape[1])
    sums = (_bias_groups(given, plan), *of_bias) if has_gradient else (0,)
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (given.q, given.k, given.v)]
    results.append(jax.ShapeDtypeStruct(sums, jnp.float32))
    scratch = jax.ShapeDtypeStruct((plan.scratch_bytes,), jnp.uint8)
    kernel = jax.ffi.ffi_call(registry.ATTENTION_BACKWARD_TARGET, [*results, scratch])
    *found, dbias, _ = kernel(*operands, **_attributes(call, given))
    return [*found, dbias.sum(0)] if has_gradient else found


def _bias_groups(given: Operands, plan: AttentionKernelPlan) -> int:
    """The groups of heads with partial sums of the bias's gradient: two blocks for each SM."""
    batch, heads, queries, keys = given.bias.shape
    members = 1 if batch > 1 else plan.batch_of_group
    shared = members * (1 if heads > 1 else given.q.shape[2])
    tiles = min(batch, plan.batch_of_group) * heads * -(-queries // 128) * -(-keys // 128)
    return max(1, min(shared, 2 * plan.sm_count // tiles))


def _attributes(call: Call, given: Operands) -> dict[str, Any]:
    bounds = call.band.attributes()
    return {
        "scale": np.float32(call.scale),
        "left": bounds["left"],
        "right": bounds["right"],
        "has_bias": given.bias is not None,
        "has_mask": given.mask is not None,
        "has_q_lengths": given.q_lengths is not None,
        "has_k_lengths": given.k_lengths is not None,
    }


def _abstract_eval(*avals: Any, call: Call) -> list[Any]:
    given = call.operands(avals)
    q, v = given.q, given.v
    (batch, t, heads, _), spec = q.shape, compat.aval_spec(q)
    of_batch, of_t, of_heads, _ = spec
    y = compat.with_shape_and_spec(q, (*q.shape[:3], v.shape[-1]), tuple(spec))
    rows = compat.with_shape_and_spec(q, (batch, heads, t, 2), (of_batch, of_heads, of_t, None))
    return [y.update(weak_type=False), rows.update(weak_type=False)]


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, call: Call, on_cuda: bool) -> Any:
    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    runs = on_cuda and registry.has_kernels("cuda") and partitioned_calls.runs_on_its_own(ctx)
    form = kernel_form if runs and not why_not(call.operands(avals)) else plain_form
    lower = mlir.lower_fun(lambda *values: form(call, values), multiple_results=True)
    return lower(compat.without_types_of_shardings(ctx), *operands)


flash.define(attention_p, _abstract_eval, plain_form)
mlir.register_lowering(attention_p, functools.partial(_lower, on_cuda=False))
mlir.register_lowering(attention_p, functools.partial(_lower, on_cuda=True), platform="cuda")
