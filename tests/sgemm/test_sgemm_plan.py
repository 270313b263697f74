"""Plans of matrix products, on machines without a GPU: what they have to fulfil for any problem."""

import gemm_cases
import hypothesis
import hypothesis.strategies as st
import pytest
from cases import limits
from product_plans import DEVICES, flags, problems

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._core import devices, registry

sizes = st.one_of(st.integers(0, 300), st.integers(1, 70000), st.sampled_from([64, 128, 4096]))
# `thin` and `tensor` have tests of their own, in test_thin_plan.py and test_tensor_plan.py.
RUNGS = tuple(rung for rung in gemm_cases.RUNGS if rung not in ("thin", "tensor"))
rungs = st.sampled_from((None, *RUNGS))


def same(plan, other, *fields):
    for field in fields:
        assert getattr(plan, field) == getattr(other, field), field


def plan_ffma(*sizes, algorithm=None, **options):
    """As the plan is where neither `thin` nor `tensor` is chosen."""
    return jk.plan_sgemm(*sizes, algorithm=algorithm or "pipelined", **options)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    sizes=st.tuples(sizes, sizes, sizes), device=st.sampled_from(DEVICES), rung=rungs, **flags
)
def test_blocks_cover_the_problem_and_fit_the_device(sizes, device, rung, **options):
    m, n, k = sizes
    plan = plan_ffma(*sizes, algorithm=rung, device=device, **options)
    assert plan.algorithm == (rung or "pipelined")
    assert 0 <= plan.tiles_m * plan.block_m - m < plan.block_m
    assert 0 <= plan.tiles_n * plan.block_n - n < plan.block_n
    assert min(plan.split_k, plan.launches) == min(k, 1)  # no k is no launch, but of the reduction
    assert (plan.reduce_pack > 0) == (plan.split_k > 1 or k == 0)
    parts = plan.split_k * plan.launches
    assert parts * plan.k_per_split >= k
    assert (parts - 1) * plan.k_per_split < max(k, 1)  # none is empty
    assert plan.grid_blocks == plan.tiles_m * plan.tiles_n * plan.split_k
    assert plan.partial_elements == (m * n * plan.split_k if plan.split_k > 1 else 0)
    if parts > 1:
        assert plan.k_per_split % plan.block_k == 0
    gpu = limits(device)
    assert plan.smem_bytes <= gpu.smem_per_block
    assert plan.blocks_per_sm >= 1
    assert plan.blocks_per_sm * plan.smem_bytes <= gpu.smem_per_sm
    assert plan.blocks_per_sm * plan.block_threads <= gpu.threads_per_sm
    assert plan.block_threads * plan.thread_m * plan.thread_n == (
        plan.block_m * plan.block_n * plan.slices
    )


chosen = {"algorithm": st.sampled_from((None, "pipelined", "thin", "tensor")), **flags}


@hypothesis.settings(max_examples=600, deadline=None)
@hypothesis.given(
    sizes=problems, batch=st.integers(2, 2000), device=st.sampled_from(DEVICES), **chosen
)
@hypothesis.example(
    sizes=(68, 576, 184),
    batch=27,
    device="rtx5090",
    algorithm="pipelined",
    trans_a=False,
    trans_b=False,
)  # of the sliced tiles only the smallest has the accelerator there
def test_order_of_summation_does_not_depend_on_the_batch(sizes, batch, **options):
    """A member of a batch gets the bits that it has alone, on its rung or on another one."""
    m, n, k = sizes
    hypothesis.assume(m * n * batch < 2**36)
    alone, together = (jk.plan_sgemm(*sizes, batch=b, **options) for b in ((), batch))
    if alone.algorithm == together.algorithm:
        order = ("split_k", "k_per_split", "launches", "slices", "cluster_blocks", "compensated")
        same(alone, together, *order, "thin")
        if alone.slices > 1 and alone.algorithm == "pipelined":  # which share a stage of block_k
            assert alone.block_k == together.block_k
    elif 4.4 * batch * (m + 128 + n + 128) * (k + 64) < 2**32:  # the scratch of `tensor`
        # Up to 64 k both sum in the order of k, one term after the other.
        assert {alone.algorithm, together.algorithm} == {"thin", "pipelined"}
        for plan in (alone, together):
            assert plan.thin == "shallow" or plan.algorithm == "pipelined"
            assert (plan.slices, plan.split_k, plan.launches) == (1, 1, 1)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(sizes=problems, **chosen)
