"""Plans of rows that begin within 16 bytes: every one is served, by kernels that can."""

import itertools

import numpy as np
import oracle
import pytest

import jaxkernels as jk
from jaxkernels._core import validate
from jaxkernels._rows import contract

COLS = (
    *(1, 3, 8, 17, 32, 64, 96, 124, 127, 128, 132, 188, 192),
    *(193, 196, 256, 1000, 1024, 2047, 2048, 4096, 20001, 131072, 500000, 1200000),
)
PLACES = [(0, False), (0, True), (1, False), (1, True), (-1, False), (-1, True)]

each_dtype = pytest.mark.parametrize("dtype", oracle.DTYPES)


def plans(dtype, tier=None):
    """(operation, cols, offset, shifted, plan) over operations, lengths and places; a forced tier never fails for the place."""
    pack = 16 // oracle.storage(dtype).itemsize
    # Operations without a reduction have the same plan at every offset.
    operations = [name for name, traits in contract.OPERATIONS.items() if traits.sums > 0]
    for operation, cols, (place, shifted) in itertools.product(operations, COLS, PLACES):
        options = {"operation": operation, "device": "h200", "tier": tier}
        try:
            jk.plan_softmax((64, cols), dtype, **options)
        except ValueError:
            continue  # the tier cannot hold such rows anywhere
        offset = place % pack
        plan = jk.plan_softmax((64, cols), dtype, **options, offset=offset, shifted=shifted)
        yield operation, cols, offset, shifted, plan


@each_dtype
@pytest.mark.parametrize("tier", [None, *validate.TIERS])
def test_every_place_has_a_plan(dtype, tier):
    width = oracle.storage(dtype).itemsize
    pack = 16 // width
    for operation, cols, offset, shifted, plan in plans(dtype, tier):
        assert plan.offset == offset
        assert plan.on_packs == (offset == 0 and not shifted)
        assert plan.aligned == (cols % pack == 0 and plan.on_packs)
        assert plan.smem_bytes <= 227 * 1024
        gathers = plan.staged or plan.tier == "block_uncached"
        assert gathers or not shifted, (operation, cols, plan)
        if plan.staged:  # some rows of each input for each of four warps, and a pack for what is before the first
            traits = contract.OPERATIONS[operation]
            rows = plan.rows_per_access
            room = plan.smem_bytes // (4 * traits.inputs)
            assert room == rows * cols * width + (16 if offset or shifted else 0)
            assert rows % (32 // plan.lanes) == 0
            assert rows * cols % pack == 0
            assert plan.elements_per_lane % 2 == 0
            fewest, most = plan.elements_per_lane - 2, plan.elements_per_lane
            assert plan.lanes * fewest <= cols <= plan.lanes * most
        if plan.tier == "warp" and not plan.staged and not plan.aligned:
            # Layouts that hold fewer packs are not compiled, because such rows are staged.
            traits = contract.OPERATIONS[operation]
            longest = 32 * (8 if width == 8 else 16) // (1 if width == 2 else traits.inputs)
            has_bias = any(x.role == "broadcast" for x in traits.operands)
            assert has_bias or plan.lanes * plan.packs_per_lane * pack > longest
        if plan.tier in ("warp", "block") and not plan.staged:
            packs = -(-(cols + (pack - 1 if offset or cols % pack else 0)) // pack)
            assert plan.lanes * plan.packs_per_lane >= min(packs, -(-(cols + offset) // pack))


@each_dtype
def test_offsets_are_those_of_a_pack(dtype):
    pack = 16 // np.dtype(oracle.storage(dtype)).itemsize
    for offset in (-1, pack):
        with pytest.raises(ValueError, match=f"offset .* below {pack}, got {offset}"):
            jk.plan_softmax((4, 8), dtype, offset=offset)
