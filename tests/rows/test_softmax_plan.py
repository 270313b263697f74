"""The launch plans, without a GPU: where tiers change, what every plan guarantees, how it prints."""

import itertools
import random

import cases
import numpy as np
import oracle
import pytest

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._core import registry, validate

DEVICES = tuple(_cpu.named_devices())
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
MOST_THREADS = 1024
# Room that a block's reductions may need beside its rows, and what CUDA keeps of every block.
SCRATCH = {("float32", 1): 640, ("float32", 2): 1152, ("float64", 1): 1152, ("float64", 2): 1920}
SCRATCH_WITH_RESTS = 896
# Operations whose float32 sums keep what they lose to rounding.
WITH_RESTS = ("softmax_fwd", "masked_softmax_fwd", "biased_softmax_fwd")
RESERVED = 1024


DEVICE_FIELDS = (
    "name",
    "sm_count",
    "smem_per_block",
    "smem_per_sm",
    "threads_per_sm",
    "blocks_per_sm",
    "registers_per_sm",
    "compute_capability",
    "cluster_blocks",
    "compiled_for",
    "has_wgmma",
)
MASKED = ("masked_softmax_fwd", "biased_softmax_fwd", "masked_softmax_grad")


def scratch_of(dtype, operation):
    """By the type of computation, and how many sums a row has."""
    if keeps_rest(dtype, operation):
        return SCRATCH_WITH_RESTS
    sums = registry.ROW_OPERATIONS[operation].sums_of(oracle.storage(dtype))
    return SCRATCH[oracle.compute(dtype).name, sums]


def keeps_rest(dtype, operation):
    return dtype == "float32" and operation in WITH_RESTS


