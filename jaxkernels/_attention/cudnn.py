"""cuDNN's flash attention, by the functions behind `jax.nn.dot_product_attention`.

jax.nn's own function looks for a GPU when it is traced, and raises an error for most shardings. This module
calls the two functions of its forward and backward kernels, inside lowering rules.

Owns: the arguments of JAX's functions. Must not know: when cuDNN is chosen, boolean masks, or fully
masked rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as peer

from jaxkernels._attention.problem import Call, Operands

# Largest window passed to XLA, which stores it in 32 bits; no sequence is that long.
_LONGEST_WINDOW = 2**30
# Targets of the forward and the backward pass, without and with a bias.
TARGETS = tuple(
    peer.get_custom_call_name(has_bias, False, is_backward)
    for is_backward in (False, True)
    for has_bias in (False, True)
)


def version() -> int | None:
    """The version of the cuDNN that JAX loads, 91002 for 9.10.2; None if it finds none."""
    try:
        return peer.check_cudnn_version()
    except RuntimeError:
        return None


def forward(call: Call, given: Operands) -> list[jax.Array]:
    """Attention.

    Args:
        call: the call; a band is causal, with or without a window.
        given: the operands. The bias has the dtype of q and the shape (B or 1, N or 1, T, S). There is no
            mask, and there are both lengths, of at least 1, or none.

    Returns:
        The result, (B, T, N, H), and with `call.keeps_sums` the log-sum-exps, float32 of shape (B, N, T).
    """
    return _call(peer._dot_product_attention_fwd_impl, call, given, is_training=call.keeps_sums)


def backward(
    call: Call, given: Operands, log_sums: jax.Array, y: jax.Array, dy: jax.Array
) -> list[jax.Array]:
    """The cotangents of q, k and v, from the results of `forward` and the cotangent of y."""
    kept = {"activation": log_sums, "fwd_output": y, "grad_output": dy}
    return _call(peer._dot_product_attention_bwd_impl, call, given, **kept)


def _call(
    function: Callable[..., Any], call: Call, given: Operands, **others: Any
) -> list[jax.Array]:
    """Calls a function of JAX. Before 0.12 it had no `score_mod`."""
    unused = jnp.zeros(0, given.q.dtype)
    has_lengths, has_bias = given.q_lengths is not None, given.bias is not None
    is_causal, left = not call.band.is_open, call.band.left
    masks = peer.MaskType
    mask = (masks.NO_MASK, masks.PADDING, masks.CAUSAL, masks.PADDING_CAUSAL)
    arguments = {
        **{"query": given.q, "key": given.k, "value": given.v},
        "bias": given.bias if has_bias else unused,
        "q_seqlen": given.q_lengths if has_lengths else unused,
        "kv_seqlen": given.k_lengths if has_lengths else unused,
        **dict.fromkeys(("q_offsets", "kv_offsets", "page_table_k", "page_table_v"), unused),
        "scale": call.scale,
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (has_bias, False),  # the bias gets no cotangent
        "mask_type": mask[2 * is_causal + has_lengths],
        "layout": peer.AttentionLayout.BTNH.value,
        "sliding_window_length": None if left is None else min(1 - left, _LONGEST_WINDOW),
        **others,
    }
    for name, value in {"score_mod": None, "score_mod_args": ()}.items():
        if name in inspect.signature(function).parameters:
            arguments[name] = value
    return list(function(**arguments))
