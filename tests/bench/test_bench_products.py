"""Products that a seed draws, families of operands, XLA's other products, and the errors of all. Nothing depends on time."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensor_families

pytest.importorskip("rich")

from bench_cases import QUICK, measured

from jaxkernels.bench import product_data, records, sgemm, sgemm_programs
from jaxkernels.bench import products as shapes
from jaxkernels.bench.__main__ import main
from jaxkernels.bench.families import FAMILIES, MEASURED

PEER = "XLA" if jax.default_backend() == "cpu" else "cuBLAS"


def test_drawn_products_fit_and_are_those_of_the_seed():
    found = shapes.drawn(300, 2, "gpu")
    assert found == shapes.drawn(400, 2, "gpu")[:300]
    assert found[:60] != shapes.drawn(60, 1, "gpu")
    sides = [case[name] for case in found for name in ("m", "n", "k")]
    assert min(sides) < 4
    assert max(sides) > 2**14
    assert 2 / 3 < sum(case["batch"] == 1 for case in found) / 300 < 0.95
    assert {case["transposes"] for case in found} == {"NN", "NT", "TN", "TT"}
    assert max(map(shapes.flops, found)) <= 2**40
    assert max(map(shapes.touched_bytes, found)) <= 8e9
    programs = [shapes.touched_bytes(c) * sgemm_programs.products_per_call(c, "gpu") for c in found]
    assert max(programs) < 16e9


@pytest.mark.parametrize("group", ["drawn", "other", "families", "peers"])
def test_inputs_of_short_products(group, monkeypatch):
    """Those of a product that is short are used again: its time is not that of telling a GPU of others."""
    monkeypatch.setattr(
        sgemm_programs, "operands", lambda case, count, *_: [(i, -1) for i in range(count)]
    )
    monkeypatch.setattr(sgemm_programs.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(sgemm_programs, "rotations", lambda _: 3)
    short, long = (shapes.product(group, 1, 100, 100, k) for k in (2**8, 2**16))
    assert len(sgemm_programs.draw(short, 5)) == 1
    assert len(sgemm_programs.draw(long, 5)) == 3


def test_drawn_products_run(tmp_path, capsys, monkeypatch):
    """A line for each, and what comes of all of them; on a GPU as small ones as on a CPU."""
    monkeypatch.setitem(shapes._MOST, "gpu", shapes._MOST["cpu"])
    written = tmp_path / "b.json"
    what = ["--drawn", "4", "--seed", "3", *QUICK, "--json", str(written), "--markdown"]
    assert main(["sgemm", *what]) == 0
    run = records.read(written)
    assert [m.case for m in run.measured] == shapes.drawn(4, 3, "cpu")
    for m in run.measured:
        assert list(m.records) == ["xla", "auto", "pipelined"]
        assert all(sgemm.error(m, name, "of_bound") <= 1 for name in m.records)
    out = capsys.readouterr().out
    assert "**drawn: " in out
    for m in run.measured:
        for name in (PEER, "auto", "pipelined"):
            assert f"| {shapes.size(m.case)} | {name} |" in out
    assert f"auto over {PEER}: geometric mean " in out
    assert " of 4 below 1" in out


@pytest.mark.parametrize(
    "what", [["drawn"], ["families", "--drawn", "2"], ["peers", "--shapes", "64"]], ids=" ".join
)
def test_groups_that_leave_out_all_products(what, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["sgemm", "--groups", *what])
    assert stopped.value.code == 2
    assert "nothing to measure: what was asked of sgemm" in capsys.readouterr().err


def test_summary_by_hand():
    """4, 1 and 0.25 times XLA's rate; what was not measured does not count."""
    names = ("xla", "auto")
    cases = [
        measured(shapes.product("drawn", 1, n, 2, 3), dict(zip(names, times, strict=True)))
        for n, times in ((5, (4.0, 1.0)), (6, (1.0, 1.0)), (7, (1.0, 4.0)))
    ]
    refused = measured(shapes.product("drawn", 1, 8, 2, 3), {"xla": 1.0}, refused={"auto": "no"})
    found = sgemm.summary([*cases, refused], "cuBLAS")
    assert found == (
        "auto over cuBLAS: geometric mean 1.00, least 0.25 at (7, 2, 3); 1 of 3 below 1"
    )
    assert sgemm.summary([refused], "cuBLAS") == "no product was measured"
    rungs = ("tensor", "pipelined", "tensor")
    known = [
        measured(m.case, {name: m.seconds(name) for name in names}, {"auto": {"rung": rung}})
        for m, rung in zip(cases, rungs, strict=True)
    ]
    assert sgemm.summary([*known, refused], "cuBLAS") == f"{found}, 2 on tensor cores"


