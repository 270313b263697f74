"""Plans of the rung `tensor`, on machines without a GPU."""

import hypothesis
import hypothesis.strategies as st
import pytest
from cases import limits
from product_plans import flags

import jaxkernels as jk
from jaxkernels._core import registry

sizes = st.one_of(st.integers(1, 300), st.integers(1, 20000), st.sampled_from([64, 128, 4096]))


def plan_of(m, n, k, device="h200", **options):
    return jk.plan_sgemm(m, n, k, algorithm="tensor", device=device, **options)


def plan_of_shapes(a, b, rung="tensor", gpu=None, **options):
    gpu = gpu or limits()
    return registry.cpu_module.plan_sgemm(a, b, False, False, gpu, rung, **options)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(m=sizes, n=sizes, k=sizes, batch=st.integers(1, 9), **flags)
def test_the_plan_covers_the_problem(m, n, k, batch, trans_a, trans_b):
    # The operands of all members, once more, are well within the bound of scratch, 4 GiB.
    hypothesis.assume(4.4 * batch * (m + 128 + n + 128) * (k + 64) < 2**32)
    plan = plan_of(m, n, k, batch=batch, trans_a=trans_a, trans_b=trans_b)
    if k < 32:
        assert plan.algorithm == "pipelined"
        return
    assert plan.algorithm == "tensor"
    assert 0 <= plan.tiles_m * plan.block_m - m < plan.block_m
    assert 0 <= plan.tiles_n * plan.block_n - n < plan.block_n
    assert (plan.launches, plan.reduce_pack, plan.groups) == (1, 0, 1)
    assert (plan.split_k - 1) * plan.k_per_split < k <= plan.split_k * plan.k_per_split
    parts = plan.tiles_m * plan.tiles_n * plan.split_k
    if plan.split_k > 1:
        # All of a member's run at once, and have several steps.
        assert parts <= 132
        assert plan.k_per_split % plan.block_k == 0
        assert plan.k_per_split >= 4 * plan.block_k
    # A block takes one tile, or part of one, after the other.
    assert plan.grid_blocks == min(132, parts * batch)
    # One of three warpgroups copies.
    multiplying = plan.block_threads - 128
    assert multiplying * plan.thread_m * plan.thread_n == plan.block_m * plan.block_n
    assert (plan.pad_a, plan.pad_b) == (0, 0)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(m=sizes, n=sizes, k=st.integers(32, 5000), batch=st.integers(1, 9), **flags)
