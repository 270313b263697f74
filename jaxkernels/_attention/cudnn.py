"""cuDNN's flash attention, as the custom calls that XLA's GPU compiler turns into it.

Owns: the targets, their configuration and their layouts. Must not know: when cuDNN is chosen, masks
of bool, or empty rows. The names are those of XLA (xla/service/gpu/cublas_cudnn.h) and of its
`CudnnfMHABackendConfig`; `jax.nn.dot_product_attention(implementation="cudnn")` emits the same calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# By whether a bias is added to the scores.
FORWARD_TARGETS = {False: "__cudnn$fmhaSoftmax", True: "__cudnn$fmhaScaleBiasSoftmax"}
BACKWARD_TARGETS = {
    False: "__cudnn$fmhaSoftmaxBackward",
    True: "__cudnn$fmhaScaleBiasSoftmaxBackward",
}
TARGETS = (*FORWARD_TARGETS.values(), *BACKWARD_TARGETS.values())

_ELEMENT_TYPES = {"bfloat16": "BF16", "float16": "F16"}
# The calls return (B, heads, length, H) stored as (B, length, heads, H): from major to minor.
_HEADS_FIRST = (0, 2, 1, 3)
# Products of q (B, T, N, H), k and v (B, S, N, H), and their scores (B, N, T, S): the contracted
# dimension and the batch dimensions of the left operand, then of the right one.
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
    """What the kernel is told beside its operands.

    Attributes:
        scale: factor of the scores.
        is_causal: query i sees the keys j <= i.
        window: how many of the last keys up to its own a causal query sees; 0 for all of them.
    """

    scale: float
    is_causal: bool = False
    window: int = 0


class Inputs(NamedTuple):
    """What the kernel reads, forward and backward.

    Attributes:
        q: array of shape (B, T, N, H), bfloat16 or float16.
        k: array of shape (B, S, K, H) and that dtype; N is a multiple of K.
        v: array like k.
        bias: None, or array of shape (B or 1, N or 1, T, S) and that dtype; it gets no cotangent.
        lengths: None, or how many queries and how many keys count, int32 of shape (B,).
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    bias: jax.Array | None = None
    lengths: tuple[jax.Array, jax.Array] | None = None

    @property
    def biases(self) -> list[jax.Array]:
        """The bias as operands: one, or none."""
        return [] if self.bias is None else [self.bias]


def forward(inputs: Inputs, kind: Kind, *, keeps_sums: bool) -> list[jax.Array]:
    """Attention.

    Args:
        inputs: what is read.
        kind: the rest.
        keeps_sums: also return the logarithm of the sum of the exponentials of each row.

    Returns:
        The result, (B, T, N, H); and perhaps these logarithms, float32 of shape (B, N, T).
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
        log_sums: what `forward` returned.
        y: what `forward` returned.
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
    """(B, heads, length, H) to (B, length, heads, H), which is how it lies in memory."""
    return jnp.swapaxes(x, 1, 2)


def _call(
    target: str,
    operands: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
    heads_first: int,
    config: dict[str, Any],
) -> Sequence[jax.Array]:
    """The results of a call, of which the first `heads_first` have the layout of cuDNN.

    XLA asks for one more result, which it makes as large as the scratch that cuDNN wants.
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
    """The message `GpuBackendConfig` of XLA in the JSON form of protobuf, where int64 is text."""
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
    """The message `ShapeProto`."""
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