def branch_bytes(dtype, operation):
    """Of the statistics of a branch: a maximum, the sums and their rests, in words of eight bytes."""
    sums = registry.ROW_OPERATIONS[operation].sums_of(oracle.storage(dtype))
    numbers = 1 + sums * (2 if keeps_rest(dtype, operation) else 1)
    return -(-numbers * max(BYTES[dtype], 4) // 8) * 8


def inputs(operation):
    return registry.ROW_OPERATIONS[operation].inputs


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


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_invariants(dtype, device):
    """What kernels rely on, for every row length that matters, any number of rows, every operation and tier."""
    check_invariants(interesting_cols(dtype), oracle.OPERATIONS, dtype, device)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_invariants_of_attention_scores(dtype):
    near = [c + step for c in masked_boundaries(dtype) for step in (-1, 0, 1)]
    cols = [*near, *range(1, 70), 255, 1001, 50257, 151935, (1 << 31) + 5]
    for device in ("h200", DEVICES[-1]):
        check_invariants(cols, MASKED, dtype, device)


def masked_boundaries(dtype, operation="masked_softmax_fwd"):
    """The aligned and the misaligned row lengths at which another tier takes over, on an H200."""
    pack = 16 // BYTES[dtype]
    found = []
    for residue in (0, 1):
        tiers = [
            (packs * pack + residue, plan(packs * pack + residue, dtype, operation).tier)
            for packs in (*range(1, 1100), *range(1100, 20000, 50))
        ]
        found += [a[0] for a, b in itertools.pairwise(tiers) if a[1] != b[1]]
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
            scratch = scratch_of(dtype, operation)
            grid_is_too_large = tier == "spread" and rows == 1 << 40
            assert grid_is_too_large or p.tier == (tier or p.tier), where
            assert p.pack == 16 // BYTES[dtype], where
            assert p.aligned == (cols % p.pack == 0), where
            assert p.block_threads % 32 == 0, where
            assert 32 <= p.block_threads <= MOST_THREADS, where
            assert p.smem_bytes + scratch <= limits.smem_per_block, where
            assert p.blocks_per_sm >= 1, where
            assert p.blocks_per_sm * p.block_threads <= limits.threads_per_sm, where
            assert p.blocks_per_sm <= limits.blocks_per_sm, where
            assert p.blocks_per_sm * (p.smem_bytes + scratch + RESERVED) <= limits.smem_per_sm, (
                where
            )
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
    elif p.tier == "spread":
        leaf, packs = 32 * p.leaf_turns, -(-cols // p.pack)  # leaves are cut by element index
        assert p.leaf_turns >= 8, where
        assert p.block_threads == 8 * 32, where
        assert p.branches <= 512, where
        assert 8 * leaf * (p.branches - 1) < packs <= 8 * leaf * p.branches, where
        assert p.lanes == 32 * -(-packs // leaf), where
        assert p.grid_blocks == max(rows, 1) * p.branches, where
        assert p.scratch_bytes == rows * p.branches * branch_bytes(dtype, operation), where
        return
    elif p.leaf_turns > 0:
        _check_read_in_leaves(p, cols, rows, limits, where)
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
                # As many as run at once, or half as many more.
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
    # A batch is half of what is left.
    waves = p.rounds.bit_length() if p.halves else 32
    assert p.grid_blocks <= max(1, waves) * limits.sm_count * p.blocks_per_sm, where


def _check_read_in_leaves(p, cols, rows, limits, where):
    """Leaves of a row are the same however many rows, warps and blocks there are."""
    assert (p.tier, p.smem_bytes, p.kept_packs) == ("block_uncached", 0, 0), where
    window = -(-cols // p.pack) + 8  # which begins with a line
    most = 256 * 32 * 8  # packs of the leaves of a row, for each turn
    assert most * (p.leaf_turns - 1) < window <= most * p.leaf_turns + 8, where
    assert p.lanes == p.block_threads * p.cluster_blocks, where
    assert p.block_threads <= (16 if p.cluster_blocks == 8 else 8) * 32, where
    assert p.cluster_blocks <= min(8, limits.cluster_blocks), where
    assert p.grid_blocks == min(max(rows, 1), (2**31 - 1) // 8) * p.cluster_blocks, where
    leaves = -(-(window - 1) // (256 * p.leaf_turns))
    assert p.block_threads // 32 <= -(-leaves // p.cluster_blocks), where


def tier_ends(dtype, operation, device):
    """The longest aligned rows of each tier but the last two, which serve all."""
    pack = 16 // BYTES[dtype]
    ends, low = [], 1
    for tier in validate.TIERS[:-2]:
        high = (1 << 22) // pack
        while low < high:
            middle = (low + high + 1) // 2
            reached = plan(middle * pack, dtype, operation, device).tier
            stays = validate.TIERS.index(reached) <= validate.TIERS.index(tier)
            low, high = (middle, high) if stays else (low, middle - 1)
        ends.append(low * pack)
    return ends


def stores_scalar(operation):
    return not registry.ROW_OPERATIONS[operation].stores_elements


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operation", [*filter(stores_scalar, oracle.OPERATIONS)])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_tiers_of_row_scalars(dtype, operation, device):
    """What is read once needs no shared memory: small blocks behind the registers, which keep nothing. Rows of two inputs
    that begin within a pack take shared memory while it holds them."""
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operation", [*itertools.filterfalse(stores_scalar, oracle.OPERATIONS)])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_tiers_follow_one_another(dtype, operation, device):
    """warp, block while an SM holds two rows (but not of log-softmax, nor terms of doubles), block_smem as far as it holds four
    (doubles two) and, without clusters, as far as shared memory reaches (not to the 48 KiB of a plain launch), cluster, spread."""
    warp_end, block_end, smem_end, cluster_end = tier_ends(dtype, operation, device)
    assert 128 <= warp_end <= block_end <= smem_end <= cluster_end
    stores_terms = registry.ROW_OPERATIONS[operation].finds_max and not stores_scalar(operation)
    skips_block = operation == "log_softmax_fwd" or (dtype == "float64" and stores_terms)
    assert (warp_end == block_end) == skips_block
    limits = _cpu.named_devices()[device]
    row = BYTES[dtype] * inputs(operation)
    alone = 2 if dtype == "float64" else 4
    room = limits.smem_per_sm / alone if limits.cluster_blocks > 1 else limits.smem_per_block
    least = 0.98 * room - 3 * 1024  # beside what the reductions take
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
    for cols in (cluster_end + pack, 4 * cluster_end):
        assert plan(cols, dtype, operation, device).tier == "spread"


def _check_clusters(first, last, pack, dtype, operation, device):
    """The fewest blocks of which an SM holds eight (doubles four); more than 8 only where it would hold fewer than three of 8.
    Where it holds one share of 16, and one array is read for its maximum, rows are spread (but doubles)."""
    limits = _cpu.named_devices()[device]
    longest = plan(last, dtype, operation, device)
    assert (longest.tier, longest.cluster_blocks) == ("cluster", limits.cluster_blocks)
    traits = registry.ROW_OPERATIONS[operation]
    is_spread_early = (
        limits.cluster_blocks == 16
        and traits.finds_max
        and traits.inputs == 1
        and dtype != "float64"
    )
    assert longest.blocks_per_sm == (2 if is_spread_early else 1)
    shares = 4 if dtype == "float64" else 8

    def held_by_an_sm(cols, blocks):
        part = -(-(packs_of(cols, dtype) + 7) // (8 * blocks)) * 8 * 16 * inputs(operation)
        is_half_forward = BYTES[dtype] == 2 and inputs(operation) == 1
        threads = limits.registers_per_sm // (56 if is_half_forward else 64)
        return min(
            limits.smem_per_sm // (part + scratch_of(dtype, operation) + RESERVED), threads // 128
        )

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
    # Where registers hold rows that 4 blocks would share, and there is less shared memory, those take them.
    assert seen - {4} == {8, limits.cluster_blocks}
    assert 4 in seen or limits.smem_per_sm < 200 * 1024


def _check_end_of_block_tier(first, last, pack, dtype, operation, device):
    for cols in (first, last):
        assert plan(cols, dtype, operation, device).tier == "block"
    reached = plan(last, dtype, operation, device)
    assert reached.blocks_per_sm >= 2
    if reached.block_threads < 512:  # as many as a block may have
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


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_spread_counts_the_packs_of_the_longest_rows(dtype):
    """In 32 bits, up to the end of the last branch, which lies behind the row."""
    pack = 16 // BYTES[dtype]
    longest = (2**31 - 1 - 2**23) * pack
    p = plan(longest, dtype, rows=1)
    assert p.tier == "spread"
    assert 256 * p.leaf_turns * (p.branches + 1) < 2**31
    with pytest.raises(ValueError, match="2\\^31 packs"):
        plan(longest + pack, dtype, rows=1)


def banks_met(p, cols, dtype):
    """Lanes of a warp that read different words of one bank of shared memory at once, at most."""
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


@pytest.mark.parametrize("operation", ["softmax_fwd", "softmax_grad", "masked_softmax_fwd"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_what_sums_a_row_depends_on_cols_not_on_rows(dtype, operation):
    """So that a row gives the same bits however many there are. Few rows have twice as many threads, which is how many
    classes of packs the threads of many rows sum."""

    def shape(p):
        if p.tier not in ("block_smem", "cluster"):
            return p.tier, p.lanes, p.packs_per_lane, p.staged, p.block_threads
        return p.tier, p.block_threads * (1 if p.few_rows else 2)

    for cols in interesting_cols(dtype):
        plans = [plan(cols, dtype, operation, rows=rows) for rows in (1, 2, 100, 1 << 20)]
        shapes = {shape(p) for p in plans}
        assert len({(p.cluster_blocks, p.kept_packs) for p in plans}) == 1, cols
        assert len(shapes) == 1, (cols, shapes)


@pytest.mark.parametrize("operation", ["softmax_fwd", "softmax_grad"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_few_rows_take_twice_as_many_threads(dtype, operation):
    for cols in (40_000, 50_257, 65_536):
        many = plan(cols, dtype, operation, rows=10_000)
        least = plan(cols, dtype, operation, rows=1)
        most = 132 * least.blocks_per_sm * 7 // 8 // many.cluster_blocks
        if least.blocks_per_sm > 2:
            most = most * 3 // 2
        assert not plan(cols, dtype, operation, rows=most + 1).few_rows
        for rows in (1, most):
            few = plan(cols, dtype, operation, rows=rows)
            assert few.few_rows, cols
            assert few.cluster_blocks == many.cluster_blocks > 1, cols
            assert few.block_threads == 2 * many.block_threads, cols
            assert few.grid_blocks == rows * few.cluster_blocks, cols


@pytest.mark.parametrize("operation", ["masked_softmax_fwd", "logsumexp_jvp"])
def test_which_few_rows_take_no_more_threads(operation):
    assert not plan(50_257, "float32", operation, rows=1).few_rows
    assert not plan(50_257, "float64", rows=1).few_rows


def test_grid_is_about_32_waves():
    for cols in (1024, 24576, 65536):
        p = plan(cols, rows=1 << 24)
        whole = 32 * 132 * p.blocks_per_sm
        assert p.grid_blocks == whole // p.cluster_blocks * p.cluster_blocks, cols


# Blocks of a row, how many of them an SM holds, and how many rows run at once. In batches, however many rows there are:
BATCHED = {
    (131072, "float32", "softmax_fwd", None): (8, 3, 43),
    (196608, "float32", "softmax_fwd", None): (16, 4, 28),
    (262144, "float32", "softmax_fwd", None): (16, 3, 21),
    (393216, "bfloat16", "softmax_grad", None): (16, 2, 14),
    (262144, "float32", "softmax_grad", None): (16, 1, 7),
    (50000, "float32", "softmax_fwd", "block_smem"): (1, 1, 132),
}
# In batches for fewer than 32 rounds of rows:
BATCHED_WHERE_FEW = {
    (24576, "float32", "softmax_fwd", None): (4, 8, 231),
    (65536, "float32", "softmax_fwd", None): (8, 6, 86),
    (131072, "bfloat16", "softmax_fwd", None): (8, 6, 86),
    (131072, "float32", "softmax_grad", None): (16, 3, 21),
}
BY_TURNS = (
    (16384, "float32", "softmax_grad", "block_smem"),
    (65536, "float64", "softmax_fwd", None),
)


def test_which_rows_are_handed_out_in_batches():
    def at_once(p):
        return p.cluster_blocks, p.blocks_per_sm, p.workers

    def goes_by_turns(p):
        return not p.halves and p.workers == 32 * 132 * p.blocks_per_sm // p.cluster_blocks

    for (cols, dtype, operation, tier), expected in BATCHED.items():
        for rows in (200, 10_000):  # more than have a layout of their own
            p = plan(cols, dtype, operation, tier=tier, rows=rows)
            assert (p.halves, at_once(p)) == (True, expected), (cols, rows)
    for (cols, dtype, operation, tier), expected in BATCHED_WHERE_FEW.items():
        for rows in (200, 31 * expected[2]):
            p = plan(cols, dtype, operation, tier=tier, rows=rows)
            assert (p.halves, at_once(p)) == (True, expected), (cols, rows)
        assert goes_by_turns(plan(cols, dtype, operation, tier=tier, rows=31 * expected[2] + 1)), (
            cols
        )
    for cols, dtype, operation, tier in BY_TURNS:
        for rows in (200, 10_000):
            assert goes_by_turns(plan(cols, dtype, operation, tier=tier, rows=rows)), (cols, rows)


def with_sms(sm_count):
    h200 = _cpu.named_devices()["h200"]
    fields = {field: getattr(h200, field) for field in DEVICE_FIELDS}
    return jk.DeviceLimits(**{**fields, "sm_count": sm_count})


@pytest.mark.parametrize("sm_count", [1, 2, 17, 132])
@pytest.mark.parametrize(
    ("cols", "dtype", "operation", "tier"), [*BATCHED, *BATCHED_WHERE_FEW, *BY_TURNS]
)
def test_every_row_has_one_worker(cols, dtype, operation, tier, sm_count):
    """And every worker a row, however many rows there are; half as many in each batch, rounded up."""

    def plan_of(rows):
        limits = with_sms(sm_count)
        return _cpu.plan_softmax(rows, cols, dtype, operation, limits, tier or "auto")

    workers = plan_of(1000).workers  # of many rows
    assert workers >= 1
    near = (workers - 1, workers, workers + 1, 2 * workers + 1, 3 * workers)
    for rows in (0, 1, 2, *near, 1000, 20_001):
        p = plan_of(rows)
        count = p.grid_blocks // p.cluster_blocks if rows else 0
        taken = [range(*p.rows_of(w, rows)) for w in range(count)]
        assert all(taken), rows
        assert sorted(row for of_worker in taken for row in of_worker) == list(range(rows)), rows
        for wrong in (-1, count):
            with pytest.raises(IndexError, match="no worker"):
                p.rows_of(wrong, rows)
        left = p.rounds
        for of_first in taken[:: p.workers]:  # of the first worker of each batch
            assert len(of_first) == ((left + 1) // 2 if p.halves else left), rows
            left -= len(of_first)
        assert left == 0


def test_other_tiers_have_no_workers():
    with pytest.raises(IndexError, match="no worker"):
        plan(1024).rows_of(0, 4096)


@pytest.mark.parametrize(
    ("dtype", "operation", "blocks"),
    [
        ("float32", "softmax_fwd", 4),
        ("float32", "softmax_grad", 3),
        ("float32", "masked_softmax_fwd", 3),
        ("bfloat16", "softmax_fwd", 3),
        ("float64", "softmax_fwd", 3),
    ],
)
def test_blocks_of_spread_rows(dtype, operation, blocks):
    """More blocks, of fewer registers, where one float32 array is read."""
    for rows in (1, 128):
        p = plan(1 << 22, dtype, operation, tier="spread", rows=rows)
        assert (p.blocks_per_sm, p.grid_blocks) == (blocks, rows * p.branches)


def test_limits_of_a_device_without_processors():
    with pytest.raises(ValueError, match="sm_count must be at least 1"):
        with_sms(0)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_forced_tiers(dtype):
    for tier in validate.TIERS:
        for cols in (1, 7, 128, 129):
            assert plan(cols, dtype, tier=tier).tier == tier
    assert plan(1 << 22, dtype, tier="block_uncached").tier == "block_uncached"
    with pytest.raises(ValueError, match="warp"):
        plan(1 << 16, dtype, tier="warp")
    with pytest.raises(ValueError, match="tier 'block' cannot hold a row"):
        plan(1 << 17, dtype, tier="block")
    with pytest.raises(ValueError, match="block_smem"):
        plan(1 << 20, dtype, tier="block_smem")
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
    """512 threads with the packs that each holds; one more is refused."""
    packs = 512 * (8 // inputs(operation))
    most = plan(packs * 8, "bfloat16", operation, tier="block")
    assert (most.tier, most.block_threads, most.lanes) == ("block", 512, 512)
    one = plan(8, "bfloat16", operation, tier="block")
    assert one.block_threads == 32
    for cols in ((packs + 1) * 8, packs * 8 - 1):  # misaligned, a row touches a pack more
        with pytest.raises(
            ValueError, match=f"tier 'block' cannot hold a row of {packs + 1} packs"
        ):
            plan(cols, "bfloat16", operation, tier="block")


def test_tiers_of_attention_scores():
    def tiers(operation, *lengths, dtype="bfloat16"):
        return [plan(cols, dtype, operation).tier for cols in lengths]

    lengths = (128, 2048, 4096, 24576, 24584, 1 << 16, 1 << 20)
    expected = ["warp", "warp", "block", "block", "cluster", "cluster", "cluster"]
    assert tiers("masked_softmax_fwd", *lengths) == expected
    assert tiers("masked_softmax_fwd", 1 << 21) == ["spread"]
    assert tiers("masked_softmax_fwd", 2048, 2052, dtype="float32") == ["warp", "block"]
    assert tiers("masked_softmax_fwd", 4099) == tiers("biased_softmax_fwd", 4099) == ["block"]
    assert tiers("masked_softmax_grad", 4099) == ["block_smem"]
    for operation in ("biased_softmax_fwd", "masked_softmax_grad"):
        lengths = (1024, 1032, 12288, 16392, 1 << 16, 1 << 20)
        expected = ["warp", "block", "block", "cluster", "cluster", "spread"]
        assert tiers(operation, *lengths) == expected


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_scores_and_bias_are_never_staged(dtype):
    """Their rows do not lie side by side; those of scores alone, and of a gradient, do."""
    for cols in range(1, 300):
        assert not plan(cols, dtype, "biased_softmax_fwd").staged
    assert plan(7, dtype, "masked_softmax_fwd").staged
    assert plan(7, dtype, "masked_softmax_grad").staged


def test_plans_compare_and_print():
    a, b = plan(1000), plan(1000)
    assert a == b
    assert not (a != b)  # noqa: SIM202 - the operator is what is tested
    assert a != plan(1004, rows=77)
    assert a != "SoftmaxPlan"
    assert a is not None
    text = repr(a)
    assert text.startswith("SoftmaxPlan(tier='warp', ")
    names = "tier pack lanes packs_per_lane kept_packs rows_per_access cluster_blocks aligned block_threads grid_blocks"
    for name in (*names.split(), "workers", "rounds", "halves", "smem_bytes", "blocks_per_sm"):
        assert f"{name}={getattr(a, name)!r}" in text
    with pytest.raises(AttributeError):
        a.tier = "block_smem"


def test_device_limits_compare_and_print():
    devices = _cpu.named_devices()
    assert {"h200", "h100", "a100"} <= set(devices)
    h200 = devices["h200"]
    assert h200.smem_per_block == 227 * 1024
    assert h200.sm_count == 132
    assert "name='h200'" in repr(h200)
    copy = jk.DeviceLimits(**{field: getattr(h200, field) for field in DEVICE_FIELDS})
    assert copy == h200
    assert devices["a100"] != h200


def test_shapes_of_any_rank():
    assert jk.plan_softmax((2, 3, 700), "float32", device="h200") == plan(700, rows=6)
    assert jk.plan_softmax((700,), "float32", device="h200") == plan(700, rows=1)
    assert jk.plan_softmax((), "float32", device="h200") == plan(1, rows=1)


def test_default_device():
    """The first CUDA device, or the H200's limits on a machine without one."""
    if cases.ON_GPU:
        assert jk.plan_softmax((8, 4096), "float32").grid_blocks >= 1
    else:
        assert jk.plan_softmax((8, 4096), "float32") == plan(4096, rows=8)


def test_plan_of_this_gpu(gpu):
    """A live device and, where it is a named one, its name give the same plan."""
    live = jk.plan_softmax((1 << 20, 5000), "bfloat16", device=gpu)
    for name in DEVICES:
        if name in gpu.device_kind.lower().replace(" ", ""):
            assert live == plan(5000, "bfloat16", rows=1 << 20, device=name)
