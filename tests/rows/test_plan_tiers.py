"""Which tier a row takes, by its length, operation and device, without a GPU."""

import itertools

import cases
import numpy as np
import oracle
import pytest
from row_plans import BYTES, DEVICES, MASKED, RESERVED, inputs, packs_of, plan, scratch_of

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._core import validate
from jaxkernels._rows import contract
from jaxkernels.verify.row_layout import LOSSES


def tier_ends(dtype, operation, device):
    """The longest aligned rows of each tier but the last, which serves all."""
    pack = 16 // BYTES[dtype]
    ends, low = [], 1
    for tier in validate.TIERS[:-1]:
        high = (1 << 22) // pack
        while low < high:
            middle = (low + high + 1) // 2
            reached = plan(middle * pack, dtype, operation, device).tier
            stays = validate.TIERS.index(reached) <= validate.TIERS.index(tier)
            low, high = (middle, high) if stays else (low, middle - 1)
        ends.append(low * pack)
    return ends


def stores_scalar(operation):
    return not contract.OPERATIONS[operation].stores_elements


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operation", [*filter(stores_scalar, oracle.OPERATIONS)])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_tiers_of_row_scalars(dtype, operation, device):
    """These operations read a row once and need no shared memory: small blocks take rows too long for registers, and
    keep nothing. Misaligned rows of two inputs use shared memory while they fit."""
    warp_end, block_end, smem_end, cluster_end = tier_ends(dtype, operation, device)
    assert 128 <= warp_end < block_end == smem_end == cluster_end
    pack = 16 // BYTES[dtype]
    in_leaves = inputs(operation) == 1
    for cols in (block_end + pack, block_end + 8 * pack):
        p = plan(cols, dtype, operation, device)
        assert (p.tier, p.kept_packs, p.leaf_turns > 0) == ("block_uncached", 0, in_leaves)
        assert p.block_threads <= 256 if in_leaves else p.block_threads == 256
    of_odd = plan(block_end + 1, dtype, operation, device).tier
    assert of_odd in (("block_uncached",) if in_leaves else ("block_smem", "cluster"))


