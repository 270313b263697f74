"""Guarantees of every launch plan, for any row length, operation, device, tier and place, without a GPU."""

import itertools
import random

import numpy as np
import oracle
import pytest
from row_plans import (
    BYTES,
    DEVICES,
    MASKED,
    RESERVED,
    inputs,
    interesting_cols,
    packs_of,
    plan,
    scratch_of,
)

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._core import validate
from jaxkernels._rows import contract
from jaxkernels.verify import row_layout

MOST_THREADS = 1024


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_invariants(dtype, device):
    """Plans satisfy what kernels rely on, for every row length that matters, every operation and tier."""
    check_invariants(interesting_cols(dtype), oracle.OPERATIONS, dtype, device)
    if device in ("h200", DEVICES[-1]):
        near = {c + step for c in masked_boundaries(dtype) for step in (-1, 0, 1)}
        cols = [*near, *range(1, 300), 255, 1001, 50257, 151935, (1 << 31) + 5]
        check_invariants(cols, MASKED, dtype, device)


def masked_boundaries(dtype):
    """The aligned and the misaligned row lengths at which another tier takes over, on an H200."""
    pack = 16 // BYTES[dtype]
    found = []
    for residue in (0, 1):
        tier = lambda n: plan(n * pack + residue, dtype, "masked_softmax_fwd").tier  # noqa: B023, E731
        packs = [n + 1 for n in range(1, 1100) if tier(n) != tier(n + 1)]
        packs += row_layout.changes(tier, 1100, 20000)
        found += [n * pack + residue for n in packs]
    assert len(found) >= 4, found
    return found


def check_invariants(all_cols, operations, dtype, device):
    """Chosen tiers have every number of rows; forced ones take one by chance, of hundreds of row lengths."""
    limits = _cpu.named_devices()[device]
    numbers = (0, 1, 40, 65537, 1 << 40)
    chance = random.Random(f"{dtype} {device}")
    for cols, operation in itertools.product(all_cols, operations):
        calls = [(None, rows) for rows in numbers]
        calls += [(tier, chance.choice(numbers)) for tier in validate.TIERS]
        for tier, rows in calls:
            try:  # without the function of Python, which takes longer than the plan
                p = _cpu.plan_softmax(rows, cols, dtype, operation, limits, tier or "auto")
            except ValueError:
                assert tier in ("warp", "block", "block_smem", "cluster"), (cols, operation, tier)
                continue
            where = (cols, operation, tier, rows, p)
            assert p.tier == (tier or p.tier), where
            assert p.pack == 16 // BYTES[dtype], where
            assert p.aligned == (cols % p.pack == 0), where
            assert p.block_threads % 32 == 0, where
            assert 32 <= p.block_threads <= MOST_THREADS, where
            smem = p.smem_bytes + scratch_of(dtype, operation)
            assert smem <= limits.smem_per_block, where
            assert p.blocks_per_sm >= 1, where
            assert p.blocks_per_sm * p.block_threads <= limits.threads_per_sm, where
            assert p.blocks_per_sm <= limits.blocks_per_sm, where
            assert p.blocks_per_sm * (smem + RESERVED) <= limits.smem_per_sm, where
            assert 1 <= p.grid_blocks < 2**31, where
            _check_tier(p, cols, dtype, operation, rows, limits, where)