def test_where_operands_begin_changes_no_rung_and_no_split(sizes, **options):
    """It is known when a program runs, and by then there is no scratch but what was asked for."""
    plan, shifted = (
        jk.plan_sgemm(*sizes, device="h200", **options, aligned_a=x, aligned_b=x, aligned_c=x)
        for x in (True, False)
    )
    same(plan, shifted, "algorithm", "split_k", "launches", "slices", "cluster_blocks")
    same(plan, shifted, "k_per_split", "partial_elements", "pad_a", "pad_b")


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(sizes=problems, **chosen)
def test_a_program_keeps_its_split(sizes, algorithm, trans_a, trans_b):
    """A call is given the split of the plan it was lowered by, and gets that plan again from it."""
    m, n, k = sizes
    options = {"trans_a": trans_a, "trans_b": trans_b, "algorithm": algorithm, "device": "h200"}
    plan = jk.plan_sgemm(*sizes, **options)
    shapes = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
    again = registry.cpu_module.plan_sgemm(
        *(*shapes, trans_a, trans_b, limits("h200"), plan.algorithm), split_k=plan.split_k
    )
    assert again == plan


def test_every_tile_has_value_tests():
    """The table of ffi/sgemm/tiles.h, by both engines."""
    tiles = registry.cpu_module.sgemm_tiles()
    assert len(set(tiles)) == len(tiles)
    both = {(*tile, engine) for tile in tiles for engine in ("tma", "floats")}
    assert both == set(gemm_cases.EDGES_OF_TILES)


@pytest.mark.parametrize(
    ("tile", "shapes"), gemm_cases.EDGES_OF_TILES.items(), ids=gemm_cases.EDGE_IDS
)
@pytest.mark.parametrize(("trans_a", "trans_b"), gemm_cases.TRANSPOSES)
def test_the_value_tests_reach_the_tiles(tile, shapes, trans_a, trans_b):
    """The shapes of test_sgemm.py and the sanitizer's sweep end within the tile that they are named after."""
    for batch, m, n, k in shapes:
        plan = plan_ffma(m, n, k, batch=batch, trans_a=trans_a, trans_b=trans_b, device="h200")
        assert (plan.block_m, plan.block_n, plan.slices, plan.engine) == tile
        assert tile[:3] == registry.cpu_module.sgemm_tiles()[plan.tile]
        assert plan.stages * plan.block_k < k or plan.block_m == 128  # a stage is filled twice
        assert m % plan.block_m
        assert n % plan.block_n
        assert k % plan.block_k


def engine(m, n, k, device="h200", **options):
    return plan_ffma(m, n, k, device=device, **options).engine


def test_tma_needs_hopper_and_aligned_lines():
    large = (4096, 4096, 4096)
    assert engine(*large) == engine(*large, "b200") == "tma"
    assert engine(*large, "a100") == "floats"
    assert engine(*large, "rtx5090") == "floats"  # two blocks with their stages do not fit an SM
    assert engine(4095, 4096, 4096) == "tma"  # rows of A may end anywhere
    # Too small for padding:
    assert engine(256, 256, 256) == engine(255, 256, 256) == "tma"
    assert engine(256, 256, 254) == engine(256, 255, 256) == "floats"
    assert engine(255, 256, 256, trans_a=True) == "floats"
    for size in ((256, 256, 256), (64, 4096, 4096), (2047, 2047, 2047)):
        assert engine(*size, aligned_c=False) == "tma"
        assert engine(*size, aligned_a=False) == engine(*size, aligned_b=False) == "floats"


def test_tma_needs_code_that_was_compiled_for_it():
    """Code for an older GPU runs on a Hopper, and has no use for padding there."""
    h200, old = registry.cpu_module.named_devices()["h200"], limits(compiled_for=80)
    assert limits() == h200
    assert old != h200
    for size, pad in ((4096, 0), (2047, 1)):
        shapes = (size, size), (size, size), False, False
        plans = [registry.cpu_module.plan_sgemm(*shapes, gpu, "pipelined") for gpu in (h200, old)]
        assert [plan.engine for plan in plans] == ["tma", "floats"]
        assert [plan.pad_a for plan in plans] == [pad, 0]


def test_plans_know_the_bandwidth_of_the_memory():
    """Splitting operands moves more bytes than FFMA does, and pays where the memory is fast."""
    a, b = (36, 365, 13932), (36, 83, 365)
    for device, rates, rung in (
        ("h200", {}, "tensor"),
        ("h100", {}, "pipelined"),
        ("h200", {"memory_gb_per_s": 3352}, "pipelined"),
        ("h200", {"memory_gb_per_s": 3352, "clock_mhz": 1350}, "tensor"),
    ):
        gpu = limits(device, **rates)
        plan = registry.cpu_module.plan_sgemm(a, b, True, True, gpu)
        assert plan.algorithm == rung, rates
    with pytest.raises(ValueError, match="clock_mhz must be at least 1"):
        limits(clock_mhz=0)