@pytest.mark.parametrize("operation", oracle.OPERATIONS)
def test_long_losses_have_kernels_of_two_sums(operation):
    long_tiers = dict(zip(LOSSES, (["block_uncached"], ["block_smem", "cluster"]), strict=True))
    plans = [plan(cols, "float32", operation) for cols in (64, 4096, 20000, 131072, 1 << 22)]
    assert {p.tier for p in plans if p.two_sums} == set(long_tiers.get(operation, ()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operation", [*itertools.filterfalse(stores_scalar, oracle.OPERATIONS)])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_tiers_follow_one_another(dtype, operation, device):
    """First warp. Then block, while an SM holds two rows (but not of log-softmax, nor terms of doubles). Then block_smem,
    while it holds four (of doubles two), and without clusters while shared memory does (beyond the 48 KiB of a plain launch).
    Then cluster. XLA serves longer rows by default, except losses."""
    warp_end, block_end, smem_end, cluster_end = tier_ends(dtype, operation, device)
    assert 128 <= warp_end <= block_end <= smem_end <= cluster_end
    stores_terms = contract.OPERATIONS[operation].finds_max and not stores_scalar(operation)
    skips_block = operation == "log_softmax_fwd" or (dtype == "float64" and stores_terms)
    assert (warp_end == block_end) == skips_block
    limits = _cpu.named_devices()[device]
    row = BYTES[dtype] * inputs(operation)
    alone = 2 if dtype == "float64" else 4
    room = limits.smem_per_sm / alone if limits.cluster_blocks > 1 else limits.smem_per_block
    least = 0.98 * room - 3 * 1024  # the reductions take the rest
    # Registers may hold two rows where shared memory does not hold enough.
    assert smem_end == block_end or least < smem_end * row <= room
    assert smem_end > block_end or block_end * row > least
    pack = 16 // BYTES[dtype]
    for cols in (pack, warp_end):
        assert plan(cols, dtype, operation, device).tier == "warp"
    if warp_end < block_end:
        _check_end_of_block_tier(warp_end + pack, block_end, pack, dtype, operation, device)
    for cols in (block_end + pack, smem_end) if block_end < smem_end else ():
        assert plan(cols, dtype, operation, device).tier == "block_smem"
    assert (smem_end < cluster_end) == (limits.cluster_blocks > 1)
    if smem_end < cluster_end:
        _check_clusters(smem_end + pack, cluster_end, pack, dtype, operation, device)
    assert not plan(cluster_end, dtype, operation, device).xla_by_default
    takes_label = contract.OPERATIONS[operation].takes_label
    for cols in (cluster_end + pack, 4 * cluster_end):
        longer = plan(cols, dtype, operation, device)
        assert (longer.tier, longer.xla_by_default) == ("block_uncached", not takes_label)
        assert not plan(cols, dtype, operation, device, tier="block_uncached").xla_by_default


def _check_clusters(first, last, pack, dtype, operation, device):
    """The fewest blocks per cluster with which an SM holds eight of them (four for float64); more than 8 blocks only if
    an SM would hold fewer than three blocks of a cluster of 8."""
    limits = _cpu.named_devices()[device]
    longest = plan(last, dtype, operation, device)
    assert (longest.tier, longest.cluster_blocks) == ("cluster", limits.cluster_blocks)
    assert longest.blocks_per_sm == 1
    shares = 4 if dtype == "float64" else 8

    def held_by_an_sm(cols, blocks):
        part = -(-(packs_of(cols, dtype) + 7) // (8 * blocks)) * 8 * 16 * inputs(operation)
        is_half_forward = BYTES[dtype] == 2 and inputs(operation) == 1
        threads = limits.registers_per_sm // (56 if is_half_forward else 64)
        smem = part + scratch_of(dtype, operation) + RESERVED
        return min(limits.smem_per_sm // smem, threads // 128)

    seen = set()
    for cols in range(first, last, pack * 512):
        now = plan(cols, dtype, operation, device)
        assert now.tier == "cluster"
        held = {blocks: held_by_an_sm(cols, blocks) for blocks in (2, 4, 8)}
        enough = [blocks for blocks in held if held[blocks] >= (3 if blocks == 8 else shares)]
        assert now.cluster_blocks == (min(enough) if enough else limits.cluster_blocks), cols
        if enough:
            assert now.blocks_per_sm == held[now.cluster_blocks]
        seen.add(now.cluster_blocks)
    # Devices with less shared memory keep rows in registers that 4 blocks would share elsewhere.
    assert seen - {4} == {8, limits.cluster_blocks}
    assert 4 in seen or limits.smem_per_sm < 200 * 1024


def _check_end_of_block_tier(first, last, pack, dtype, operation, device):
    for cols in (first, last):
        assert plan(cols, dtype, operation, device).tier == "block"
    reached = plan(last, dtype, operation, device)
    assert reached.blocks_per_sm >= 2
    if reached.block_threads < 512:  # the most that a block may have
        assert plan(last + pack, dtype, operation, device, tier="block").blocks_per_sm == 1
    misaligned = plan(last - 1, dtype, operation, device)
    assert misaligned.tier in ("block_smem", "cluster")


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_misaligned_softmax_takes_registers_of_a_block_first(dtype):
    """While its rows are short; other operations, and doubles, take shared memory at once."""
    longest = {"float32": 12288, "float64": 0}.get(dtype, 6144)
    for cols in (3001, 6001, 6145, 12287, 12289):
        tier = plan(cols, dtype).tier
        assert (tier == "block") == (cols <= longest), cols
        for operation in ("log_softmax_fwd", "softmax_grad"):
            assert plan(cols, dtype, operation).tier in ("block_smem", "cluster"), cols


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_which_aligned_rows_are_staged(dtype):
    """Rows of softmax that leave more than a quarter of up to two packs a lane empty."""
    pack = 16 // BYTES[dtype]
    for packs, staged in ((9, True), (12, False), (16, False), (17, True), (24, False), (33, True)):
        assert plan(packs * pack, dtype).staged == (staged and dtype != "float64"), packs
    assert not plan(65 * pack, dtype).staged
    for operation in ("softmax_grad", "logsumexp_fwd", "masked_softmax_fwd"):
        assert not plan(9 * pack, dtype, operation).staged
    for operation in ("masked_softmax_fwd", "masked_softmax_grad"):
        assert plan(7, dtype, operation).staged
    for cols in (7, 9 * pack, 65):
        loss, with_gradient = (plan(cols, dtype, operation) for operation in LOSSES)
        assert not loss.staged
        assert loss.lanes < 32
        is_long = cols > 64 and dtype in ("bfloat16", "float16")
        assert with_gradient.staged == (cols % pack != 0 and not is_long)


@pytest.mark.parametrize("operation", [*LOSSES, "softmax_grad"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_few_lanes_share_a_short_loss_of_a_half_type(dtype, operation):
    """Twice the packs in half the lanes, but the smallest and the largest layouts."""
    pack, takes_label = 16 // BYTES[dtype], operation != "softmax_grad"
    for packs, lanes in ((8, 2), (9, 2), (16, 2), (17, 4), (33, 8), (64, 8), (65, 16), (129, 32)):
        p = plan(packs * pack, dtype, operation)
        if takes_label and BYTES[dtype] == 2:
            assert (p.tier, p.lanes, p.packs_per_lane) == ("warp", lanes, 4 if packs < 9 else 8)
        elif takes_label and packs < 65:
            assert p.packs_per_lane == 4
        elif packs < 33:
            assert p.packs_per_lane == 1
    # The stores of unaligned rows need the lanes.
    for cols in (10 * pack + 1, 30 * pack + 1) if takes_label and pack == 8 else ():
        p = plan(cols, dtype, operation)
        assert p.packs_per_lane == (4 if operation == "cross_entropy_fwd_grad" else 8)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_shifted_losses_with_gradients_are_staged(dtype):
    """While the registers of a warp hold them, because elsewhere their elements are gathered."""
    longest = 256 if dtype == "float64" else 512
    for cols in (7, 64, 65, 200, longest, longest + 1):
        p = jk.plan_softmax(
            (4096, cols), dtype, operation="cross_entropy_fwd_grad", device="h200", shifted=True
        )
        assert p.staged == (cols <= longest), cols
        assert p.tier == ("warp" if p.staged else "block_uncached")


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_packs_of_the_longest_rows_are_counted_in_32_bits(dtype):
    """The count includes packs behind the row, up to the end of the last leaf, or of the last part."""
    pack = 16 // BYTES[dtype]
    longest = (2**31 - 1 - 2**23) * pack
    leaf = 32 * 8 * plan(longest, dtype, "logsumexp_fwd", rows=1).leaf_turns
    assert longest // pack + leaf < 2**31
    with pytest.raises(ValueError, match="2\\^31 packs"):
        plan(longest + pack, dtype, rows=1)
    limits, longest = _cpu.named_devices()["h200"], (2**30 - 1) * pack
    for operation, part in (("softmax_grad", "finish"), ("cross_entropy_grad", "whole")):
        arguments = (dtype, operation, limits, "auto", part)
        p = _cpu.plan_softmax(1, longest, *arguments)
        assert longest // pack + p.branches * p.lanes < 2**31
        with pytest.raises(ValueError, match="2\\^30 packs"):
            _cpu.plan_softmax(1, longest + pack, *arguments)


def banks_met(p, cols, dtype):
    """The most lanes of a warp that read different words of one bank of shared memory at once."""
    lane = np.arange(32)
    element = lane // p.lanes * p.row_spacing * cols + lane % p.lanes
    words = np.unique(element * BYTES[dtype] // 4)
    return np.bincount(words % 32).max()


def test_staged_rows_keep_out_of_each_others_banks():
    for dtype in ("bfloat16", "float32"):
        for cols in range(17, 512, 2):
            p = plan(cols, dtype, rows=1 << 20)
            assert p.staged
            assert banks_met(p, cols, dtype) <= 2, cols
    assert banks_met(plan(65, "bfloat16", rows=1 << 20), 65, "bfloat16") == 1


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_forced_tiers(dtype):
    for tier in validate.TIERS:
        for cols in (1, 7, 128, 129):
            assert plan(cols, dtype, tier=tier).tier == tier
    assert plan(1 << 22, dtype, tier="block_uncached").tier == "block_uncached"
    small = cases.jk.plan_softmax((1, 50_000), "float32", device="h200", tier="block_smem")
    assert small.tier == "block_smem"
    with pytest.raises(ValueError, match="rtx4090"):
        plan(50_000, device="rtx4090", tier="block_smem")
    with pytest.raises(ValueError, match=r"capability 9\.0 or later .* rtx4090 has no clusters"):
        plan(50_000, device="rtx4090", tier="cluster")
    with pytest.raises(ValueError, match=r"'cluster' needs \d+ bytes .* each of 16 blocks"):
        plan(1 << 22, dtype, tier="cluster")


@pytest.mark.parametrize("operation", [*oracle.OPERATIONS, *MASKED])
def test_longest_row_of_the_block_tier(operation):
    """It fills 512 threads with the packs that each holds; one pack more is refused."""
    packs = 512 * (8 // inputs(operation))
    most = plan(packs * 8, "bfloat16", operation, tier="block")
    assert (most.tier, most.block_threads, most.lanes) == ("block", 512, 512)
    one = plan(8, "bfloat16", operation, tier="block")
    assert one.block_threads == 32
    text = f"tier 'block' cannot hold a row of {packs + 1} packs"
    for cols in ((packs + 1) * 8, packs * 8 - 1):  # misaligned, a row touches a pack more
        with pytest.raises(ValueError, match=text):
            plan(cols, "bfloat16", operation, tier="block")


def test_tiers_of_attention_scores():
    def tiers(operation, *lengths, dtype="bfloat16"):
        return [plan(cols, dtype, operation).tier for cols in lengths]

    lengths = (128, 2048, 4096, 24576, 24584, 1 << 16, 1 << 20)
    expected = ["warp", "warp", "block", "block", "cluster", "cluster", "cluster"]
    assert tiers("masked_softmax_fwd", *lengths) == expected
    assert tiers("masked_softmax_fwd", 1 << 21) == ["block_uncached"]
    assert tiers("masked_softmax_fwd", 2048, 2052, dtype="float32") == ["warp", "block"]
    assert tiers("masked_softmax_fwd", 4099) == tiers("biased_softmax_fwd", 4099) == ["block"]
    assert tiers("masked_softmax_grad", 4099) == ["block_smem"]
    for operation in ("biased_softmax_fwd", "masked_softmax_grad"):
        lengths = (1024, 1032, 12288, 16392, 1 << 16, 1 << 20)
        expected = ["warp", "block", "block", "cluster", "cluster", "block_uncached"]
        assert tiers(operation, *lengths) == expected
