"""Launch plans of matrix products: the public function, and the part that lowering fixes.

Owns: checks of the arguments, and `SgemmScheme`. Must not know: how a plan is made (`ffi/sgemm/plan.cc`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxkernels._core import devices, registry, validate
from jaxkernels._cpu import SgemmPlan
from jaxkernels._sgemm import default_algorithm
from jaxkernels._sgemm.options import Options
from jaxkernels.typing import Algorithm, Device, DeviceName

_NAME = "plan_sgemm"


def plan_sgemm(
    a_shape: Sequence[int] | int,
    b_shape: Sequence[int] | int,
    k: int | None = None,
    *,
    batch: int | Sequence[int] = (),
    trans_a: bool = False,
    trans_b: bool = False,
    algorithm: Algorithm | None = None,
    device: DeviceName | Device | None = None,
    aligned_a: bool = True,
    aligned_b: bool = True,
    aligned_c: bool = True,
) -> SgemmPlan:
    """The launch plan of a matrix product on a GPU. Devices known by name need no GPU.

    `plan_sgemm(m, n, k, batch=...)`, with sizes instead of shapes, works too.

    Example:
        >>> import jaxkernels as jk
        >>> jk.plan_sgemm((4096, 4096), (4096, 4096), device="h200").block_m
        128
        >>> jk.plan_sgemm((64, 4096), (4096, 4096), device="h200").split_k  # else too few blocks
        4
        >>> str(jk.plan_sgemm((64, 300), (300, 50), device="h200")).splitlines()[0]
        'pipelined rung: 2 x 4 tiles of 32 x 16, 8 blocks of 128 threads'

    Args:
        a_shape: shape of a, (..., m, k), or (..., k, m) with `trans_a`.
        b_shape: shape of b, (..., k, n), or (..., n, k) with `trans_b`. Batch dimensions broadcast.
        k: the size of the contracted dimension, if the first two arguments are m and n.
        batch: the number of products, or the batch dimensions; only with sizes.
        trans_a: a is stored as (k, m).
        trans_b: b is stored as (n, k).
        algorithm: "naive", "block_tile", "thread_tile", "warp_tile", "split_tile", "pipelined", "thin"
            or "tensor". None uses `default_algorithm`, or chooses between the last three by a model of
            their times. If an algorithm cannot serve the product, the plan is that of "pipelined".
            "thin" needs a k of at most 64 (128 with up to 16 rows or columns), at most 4 rows or
            columns, or at most 8 if the long dimension of the other operand is contiguous in memory.
            "tensor" needs a k of 32 to 65536, Hopper's tensor cores and code for them, and at most 8 GiB
            of scratch for 1/32 of the batch (4 GiB if it is not named).
        device: as for `plan_softmax`.
        aligned_a: whether a, or its padded copy, begins at a multiple of 16 bytes. An operand
            that is a slice may begin at any element.
        aligned_b: the same for b.
        aligned_c: the same for c and the result.

    Returns:
        A plan that can be compared and printed. Some of its fields:

        * `block_m`, `stages`, `split_k`, `grid_blocks`: the launch;
        * `partial_elements`: the scratch, in float32 elements;
        * `pad_a`, `pad_b`: padding of each stored row of an operand that is copied, up to 2 GiB;
        * `thin`: the form of "thin": "along_k", "across_k" or "shallow";
        * `cluster_blocks`: the number of blocks that share k without scratch;
        * `groups`: the number of groups of members that "tensor" computes one after the other;
        * `compensated`: whether the sums of "tensor" are compensated for rounding;
        * `launches`: the number of launches that add to C;
        * `pack_a`, `pack_b`, `pack_c`: elements that a thread moves at once.

    Raises:
        TypeError: shapes or sizes are not made of integers, or `device` is neither a name nor a device.
        ValueError: shapes do not fit each other, a size is negative, device or algorithm is unknown, or
            the product is too large.
    """
    validate.check_choice("algorithm", algorithm, validate.ALGORITHMS)
    if k is None:
        if batch != ():
            raise ValueError(f"{_NAME}: batch needs sizes, m, n and k; got shapes")
        a = validate.as_shape(_NAME, "a_shape", a_shape)
        b = validate.as_shape(_NAME, "b_shape", b_shape)
    else:
        members = (batch,) if isinstance(batch, int) else batch
        m, n, k, *members = validate.as_shape(_NAME, "sizes", (a_shape, b_shape, k, *members))
        a = (*members, k, m) if trans_a else (*members, m, k)
        b = (*members, n, k) if trans_b else (*members, k, n)
    if any(size < 0 for size in (*a, *b)):
        raise ValueError(f"{_NAME}: sizes must not be negative; got shapes {a} and {b}")
    if min(len(a), len(b)) >= 2:
        rank = max(len(a), len(b))
        a, b = ((*(1,) * (rank - len(x)), *x) for x in (a, b))
    return registry.cpu_module.plan_sgemm(
        a,
        b,
        bool(trans_a),
        bool(trans_b),
        devices.limits_of(device),
        algorithm or default_algorithm.current(),
        aligned_a=bool(aligned_a),
        aligned_b=bool(aligned_b),
        aligned_c=bool(aligned_c),
    )


def _text(self: SgemmPlan) -> str:
    """A one-line summary, then the fields."""
    split = f", k split into {self.split_k}" if self.split_k > 1 else ""
    launches = f", {self.launches} launches" if self.launches > 1 else ""
    return (
        f"{self.algorithm} rung: {self.tiles_m} x {self.tiles_n} tiles of "
        f"{self.block_m} x {self.block_n}, {self.grid_blocks} blocks of {self.block_threads} threads"
        f"{split}{launches}\n{self!r}"
    )


SgemmPlan.__str__ = _text


class SgemmScheme(NamedTuple):
    """The part of a plan that is fixed at lowering."""

    algorithm: str  # a GPU that cannot run it uses "pipelined"
    split_k: int = 1  # the number of parts into which k is split
    partial_elements: int = 0  # float32 elements of scratch, for partial sums or for split operands
    pad_a: int = 0  # elements of padding after every stored row of a
    pad_b: int = 0


def scheme_of_sgemm(
    a_shape: Sequence[Any],
    b_shape: Sequence[Any],
    options: Options,
    device: DeviceName | Device | None = None,
) -> SgemmScheme:
    """The scheme of a product on this machine's GPU, or on another.

    It is fixed at lowering, because XLA allocates the scratch and pads the operands. Products with
    symbolic sizes (jax.export) use an FFMA kernel, without split k, padding or scratch.
    """
    if not all(isinstance(size, int) for size in (*a_shape, *b_shape)):
        is_ffma = options.algorithm not in ("auto", "tensor")
        return SgemmScheme(options.algorithm if is_ffma else "pipelined")
    plan = registry.cpu_module.plan_sgemm(
        a_shape,
        b_shape,
        options.trans_a,
        options.trans_b,
        devices.limits_of(device),
        algorithm=options.algorithm,
        for_batch=options.for_batch,
    )
    return SgemmScheme(*(getattr(plan, name) for name in SgemmScheme._fields))
