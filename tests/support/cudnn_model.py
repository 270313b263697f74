"""A model in jax.numpy of the two cuDNN kernels that JAX calls, so that a CPU can run what CUDA devices do.

Rows without a defined result get the worst values that cuDNN may give. A row without keys is NaN, forward and
backward, and so is one with a bias of numbers like -3e38. A row whose largest score is near the number that hides
scores is right forward. Backward its weights are infinite, because the score and the log-sum-exp differ only by their
roundings. Forward, a row behind the length of the queries holds whatever was in memory.
"""

import jax.numpy as jnp
from jax.interpreters import mlir

from jaxkernels._attention import cudnn
from jaxkernels._attention.problem import HIDDEN

peer = cudnn.peer()
GARBAGE = 777.0


def _wide(q, *keys):
    """q and keys in float32, each query head with its own keys."""
    keys = [jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in keys]
    return [x.astype(jnp.float32) for x in (q, *keys)]


def _scores(q, k, bias, q_lengths, k_lengths, params):
    """(B, N, T, S): the scores, -inf where they are hidden; and which rows are within the lengths."""
    assert params["layout"] == peer.AttentionLayout.BTNH.value
    assert not params["dropout_rate"]
    scores = params["scale"] * jnp.einsum("btnh,bsnh->bnts", *_wide(q, k))
    has_bias, has_gradient = params["variadic_args"]
    assert not has_gradient
    if has_bias:
        assert bias.dtype == q.dtype
        assert bias.shape[2:] == scores.shape[2:]
        bias = bias.astype(jnp.float32)
        scores += jnp.where(bias < HIDDEN[q.dtype.name], jnp.nan, bias)
    row, col = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
    kind, window = params["mask_type"].name, params["sliding_window_length"]
    seen = jnp.ones(scores.shape, bool)
    rows = jnp.ones((q.shape[0], 1, q.shape[1], 1), bool)
    assert window is None or "CAUSAL" in kind
    if "CAUSAL" in kind:
        seen &= col <= row
    if window is not None:
        seen &= col > row - window
    if "PADDING" in kind:
        assert q_lengths.dtype == k_lengths.dtype == jnp.int32
        seen &= col < k_lengths[:, None, None, None]
        rows = row < q_lengths[:, None, None, None]
    return jnp.where(seen, scores, -jnp.inf), rows


def _heads_summed(x, like):
    """(B, S, N, H) to (B, S, K, H)."""
    batch, length, key_heads, depth = like.shape
    return x.reshape(batch, length, key_heads, -1, depth).sum(3).astype(like.dtype)


def _forward(q, k, v, bias, q_lengths, k_lengths, *_, is_training, **params):
    scores, rows = _scores(q, k, bias, q_lengths, k_lengths, params)
    top = scores.max(-1, keepdims=True)
    e = jnp.exp(scores - top)
    total = e.sum(-1, keepdims=True)
    e, values = e.astype(q.dtype).astype(jnp.float32), _wide(q, v)[1]
    y = jnp.einsum("bnts,bsnh->bnth", e, values) / total
    y = jnp.where(rows, y, GARBAGE).swapaxes(1, 2).astype(q.dtype)
    sums = jnp.where(rows, top + jnp.log(total), GARBAGE)[..., 0]
    return [y, sums] if is_training else [y]


def _backward(q, k, v, bias, q_lengths, k_lengths, *others, **params):
    sums, y, dy = others[4:7]
    scores, rows = _scores(q, k, bias, q_lengths, k_lengths, params)
    rounded = scores.max(-1, keepdims=True) < HIDDEN[q.dtype.name] / 2
    p = jnp.where(rounded, jnp.inf, jnp.exp(scores - sums[..., None]))
    p = jnp.where(rows, p, 0)
    wide_q, wide_k, wide_v = _wide(q, k, v)
    y, dy = (x.astype(jnp.float32) for x in (y, dy))
    dp = jnp.einsum("btnh,bsnh->bnts", dy, wide_v)
    ds = p * (dp - jnp.einsum("btnh,btnh->bnt", dy, y)[..., None])
    ds, p = (x.astype(q.dtype).astype(jnp.float32) for x in (ds, p))
    dq = params["scale"] * jnp.einsum("bnts,bsnh->btnh", ds, wide_k)
    dk = params["scale"] * jnp.einsum("bnts,btnh->bsnh", ds, wide_q)
    dv = jnp.einsum("bnts,btnh->bsnh", p, dy)
    return [dq.astype(q.dtype), _heads_summed(dk, k), _heads_summed(dv, v)]


for _primitive, _model in (
    (peer._dot_product_attention_fwd_p, _forward),
    (peer._dot_product_attention_bwd_p, _backward),
):
    mlir.register_lowering(_primitive, mlir.lower_fun(_model), platform="cpu")
