"""Plans of attention: the public function.

Owns: checks of the arguments. Must not know: how the implementation is chosen (`choice`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jaxkernels._attention import checks, choice, cudnn, tensor_cores
from jaxkernels._core import devices, validate
from jaxkernels._rows import masked, masked_kernels
from jaxkernels.typing import AttentionImplementation, Device, DeviceName, Dtype, EmptyRows

_NAME = "plan_attention"


@dataclasses.dataclass(frozen=True)
class AttentionPlan:
    """The implementation that a GPU runs for a call of `dot_product_attention` that names none.

    Attributes:
        implementation: "cudnn" (cuDNN's flash attention), "ffi_flash" (our flash kernels, for float32 on
            Hopper) or "ffi" (our softmax between products). Forward mode and second
            derivatives are always "ffi". So is the gradient of a bias in 16 bits, and in float32 if
            queries or keys share the bias.
        why: the reason.
        keeps_scores: whether a matrix of queries by keys for each head is stored in memory.
        scratch_bytes: the memory that "ffi_flash" needs besides operands and results, in the forward
            pass or in gradients, whichever is larger; partial sums of a bias's gradient are not
            counted. 0 for other implementations.
        is_repeatable: whether gradients, too, have the same bits from run to run.
        device: the GPU.
        cudnn_version: the version of cuDNN, 91002 for 9.10.2; 0 for none.
    """

    implementation: AttentionImplementation
    why: str
    keeps_scores: bool
    scratch_bytes: int
    is_repeatable: bool
    device: str
    cudnn_version: int

    def __str__(self) -> str:
        """A one-line summary, then the fields."""
        return f"{self.implementation} attention: {self.why}\n{self!r}"


def plan_attention(
    query_shape: Sequence[int],
    key_shape: Sequence[int],
    dtype: Dtype,
    *,
    bias: Dtype | None = None,
    mask: bool = False,
    lengths: bool = False,
    is_causal: bool = False,
    local_window_size: int | tuple[int, int] | None = None,
    return_residual: bool = False,
    empty_rows: EmptyRows | None = None,
    device: DeviceName | Device | None = None,
    cudnn_version: int | None = None,
) -> AttentionPlan:
    """The implementation that a GPU runs for a call of `dot_product_attention`, and why. It needs no GPU.

    Example:
        >>> import jaxkernels as jk
        >>> shape = (4, 2048, 16, 64)
        >>> jk.plan_attention(shape, shape, "bfloat16", device="h200").implementation
        'cudnn'
        >>> jk.plan_attention(shape, shape, "float32", device="h200").implementation
        'ffi_flash'

    Args:
        query_shape: (B, T, N, H) or (T, N, H).
        key_shape: (B, S, K, H) or (S, K, H), of the values too.
        dtype: of queries, keys and values.
        bias: the dtype of the bias, or None without one.
        mask: whether there is a mask.
        lengths: whether there are lengths of queries or keys.
        is_causal: as for `dot_product_attention`.
        local_window_size: as for `dot_product_attention`.
        return_residual: as for `dot_product_attention`.
        empty_rows: as for `dot_product_attention`.
        device: as for `plan_softmax`.
        cudnn_version: 91002 for 9.10.2, 0 for none. None means the installed version or, on a machine
            without cuDNN, the oldest that is used.

    Returns:
        A plan that can be compared and printed.

    Raises:
        TypeError: the dtype has no kernels, `device` is neither a name nor a device, or the window
            contains a value that is not an integer.
        ValueError: shapes do not fit each other, device or `empty_rows` is unknown, or the window is
            negative.

    References:
        The rules and their measurements: jaxkernels/_attention/choice.py.
    """
    validate.check_choice("empty_rows", empty_rows, masked.EMPTY_ROWS)
    name = validate.row_dtype(_NAME, dtype)
    q, k = _shape("query_shape", query_shape), _shape("key_shape", key_shape)
    if (q[0], q[3]) != (k[0], k[3]):
        raise ValueError(
            f"query_shape and key_shape must have one batch size and depth; got {q}, {k}"
        )
    checks.check_groups(_NAME, q[2], k[2])
    problem = choice.Problem(
        (*q[:2], k[1], q[2], *k[2:]),
        name,
        bias=None if bias is None else jnp.dtype(bias).name,
        has_mask=bool(mask),
        has_lengths=bool(lengths),
        band=masked_kernels.band_of(is_causal, local_window_size, from_end=False),
        has_residual=bool(return_residual),
        empty_rows=empty_rows or "zero",
    )
    limits = devices.limits_of(device)
    version = cudnn.version() if cudnn_version is None else cudnn_version
    version = choice.LEAST_CUDNN if version is None else version
    implementation, why = choice.choose(problem, choice.Machine(limits, version or None))
    scratch = 0
    if implementation == "ffi_flash":
        plans = (tensor_cores.plan(problem.shape, limits, backward=x) for x in (False, True))
        scratch = max(found.scratch_bytes for found in plans)
    return AttentionPlan(
        implementation=implementation,
        why=why,
        keeps_scores=implementation == "ffi",
        scratch_bytes=scratch,
        is_repeatable=implementation != "cudnn",
        device=limits.name,
        cudnn_version=version,
    )


def _shape(argument: str, shape: Any) -> tuple[int, ...]:
    shape = validate.as_shape(_NAME, argument, shape)
    if len(shape) not in (3, 4) or any(size < 0 for size in shape):
        raise ValueError(f"{argument} must be 3 or 4 sizes; got {shape}")
    return (*(1,) * (4 - len(shape)), *shape)
