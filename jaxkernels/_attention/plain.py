"""Attention as two products around this package's softmax, with the scores in memory.

`forward`, `tangent` and `backward` are the operations of flash attention in this form. They have the
operands and results of those in `cudnn`, so one form can run forward and the other backward.

Owns: the conversion of masks, lengths and bands for the row operation. Must not know: what users may
pass, layouts of products (`products`), or how masks and windows reach a kernel (`masked`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxkernels._attention import products
from jaxkernels._attention.checks import NAME
from jaxkernels._attention.problem import HIDDEN, Call, Operands, both, within
from jaxkernels._rows import masked, masked_kernels, reference
from jaxkernels.typing import EmptyRows, Implementation

# The value to which jax.nn sets masked scores.
FINITE_FLOOR = -0.7 * float(jnp.finfo(jnp.float32).max)
_LOG2_E = math.log2(math.e)


def attention(
    given: Operands,
    scale: float | jax.Array,
    band: masked_kernels.Band,
    *,
    empty_rows: EmptyRows = "zero",
    implementation: Implementation | None = None,
    floor: float | None = None,
    known: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """The result of shape (B, T, N, H), and the log-sum-exps of the rows, (B, N, T), without a gradient.

    `floor` is the value of masked scores in the log-sum-exps; with None there are none. `known` is the
    result, if only derivatives are needed.
    """
    q, k, v = given.q, given.k, given.v
    scores = products.scores(q, k, products.dot_of(q.dtype, wide=True))
    scores, factor = masked.fused_scale(NAME, scores, scale)
    seen = both(given.mask, within(given.k_lengths, k.shape[1], (1, 2)))
    weights = masked.apply(
        NAME,
        scores,
        seen,
        given.bias,
        scale=factor,
        band=band,
        empty_rows=empty_rows,
        implementation=implementation,
        result_dtype=k.dtype if k.dtype.name in ("bfloat16", "float16") else None,
    )
    result = products.softmax_weighted_values(weights, v, products.dot_of(k.dtype), known)
    rows = within(given.q_lengths, q.shape[1], (2, 3))
    if rows is not None:
        result = jnp.where(rows, result, 0)
    if floor is None:
        return result, None
    seen = both(seen, within(given.q_lengths, q.shape[1], (1, 3)))
    return result, _log_sum_exp(scores, seen, given.bias, factor, band, floor)


def _log_sum_exp(
    scores: jax.Array,
    seen: jax.Array | None,
    bias: jax.Array | None,
    scale: float,
    band: masked_kernels.Band,
    floor: float,
) -> jax.Array:
    """The log-sum-exp of each row of scaled, biased scores, with `floor` for masked ones."""
    x = lax.stop_gradient(scores) * scale
    if bias is not None:
        bias = masked.bias_array(NAME, lax.stop_gradient(bias), x)
        x = x.astype(bias.dtype) + bias
    if not band.is_open:
        seen = both(seen, reference.band(x.shape, **band.attributes()))
    return jax.nn.logsumexp(x if seen is None else jnp.where(seen, x, floor), axis=-1)


def forward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """The result and, with `call.keeps_sums`, the log-sum-exps in the form that `Call` describes."""
    given = call.operands(operands)
    form = functools.partial(attention, given, call.scale, call.band)
    if not call.keeps_sums:
        return [form()[0]]
    y, sums = form(floor=-jnp.inf)
    assert sums is not None
    if given.q.dtype.name == "float32":
        return [y, jnp.stack([sums * _LOG2_E, (sums > -jnp.inf).astype(sums.dtype)], axis=-1)]
    hidden = HIDDEN[given.q.dtype.name]
    # cuDNN's backward pass computes exp(score - sum). The large value makes it 0 in fully masked rows.
    return [y, jnp.where(sums > hidden, sums, -hidden)]


def log_sum_exps(pairs: jax.Array) -> jax.Array:
    """The log-sum-exps (B, N, T) of the pairs of float32 calls; -inf for rows that see nothing."""
    return pairs[..., 0] / _LOG2_E + jnp.log(pairs[..., 1])


def tangent(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """The tangent of y; operands: those of the call, the log-sum-exps, y, tangents of `call.moving`."""
    y, *dots = operands[len(call.names) + 1 :]
    of, primals = _known(call, operands, y)
    return [jax.jvp(of, primals, dots)[1]]


def backward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """`call.cotangents`; operands: those of the call, the log-sum-exps, y and dy."""
    *_, y, dy = operands
    of, primals = _known(dataclasses.replace(call, moving=call.cotangents), operands, y)
    return list(jax.vjp(of, *primals)[1](dy))


def _known(
    call: Call, operands: Sequence[jax.Array], y: jax.Array
) -> tuple[Callable[..., jax.Array], list[jax.Array]]:
    """The attention with the known result y, as a function of `call.moving`, and these operands."""
    given = call.operands(operands)

    def of(*moving: jax.Array) -> jax.Array:
        moved = given._replace(**dict(zip(call.moving, moving, strict=True)))
        return attention(moved, call.scale, call.band, known=y)[0]

    return of, [getattr(given, name) for name in call.moving]