def test_the_scratch_holds_split_operands_and_little_more(m, n, k, batch, trans_a, trans_b):
    plan = plan_of(m, n, k, batch=batch, trans_a=trans_a, trans_b=trans_b)
    steps = -(-k // 64)
    lines = batch * (-(-m // 128) + -(-n // 128)) * 128
    packed = lines * steps * 64  # float32 elements: a pair takes four bytes
    tiles = batch * -(-m // 128) * -(-n // 128)
    parts = tiles * plan.split_k * 128 * 128 if plan.split_k > 1 else 0
    hypothesis.assume(4 * (packed + parts + 8 * lines + 600 * tiles) < 2**32)  # else by groups
    assert 0 <= plan.partial_elements - packed - parts <= 8 * lines + 600 * tiles + 8192


def test_a_shared_operand_is_split_once():
    shared, own = (plan_of_shapes((8, 4096, 512), (members, 512, 512)) for members in (1, 8))
    assert own.partial_elements - shared.partial_elements >= 7 * 512 * 512


def test_it_needs_hopper_and_code_for_it():
    """Code for "sm_90", which CMake's "native" would give, has no such products."""
    assert plan_of(4096, 4096, 4096).algorithm == "tensor"
    assert plan_of(4096, 4096, 4096, device="h100").algorithm == "tensor"
    for device in ("a100", "rtx4090", "b200", "rtx5090"):
        assert plan_of(4096, 4096, 4096, device=device).algorithm == "pipelined"
    for has_wgmma, rung in ((True, "tensor"), (False, "pipelined")):
        gpu = limits(has_wgmma=has_wgmma)
        assert gpu.has_wgmma == has_wgmma
        assert plan_of_shapes((4096, 4096), (4096, 4096), gpu=gpu).algorithm == rung


def test_it_gives_way_where_it_cannot_serve():
    assert plan_of(4096, 4096, 32).algorithm == "tensor"
    assert plan_of(4096, 4096, 31).algorithm == "pipelined"  # the bound of float32 is k eps
    assert plan_of(128, 128, 65536).algorithm == "tensor"
    assert plan_of(128, 128, 65537).algorithm == "pipelined"  # too many parts, added one by one
    for empty in ((0, 64, 64), (64, 0, 64), (64, 64, 0)):
        assert plan_of(*empty).algorithm == "pipelined"
    # Operands of more than 8 GiB are not kept twice, of more than 4 GiB not without being asked.
    assert jk.plan_sgemm(16384, 32000, 16384, device="h200").algorithm == "tensor"
    assert jk.plan_sgemm(32768, 32000, 32768, device="h200").algorithm == "pipelined"
    assert plan_of(32768, 30000, 32768).algorithm == "tensor"
    assert plan_of(40000, 32768, 32768).algorithm == "pipelined"


def test_which_sums_are_compensated():
    """Deep ones of so few tiles that other kernels split k; repairs by FFMA are split then, by launches."""
    assert plan_of(1100, 1100, 4096).compensated
    assert plan_of(1100, 1100, 1025).compensated
    assert not plan_of(1100, 1100, 1024).compensated
    assert plan_of(128 * 12, 128 * 11, 2048).compensated  # a tile for each of 132 SMs
    assert not plan_of(128 * 12 + 1, 128 * 11, 2048).compensated
    assert not plan_of(4096, 4096, 4096).compensated
    alone, together = plan_of(1100, 1100, 2048), plan_of(1100, 1100, 2048, batch=7)
    assert alone.compensated
    assert together.compensated
    # If k is split, the k of one part decides.
    assert (plan_of(300, 260, 4096).split_k > 1, plan_of(300, 260, 4096).compensated) == (1, 0)
    deep = plan_of(300, 260, 60000)
    assert (deep.split_k > 1, deep.k_per_split > 1024, deep.compensated) == (True, True, True)


def test_when_it_looks_whether_all_is_to_be_made_again():
    """It looks after a small part of a large product, which is enough to see more marked tiles than allowed."""
    for n in (4096, 8192, 16384):
        plan = plan_of(n, n, 64)
        assert plan.most_marked_tiles == plan.tiles_m * plan.tiles_n // 32
        assert 2 * plan.most_marked_tiles <= plan.tiles_before_look
        assert plan.tiles_before_look % plan.sm_count == 0
        assert 4 * plan.tiles_before_look <= plan.tiles_m * plan.tiles_n
    small, batch = plan_of(2048, 2048, 64), plan_of(4096, 4096, 64, batch=3)
    assert (small.tiles_before_look, small.most_marked_tiles) == (0, 8)
    assert (batch.tiles_before_look, batch.most_marked_tiles) == (0, 32)


def test_transposes():
    """An operand along k is read once, another one twice."""
    assert jk.plan_sgemm(160, 4096, 1024, device="h200", trans_b=True).algorithm == "tensor"
    assert jk.plan_sgemm(160, 4096, 1024, device="h200", trans_a=True).algorithm == "pipelined"


def test_what_begins_anywhere_is_read_element_by_element():
    plan = plan_of(256, 256, 256)
    assert (plan.pack_a, plan.pack_b, plan.pack_c) == (4, 4, 2)
    shifted = plan_of(256, 256, 256, aligned_a=False, aligned_c=False)
    assert (shifted.pack_a, shifted.pack_b, shifted.pack_c) == (1, 4, 1)
    assert shifted.partial_elements == plan.partial_elements
    assert plan_of(256, 255, 256).pack_c == 1
    assert plan_of(256, 255, 256).pack_b == 1


def test_where_k_is_split():
    """Few tiles and deep k; more of it the fewer tiles there are."""
    for size in ((256, 256, 8192), (308, 722, 14203), (128, 128, 65536), (2404, 158, 21082)):
        assert plan_of(*size).split_k > 1
    for size in ((1024, 1024, 1024), (256, 256, 256), (4096, 4096, 4096), (1500, 1500, 20000)):
        assert plan_of(*size).split_k == 1
    splits = [plan_of(128, n, 16384).split_k for n in (128, 256, 512, 1024, 4096)]
    assert splits == sorted(splits, reverse=True)
    depths = [plan_of(256, 256, k).split_k for k in (256, 1024, 4096, 16384)]
    assert depths == sorted(depths)


def plan_of_one(split_k, gpu=None):
    return plan_of_shapes((1, 300, 5000), (1, 5000, 260), gpu=gpu, split_k=split_k)


def test_a_program_keeps_the_split_that_it_was_lowered_with():
    """And so its scratch, on a GPU of another size; where the rung cannot run it is idle."""
    assert plan_of_one(0).split_k != 5
    assert (plan_of_one(5).split_k, plan_of_one(5).k_per_split) == (5, 1024)
    assert (plan_of_one(1).split_k, plan_of_one(1).k_per_split) == (1, 5000)
    assert plan_of_one(5).partial_elements - plan_of_one(1).partial_elements == 9 * 5 * 128 * 128
    small = limits(sm_count=20)
    assert plan_of_one(0, small).split_k == 2
    assert plan_of_one(5, small).partial_elements == plan_of_one(5).partial_elements
    without = plan_of_one(5, limits(has_wgmma=False))
    assert (without.algorithm, without.split_k, without.partial_elements) == ("pipelined", 1, 0)
    for split_k in (-1, 1025):
        with pytest.raises(ValueError, match="split_k must be between 0 and 1024"):
            plan_of_one(split_k)


def test_a_batch_beyond_the_bound_of_scratch_is_made_in_groups():
    """The outermost dimension is cut into at most 32 groups of up to 4 GiB; the last may be smaller."""
    whole = jk.plan_sgemm(2404, 158, 21082, batch=15, device="h200")
    groups = jk.plan_sgemm(2404, 158, 21082, batch=25, device="h200")
    assert (whole.algorithm, whole.groups) == ("tensor", 1)
    assert (groups.algorithm, groups.groups) == ("tensor", 2)
    assert 4 * groups.partial_elements < 2**32 < 4 * 2 * groups.partial_elements
    assert (groups.split_k, groups.compensated) == (whole.split_k, whole.compensated)
    of_13 = jk.plan_sgemm(2404, 158, 21082, batch=13, device="h200")
    assert groups.partial_elements == of_13.partial_elements
    for batch, count in ((31, 2), (37, 3), (64, 4)):
        plan = jk.plan_sgemm(2404, 158, 21082, batch=batch, device="h200")
        assert (plan.algorithm, plan.groups) == ("tensor", count)
    outer = plan_of_shapes((4, 8, 4096, 8192), (4, 1, 8192, 4096), "auto")
    assert (outer.algorithm, outer.groups) == ("tensor", 2)


def test_members_that_are_rows_of_one_tall_matrix_are_one_group():
    plan = plan_of_shapes((7, 20, 300), (1, 300, 70))
    assert (plan.algorithm, plan.groups, plan.tiles_m) == ("tensor", 1, 2)


def test_members_that_are_large_by_name_stay_so_in_a_batch():
    """One of them has more than 4 GiB of scratch: within the bound of who asks alone."""
    for batch in (1, 2, 32):
        plan = jk.plan_sgemm(16384, 16384, 32768, batch=batch, algorithm="tensor", device="h200")
        assert (plan.algorithm, plan.groups) == ("tensor", batch)
        assert jk.plan_sgemm(16384, 16384, 32768, batch=batch, device="h200").algorithm != "tensor"


def test_an_empty_batch_that_is_planned_as_one():
    plan = plan_of_shapes((0, 1024, 64), (0, 64, 1024), "auto", for_batch=True)
    assert (plan.algorithm, plan.grid_blocks) == ("pipelined", 0)
