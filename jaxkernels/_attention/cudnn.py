"""cuDNN's flash attention, by the functions behind `jax.nn.dot_product_attention`.

jax.nn's own function looks for a GPU when it is traced, and raises an error for most shardings. This module
calls the two functions of its forward and backward kernels, inside lowering rules.

Owns: the arguments of JAX's functions. Must not know: when cuDNN is chosen, boolean masks, or fully
masked rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as peer

# Targets of the forward and the backward pass, without and with a bias.
TARGETS = tuple(
    peer.get_custom_call_name(has_bias, False, is_backward)
    for is_backward in (False, True)
    for has_bias in (False, True)
)


class Inputs(NamedTuple):
    """The operands and static parameters of both the forward and the backward kernel.

    Attributes:
        q: array of shape (B, T, N, H), bfloat16 or float16.
        k: array of shape (B, S, K, H) and that dtype; N is a multiple of K.
        v: array of the shape and dtype of k.
        bias: None, or an array of shape (B or 1, N or 1, T, S) and that dtype; it gets no cotangent.
        lengths: None, or the numbers of valid queries and of valid keys, int32 of shape (B,).
        scale: factor of the scores.
        is_causal: query i sees the keys j <= i.
        window: None, or the number of keys that a causal query sees, ending with its own.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    bias: jax.Array | None
    lengths: tuple[jax.Array, jax.Array] | None
    scale: float
    is_causal: bool = False
    window: int | None = None


def version() -> int | None:
    """The version of the cuDNN that JAX loads, 91002 for 9.10.2; None if it finds none."""
    try:
        return peer.check_cudnn_version()
    except RuntimeError:
        return None


def forward(inputs: Inputs, *, keeps_sums: bool) -> list[jax.Array]:
    """The result, (B, T, N, H), and with `keeps_sums` the log-sum-exps, float32 of shape (B, N, T)."""
    return _call(peer._dot_product_attention_fwd_impl, inputs, is_training=keeps_sums)


def backward(inputs: Inputs, log_sums: jax.Array, y: jax.Array, dy: jax.Array) -> list[jax.Array]:
    """The cotangents of q, k and v, from the results of `forward` and the cotangent of y."""
    kept = {"activation": log_sums, "fwd_output": y, "grad_output": dy}
    return _call(peer._dot_product_attention_bwd_impl, inputs, **kept)


def _call(function: Callable[..., Any], inputs: Inputs, **others: Any) -> list[jax.Array]:
    """Calls a function of JAX, with the arguments that the installed version has."""
    unused = jnp.zeros(0, inputs.q.dtype)
    has_lengths, has_bias = inputs.lengths is not None, inputs.bias is not None
    masks = peer.MaskType
    mask = (masks.NO_MASK, masks.PADDING, masks.CAUSAL, masks.PADDING_CAUSAL)
    q_lengths, k_lengths = inputs.lengths or (unused, unused)
    arguments = {
        **dict(zip(("query", "key", "value"), inputs[:3], strict=True)),
        "bias": inputs.bias if has_bias else unused,
        "q_seqlen": q_lengths,
        "kv_seqlen": k_lengths,
        **dict.fromkeys(("q_offsets", "kv_offsets", "page_table_k", "page_table_v"), unused),
        "scale": inputs.scale,
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (has_bias, False),  # the bias gets no cotangent
        "mask_type": mask[2 * inputs.is_causal + has_lengths],
        "layout": peer.AttentionLayout.BTNH.value,
        "sliding_window_length": inputs.window,
        "score_mod": None,
        "score_mod_args": (),
        **others,
    }
    names = inspect.signature(function).parameters
    return list(function(**{name: x for name, x in arguments.items() if name in names}))
