"""Plans for the tests of rows, and the sizes that plans are compared with."""

import cases
import oracle

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._rows import contract

DEVICES = tuple(_cpu.named_devices())
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
# Shared memory that a block's reductions may need in addition to its rows, by compute type and sums
# per row, in bytes. CUDA keeps RESERVED bytes per block.
SCRATCH = {("float32", 1): 640, ("float32", 2): 1152, ("float64", 1): 1152, ("float64", 2): 1920}
SCRATCH_WITH_RESTS = 896
# Operations whose float32 sums keep what they lose to rounding.
WITH_RESTS = ("softmax_fwd", "masked_softmax_fwd", "biased_softmax_fwd")
RESERVED = 1024
MASKED = ("masked_softmax_fwd", "biased_softmax_fwd", "masked_softmax_grad")


def scratch_of(dtype, operation):
    """Bytes of shared memory that the reductions of a block may need."""
    if dtype == "float32" and operation in WITH_RESTS:
        return SCRATCH_WITH_RESTS
    sums = contract.OPERATIONS[operation].sums_of(oracle.storage(dtype))
    return SCRATCH[oracle.compute(dtype).name, sums]


def inputs(operation):
    return contract.OPERATIONS[operation].inputs


def plan(cols, dtype="float32", operation="softmax_fwd", device="h200", tier=None, rows=4096):
    return jk.plan_softmax((rows, cols), dtype, operation=operation, device=device, tier=tier)


def packs_of(cols, dtype):
    """16-byte packs that a row of a densely packed array can touch, found by trying every position."""
    pack = 16 // BYTES[dtype]
    starts = {(row * cols) % pack for row in range(pack)}
    return max((start + cols + pack - 1) // pack for start in starts)


def interesting_cols(dtype):
    boundaries = cases.plan_boundaries(dtype, "h200")
    near = {c + step for c in boundaries for step in (-1, 0, 1)}
    return sorted(near | set(range(1, 301)) | {1000, 1001, 50257, 151935, 1 << 20, (1 << 31) + 5})
