"""How plans hand out few rows, batches and turns of rows; their number changes no sum. Without a GPU."""

import functools

import cases
import oracle
import pytest
from row_plans import DEVICES, interesting_cols, plan

import jaxkernels as jk
from jaxkernels import _cpu


@pytest.mark.parametrize("operation", ["softmax_fwd", "softmax_grad", "masked_softmax_fwd"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_what_sums_a_row_depends_on_cols_not_on_rows(dtype, operation):
    """A row gives the same bits for any number of rows. With few rows, a block has twice the threads, because with
    many rows each thread has two accumulators."""

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


@pytest.mark.parametrize("operation", ["masked_softmax_fwd", "logsumexp_fwd"])
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
    def goes_by_turns(p):
        return not p.halves and p.workers == 32 * 132 * p.blocks_per_sm // p.cluster_blocks

    for key, expected in (BATCHED | BATCHED_WHERE_FEW).items():
        plan_of = functools.partial(plan, *key[:3], tier=key[3])
        most = 10_000 if key in BATCHED else 31 * expected[2]
        for rows in (200, most):  # more than have a layout of their own
            p = plan_of(rows=rows)
            assert p.halves, (key, rows)
            assert (p.cluster_blocks, p.blocks_per_sm, p.workers) == expected, (key, rows)
        assert key in BATCHED or goes_by_turns(plan_of(rows=most + 1)), key
    for cols, dtype, operation, tier in BY_TURNS:
        for rows in (200, 10_000):
            assert goes_by_turns(plan(cols, dtype, operation, tier=tier, rows=rows)), (cols, rows)


@pytest.mark.parametrize("sm_count", [1, 2, 17, 132])
@pytest.mark.parametrize(
    ("cols", "dtype", "operation", "tier"), [*BATCHED, *BATCHED_WHERE_FEW, *BY_TURNS]
)
def test_every_row_has_one_worker(cols, dtype, operation, tier, sm_count):
    """Every worker has a row, too. With `halves` each batch takes half of the rows left, rounded up."""

    def plan_of(rows):
        limits = cases.limits(sm_count=sm_count)
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


def test_plans_and_devices_without_workers():
    with pytest.raises(IndexError, match="no worker"):
        plan(1024).rows_of(0, 4096)
    with pytest.raises(ValueError, match="sm_count must be at least 1"):
        cases.limits(sm_count=0)


@pytest.mark.smoke
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


@pytest.mark.parametrize(
    ("dtype", "cols", "blocks", "blocks_per_sm", "halves"),
    [
        ("bfloat16", 32000, 1, 3, False),
        ("bfloat16", 50257, 2, 4, False),
        ("bfloat16", 128256, 4, 3, True),
        ("bfloat16", 262144, 8, 3, True),
        ("float32", 32000, 2, 3, False),
        ("float32", 50257, 2, 2, True),
        ("float32", 128256, 8, 3, True),
        ("float32", 262144, 16, 3, True),
    ],
)
def test_blocks_of_a_row_of_losses(dtype, cols, blocks, blocks_per_sm, halves):
    """Those that were measured, whatever the number of rows: the bits of a row depend on them."""
    plan_of = functools.partial(plan, cols, dtype, "cross_entropy_fwd_grad")
    p = plan_of(rows=2**30 // cols)
    assert (p.cluster_blocks, p.blocks_per_sm, p.halves) == (blocks, blocks_per_sm, halves)
    assert {plan_of(rows=rows).cluster_blocks for rows in (1, 8, 64, 1000)} == {blocks}


@pytest.mark.parametrize("operation", ["cross_entropy_fwd", "logsumexp_fwd"])
def test_few_rows_have_a_warp_for_each_leaf(operation):
    """While all blocks run at once; the leaves are those of many rows."""
    leaves = 126  # of 256 packs each
    for rows in (1, 8):
        p = plan(128256, "float32", operation, rows=rows)
        assert (p.cluster_blocks, p.block_threads, p.leaf_turns) == (8, 16 * 32, 1)
        assert p.block_threads // 32 * p.cluster_blocks >= leaves
    p = plan(128256, "float32", operation, rows=64)
    assert (p.cluster_blocks, p.block_threads, p.leaf_turns) == (4, 8 * 32, 1)
    p = plan(128256, "bfloat16", operation, rows=1)
    assert (p.cluster_blocks, p.block_threads, p.leaf_turns) == (8, 8 * 32, 1)