def test_a_gpu_says_which_rung_is_planned(monkeypatch):
    """By the operands as they lie, all members together."""
    options = argparse.Namespace(algorithms=None)
    case = shapes.product("other", 3, 160, 4096, 512, "TN")
    monkeypatch.setattr(sgemm_programs.jax, "default_backend", lambda: "gpu")
    asked = []
    plan = argparse.Namespace(algorithm="tensor")
    monkeypatch.setattr(
        sgemm_programs.jk, "plan_sgemm", lambda *a, **k: asked.append((a, k)) or plan
    )
    looks = {
        name: p.inspect.get("rung") for name, p in sgemm_programs.contenders(case, options).items()
    }
    assert [name for name, look in looks.items() if look] == ["auto"]
    assert looks["auto"](None, ()) == "tensor"
    assert asked == [((160, 4096, 512), {"batch": 3, "trans_a": True, "trans_b": False})]


def _is_wide(x):
    """Whether logarithms of sizes are normal with a deviation of 4, as many of either sign."""
    if not x.all():
        return False
    logs = np.log(abs(x))
    low, median, high = np.quantile(logs, [0.1587, 0.5, 0.8413])
    return abs(median) < 0.5 and abs((high - low) / 2 - 4) < 0.4 and 0.4 < (x < 0).mean() < 0.6


def test_other_numbers_are_not_wide():
    x = np.random.default_rng(0).normal(size=(96, 64))
    outliers = np.where(np.random.default_rng(1).random(x.shape) < 1e-3, 1e6 * x, x)
    wide = np.exp(4 * x) * np.sign(x[::-1])
    found = [_is_wide(x) for x in (wide, outliers, abs(wide), 1e3 * wide)]
    assert found == [True, False, False, False]


def _powers(x, axis):
    """The least and the largest power of two of the median sizes of lines."""
    sizes = np.log2(np.median(abs(x), axis=axis))
    return round(sizes.min() / 10), round(sizes.max() / 10)


def _is_of_family(name, a, b):
    """What a family promises."""
    return {
        "normal": lambda: abs(a.mean()) < 0.1 and abs(a.std() - 1) < 0.1 and abs(b.std() - 1) < 0.1,
        "uniform": lambda: (
            0 <= a.min() < 0.01 and 0.99 < a.max() < 1 and abs(b.mean() - 0.5) < 0.05
        ),
        "signs": lambda: -1 <= a.min() < -0.99 and 0.99 < a.max() < 1 and abs(b.mean()) < 0.05,
        "lognormal": lambda: abs(np.log(a).std() - 1) < 0.1 and abs(np.log(b).std() - 1) < 0.1,
        "softmax": lambda: np.allclose(a.sum(1), 1) and a.min() > 0,
        "p_minus_y": lambda: np.allclose(a.sum(1), 0, atol=1e-6) and ((a < 0).sum(1) == 1).all(),
        "gelu": lambda: -0.2 < a.min() < 0,
        "relu": lambda: a.min() == 0 < (a == 0).mean() < 0.7,
        "outliers": lambda: 0 < (abs(a) > 1e3).mean() < 0.01,
        "wide": lambda: _is_wide(a) and _is_wide(b),
        "graded_rows": lambda: _powers(a, 1) == (-4, 4) and _powers(b, 1) == (0, 0),
        "graded_k": lambda: _powers(a, 0) == (-4, 4) and _powers(b, 1) == (0, 0),
        "graded_against": lambda: (
            _powers(a, 0) == _powers(b, 1) == (-4, 4) and abs(a[:, 0]).max() < 1 < abs(b[0]).min()
        ),
        "one_hot": lambda: (
            (np.sort(a, 1) == np.eye(a.shape[1])[-1]).all() and len(set(a.argmax(1))) > 9
        ),
        "permutation": lambda: (
            (b.sum(0) == 1).all() and (b.sum(1) == 1).all() and abs(a.std() - 1) < 0.1
        ),
        "spread_permutation": lambda: (b.sum(0) == 1).all() and -90 < np.log2(abs(a)).min() < -60,
        "tiny_times_huge": lambda: 1e-31 < a.std() < 1e-29 < 1e29 < b.std() < 1e31,
        "tiny": lambda: 1e-19 < a.std() < 1e-17 and 1e-16 < b.std() < 1e-14,
        "huge": lambda: 1e29 < a.std() < 1e31 and abs(b.std() - 1) < 0.1,
        "near_largest": lambda: 3e38 < abs(a).max() < np.inf and 1e-5 < b.std() < 1e-3,
        "subnormal_rows": lambda: 0.2 < (abs(a).max(1) < 1e-37).mean() < 0.8,
        "zero_lines": lambda: 0.2 < (a == 0).all(1).mean() == (a == 0).mean() < 0.8,
    }[name]()


