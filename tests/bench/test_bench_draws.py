"""Sizes that a seed draws, the inputs of calls, and the cases of `regress`."""

import argparse
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensor_families

import jaxkernels as jk
from jaxkernels.bench import (
    attention,
    losses,
    maps,
    programs,
    regress,
    rows,
    sgemm,
    timing,
)
from jaxkernels.bench.__main__ import OPERATIONS, build_parser
from jaxkernels.bench.families import FAMILIES, MEASURED


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


@pytest.mark.parametrize("seed", range(20))
def test_lengths_of_a_map(seed):
    found = maps.lengths(seed)
    assert found == maps.lengths(seed) == sorted(set(found))
    assert 0 < found[0] <= found[-1] <= 1_000_000
    assert [sum(n <= 128 for n in found), sum(128 < n <= 4096 for n in found)] == [12, 12]
    long = {n for n in found if n > 4096}
    drawn = long - {*maps.VOCABULARIES}
    assert [len(long), len(drawn)] == [16, 12]
    assert [sum(n % 8 == 0 for n in drawn), sum(n % 2 for n in drawn)] == [6, 6]
    assert min(long) < 8192 < 500_000 < max(long)


def test_cells_of_a_map(gpu, monkeypatch):
    """Each length on many rows; a long one on few, if two such arrays are no larger."""
    monkeypatch.setattr(rows, "with_tier", lambda case: case)
    found = maps.cases(build_parser().parse_args(["map", "--dtypes", "bfloat16"]))
    assert found == maps.cases(build_parser().parse_args(["map", "--dtypes", "bfloat16"]))
    many = {c["cols"]: c["rows"] for c in found if c["group"] == "many_rows"}
    assert many == {n: 2**27 // n for n in maps.lengths(1)}
    few = [c for c in found if c["group"] == "few_rows"]
    assert {c["cols"] for c in few} == {n for n in many if n >= 8192}
    assert {c["rows"] for c in few} == {1, 4, 16, 64, 132}
    assert all(2 * c["rows"] <= many[c["cols"]] for c in few)
    assert [c["part"] for c in found] == [i // 24 for i in range(len(found))]


@pytest.mark.parametrize("draw", [maps.lengths, partial(losses.lengths, 10)])
def test_no_tuned_length_is_published(draw):
    shared = {n for n in draw(seed=1) if n > 128} & {*draw(seed=3)}
    assert shared <= {*maps.VOCABULARIES}


def test_drawn_layers(gpu):
    found = list(attention.drawn_cases(200, seed=1))
    assert found == list(attention.drawn_cases(200, seed=1))
    assert found != list(attention.drawn_cases(200, seed=2))
    assert {m["kind"] for m in found} == {*attention.KINDS}
    assert {m["direction"] for m in found} == {*attention.DIRECTIONS}
    assert any(m["length"] % 2 for m in found)
    assert any(m["length"] != m["keys"] for m in found)
    assert any(m["heads"] != m["key_heads"] for m in found)
    assert all(m["heads"] % m["key_heads"] == 0 for m in found)
    assert max(m["batch"] * m["heads"] * m["length"] * m["keys"] for m in found) <= 2**28
    assert max(m["length"] for m in found) > 4096
    assert [m["part"] for m in found] == [i // 5 for i in range(200)]


def test_drawn_products():
    found = sgemm.drawn(300, 2, "gpu")
    assert found == sgemm.drawn(400, 2, "gpu")[:300]
    assert found[:60] != sgemm.drawn(60, 1, "gpu")
    sides = [case[name] for case in found for name in ("m", "n", "k")]
    assert min(sides) < 4 < 2**14 < max(sides)
    assert 2 / 3 < sum(case["batch"] == 1 for case in found) / 300 < 0.95
    assert {case["transposes"] for case in found} == {"NN", "NT", "TN", "TT"}
    assert max(map(sgemm.flops, found)) <= 2**40
    assert max(map(sgemm.touched_bytes, found)) <= 8e9
    sizes = [sgemm.touched_bytes(c) * sgemm.products_per_call(c, "gpu") for c in found]
    assert max(sizes) < 16e9


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


def cells(platform):
    watched = [(suite, *cell) for suite in OPERATIONS for cell in suite.watched(platform)]
    return [(group, suite.label(case), case) for suite, group, case in watched]


@pytest.mark.parametrize(("platform", "count"), [("gpu", 120), ("cpu", 51)])
def test_cells_of_regress_cover_every_operation(platform, count):
    found = cells(platform)
    assert len(found) == len({label for _, label, _ in found}) == count <= 120
    assert list(dict.fromkeys(group for group, *_ in found)) == list(regress.GROUPS)
    by_group = {g: [case for group, _, case in found if group == g] for g in regress.GROUPS}
    kinds = set(itertools.product(("softmax", "log_softmax", "logsumexp"), ("fwd", "grad")))
    kinds |= {("rms_norm", "grad")}
    kinds |= {("losses", direction) for direction in ("loss", "mean", "none")}
    assert {(case["operation"], case["direction"]) for case in by_group["rows"]} == kinds
    assert {case["direction"] for case in by_group["few_rows"]} == {"fwd", "grad"}
    assert {case["variant"] for case in by_group["scores"]} == {"plain", "mask", "causal"}
    for group in ("rows", "few_rows", "scores", "layers"):
        assert {"float32", "bfloat16"} <= {case["dtype"] for case in by_group[group]}


def test_names_of_cells_stay():
    """Runs are compared by these names."""
    assert {
        "softmax fwd float32 2097152x32",
        "log_softmax grad bfloat16 1335x50257",
        "softmax grad bfloat16 8x131072",
        "scores mask both float32 4x16x1024",
        "layers causal fwd bfloat16 4x16x1024x64",
        "product 4096^3",
        "product 512 x (128, 128, 128)",
        "product 1024^3 TN",
    } < {label for _, label, _ in cells("gpu")}


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