def test_plan_of_this_gpu(gpu):
    """A live device knows its code, and gives the plan of its name."""
    live = devices.limits_of(gpu)
    assert 80 <= live.compiled_for <= live.compute_capability
    plan = plan_ffma(2047, 2048, 2049, device=gpu)
    kind = gpu.device_kind.lower().split()
    for name in DEVICES:
        if name in kind:
            assert live.compiled_for == limits(name).compute_capability
            assert live.has_wgmma == limits(name).has_wgmma
            for rate in ("memory_gb_per_s", "clock_mhz"):  # PCIe cards have lower ones
                assert 0.5 < getattr(live, rate) / getattr(limits(name), rate) < 1.1
            for rung in (None, "tensor"):
                of_gpu = jk.plan_sgemm(2048, 2048, 2048, algorithm=rung, device=gpu)
                assert of_gpu == jk.plan_sgemm(2048, 2048, 2048, algorithm=rung, device=name)
            assert plan == plan_ffma(2047, 2048, 2049, device=name)


def test_tma_needs_sizes_that_its_maps_hold():
    assert engine(2**31 - 4, 4, 4) == engine(2**31 - 4, 4, 4, trans_a=True) == "tma"
    assert engine(2**31, 4, 4) == engine(2**31, 4, 4, trans_a=True) == "floats"
    assert engine(4, 4, 2**31, trans_b=True) == engine(4, 4, 2**31) == "floats"
    assert engine(2**19, 4, 2**18) == "tma"
    assert engine(2**20, 4, 2**18) == "floats"  # a member of 2^40 bytes


def test_threads_move_packs_where_rows_begin_at_16_bytes():
    def packs(m, n, k, algorithm="warp_tile", **options):
        plan = plan_ffma(m, n, k, algorithm=algorithm, device="h200", **options)
        return plan.pack_a, plan.pack_b, plan.pack_c

    assert packs(63, 64, 64) == (4, 4, 4)
    assert packs(63, 64, 64, trans_a=True) == (1, 4, 4)
    assert packs(64, 63, 64) == (4, 1, 1)
    assert packs(64, 63, 64, trans_b=True) == (4, 4, 1)
    assert packs(64, 64, 63) == (1, 4, 4)
    assert packs(64, 64, 64, aligned_a=False) == (1, 4, 4)
    assert packs(64, 64, 64, aligned_b=False) == (4, 1, 4)
    assert packs(64, 64, 64, aligned_c=False) == (4, 4, 1)
    assert packs(64, 64, 64, "naive") == packs(64, 64, 64, "block_tile") == (1, 1, 1)
    assert packs(64, 64, 64, "pipelined") == packs(64, 64, 62, "pipelined") == (1, 1, 4)
    assert packs(64, 62, 64, "pipelined") == (1, 1, 1)


def test_what_runs_behind_the_launches():
    """The kernel that adds up splits, which also finishes C alone where there is no k."""

    def behind(m, n, k, **options):
        plan = plan_ffma(m, n, k, device="h200", **options)
        assert plan.launches == (1 if k else 0)
        return plan.reduce_pack

    assert behind(1024, 1024, 1024) == 0
    assert behind(64, 64, 8192) == 1  # few elements, for many threads
    assert behind(8192, 128, 8192) == 4
    assert behind(8192, 127, 8192) == 4  # whose rows do not count
    assert behind(8191, 127, 8192) == behind(8192, 128, 8192, aligned_c=False) == 1
    for algorithm in (None, *gemm_cases.RUNGS):
        assert behind(512, 512, 0, algorithm=algorithm) == 4
        assert behind(512, 511, 0, algorithm=algorithm) == 1


def test_rows_are_padded_where_a_copy_costs_less_than_it_saves():
    def padding(m, n, k, device="h200", **options):
        plan = plan_ffma(m, n, k, device=device, **options)
        assert plan.engine == ("floats" if device == "a100" else "tma") or not any(
            (plan.pad_a, plan.pad_b)
        )
        return plan.pad_a, plan.pad_b

    assert padding(4096, 4096, 4096) == (0, 0)
    assert padding(4097, 4095, 4093) == (3, 1)
    assert padding(4097, 4095, 4093, trans_a=True, trans_b=True) == (3, 3)
    assert padding(4097, 4095, 4093, device="a100") == (0, 0)
    assert padding(8192, 50257, 768) == (0, 3)
    assert padding(64, 50257, 768) == (0, 0)  # the copy would take longer than the product
    assert padding(257, 257, 257) == (0, 0)
    assert padding(4097, 4095, 4093, algorithm="warp_tile") == (0, 0)
    assert padding(768, 50257, 8192) == (0, 3)  # 1.6 GB
    assert padding(65536, 768, 50257) == (0, 0)  # 13 GB


