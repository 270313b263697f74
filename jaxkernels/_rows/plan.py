"""Launch plans of row operations: the public function, and the decisions made at trace time.

Owns: checks of the arguments. Must not know: how a plan is made (`ffi/rows/plan.cc`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxkernels._core import devices, registry, validate
from jaxkernels._cpu import SoftmaxPlan
from jaxkernels._rows import contract
from jaxkernels.typing import Device, DeviceName, Dtype, Operation, Tier


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
    """The launch plan of a row operation on a GPU. Devices known by name need no GPU.

    Example:
        >>> import jaxkernels as jk
        >>> jk.plan_softmax((4096, 1024), "float32", device="h200").tier
        'warp'
        >>> jk.plan_softmax((16, 131072), "bfloat16", device="h200").tier
        'cluster'
        >>> str(jk.plan_softmax((4096, 1024), "float32", device="h200")).splitlines()[0]
        'warp tier: 32 lanes a row, 4 rows a block, one read'

    Args:
        shape: shape of the operands, (..., cols), as they reach the kernel: the reduced axis last.
        dtype: float32, bfloat16, float16 or float64.
        operation: "softmax_fwd", "log_softmax_fwd", "softmax_grad", "log_softmax_grad",
            "logsumexp_fwd", "logsumexp_grad", "rms_norm_fwd", "rms_norm_grad", "cross_entropy_fwd",
            "cross_entropy_fwd_grad", "cross_entropy_grad", or for attention scores "masked_softmax_fwd", "biased_softmax_fwd"
            (with a bias, masked or not) or "masked_softmax_grad".
        device: a name such as "h200", "a100" or "rtx4090", or a CUDA device of JAX; None means the
            first CUDA device, or "h200" on a machine without one.
        tier: the tier to select, "warp", "block", "block_smem", "cluster" or "block_uncached"; None
            lets the plan choose. "cross_entropy_grad" has one tier, "stream", and ignores this. Losses
            are planned without `where`, whose mask takes up to half as much shared memory again.
        offset: the number of elements between the last multiple of 16 bytes in memory and the start of
            the result, which is not 0 for some slices that XLA passes in place. A tier that cannot
            serve such rows is replaced.
        shifted: whether an operand of the result's shape has another offset.

    Returns:
        A plan that can be compared and printed. Fields are `tier`, `cluster_blocks` (blocks
        of a cluster, which share a row), `block_threads`, `smem_bytes`, `few_rows` (a kernel for few
        long rows, with the same bits as the one for many), and others. `xla_by_default` says that the
        row is too long for registers and shared memory: XLA's own operation runs, and this plan only
        with `implementation="ffi"`.

    Raises:
        TypeError: the shape is not a sequence of integers, the dtype has no kernels, or `device` is
            neither a name nor a device.
        ValueError: operation, device or tier is unknown, a dimension is negative, the offset is 16 bytes or
            more, or the tier cannot serve such rows on this device.
    """
    if operation not in contract.OPERATIONS:
        listed = ", ".join(map(repr, contract.OPERATIONS))
        raise ValueError(f"operation must be one of {listed}; got {operation!r}")
    validate.check_choice("tier", tier, validate.TIERS)
    dtype_name = validate.row_dtype("plan_softmax", dtype)
    shape = validate.as_shape("plan_softmax", "shape", shape)
    if any(dim < 0 for dim in shape):
        raise ValueError(f"shape must not have negative dimensions; got {shape}")
    rows, cols = math.prod(shape[:-1]), shape[-1] if len(shape) else 1
    return registry.cpu_module.plan_softmax(
        *(rows, cols, dtype_name, operation, devices.limits_of(device), tier or "auto"),
        offset=offset,
        shifted=shifted,
    )


def _text(self: SoftmaxPlan) -> str:
    """A one-line summary, then the fields."""
    if self.tier == "warp":
        groups = self.block_threads // (32 if self.staged else self.lanes)
        lanes = "1 lane" if self.lanes == 1 else f"{self.lanes} lanes"
        about = f"{lanes} a row, {groups * self.rows_per_access} rows a block, one read"
    else:
        blocks = max(self.branches, self.cluster_blocks)
        threads = f"{self.block_threads} threads a row"
        share = threads if blocks == 1 else f"{blocks} blocks of {threads}"
        in_registers = self.tier == "block" or self.few_rows
        keeps = in_registers or self.tier in ("block_smem", "cluster")
        place = "registers" if in_registers else "shared memory"
        once = keeps or self.tier == "stream" or (self.tier == "block_uncached" and self.leaf_turns)
        kept = f", kept in {place}" if keeps else ""
        about = f"{share}{kept}, {'one read' if once else 'up to two reads'}"
        about += '; with implementation="ffi" only, else XLA' if self.xla_by_default else ""
    return f"{self.tier} tier: {about}\n{self!r}"


SoftmaxPlan.__str__ = _text

# Bytes of shared memory that a block can use on every GPU with kernels.
_FITS_ANYWHERE = 48 * 1024


def is_left_to_xla(operation: Operation, shape: Sequence[Any], dtype: Any) -> bool:
    """Whether rows of this shape use XLA's own operation by default on this machine's GPU.

    They do if they are too long for every tier that keeps a row on chip (`SoftmaxPlan.xla_by_default`).
    Symbolic lengths (`jax.export`) use the kernels.
    """
    cols = shape[-1]
    if not isinstance(cols, int):
        return False
    if cols * dtype.itemsize * contract.OPERATIONS[operation].inputs <= _FITS_ANYWHERE:
        return False
    return plan_softmax((1, cols), dtype, operation=operation).xla_by_default


def check_tier(operation: Operation, shape: Sequence[Any], dtype: Any, tier: str) -> None:
    """Raises ValueError at trace time if no device can serve such rows in this tier.

    Only tiers that keep a row in registers are checked, because register files are the same on all
    devices. Shared memory differs, so the other tiers raise when the program runs.
    """
    cols = shape[-1]
    # `cols` may be symbolic (jax.export). Empty rows have no plan.
    if tier in ("warp", "block") and isinstance(cols, int) and cols > 0:
        plan_softmax((1, cols), dtype, operation=operation, device=devices.DEFAULT, tier=tier)
