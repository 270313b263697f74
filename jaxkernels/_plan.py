"""Which kernel would run: the launch plans, as seen from Python.

Owns: how shapes, dtypes and devices become arguments of the plans in C++. Must not know: any rule of
launching; those live in ffi/softmax/plan.h and ffi/sgemm/plan.h alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxkernels import _registry, _validate
from jaxkernels._cpu import DeviceLimits, SgemmPlan, SoftmaxPlan
from jaxkernels.typing import Algorithm, Device, DeviceName, Dtype, Operation, Tier

if TYPE_CHECKING:
    from jaxkernels._gemm_calls import Options

DEFAULT_DEVICE: DeviceName = "h200"


def plan_softmax(
    shape: Sequence[int],
    dtype: Dtype,
    *,
    operation: Operation = "softmax_fwd",
    device: DeviceName | Device | None = None,
    tier: Tier | None = None,
    offset: int = 0,
    shifted: bool = False,
) -> SoftmaxPlan:
    """The launch plan of a row operation on a GPU; needs no GPU for devices known by name.

    Args:
        shape: shape of the operands, (..., cols), as they reach the kernel: the reduced axis last.
        dtype: float32, bfloat16, float16 or float64.
        operation: "softmax_fwd", "log_softmax_fwd", "softmax_grad", "log_softmax_grad",
            "log_softmax_jvp", or for attention scores "masked_softmax_fwd", "biased_softmax_fwd"
            (with a bias, masked or not) or "masked_softmax_grad".
        device: a name such as "h200", "a100" or "rtx4090", or a CUDA device of JAX; None means the
            first CUDA device, or "h200" on a machine without one.
        tier: the tier to force, "warp", "block", "block_smem", "cluster" or "block_uncached"; None
            lets the plan choose.
        offset: how many elements of 16 bytes come before the result in memory: a slice that XLA hands
            over in place may begin anywhere. A forced tier that cannot serve such rows gives way.
        shifted: an operand of the result's shape has another offset.

    Returns:
        The plan: a value that can be compared and printed, with fields such as `tier`,
        `cluster_blocks` (blocks that share a row), `block_threads`, `smem_bytes`.

    Raises:
        TypeError: the dtype has no kernels, or `device` is neither a name nor a device.
        ValueError: an unknown operation, device or tier, an offset of 16 bytes or more, or the forced
            tier cannot serve such rows on this device.

    Example:
        >>> import jaxkernels as jk
        >>> jk.plan_softmax((4096, 1024), "float32", device="h200").tier
        'warp'
        >>> jk.plan_softmax((16, 131072), "bfloat16", device="h200").tier
        'cluster'
    """
    if operation not in _registry.OPERATIONS:
        listed = ", ".join(map(repr, _registry.OPERATIONS))
        raise ValueError(f"operation must be one of {listed}; got {operation!r}")
    _validate.check_choice("tier", tier, _validate.TIERS)
    dtype_name = jnp.dtype(dtype).name
    if dtype_name not in _validate.DTYPES:
        raise TypeError(f"dtype must be one of {', '.join(_validate.DTYPES)}; got {dtype_name}")
    if any(dim < 0 for dim in shape):
        raise ValueError(f"shape must not have negative dimensions; got {tuple(shape)}")
    rows, cols = math.prod(shape[:-1]), shape[-1] if len(shape) else 1
    return _registry.cpu_module.plan_softmax(
        *(rows, cols, dtype_name, operation, _device_limits(device), tier or "auto"),
        offset=offset,
        shifted=shifted,
    )


def plan_sgemm(
    m: int,
    n: int,
    k: int,
    *,
    batch: int | Sequence[int] = (),
    trans_a: bool = False,
    trans_b: bool = False,
    algorithm: Algorithm | None = None,
    device: DeviceName | Device | None = None,
) -> SgemmPlan:
    """The launch plan of a matrix product on a GPU; needs no GPU for devices known by name.

    Args:
        m: rows of the result.
        n: columns of the result.
        k: the contracted dimension.
        batch: how many products there are, as a number or as batch dimensions.
        trans_a: a is stored as (k, m).
        trans_b: b is stored as (n, k).
        algorithm: the rung of the ladder, "naive", "block_tile", "thread_tile", "warp_tile",
            "split_tile" or "pipelined"; None lets the plan choose.
        device: as for `plan_softmax`.

    Returns:
        The plan: a value that can be compared and printed, with fields such as `block_m`, `stages`,
        `split_k`, `grid_blocks`; `pad_a` and `pad_b` are elements of padding that an operand's
        stored rows are copied with, up to 2 GiB of it, where that pays.

    Raises:
        TypeError: `device` is neither a name nor a device.
        ValueError: a negative size, an unknown device or algorithm, or a product that is too large.

    Example:
        >>> import jaxkernels as jk
        >>> jk.plan_sgemm(4096, 4096, 4096, device="h200").block_m
        128
        >>> jk.plan_sgemm(64, 4096, 4096, device="h200").split_k  # else too few blocks
        4
    """
    _validate.check_choice("algorithm", algorithm, _validate.ALGORITHMS)
    members = (batch,) if isinstance(batch, int) else tuple(batch)
    if any(size < 0 for size in (m, n, k, *members)):
        raise ValueError(f"sizes must not be negative; got {m=}, {n=}, {k=}, {batch=}")
    a_shape = (*members, k, m) if trans_a else (*members, m, k)
    b_shape = (*members, n, k) if trans_b else (*members, k, n)
    return _registry.cpu_module.plan_sgemm(
        a_shape, b_shape, bool(trans_a), bool(trans_b), _device_limits(device), algorithm or "auto"
    )


class SgemmScheme(NamedTuple):
    """What of a plan is decided when a program is lowered.

    Attributes:
        split_k: into how many parts k is split.
        partial_elements: float32 elements of scratch for the sums of the parts.
        pad_a, pad_b: elements of padding behind every stored row of the operands.
    """

    split_k: int = 1
    partial_elements: int = 0
    pad_a: int = 0
    pad_b: int = 0


def scheme_of_sgemm(
    a_shape: Sequence[Any], b_shape: Sequence[Any], options: Options
) -> SgemmScheme:
    """How a program is to make a product, for the GPU of this machine.

    Decided when it is lowered, because XLA allocates the scratch and pads the operands. Sizes that
    jax.export leaves open are neither split nor padded.
    """
    if not all(isinstance(size, int) for size in (*a_shape, *b_shape)):
        return SgemmScheme()
    plan = _registry.cpu_module.plan_sgemm(
        *(a_shape, b_shape, options.trans_a, options.trans_b, _device_limits(None)),
        algorithm=options.algorithm,
        for_batch=options.for_batch,
    )
    return SgemmScheme(plan.split_k, plan.partial_elements, plan.pad_a, plan.pad_b)


def has_clusters() -> bool:
    """Whether the first CUDA device, or an H200 on a machine without one, has the tier "cluster"."""
    return _device_limits(None).cluster_blocks > 1


def check_tier(operation: Operation, shape: Sequence[Any], dtype: Any, tier: str) -> None:
    """Raises ValueError, when a program is traced, if no device can serve its rows in this tier.

    The registers of a warp and of a block are the same on all devices; what shared memory holds is
    not, so that those tiers refuse a row when it runs.
    """
    cols = shape[-1]
    # jax.export may leave cols symbolic; rows of no columns never reach a plan.
    if tier in ("warp", "block") and isinstance(cols, int) and cols > 0:
        plan_softmax((1, cols), dtype, operation=operation, device=DEFAULT_DEVICE, tier=tier)


def _device_limits(device: DeviceName | Device | None) -> DeviceLimits:
    chosen: Any = _default_device() if device is None else device
    if isinstance(chosen, str):
        known = _registry.cpu_module.named_devices()
        if chosen not in known:
            raise ValueError(f"device must be one of {', '.join(sorted(known))}; got {chosen!r}")
        return known[chosen]
    if not isinstance(chosen, jax.Device):
        raise TypeError(f"device must be a name, a jax.Device or None; got {chosen!r}")
    if chosen.platform != "gpu" or _registry.cuda_module is None:
        raise ValueError(
            f"device must be a CUDA device, of a jaxkernels built for CUDA; got {chosen!r}"
        )
    limits = _registry.cuda_module.device_limits(chosen.local_hardware_id)
    return _registry.cpu_module.DeviceLimits(**limits)


def _default_device() -> DeviceName | Device:
    if not _registry.has_cuda_module():
        return DEFAULT_DEVICE
    try:
        return jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return DEFAULT_DEVICE
