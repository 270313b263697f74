"""The suite of products runs at a small size. Nothing here depends on how long anything takes."""

import argparse

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("rich")

from bench_cases import QUICK, measured, text_of

from jaxkernels.bench import products as shapes
from jaxkernels.bench import programs, records, sgemm, sgemm_programs, timing
from jaxkernels.bench.__main__ import main

PEER = "XLA" if jax.default_backend() == "cpu" else "cuBLAS"


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sgemm")
    written = ["--json", str(folder / "b.json")]
    assert main(["sgemm", "--shapes", "32", "16x24x8", "3x8x8x8", *QUICK, *written]) == 0
    return folder


def test_json(products):
    found = records.read(products / "b.json", "sgemm").measured
    assert [(m["batch"], m["m"], m["n"], m["k"]) for m in found] == [
        (1, 32, 32, 32),
        (1, 16, 24, 8),
        (3, 8, 8, 8),
    ]
    for m in found:
        assert {"xla", "auto", "pipelined"} == set(m.records)
        for name, record in m.records.items():
            assert 0 < sgemm.error(m, name, "of_bound") <= 1
            assert 0 < sgemm.error(m, name, "relF") < 1e-5
            assert record.extra["operations"] > 1
            assert len(record.samples) == 2


def test_table_again_from_json(products, capsys):
    assert main(["sgemm", "--from-json", str(products / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| 32^3 |" in out
    assert "3 x (8, 8, 8)" in out


def _product(group="square", n=1024, transposes="NN", names=("xla", "auto", "pipelined")):
    case = shapes.product(group, 1, n, n, n, transposes)
    errors = {"errors": {"relF": 1e-6, "of_bound": 0.25}}
    times = {name: 1e-3 * (1 + place) for place, name in enumerate(names)}
    return measured(case, times, dict.fromkeys(names, errors))


def test_tables_by_hand():
    """2 n^3 operations in 1 ms, in 2 ms and in 3 ms."""
    ladder = _product("ladder", 4096, names=(*sgemm_programs.LADDER, "xla"))
    text = text_of(sgemm.SUITE, [_product(), _product("transposed", 1024, "NT"), ladder])
    for name in ("1024^3", "1024^3 NT"):
        assert f"['{name}', 'auto', '2000.0', '1.07', '1.0e-06', '0.250', '0.500']" in text
        assert f"['{name}', 'pipelined', '3000.0', '0.72', '1.0e-06', '0.250', '0.333']" in text
        assert f"['{name}', 'cuBLAS', '1000.0', '2.15', '1.0e-06', '0.250', '1.000']" in text
    assert "['4096^3', 'naive', '1000.0', '137.44', '1.0e-06', '0.250', '8.000']" in text
    assert "['4096^3', 'cuBLAS', '8000.0', '17.18', '1.0e-06', '0.250', '1.000']" in text
    for word in (*sgemm_programs.LADDER, "square: ", "transposed: ", "of cuBLAS"):
        assert word in text
    # What is planned, of each group that has it.
    assert text.count("auto over cuBLAS: geometric mean 0.50") == 2
    assert "no product" not in text


@pytest.mark.parametrize(
    ("platform", "name", "other"), [("cpu", "XLA", "cuBLAS"), ("gpu", "cuBLAS", "XLA")]
)
def test_names_xlas_product_by_platform(platform, name, other):
    """A CPU has no cuBLAS."""
    cases = [_product(), _product("ladder", names=("naive", "xla"))]
    tables = text_of(sgemm.SUITE, cases, platform).replace("both are XLA's own product", "")
    assert name in tables
    assert other not in tables
    assert f"of {name}" in tables
    assert f"'{name}', '1000.0'" in tables


def test_algorithms_are_those_asked_for(tmp_path, capsys):
    written = ["--json", str(tmp_path / "b.json")]
    what = ["--shapes", "32", "2x8x8x8", "--algorithms", "naive", "warp_tile"]
    assert main(["sgemm", *what, *QUICK, *written]) == 0
    for m in records.read(tmp_path / "b.json").measured:
        assert list(m.records) == ["xla", "naive", "warp_tile"]
        assert all(sgemm.error(m, name, "relF") for name in m.records)
    out = capsys.readouterr().out
    table = [line.split() for line in out.splitlines()]
    rungs = [line[-6] for line in table if len(line) > 6 and line[0] in ("32^3", "2")]
    assert rungs == ["naive", "warp_tile", PEER] * 2
    assert "auto" not in out
    assert "no product" not in out


def test_default_products_by_group():
    """Every rung at one size; of peers XLA's other ways; what is planned, and FFMA, of all other products."""
    options = argparse.Namespace(algorithms=None)
    for case in shapes.GPU_PRODUCTS:
        names = list(sgemm_programs.contenders(case, options))
        of_group = {"ladder": sgemm_programs.LADDER, "peers": ("auto", *sgemm_programs.PEERS)}
        assert names == ["xla", *of_group.get(case["group"], ("auto", "pipelined"))]
    groups = {case["group"] for case in shapes.GPU_PRODUCTS}
    assert groups == {*shapes.GROUPS} - {"drawn"}


def test_inputs_do_not_stay_in_the_cache(monkeypatch):
    """What is touched before a call has the same inputs again is twice the largest L2, of any GPU, at least."""
    gpu_cache = timing.last_level_cache_bytes("gpu")
    monkeypatch.setattr(programs, "last_level_cache_bytes", lambda _: gpu_cache)
    monkeypatch.setattr(
        sgemm_programs, "operands", lambda case, count, *_: [(i, -1) for i in range(count)]
    )
    monkeypatch.setattr(sgemm_programs.jax, "default_backend", lambda: "gpu")
    for case in shapes.GPU_PRODUCTS:
        count = sgemm_programs.products_per_call(case, "gpu")
        calls = sgemm_programs.draw(case, count)
        if shapes.is_chain(case):  # the first b, and every a once
            (call,) = calls
            assert len(set(call[1:])) == len(call) - 1 == count
            assert count * 4 * case["m"] * case["k"] >= 2 * 126 * 2**20
            continue
        inputs = [pair for call in calls for pair in call]
        assert {len(call) for call in calls} == {count}
        assert len(set(inputs)) == len(inputs)
        assert len(inputs) * shapes.touched_bytes(case) >= 2 * 126 * 2**20


def test_chain_stays_finite():
    """A chain's results keep their size, so that a GPU's switching power is that of any numbers."""
    case = shapes.product("square", 1, 64, 64, 64, "NT")
    result = sgemm_programs.program(case, "auto")(*sgemm_programs.draw(case, 200)[0])
    assert result.shape == (64, 64)
    assert 1e-3 < float(jnp.linalg.norm(result)) / 64 < 10


@pytest.mark.parametrize("where", ["operands", "_errors"])
def test_run_survives_a_product_without_memory(where, monkeypatch, tmp_path, capsys):
    right = getattr(sgemm_programs, where)

    def failing(case, *rest):
        if case["n"] == 24:
            raise ValueError("out of memory")
        return right(case, *rest)

    monkeypatch.setattr(sgemm_programs, where, failing)
    written = tmp_path / "b.json"
    assert main(["sgemm", "--shapes", "16", "24", "32", *QUICK, "--json", str(written)]) == 0
    found = records.read(written).measured
    refused = [{name for name, r in m.records.items() if r.refused} for m in found]
    assert refused == [set(), {"xla", "auto", "pipelined"}, set()]
    assert (found[1].seconds("auto") is None) == (where == "operands")
    why = "out of memory" if where == "operands" else "errors not measured: out of memory"
    assert f"auto: {why} (product 24^3)" in capsys.readouterr().out


@pytest.mark.parametrize("k", [32, 16])
@pytest.mark.parametrize("name", ["xla", "auto"])
def test_program_computes_every_product(name, k):
    """Neither merged nor left out: as many products in the compiled program as are divided by."""
    if jax.default_backend() != "cpu":
        pytest.skip("on a GPU the calls have other names")
    case = shapes.product("square" if k == 32 else "other", 1, 32, 32, k)
    assert shapes.is_chain(case) == (k == 32)
    program = sgemm_programs.program(case, name).lower(*sgemm_programs.draw(case, 8)[0]).compile()
    assert program.as_text().count(" dot(") == 8


def test_wrong_arguments(capsys):
    for wrong in (["--shapes", "4x4"], ["--algorithms", "magic"], ["--groups", "round"]):
        with pytest.raises(SystemExit) as stopped:
            main(["sgemm", *wrong])
        assert stopped.value.code == 2
        assert wrong[1] in capsys.readouterr().err
