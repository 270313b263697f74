"""The launch plans as values: how they compare and print, and for which shapes and devices they are made."""

import cases
import pytest
from row_plans import DEVICE_FIELDS, DEVICES, plan, with_sms

import jaxkernels as jk
from jaxkernels import _cpu


@pytest.mark.smoke
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


def test_limits_of_a_device_without_processors():
    with pytest.raises(ValueError, match="sm_count must be at least 1"):
        with_sms(0)


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