@pytest.mark.parametrize("name", FAMILIES)
def test_operands_of_a_family(name):
    """On the device, where they are measured, and on the host, as tests of products draw them."""
    case = {**shapes.product("families", 1, 96, 80, 64), "family": name}
    case["n"] = 64 if name.endswith("permutation") else 80
    (a, b), (other, others) = product_data.operands(case, 2)
    assert (a.shape, b.shape) == ((96, 64), (64, case["n"]))
    assert a.dtype == b.dtype == jnp.float32
    assert not (a == other).all()
    assert not (b == others).all()
    assert _is_of_family(name, np.asarray(a, np.float64), np.asarray(b, np.float64))
    a, b = tensor_families.operands(name, 96, 80, 64)
    assert a.dtype == b.dtype == np.float32
    with np.errstate(over="ignore"):
        assert _is_of_family(name, a.astype(np.float64), b.astype(np.float64))


def test_families_that_are_measured_are_families():
    assert set(MEASURED) <= set(FAMILIES)
    assert [case["family"] for case in shapes._families(32)] == list(MEASURED)


def test_families_and_peers_run(tmp_path, capsys, monkeypatch):
    """Whatever XLA refuses here is an empty cell with its reason; float16 has the error of its operands."""
    monkeypatch.setattr(
        shapes,
        "CPU_PRODUCTS",
        (*shapes.CPU_PRODUCTS[:1], shapes._families(32)[0], shapes.product("peers", 1, 64, 64, 64)),
    )
    monkeypatch.setattr(shapes, "GPU_PRODUCTS", shapes.CPU_PRODUCTS)
    written = tmp_path / "b.json"
    groups = ["--groups", "families", "peers"]
    assert main(["sgemm", *groups, *QUICK, "--json", str(written), "--markdown"]) == 0
    family, peers = records.read(written).measured
    assert list(family.records) == ["xla", "auto", "pipelined"]
    assert list(peers.records) == ["xla", "auto", *sgemm_programs.PEERS]
    assert sgemm.error(peers, "auto", "relF") < 1e-6
    assert 1e-5 < sgemm.error(peers, "float16", "relF") < 1e-3
    out = capsys.readouterr().out
    assert "| 32^3 softmax |" in out
    for name in sgemm_programs.PEERS:
        assert f"| 64^3 | {name} |" in out
        assert bool(peers.records[name].refused) == (f"{name}: " in out)


def test_an_error_is_seen_in_rows_columns_and_members(monkeypatch):
    """In what is sampled, and in how it lies: an element that is wrong by a tenth of itself."""
    monkeypatch.setattr(product_data, "_SAMPLED_ROWS", 5)
    monkeypatch.setattr(product_data, "_SAMPLED_COLS", 4)
    for transposes in ("NN", "NT", "TN", "TT"):
        case = shapes.product("other", 3, 40, 30, 20, transposes)
        (pair,) = product_data.operands(case, 1)
        c = jax.jit(sgemm_programs._function(case, "xla"))(*pair)
        assert product_data.errors(case, pair, c)["of_bound"] < 1
        wrong = product_data.errors(case, pair, c.at[1, 39, 29].mul(1.1))
        assert wrong["of_bound"] > 100
        assert wrong["relF"] > 1e-3
