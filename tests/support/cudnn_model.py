"""A model of cuDNN's calls in jax.numpy. Rows without a defined result get the worst values that cuDNN may give.

A row without keys is NaN, forward and backward, and so is one with a bias of numbers like -3e38. A row whose largest score is
near what hides scores is right forward; backward the exponential of its distance to the sum overflows, as that is no
more than the rounding of both. A row behind the length of the queries holds whatever was there, forward.
"""

import jax.numpy as jnp

from jaxkernels._attention.flash_forms import HIDDEN

GARBAGE = 777.0


def _scores(q, k, bias, lengths, kind):
    """(B, N, T, S): the scores, -inf where they are not seen; and which rows are within the lengths."""
    k = jnp.repeat(k, q.shape[2] // k.shape[2], 2)
    wide = [x.astype(jnp.float32) for x in (q, k)]
    scores = kind.scale * jnp.einsum("btnh,bsnh->bnts", *wide)
    if bias is not None:
        assert bias.dtype == q.dtype
        assert bias.shape[2:] == scores.shape[2:]
        bias = bias.astype(jnp.float32)
        scores += jnp.where(bias < HIDDEN[q.dtype.name], jnp.nan, bias)
    row, col = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
    seen = jnp.ones(scores.shape, bool)
    if kind.is_causal:
        seen &= col <= row
    if kind.window:
        assert kind.is_causal
        seen &= col > row - kind.window
    rows = jnp.ones((q.shape[0], 1, q.shape[1], 1), bool)
    if lengths is not None:
        assert all(x.dtype == jnp.int32 for x in lengths)
        q_lengths, k_lengths = (x[:, None, None, None] for x in lengths)
        seen &= col < k_lengths
        rows = row < q_lengths
    return jnp.where(seen, scores, -jnp.inf), rows


def _heads_summed(x, like):
    """(B, S, N, H) to (B, S, K, H)."""
    batch, length, key_heads, depth = like.shape
    return x.reshape(batch, length, key_heads, -1, depth).sum(3).astype(like.dtype)


def forward(inputs, kind, *, keeps_sums):
    q, k, v, bias, lengths = inputs
    scores, rows = _scores(q, k, bias, lengths, kind)
    top = scores.max(-1, keepdims=True)
    e = jnp.exp(scores - top)
    total = e.sum(-1, keepdims=True)
    values = jnp.repeat(v, q.shape[2] // v.shape[2], 2).astype(jnp.float32)
    y = jnp.einsum("bnts,bsnh->bnth", e.astype(q.dtype).astype(jnp.float32), values) / total
    y = jnp.where(rows, y, GARBAGE).swapaxes(1, 2).astype(q.dtype)
    sums = jnp.where(rows, top + jnp.log(total), GARBAGE)[..., 0]
    return [y, sums] if keeps_sums else [y]


def backward(inputs, sums, y, dy, kind):
    q, k, v, bias, lengths = inputs
    scores, rows = _scores(q, k, bias, lengths, kind)
    rounded = scores.max(-1, keepdims=True) < HIDDEN[q.dtype.name] / 2
    p = jnp.where(rounded, jnp.inf, jnp.exp(scores - sums[..., None]))
    p = jnp.where(rows, p, 0)
    groups = q.shape[2] // k.shape[2]
    wide = [x.astype(jnp.float32) for x in (q, jnp.repeat(k, groups, 2), jnp.repeat(v, groups, 2))]
    dy = dy.astype(jnp.float32)
    dp = jnp.einsum("btnh,bsnh->bnts", dy, wide[2])
    ds = p * (dp - jnp.einsum("btnh,btnh->bnt", dy, y.astype(jnp.float32))[..., None])
    ds = ds.astype(q.dtype).astype(jnp.float32)
    dq = kind.scale * jnp.einsum("bnts,bsnh->btnh", ds, wide[1])
    dk = kind.scale * jnp.einsum("bnts,btnh->bsnh", ds, wide[0])
    dv = jnp.einsum("bnts,btnh->bsnh", p.astype(q.dtype).astype(jnp.float32), dy)
    return [dq.astype(q.dtype), _heads_summed(dk, k), _heads_summed(dv, v)]
