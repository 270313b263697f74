"""The launch plans as values: how they compare and print, and for which shapes and devices they are made."""

import cases
import pytest
from row_plans import DEVICES, plan, with_sms

import jaxkernels as jk


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
