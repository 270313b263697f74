"""The inputs of products, and the contenders and tiers that are measured."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensor_families

import jaxkernels as jk
from jaxkernels.bench import (
    programs,
    rows,
    sgemm,
    timing,
)
from jaxkernels.bench.families import FAMILIES, MEASURED


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


# A property of the operand a (96, 64) of each measured family, which normal numbers lack.
PROMISES = {
    "softmax": lambda a: np.allclose(a.sum(1), 1) and a.min() > 0,
    "p_minus_y": lambda a: np.allclose(a.sum(1), 0, atol=1e-6) and ((a < 0).sum(1) == 1).all(),
    "gelu": lambda a: -0.2 < a.min() < 0,
    "relu": lambda a: a.min() == 0 < (a == 0).mean() < 0.7,
    "outliers": lambda a: 0 < (abs(a) > 1e3).mean() < 0.01,
    "wide": lambda a: abs(np.log(abs(a)).std() - 4) < 0.4 and 0.4 < (a < 0).mean() < 0.6,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_operands_of_a_family(name):
    """On the device, where they are measured, and on the host, for tests of sgemm."""
    n = 64 if name.endswith("permutation") else 80
    case = {**sgemm.product("families", 1, 96, n, 64), "family": name}
    (a, b), (other, others) = sgemm.operands(case, 2)
    assert not (a == other).all()
    assert not (b == others).all()
    for left, right in ((a, b), tensor_families.operands(name, 96, 80, 64)):
        assert (left.shape, right.shape) == ((96, 64), (64, n))
        assert left.dtype == right.dtype == jnp.float32
        of_family = PROMISES.get(name, lambda x: np.isfinite(x).all())
        assert of_family(np.asarray(left, np.float64))
    assert {*MEASURED} == {*PROMISES}


def drawing_numbers(patch):
    """`sgemm.draw` as on a GPU, where an operand is its number."""
    cache = timing.last_level_cache_bytes("gpu")
    patch.setattr(programs, "last_level_cache_bytes", lambda _: cache)
    patch.setattr(sgemm, "operands", lambda case, count, *_: [(i, -1) for i in range(count)])


def test_inputs_of_products_do_not_stay_in_the_cache(gpu, monkeypatch):
    """Data of twice the largest L2 lies between two uses of an input."""
    drawing_numbers(monkeypatch)
    for case in sgemm.GPU_PRODUCTS:
        count = sgemm.products_per_call(case, "gpu")
        calls = sgemm.draw(case, count)
        if sgemm.is_chain(case):  # the first b, and every a once
            (call,) = calls
            assert len(set(call[1:])) == len(call) - 1 == count
            assert count * 4 * case["m"] * case["k"] >= 2 * 126 * 2**20
            continue
        inputs = [pair for call in calls for pair in call]
        assert {len(call) for call in calls} == {count}
        assert len(set(inputs)) == len(inputs)
        assert len(inputs) * sgemm.touched_bytes(case) >= 2 * 126 * 2**20


def test_inputs_of_short_products_are_used_again(gpu, monkeypatch):
    """A short product's time is not that of telling a GPU of other inputs."""
    drawing_numbers(monkeypatch)
    monkeypatch.setattr(sgemm, "rotations", lambda _: 3)
    short, long = (sgemm.product("drawn", 1, 100, 100, k) for k in (2**8, 2**16))
    assert [len(sgemm.draw(case, 5)) for case in (short, long)] == [1, 3]


def test_cells_of_a_gpu_reach_every_tier():
    def tier(c):
        operation = f"{c['operation']}_{c['direction']}"
        shape = c["rows"], c["cols"]
        return jk.plan_softmax(shape, c["dtype"], operation=operation, device="h200").tier

    found = {str(tier(c)) for group, c in rows.SUITES[0].watched("gpu") if group == "rows"}
    assert {"warp", "block", "block_smem", "cluster"} <= found


def test_names_of_contenders():
    """Every rung at one size; of peers XLA's other ways; the planned rung and FFMA elsewhere."""
    of_group = {"ladder": sgemm.LADDER, "peers": ("auto", *sgemm.PEERS)}
    for case in sgemm.GPU_PRODUCTS:
        found = sgemm.names(case, argparse.Namespace(algorithms=None))
        assert found == ("xla", *of_group.get(case["group"], ("auto", "pipelined")))
    assert {case["group"] for case in sgemm.GPU_PRODUCTS} == {*sgemm.GROUPS} - {"drawn"}