@pytest.mark.parametrize("shape", gemm_cases.PADDED)
@pytest.mark.parametrize(("trans_a", "trans_b"), gemm_cases.TRANSPOSES)
def test_the_value_tests_reach_padding(shape, trans_a, trans_b):
    batch, m, n, k = shape
    plan = plan_ffma(m, n, k, batch=batch, trans_a=trans_a, trans_b=trans_b, device="h200")
    rows = (m if trans_a else k), (k if trans_b else n)
    assert [plan.pad_a, plan.pad_b] == [-row % 4 for row in rows]
    assert min(plan.pad_a, plan.pad_b) > 0
    assert plan.engine == "tma"
    assert (plan.slices > 1) != (plan.split_k > 1)


def test_splits_where_a_grid_would_be_too_small():
    assert plan_ffma(8192, 8192, 8192, device="h200").split_k == 1
    assert plan_ffma(128, 128, 65536, device="h200").split_k > 16
    assert plan_ffma(8192, 128, 8192, device="h200").split_k > 1
    assert plan_ffma(4096, 4096, 64, device="h200").split_k == 1
    # Trying every split finds these; the finest shares have 64 k.
    found = [
        plan_ffma(128, 128, k, device="h200").split_k for k in (512, 640, 768, 1024, 4096, 65536)
    ]
    assert found == [8, 4, 12, 8, 16, 64]


def test_deep_sums_are_made_in_parts():
    """Rounding errors grow with the number of terms of a sum."""
    assert plan_ffma(4096, 4096, 4096, device="h200").launches == 1
    deep = plan_ffma(8192, 8192, 8192, device="h200")
    assert deep.launches > 1
    assert deep.k_per_split < 4096
    assert deep.partial_elements == 0  # without scratch


def test_where_rungs_pay():
    """By times of an H200: ffi/sgemm/README.md, and plan.cc of `pipelined` and `thin`."""
    thin = [(4096, 1, 4096), (1, 4096, 4096), (4096, 4, 4096), (65536, 64, 16), (4096, 4096, 8)]
    thin += [(65536, 16, 16), (16384, 4, 16384), (8192, 1000, 32), (65536, 64, 64)]
    thin += [(8, 14336, 4096), *((n, n, n) for n in (1, 64))]
    tensor = [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
    tensor += [(4097, 4095, 4093), (8192, 4096, 1024), (50257, 768, 1024)]
    pipelined = [(n, n, n) for n in (256, 512)]
    pipelined += [(64, 64, 4096), (64, 4096, 4096), (4096, 4096, 64), (4096, 4100, 64)]
    pipelined += [(4096, 16, 4096)]
    for rung, some in (("thin", thin), ("tensor", tensor), ("pipelined", pipelined)):
        assert {jk.plan_sgemm(*x, device="h200").algorithm for x in some} == {rung}
    for size in (thin[0], (4096, 4096, 4096)):
        plan = jk.plan_sgemm(*size, device="h200", algorithm="pipelined")
        assert plan.algorithm == "pipelined"
    assert jk.plan_sgemm(4096, 4096, 4096, device="a100").algorithm == "pipelined"
    assert jk.plan_sgemm(13, 3025, 97, batch=53, device="h200").algorithm == "pipelined"


def test_a_rung_that_does_not_split_k():
    with pytest.raises(ValueError, match="does not split k"):
        registry.cpu_module.plan_sgemm((2, 3), (3, 4), False, False, limits("h200"), "naive", 2)


def test_second_blocks_start_late_where_short_sums_are_stored_often():
    """Not where there is one wave only, sums are long, or a block does not share its SM with one like it."""

    def stagger(m, n, k, batch=1):
        return plan_ffma(m, n, k, batch=batch, device="h200").stagger_cycles

    assert stagger(4096, 4096, 64) == 6000
    assert stagger(512, 512, 64, batch=64) == 6000
    assert stagger(1024, 1024, 64) == 0
    assert stagger(4096, 4096, 4096) == 0
    assert stagger(256, 256, 256) == 0


def test_plans_for_a_batch():
    """Members that would be split alone are not, where there are enough of them; alone nothing changes."""
    limits = _cpu.named_devices()["h200"]

    def plan(batch, *, for_batch):
        shapes = (batch, 2048, 2048), (batch, 2048, 64)
        return _cpu.plan_sgemm(*shapes, False, False, limits, for_batch=for_batch)

    assert plan(64, for_batch=False).split_k == plan(1, for_batch=False).split_k > 1
    assert plan(64, for_batch=True).split_k == 1
    assert plan(1, for_batch=True) == plan(1, for_batch=False)
