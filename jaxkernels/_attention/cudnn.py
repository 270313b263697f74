"""cuDNN's flash attention, by the custom calls that XLA's GPU compiler replaces with it.

The names are those of XLA (xla/service/gpu/cublas_cudnn.h) and of its `CudnnfMHABackendConfig`;
`jax.nn.dot_product_attention(implementation="cudnn")` emits the same calls.

Owns: the targets, their configuration and their layouts. Must not know: when cuDNN is chosen, boolean
masks, or fully masked rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Targets, by whether a bias is added to the scores.
FORWARD_TARGETS = {False: "__cudnn$fmhaSoftmax", True: "__cudnn$fmhaScaleBiasSoftmax"}
BACKWARD_TARGETS = {
    False: "__cudnn$fmhaSoftmaxBackward",
    True: "__cudnn$fmhaScaleBiasSoftmaxBackward",
}
TARGETS = (*FORWARD_TARGETS.values(), *BACKWARD_TARGETS.values())

_ELEMENT_TYPES = {"bfloat16": "BF16", "float16": "F16"}
# Major-to-minor layout of the results: (B, heads, length, H), stored as (B, length, heads, H).
_HEADS_FIRST = (0, 2, 1, 3)
# Dimension numbers of the products of q (B, T, N, H), k and v (B, S, N, H) and scores (B, N, T, S): the
# contracted dimension and the batch dimensions of the left operand, then of the right one.
_FORWARD_PRODUCTS = {
    "bmm1": ((3, (0, 2)), (3, (0, 2))),
    "bmm2": ((3, (0, 1)), (1, (0, 2))),
}
_BACKWARD_PRODUCTS = {
    "bmm1_grad_gemm1": ((2, (0, 1)), (1, (0, 2))),
    "bmm1_grad_gemm2": ((3, (0, 1)), (1, (0, 2))),
    "bmm2_grad_gemm1": ((2, (0, 1)), (1, (0, 2))),
    "bmm2_grad_gemm2": ((3, (0, 2)), (3, (0, 2))),
}


class Kind(NamedTuple):
    """The static parameters of the kernel.

    Attributes:
        scale: factor of the scores.
        is_causal: query i sees the keys j <= i.
        window: the number of keys that a causal query sees, ending with its own; 0 for no window.
    """

    scale: float
    is_causal: bool = False
    window: int = 0


class Inputs(NamedTuple):
    """The operands of both the forward and the backward kernel.

    Attributes:
        q: array of shape (B, T, N, H), bfloat16 or float16.
        k: array of shape (B, S, K, H) and that dtype; N is a multiple of K.
        v: array of the shape and dtype of k.
        bias: None, or an array of shape (B or 1, N or 1, T, S) and that dtype; it gets no cotangent.
        lengths: None, or the numbers of valid queries and of valid keys, int32 of shape (B,).
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    bias: jax.Array | None = None
    lengths: tuple[jax.Array, jax.Array] | None = None

    @property
    def biases(self) -> list[jax.Array]:
        """The bias as a list of operands, empty without a bias."""
        return [] if self.bias is None else [self.bias]


def forward(inputs: Inputs, kind: Kind, *, keeps_sums: bool) -> list[jax.Array]:
    """Attention.

    Args:
        inputs: the operands.
        kind: the static parameters.
        keeps_sums: also returns the log-sum-exp of each row.

    Returns:
        The result, (B, T, N, H), and with `keeps_sums` the log-sum-exps, float32 of shape (B, N, T).
    """
    q, k, v, bias, lengths = inputs
    batch, t, heads, depth = q.shape
    results = [jax.ShapeDtypeStruct((batch, heads, t, depth), q.dtype)]
    if keeps_sums:
        results.append(jax.ShapeDtypeStruct((batch, heads, t), jnp.float32))
    target, config = FORWARD_TARGETS[bias is not None], _config(_FORWARD_PRODUCTS, inputs, kind)
    operands = [q, k, v, *inputs.biases, *(lengths or ())]
    y, *sums = _call(target, operands, results, 1, config)
    return [_length_first(y), *sums]


