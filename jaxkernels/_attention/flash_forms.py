"""The operations of flash attention, each computed in two ways: by cuDNN, or with the scores in memory.

With p = softmax(scale q k^T + bias) and y = p v, of the cotangent dy:
    dv = p^T dy,   dp = dy v^T,   ds = p (dp - sum(dy y)),   dq = scale ds k,   dk = scale ds^T q.
cuDNN makes p again from q, k and the logarithm of the sum of each row (Dao, "FlashAttention-2", 2023,
arXiv:2307.08691). So does the other way, from the scores. Both take and give the same arrays, so that
what one way computed forward the other can take backward.

Owns: what masks of bool, lengths and queries without keys are for cuDNN. Must not know: primitives, or
who chooses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxkernels._attention import cudnn, plain
from jaxkernels._attention.problem import MOVING, Call, Operands
from jaxkernels._rows import reference

# What hides a score in cuDNN, as jax.nn has it: finite, and so small that its exponential is 0. A bias that
# is no greater hides, too.
HIDDEN = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}

# Of a window, which XLA counts in 32 bits; longer than any sequence whose scores are counted in so many.
_LONGEST_WINDOW = 2**30

Form = Callable[[Call, Sequence[jax.Array]], list[jax.Array]]


class Forms(NamedTuple):
    """Two functions of one operation, from a call and its operands to its results."""

    plain: Form
    cudnn: Form


def _plain_forward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    given = call.operands(operands)
    form = functools.partial(plain.attention, given, call.scale, call.band)
    if not call.keeps_sums:
        return [form()[0]]
    hidden = HIDDEN[given.q.dtype.name]
    y, sums = form(floor=-jnp.inf)
    assert sums is not None
    # Backward, cuDNN takes the exponential of scores without the sum, which is to be 0 in empty rows.
    return [y, jnp.where(sums > hidden, sums, -hidden)]


def _cudnn_forward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    given = call.operands(operands)
    y, *sums = cudnn.forward(_inputs(call, given), _kind(call), keeps_sums=call.keeps_sums)
    return [_where_alive(call, given, y), *sums]


def _plain_backward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    given, (y, dy) = call.operands(operands), operands[-2:]

    def of(*moving: jax.Array) -> jax.Array:
        moved = given._replace(**dict(zip(MOVING, moving, strict=True)))
        return plain.attention(moved, call.scale, call.band, known=y)[0]

    return list(jax.vjp(of, given.q, given.k, given.v)[1](dy))


def _cudnn_backward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    given = call.operands(operands)
    sums, y, dy = operands[-3:]
    dy = _where_alive(call, given, dy)
    return cudnn.backward(_inputs(call, given), sums, y, dy, _kind(call))


# Operands: those of the call. Results: y, and perhaps the logarithms of the sums.
FORWARD = Forms(_plain_forward, _cudnn_forward)
# Operands: those of the call, the logarithms, y and dy. Results: dq, dk and dv.
BACKWARD = Forms(_plain_backward, _cudnn_backward)


def tangent(call: Call, moving: Sequence[str], operands: Sequence[jax.Array]) -> list[jax.Array]:
    """The tangent of y, with the scores in memory: cuDNN has none.

    Args:
        call: the call.
        moving: the names of the operands that have tangents.
        operands: those of the call, the logarithms and y, and the tangents.
    """
    given = call.operands(operands)
    y, *dots = operands[len(operands) - len(moving) - 1 :]

    def of(*moved: jax.Array) -> jax.Array:
        replaced = given._replace(**dict(zip(moving, moved, strict=True)))
        return plain.attention(replaced, call.scale, call.band, known=y)[0]

    primals = [getattr(given, name) for name in moving]
    return [jax.jvp(of, primals, dots)[1]]


def _inputs(call: Call, given: Operands) -> cudnn.Inputs:
    return cudnn.Inputs(given.q, given.k, given.v, _added(call, given), _lengths(given))


def _kind(call: Call) -> cudnn.Kind:
    """The band as cuDNN has it: all keys, those up to a query's own, or the last of these."""
    if call.band.is_open:
        return cudnn.Kind(call.scale)
    left = call.band.left
    return cudnn.Kind(call.scale, True, 0 if left is None else min(1 - left, _LONGEST_WINDOW))


def _added(call: Call, given: Operands) -> jax.Array | None:
    """What is added to the scores: the bias, and a large negative number where they are hidden.

    A query that sees no key sees all of them instead, because its result and its cotangent become 0. Were
    all its scores near -2^41, where float32 has steps of 2^18, the exponential of their distance to the sum
    could be infinite.
    """
    seen = _unhidden(given)
    if seen is None:
        return None
    dtype = given.q.dtype
    zero = jnp.zeros((), dtype)
    hidden = jnp.asarray(HIDDEN[dtype.name], dtype)
    total = jnp.where(seen, zero if given.bias is None else given.bias, hidden)
    total = jnp.where(_sees_a_key(call, given, seen), total, zero)
    return jnp.broadcast_to(total, (*total.shape[:2], given.q.shape[1], given.k.shape[1]))


def _unhidden(given: Operands) -> jax.Array | None:
    """Which scores mask and bias let through; None without both."""
    if given.bias is None:
        return given.mask
    return plain.both(given.mask, ~(given.bias <= HIDDEN[given.q.dtype.name]))


def _sees_a_key(call: Call, given: Operands, seen: jax.Array) -> jax.Array:
    """Which queries see something of what mask and bias let through, (B or 1, N or 1, T or 1, 1)."""
    t, s = given.q.shape[1], given.k.shape[1]
    if not call.band.is_open:
        seen = seen & reference.band((1, 1, t, s), **call.band.attributes())
    within = plain.within(given.k_lengths, s, (1, 2))
    seen = seen if within is None else seen & within
    return jnp.any(seen, axis=-1, keepdims=True)


def _lengths(given: Operands) -> tuple[jax.Array, jax.Array] | None:
    """Lengths of at least 1 and at most all: no row of cuDNN's is without keys."""
    if given.q_lengths is None and given.k_lengths is None:
        return None
    found = []
    for lengths, x in ((given.q_lengths, given.q), (given.k_lengths, given.k)):
        size = x.shape[1]
        whole = jnp.full(x.shape[:1], size, jnp.int32)
        found.append(whole if lengths is None else jnp.clip(lengths, 1, size))
    return found[0], found[1]


def _where_alive(call: Call, given: Operands, rows: jax.Array) -> jax.Array:
    """`rows`, (B, T, N, H), with 0 for the queries that see no key, or lie beyond their lengths."""
    t, seen = given.q.shape[1], _unhidden(given)
    if seen is not None:
        alive = _sees_a_key(call, given, seen)
    else:
        # Without a window every query sees the first key.
        alive = plain.within(given.k_lengths, 1, (1, 2))
    alive = plain.both(alive, plain.within(given.q_lengths, t, (1, 3)))
    if alive is None:
        return rows
    return jnp.where(jnp.swapaxes(alive, 1, 2), rows, jnp.zeros((), rows.dtype))
