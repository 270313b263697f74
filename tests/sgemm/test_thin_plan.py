"""Plans of the rung `thin`, on machines without a GPU."""

import gemm_cases
import hypothesis
import hypothesis.strategies as st
import pytest
from cases import limits
from product_plans import DEVICES, flags, thin_sizes

import jaxkernels as jk

# Columns of a block and sums of a thread, of kSmallKTiles.
SHALLOW_TILES = ((64, 64), (64, 32), (128, 32), (64, 16), (32, 32), (16, 16), (8, 16), (4, 8))


def plan_of(m, n, k, device="h200", **options):
    return jk.plan_sgemm(m, n, k, algorithm="thin", device=device, **options)


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(
    sizes=thin_sizes(), batch=st.integers(1, 9), device=st.sampled_from(DEVICES), **flags
)
def test_blocks_cover_the_problem_and_fit_the_device(sizes, batch, device, trans_a, trans_b):
    m, n, k = sizes
    plan = plan_of(m, n, k, device, batch=batch, trans_a=trans_a, trans_b=trans_b)
    long_side_is_k_major = not trans_a if m >= n else trans_b
    if min(m, n) > 4 and k > 128 and long_side_is_k_major:
        assert plan.algorithm == "pipelined"
        return
    assert plan.algorithm == "thin"
    assert 0 <= plan.tiles_m * plan.block_m - m < plan.block_m
    assert 0 <= plan.tiles_n * plan.block_n - n < plan.block_n
    blocks = plan.tiles_m * plan.tiles_n * plan.cluster_blocks * plan.split_k
    assert plan.grid_blocks == blocks * batch
    assert plan.block_threads * plan.thread_m * plan.thread_n == (
        plan.block_m * plan.block_n * plan.slices
    )
    assert plan.split_k * plan.k_per_split >= k
    assert (plan.split_k - 1) * plan.k_per_split < k  # none is empty
    assert plan.partial_elements == (m * n * plan.split_k * batch if plan.split_k > 1 else 0)
    assert (plan.reduce_pack > 0) == (plan.split_k > 1)
    gpu = limits(device)
    assert plan.cluster_blocks <= gpu.cluster_blocks
    assert plan.cluster_blocks.bit_count() == 1
    assert plan.k_per_split % (4 * plan.cluster_blocks) == 0 or plan.thin == "shallow"  # packs
    if plan.thin != "shallow":
        assert plan.smem_bytes <= 48 * 1024  # what a launch may have without asking for it
    assert plan.smem_bytes <= gpu.smem_per_block
    assert plan.blocks_per_sm >= 1
    assert (plan.pad_a, plan.pad_b) == (0, 0)


@pytest.mark.parametrize("kind", gemm_cases.EDGES_OF_THIN)
def test_the_value_tests_reach_all_kernels(kind):
    """The shapes of test_sgemm.py and the sanitizer's sweep."""
    kernels, shallow = set(), set()
    for batch, m, n, k in gemm_cases.EDGES_OF_THIN[kind]:
        for trans_a, trans_b in gemm_cases.TRANSPOSES:
            plan = plan_of(m, n, k, batch=batch, trans_a=trans_a, trans_b=trans_b)
            many_is_across = trans_a if plan.many_is_a else not trans_b
            lines = plan.block_n if plan.many_is_a else plan.block_m
            if plan.algorithm == "pipelined":  # K-major lines by more than four
                assert kind == "lines"
            elif plan.thin == "shallow":
                key = (lines, plan.thread_m * plan.thread_n, many_is_across)
                shallow.add((*key, plan.pack_c))
            else:
                kernels.add((plan.thin, lines, max(plan.pack_a, plan.pack_b)))
    if kind == "lines":
        forms = ("along_k", 1), ("along_k", 4), ("across_k", 1), ("across_k", 4), ("across_k", 8)
        assert kernels == {(*form, pack) for form in forms for pack in (1, 4)}
    else:
        assert not kernels
        assert {key[:3] for key in shallow} == {
            (*tile, across) for tile in SHALLOW_TILES for across in (False, True)
        }
        assert {key[3] for key in shallow} == {1, 4}


def test_forms():
    def form(*sizes, **options):
        plan = plan_of(*sizes, **options)
        return plan.thin, plan.many_is_a

    assert form(4096, 1, 4096) == ("along_k", True)
    assert form(4096, 4, 4096, trans_a=True) == ("across_k", True)
    assert form(1, 4096, 4096) == ("across_k", False)
    assert form(4, 4096, 4096, trans_b=True) == ("along_k", False)
    assert form(4096, 4096, 64) == form(1, 1, 16) == ("shallow", True)
    assert form(4096, 16, 128) == form(5, 4096, 128) == ("shallow", True)
    assert form(4096, 1, 65) == ("along_k", True)
    assert form(1, 4096, 65, trans_b=True) == ("along_k", False)
    assert form(4096, 4, 64) == form(4096, 4, 64, trans_a=True) == ("shallow", True)
    assert form(4096, 4, 65, trans_a=True) == ("across_k", True)
    assert form(4096, 8, 129, trans_a=True) == ("across_k", True)
    assert form(5, 4096, 129) == ("across_k", False)
    assert form(4, 4096, 64) == form(4, 4096, 64, trans_b=True) == ("shallow", True)
    # C is one row: the product of the transposes.
    assert form(1, 4096, 16) == form(1, 4096, 64, trans_b=True) == ("shallow", False)


