"""The operations of flash attention by cuDNN, with the functions behind `jax.nn.dot_product_attention`.

jax.nn's own function looks for a GPU when it is traced, and raises an error for most shardings. This module
calls the two functions of its forward and backward kernels, inside lowering rules. cuDNN recomputes the
softmax from q, k and the log-sum-exp of each row (Dao, "FlashAttention-2", 2023, arXiv:2307.08691).

Owns: JAX's private functions of cuDNN, which are imported when they are first used, and the conversion of
boolean masks, lengths and fully masked queries. Must not know: when cuDNN is chosen.
"""

import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from jaxkernels._attention.problem import HIDDEN, Call, Operands, both, within
from jaxkernels._rows import reference

# Largest window passed to XLA, which stores it in 32 bits; no sequence is that long.
_LONGEST_WINDOW = 2**30


def peer() -> ModuleType:
    """JAX's module of cuDNN's attention."""
    from jax._src.cudnn import fused_attention_stablehlo

    return fused_attention_stablehlo


def targets() -> tuple[str, ...]:
    """Targets of the forward and the backward pass, without and with a bias."""
    return tuple(
        peer().get_custom_call_name(has_bias, False, is_backward)
        for is_backward in (False, True)
        for has_bias in (False, True)
    )


def version() -> int | None:
    """The version of the cuDNN that JAX loads, 91002 for 9.10.2; None if it finds none."""
    try:
        return peer().check_cudnn_version()
    except RuntimeError:
        return None


def forward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """`plain.forward` by cuDNN; a band is causal, with or without a window."""
    given, alive = _convert(call, call.operands(operands))
    options = {"is_training": call.keeps_sums}
    y, *sums = _call("_dot_product_attention_fwd_impl", call, given, options)
    return [_where(alive, y), *sums]


def backward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """`plain.backward` by cuDNN."""
    given, alive = _convert(call, call.operands(operands))
    sums, y, dy = operands[-3:]
    kept = {"activation": sums, "fwd_output": y, "grad_output": _where(alive, dy)}
    return _call("_dot_product_attention_bwd_impl", call, given, kept)


def _call(name: str, call: Call, given: Operands, others: dict[str, Any]) -> list[jax.Array]:
    """Calls a function of JAX. Before 0.12 it had no `score_mod`.

    The bias has the dtype of q and the shape (B or 1, N or 1, T, S). There is no mask, and there are both
    lengths, of at least 1, or none.
    """
    function, masks = getattr(peer(), name), peer().MaskType
    unused = jnp.zeros(0, given.q.dtype)
    has_lengths, has_bias = given.q_lengths is not None, given.bias is not None
    is_causal, left = not call.band.is_open, call.band.left
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
        "layout": peer().AttentionLayout.BTNH.value,
        "sliding_window_length": None if left is None else min(1 - left, _LONGEST_WINDOW),
        **others,
    }
    if "score_mod" in inspect.signature(function).parameters:
        arguments |= {"score_mod": None, "score_mod_args": ()}
    return list(function(**arguments))


def _convert(call: Call, given: Operands) -> tuple[Operands, jax.Array | None]:
    """The operands for cuDNN, and the queries with a result: (B or 1, T or 1, N or 1, 1), None for all.

    cuDNN adds the bias, and a large negative number for masked scores. A fully masked query is left
    unmasked, and its result and cotangent become 0 elsewhere. If all its scores were near -2^41, where
    float32 has steps of 2^18, exp(score - sum) could be infinite.
    """
    (_, t, _, _), s, dtype = given.q.shape, given.k.shape[1], given.q.dtype
    q_lengths, k_lengths = _lengths(given)
    found = given._replace(mask=None, q_lengths=q_lengths, k_lengths=k_lengths)
    seen, hidden = given.mask, HIDDEN[dtype.name]
    if given.bias is not None:
        seen = both(seen, ~(given.bias <= hidden))
    if seen is None:
        alive = within(given.k_lengths, 1, (1, 2))  # without a window all see the first key
    else:
        band = None if call.band.is_open else reference.band((1, 1, t, s), **call.band.attributes())
        visible = both(both(seen, band), within(given.k_lengths, s, (1, 2)))
        alive = jnp.any(visible, axis=-1, keepdims=True)  # pyright: ignore[reportArgumentType]
        zero = jnp.zeros((), dtype)
        total = jnp.where(
            seen, zero if given.bias is None else given.bias, jnp.asarray(hidden, dtype)
        )
        total = jnp.where(alive, total, zero)
        found = found._replace(bias=jnp.broadcast_to(total, (*total.shape[:2], t, s)))
    alive = both(alive, within(given.q_lengths, t, (1, 3)))
    return found, None if alive is None else jnp.swapaxes(alive, 1, 2)


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


def _where(alive: jax.Array | None, rows: jax.Array) -> jax.Array:
    """`rows`, (B, T, N, H), with 0 for the queries without a result."""
    return rows if alive is None else jnp.where(alive, rows, jnp.zeros((), rows.dtype))
