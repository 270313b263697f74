"""The operations of flash attention in two forms: by cuDNN, or plain, with the scores in memory.

With p = softmax(scale q k^T + bias), y = p v and the cotangent dy:
    dv = p^T dy,   dp = dy v^T,   ds = p (dp - sum(dy y)),   dq = scale ds k,   dk = scale ds^T q.
cuDNN recomputes p from q, k and the log-sum-exp of each row (Dao, "FlashAttention-2", 2023,
arXiv:2307.08691). The plain form recomputes p from the scores. Both forms have the same operands and
results, so one form can run forward and the other backward.

Owns: the conversion of boolean masks, lengths and fully masked queries for cuDNN. Must not know:
primitives, or who chooses a form.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxkernels._attention import cudnn, plain
from jaxkernels._attention.problem import MOVING, Call, Operands
from jaxkernels._rows import reference

# Finite values that cuDNN adds to masked scores, as in jax.nn; the exponential becomes 0. A bias of this
# value or less masks a score too.
HIDDEN = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}

Form = Callable[[Call, Sequence[jax.Array]], list[jax.Array]]


class Forms(NamedTuple):
    """The two forms of an operation, as functions of a call and its operands, and its results' names."""

    plain: Form
    cudnn: Form
    results: tuple[str, ...]


def _plain_forward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    given = call.operands(operands)
    form = functools.partial(plain.attention, given, call.scale, call.band)
    if not call.keeps_sums:
        return [form()[0]]
    hidden = HIDDEN[given.q.dtype.name]
    y, sums = form(floor=-jnp.inf)
    assert sums is not None
    # cuDNN's backward pass computes exp(score - sum). The large value makes it 0 in fully masked rows.
    return [y, jnp.where(sums > hidden, sums, -hidden)]


def _cudnn_forward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    given = call.operands(operands)
    y, *sums = cudnn.forward(call, _without_mask(call, given))
    return [_where_alive(call, given, y), *sums]


def _plain_backward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    *_, y, dy = operands
    of, primals = _known(dataclasses.replace(call, moving=MOVING), operands, y)
    return list(jax.vjp(of, *primals)[1](dy))


def _cudnn_backward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    given = call.operands(operands)
    sums, y, dy = operands[-3:]
    dy = _where_alive(call, given, dy)
    return cudnn.backward(call, _without_mask(call, given), sums, y, dy)


# Operands: those of the call. Results: y, and with `keeps_sums` the log-sum-exps.
FORWARD = Forms(_plain_forward, _cudnn_forward, ("y", "sums"))
# Operands: those of the call, the log-sum-exps, y and dy. Results: dq, dk and dv.
BACKWARD = Forms(_plain_backward, _cudnn_backward, MOVING)


def tangent(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """The tangent of y in the plain form, because cuDNN has no JVP.

    Args:
        call: the call.
        operands: the operands of the call, the log-sum-exps, y, and the tangents of `call.moving`.
    """
    y, *dots = operands[len(call.names) + 1 :]
    of, primals = _known(call, operands, y)
    return [jax.jvp(of, primals, dots)[1]]


def _known(
    call: Call, operands: Sequence[jax.Array], y: jax.Array
) -> tuple[Callable[..., jax.Array], list[jax.Array]]:
    """The plain form with the known result y, as a function of `call.moving`, and these operands."""
    given = call.operands(operands)

    def of(*moving: jax.Array) -> jax.Array:
        moved = given._replace(**dict(zip(call.moving, moving, strict=True)))
        return plain.attention(moved, call.scale, call.band, known=y)[0]

    return of, [getattr(given, name) for name in call.moving]


def _without_mask(call: Call, given: Operands) -> Operands:
    """The operands for cuDNN, which adds the bias, and a large negative number for masked scores.

    A fully masked query is left unmasked, and its result and cotangent become 0 elsewhere. If all its
    scores were near -2^41, where float32 has steps of 2^18, exp(score - sum) could be infinite.
    """
    q_lengths, k_lengths = _lengths(given)
    found = given._replace(mask=None, q_lengths=q_lengths, k_lengths=k_lengths)
    seen, alive = _unhidden(given), _sees_a_key(call, given)
    if seen is None or alive is None:
        return found
    dtype = given.q.dtype
    zero = jnp.zeros((), dtype)
    hidden = jnp.asarray(HIDDEN[dtype.name], dtype)
    total = jnp.where(seen, zero if given.bias is None else given.bias, hidden)
    total = jnp.where(alive, total, zero)
    shape = (*total.shape[:2], given.q.shape[1], given.k.shape[1])
    return found._replace(bias=jnp.broadcast_to(total, shape))


def _unhidden(given: Operands) -> jax.Array | None:
    """The scores that neither mask nor bias hides, as a mask; None without both."""
    if given.bias is None:
        return given.mask
    return plain.both(given.mask, ~(given.bias <= HIDDEN[given.q.dtype.name]))


def _sees_a_key(call: Call, given: Operands) -> jax.Array | None:
    """The queries with a visible key, as a mask of shape (B or 1, N or 1, T or 1, 1); None for all."""
    t, s = given.q.shape[1], given.k.shape[1]
    seen = _unhidden(given)
    if seen is None:
        return plain.within(given.k_lengths, 1, (1, 2))  # without a window all see the first key
    if not call.band.is_open:
        seen = seen & reference.band((1, 1, t, s), **call.band.attributes())
    within = plain.within(given.k_lengths, s, (1, 2))
    seen = seen if within is None else seen & within
    return jnp.any(seen, axis=-1, keepdims=True)


def _lengths(given: Operands) -> list[jax.Array | None]:
    """The lengths, clipped to at least 1 and at most T or S, because cuDNN needs a key in each row."""
    if given.q_lengths is None and given.k_lengths is None:
        return [None, None]
    found = []
    for lengths, x in ((given.q_lengths, given.q), (given.k_lengths, given.k)):
        size = x.shape[1]
        whole = jnp.full(x.shape[:1], size, jnp.int32)
        found.append(whole if lengths is None else jnp.clip(lengths, 1, size))
    return found


def _where_alive(call: Call, given: Operands, rows: jax.Array) -> jax.Array:
    """`rows`, (B, T, N, H), with 0 for fully masked queries and queries beyond their length."""
    within = plain.within(given.q_lengths, given.q.shape[1], (1, 3))
    alive = plain.both(_sees_a_key(call, given), within)
    if alive is None:
        return rows
    return jnp.where(jnp.swapaxes(alive, 1, 2), rows, jnp.zeros((), rows.dtype))