def test_it_gives_way_where_it_cannot_serve():
    for sizes in ((17, 17, 64), (16, 4096, 128), (8, 4096, 129)):
        assert plan_of(*sizes).algorithm == "thin"
    for sizes in ((17, 17, 65), (16, 4096, 129), (9, 4096, 129), (4096, 5, 129)):
        assert plan_of(*sizes).algorithm == "pipelined"
    for empty in ((0, 64, 64), (64, 0, 100), (5, 5, 0)):
        plan = plan_of(*empty)
        assert (plan.algorithm, plan.grid_blocks > 0) == ("thin", min(empty[:2]) > 0)


def test_clusters_share_k_before_a_second_kernel_does():
    """With too few lines for all SMs, clusters split k; without clusters a second kernel adds the parts."""
    for trans_a in (False, True):
        plan = plan_of(1024, 1, 8192, trans_a=trans_a)
        assert plan.cluster_blocks > 1
        assert plan.split_k == 1
        assert 2 * plan.grid_blocks >= 132
        old = plan_of(1024, 1, 8192, device="a100", trans_a=trans_a)
        assert (old.cluster_blocks, old.split_k > 1) == (1, True)
    assert plan_of(65536, 1, 4096).cluster_blocks == 1
    assert plan_of(4, 4, 65536).split_k > 1


def test_sums_of_a_thread_are_short():
    """Rounding errors grow with the number of terms."""
    for trans_a in (False, True):
        plan = plan_of(2**20, 1, 2**18, trans_a=trans_a)
        assert plan.k_per_split <= 1024 * plan.slices * plan.cluster_blocks


def test_threads_move_packs_where_rows_begin_at_16_bytes():
    def packs(*sizes, **options):
        plan = plan_of(*sizes, **options)
        return plan.pack_a, plan.pack_b, plan.pack_c

    assert packs(4096, 1, 4096) == (4, 1, 1)
    assert packs(4096, 1, 4096, aligned_b=False) == (1, 1, 1)  # read as A is
    assert packs(4096, 2, 4096, aligned_b=False) == (4, 1, 1)
    assert packs(4096, 1, 4095) == (1, 1, 1)
    assert packs(4095, 1, 4096) == (4, 1, 1)
    assert packs(4095, 1, 4096, trans_a=True) == (1, 1, 1)
    assert packs(4, 4096, 4096) == (1, 4, 1)
    assert packs(4, 4096, 4096, aligned_b=False) == (1, 1, 1)
    assert packs(4096, 4096, 8) == (4, 4, 4)
    assert packs(4096, 4095, 8) == (4, 1, 1)
    assert packs(4096, 4096, 8, aligned_c=False) == (4, 4, 1)
    assert packs(4096, 4096, 7) == (1, 4, 4)
    assert packs(4096, 1, 8) == (4, 1, 1)
    assert packs(1, 4096, 8) == (4, 4, 1)  # C is a column of 4096


def test_few_k_are_stored_in_packs_where_these_write_whole_lines():
    """A thread of 8 columns stores four of them before the others."""

    def tile(*sizes, **options):
        plan = plan_of(*sizes, **options)
        return plan.block_n, plan.thread_n, plan.pack_c

    assert tile(65536, 64, 64) == tile(65536, 192, 64) == (64, 8, 4)
    assert tile(53607, 140, 34) == tile(65536, 60, 64) == tile(53608, 300, 16) == (64, 8, 1)
    assert tile(65536, 32, 64) == tile(65536, 32, 64, trans_a=True) == (32, 8, 1)
    assert tile(65536, 16, 16) == (16, 4, 4)  # a thread stores all that it has of a row
    assert tile(4096, 4096, 8) == (128, 8, 4)
    assert tile(4096, 4100, 8) == (128, 8, 1)
    assert tile(53608, 72, 34) == (128, 8, 4)  # one tile has a whole row


def test_tiles_of_32_columns_for_somewhat_more_than_multiples_of_64():
    """By times, see kSmallKTiles in ffi/sgemm/tiles.h."""

    def columns(*sizes, **options):
        return plan_of(*sizes, **options).block_n

    assert {columns(53608, n, 64) for n in (65, 72, 96, 129, 160)} == {32}
    assert {columns(53608, n, 64, trans_a=True) for n in (65, 72, 96)} == {32}
    assert {columns(53608, n, 64) for n in (48, 64, 100, 128, 192)} == {64}
    assert columns(53608, 160, 64, trans_a=True) == 64