def backward(
    inputs: Inputs, log_sums: jax.Array, y: jax.Array, dy: jax.Array, kind: Kind
) -> list[jax.Array]:
    """The cotangents of q, k and v.

    Args:
        inputs: as for `forward`.
        log_sums: the log-sum-exps that `forward` returned.
        y: the result that `forward` returned.
        dy: the cotangent of y.
        kind: as for `forward`.
    """
    q, k, v, bias, lengths = inputs
    (batch, t, heads, depth), (_, s, key_heads, _) = q.shape, k.shape
    shapes = ((batch, heads, t, depth), *((batch, key_heads, s, depth),) * 2)
    results = [jax.ShapeDtypeStruct(shape, q.dtype) for shape in shapes]
    target, config = BACKWARD_TARGETS[bias is not None], _config(_BACKWARD_PRODUCTS, inputs, kind)
    operands = [q, k, v, log_sums, dy, *inputs.biases, y, *(lengths or ())]
    return [_length_first(x) for x in _call(target, operands, results, 3, config)]


def _length_first(x: jax.Array) -> jax.Array:
    """(B, heads, length, H) to (B, length, heads, H), which is the order in memory."""
    return jnp.swapaxes(x, 1, 2)


def _call(
    target: str,
    operands: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
    heads_first: int,
    config: dict[str, Any],
) -> Sequence[jax.Array]:
    """The results of a call; the first `heads_first` have cuDNN's layout.

    XLA requires a further result, and resizes it to cuDNN's workspace.
    """
    layouts = [_HEADS_FIRST] * heads_first
    layouts += [tuple(range(len(x.shape))) for x in results[heads_first:]]
    call = jax.ffi.ffi_call(
        target,
        [*results, jax.ShapeDtypeStruct((0,), jnp.uint8)],
        output_layouts=[*layouts, (0,)],
        custom_call_api_version=2,
        legacy_backend_config=json.dumps(config),
    )
    return call(*operands)[:-1]


def _config(products: dict[str, Any], inputs: Inputs, kind: Kind) -> dict[str, Any]:
    """XLA's message `GpuBackendConfig` in protobuf's JSON form, in which int64 is a string."""
    mask = "PADDING_CAUSAL" if kind.is_causal else "PADDING"
    if inputs.lengths is None:
        mask = "CAUSAL" if kind.is_causal else "NO_MASK"
    (batch, t, heads, _), s = inputs.q.shape, inputs.k.shape[1]
    element_type = _ELEMENT_TYPES[inputs.q.dtype.name]
    attention = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": kind.scale,
        "dropout_rate": 0.0,
        "seed": 42,
        "is_flash_attention": True,
        "mask_type": mask,
        "sliding_window_length": kind.window,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
        "intermediate_tensor_shape": _row_major((batch, heads, t, s), element_type),
    }
    for name, (lhs, rhs) in products.items():
        attention[f"{name}_dot_dimension_numbers"] = _numbers("lhs", *lhs) | _numbers("rhs", *rhs)
    return {"operation_queue_id": "0", "cudnn_fmha_backend_config": attention}


def _numbers(side: str, contracted: int, batch: Sequence[int]) -> dict[str, list[str]]:
    return {
        f"{side}_contracting_dimensions": [str(contracted)],
        f"{side}_batch_dimensions": [str(dim) for dim in batch],
    }


def _row_major(shape: Sequence[int], element_type: str) -> dict[str, Any]:
    """XLA's message `ShapeProto` of a row-major array."""
    layout = {
        "minor_to_major": [str(dim) for dim in reversed(range(len(shape)))],
        "dim_level_types": [],
        "dim_unique": [],
        "dim_ordered": [],
        "tiles": [],
        "element_size_in_bits": "0",
        "memory_space": "0",
        "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
        "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
        "dynamic_shape_metadata_prefix_bytes": "0",
    }
    return {
        "element_type": element_type,
        "dimensions": [str(size) for size in shape],
        "is_dynamic_dimension": [False] * len(shape),
        "tuple_shapes": [],
        "layout": layout,
    }