@pytest.mark.parametrize("part", ["statistics", "finish"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_parts_of_operations_stream(dtype, part):
    """One tier for rows of any length; lanes rise with it, and what is summed together depends on nothing else."""
    limits = _cpu.named_devices()["h200"]
    for operation in (*oracle.OPERATIONS, *MASKED):
        lanes = []
        for cols in (1, 7, 100, 1000, 4096, 10001, 1 << 20):
            plans = [
                _cpu.plan_softmax(rows, cols, dtype, operation, limits, "auto", part=part)
                for rows in (1, 4096, 1 << 40)
            ]
            assert {p.tier for p in plans} == {"stream"}
            assert len({p.lanes for p in plans}) == 1
            for p in plans:
                assert p.block_threads % p.lanes == 0
                assert (p.smem_bytes, p.kept_packs) == (0, 0)
                assert 1 <= p.grid_blocks < 2**31
            lanes.append(plans[0].lanes)
        assert lanes == sorted(lanes)
        assert (lanes[0], lanes[-1]) == (8, plans[0].block_threads)
    with pytest.raises(ValueError, match="tier 'stream' serves the parts"):
        _cpu.plan_softmax(8, 8, dtype, "softmax_fwd", limits, "stream")


def _check_tier(p, cols, dtype, operation, rows, limits, where):
    row_bytes = cols * BYTES[dtype] * inputs(operation)
    rows_at_once = 1
    if p.tier == "warp" and p.staged:
        warps = p.block_threads // 32
        assert not p.aligned or operation in ("softmax_fwd", "log_softmax_fwd"), where
        assert operation != "biased_softmax_fwd", where  # its rows lie elsewhere in the bias
        assert p.smem_bytes >= warps * p.rows_per_access * row_bytes, where
        assert p.lanes * p.elements_per_lane >= cols, where
        rows_at_once = p.rows_per_access * warps
    elif p.tier == "warp":
        assert p.lanes in (1, 2, 4, 8, 16, 32), where
        assert p.lanes * p.packs_per_lane >= packs_of(cols, dtype), where
        values = p.packs_per_lane * p.pack * inputs(operation) * max(1, BYTES[dtype] // 4)
        assert values <= 128, where  # 255 registers, and some are needed for everything else
        rows_at_once = p.block_threads // p.lanes * p.rows_per_access
    elif p.leaf_turns > 0:
        _check_read_in_leaves(p, cols, rows, limits, where)
        # Numbers per leaf, in static shared memory.
        numbers = 1 + contract.OPERATIONS[operation].sums_of(oracle.storage(dtype))
        leaves = 256 * numbers * oracle.compute(dtype).itemsize + 8
        assert p.blocks_per_sm * (leaves + RESERVED) <= limits.smem_per_sm, where
        return
    else:
        assert p.lanes == p.block_threads * p.cluster_blocks, where
        assert (p.tier == "cluster") == (p.cluster_blocks > 1), where
        if p.tier == "block":
            assert p.block_threads * p.packs_per_lane >= packs_of(cols, dtype), where
            assert p.packs_per_lane * inputs(operation) <= 8, where  # packs of 4 registers
            assert p.smem_bytes == 0, where
            assert p.grid_blocks == min(max(rows, 1), 2**31 - 1), where
            return
        elif p.tier in ("block_smem", "cluster"):
            # A window may begin seven packs early, and each part of a row begins at a line of eight.
            assert p.cluster_blocks * p.kept_packs >= packs_of(cols, dtype) + 7, where
            assert p.kept_packs % 8 == 0, where
            if p.few_rows:
                assert p.smem_bytes == 0, where
                assert p.kept_packs <= p.block_threads * p.packs_per_lane, where
                assert p.packs_per_lane * inputs(operation) <= 8, where  # packs of 4 registers
                assert p.grid_blocks == max(rows, 1) * p.cluster_blocks, where
                # The grid has at most 1.5 times the blocks that run at once.
                at_once = max(limits.sm_count * p.blocks_per_sm, p.cluster_blocks)
                assert p.grid_blocks <= at_once * 3 // 2, where
            else:
                assert p.smem_bytes >= p.kept_packs * 16 * inputs(operation), where
            assert p.cluster_blocks <= limits.cluster_blocks, where
            assert p.grid_blocks % p.cluster_blocks == 0, where
        else:
            # A row may be kept whole when the tier is forced; a window may begin seven packs early.
            # Room for a row of scores without its mask is more than such a row may need.
            assert p.kept_packs >= 0, where
            assert operation in MASKED or p.kept_packs <= packs_of(cols, dtype) + 7, where
            assert p.smem_bytes == p.kept_packs * 16 * inputs(operation), where
    # Rows are walked grid-stride or, see below, in batches; no block may be launched for nothing.
    assert p.grid_blocks <= max(1, -(-rows // rows_at_once)) * p.cluster_blocks, where
    # A batch is half of the rows that are left.
    waves = p.rounds.bit_length() if p.halves else 32
    assert p.grid_blocks <= max(1, waves) * limits.sm_count * p.blocks_per_sm, where


def _check_read_in_leaves(p, cols, rows, limits, where):
    """Leaves of a row are the same however many rows, warps and blocks there are."""
    assert (p.tier, p.smem_bytes, p.kept_packs) == ("block_uncached", 0, 0), where
    window = -(-cols // p.pack) + 8  # which begins with a line
    most = 256 * 32 * 8  # packs of the leaves of a row in each turn
    assert most * (p.leaf_turns - 1) < window <= most * p.leaf_turns + 8, where
    assert p.lanes == p.block_threads * p.cluster_blocks, where
    assert p.block_threads <= (16 if p.cluster_blocks == 8 else 8) * 32, where
    assert p.cluster_blocks <= min(8, limits.cluster_blocks), where
    assert p.grid_blocks == min(max(rows, 1), (2**31 - 1) // 8) * p.cluster_blocks, where
    leaves = -(-(window - 1) // (256 * p.leaf_turns))
    assert p.block_threads // 32 <= -(-leaves // p.cluster_blocks), where


COLS_OF_PLACES = (
    *(1, 3, 8, 17, 32, 64, 96, 124, 127, 128, 132, 188, 192),
    *(193, 196, 256, 1000, 1024, 2047, 2048, 4096, 20001, 131072, 500000, 1200000),
)
PLACES = [(0, False), (0, True), (1, False), (1, True), (-1, False), (-1, True)]


def plans_of_places(dtype, tier):
    """(operation, cols, offset, shifted, p) over operations, lengths and places; a forced tier never fails for the place."""
    pack = 16 // oracle.storage(dtype).itemsize
    # Operations without a reduction have the same p at every offset.
    operations = [name for name, traits in contract.OPERATIONS.items() if traits.sums > 0]
    for operation, cols, (place, shifted) in itertools.product(operations, COLS_OF_PLACES, PLACES):
        options = {"operation": operation, "device": "h200", "tier": tier}
        try:
            jk.plan_softmax((64, cols), dtype, **options)
        except ValueError:
            continue  # the tier cannot hold such rows anywhere
        offset = place % pack
        p = jk.plan_softmax((64, cols), dtype, **options, offset=offset, shifted=shifted)
        traits = contract.OPERATIONS[operation]  # arrays of one operand are never shifted
        yield operation, cols, offset, shifted and traits.inputs + traits.stores_elements > 1, p


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("tier", [None, *validate.TIERS])
def test_every_place_has_a_plan(dtype, tier):
    width = oracle.storage(dtype).itemsize
    pack = 16 // width
    for operation, cols, offset, shifted, p in plans_of_places(dtype, tier):
        assert p.offset == offset
        assert p.on_packs == (offset == 0 and not shifted)
        assert p.aligned == (cols % pack == 0 and p.on_packs)
        assert p.smem_bytes <= 227 * 1024
        gathers = p.staged or p.tier == "block_uncached"
        assert gathers or not shifted, (operation, cols, p)
        if p.staged:  # some rows of each input for each of four warps, and a pack for what is before the first
            traits = contract.OPERATIONS[operation]
            rows = p.rows_per_access
            room = p.smem_bytes // (4 * traits.inputs)
            assert room == rows * cols * width + (16 if offset or shifted else 0)
            assert rows % (32 // p.lanes) == 0
            assert rows * cols % pack == 0
            assert p.elements_per_lane % 2 == 0
            fewest, most = p.elements_per_lane - 2, p.elements_per_lane
            assert p.lanes * fewest <= cols <= p.lanes * most
        if p.tier == "warp" and not p.staged and not p.aligned:
            # Layouts that hold fewer packs are not compiled, because such rows are staged.
            traits = contract.OPERATIONS[operation]
            longest = 32 * (8 if width == 8 else 16) // (1 if width == 2 else traits.inputs)
            if any(x.role == "label" for x in traits.operands):
                longest = {2: 64}.get(width, longest) if traits.stores_elements else 0
            has_bias = any(x.role == "broadcast" for x in traits.operands)
            assert has_bias or p.lanes * p.packs_per_lane * pack > longest
        if p.tier in ("warp", "block") and not p.staged:
            packs = -(-(cols + (pack - 1 if offset or cols % pack else 0)) // pack)
            assert p.lanes * p.packs_per_lane >= min(packs, -(-(cols + offset) // pack))


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_offsets_are_those_of_a_pack(dtype):
    pack = 16 // np.dtype(oracle.storage(dtype)).itemsize
    for offset in (-1, pack):
        with pytest.raises(ValueError, match=f"offset .* below {pack}, got {offset}"):
            jk.plan_softmax((4, 8), dtype, offset=offset)
