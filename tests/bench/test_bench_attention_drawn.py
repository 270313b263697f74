"""The drawn sweep of attention: what it draws, and that what it says follows from the times."""

import dataclasses
import math

import pytest

pytest.importorskip("rich")

import jax
from bench_cases import QUICK, measured, text_of

from jaxkernels.bench import attention, attention_drawn, attention_programs, records
from jaxkernels.bench.__main__ import main


def test_draws():
    cases = list(attention_drawn.cases(200, seed=1))
    assert cases == list(attention_drawn.cases(200, seed=1))
    assert cases != list(attention_drawn.cases(200, seed=2))
    assert {m["kind"] for m in cases} == set(attention_drawn.KINDS)
    assert {m["direction"] for m in cases} == set(attention_programs.DIRECTIONS)
    assert any(m["length"] % 2 for m in cases)
    assert any(m["length"] != m["keys"] for m in cases)
    assert any(m["heads"] != m["key_heads"] for m in cases)
    for m in cases:
        assert m["heads"] % m["key_heads"] == 0
        assert min(m["length"], m["keys"]) >= 1
    parts = [m["part"] for m in cases]
    assert parts == sorted(parts)


def test_arrays_of_a_gpu_are_bounded(monkeypatch):
    monkeypatch.setattr(attention_drawn.jax, "default_backend", lambda: "gpu")
    cases = list(attention_drawn.cases(200, seed=1))
    scores = [m["batch"] * m["heads"] * m["length"] * m["keys"] for m in cases]
    assert max(scores) <= 2**28
    assert max(m["length"] for m in cases) > 4096


def test_arguments_fit_every_kind():
    """Each kind, forward and backward, runs as the default."""
    sizes = dict(zip(attention_drawn._SIZES, (2, 16, 32, 4, 2, 8), strict=True))
    for kind in attention_drawn.KINDS:
        for direction in attention_programs.DIRECTIONS:
            case = {"group": "drawn", "dtype": "bfloat16", "direction": direction, "kind": kind}
            program = attention_drawn.contenders({**case, **sizes})["ffi"]
            arguments = program.draw()[0]
            found = jax.tree.leaves(program.make(arguments)(*arguments))
            assert len(found) == (4 if direction == "both" else 1)
            assert all(math.isfinite(float(x.astype("float32").sum())) for x in found)


def test_a_run_and_its_file(tmp_path, capsys):
    written = tmp_path / "b.json"
    assert main(["attention", "--drawn", "2", *QUICK, "--json", str(written)]) == 0
    out, error = capsys.readouterr()
    assert "default over the best of 2 cases" in out
    assert error.count(" of the best") == 2
    found = records.read(written, "attention").measured
    assert [m["group"] for m in found] == ["drawn"] * 2
    for m in found:
        assert set(m.records) == {"default", *attention_drawn.NAMED}
        assert m.extra("default", "path") in attention_drawn.NAMED
        assert m.seconds("default")


def test_the_path_of_the_default_is_one_program_with_it():
    case = next(iter(attention_drawn.cases(1, seed=1)))
    cell = measured(case, {"default": 3.0, "ffi": 1.0, "xla": 1.6})
    of_default = dataclasses.replace(cell.records["default"], extra={"path": "ffi"})
    cell = dataclasses.replace(cell, records={**cell.records, "default": of_default})
    assert attention_drawn.over_best(cell) == 2.0 / 1.6


def test_what_is_said_follows_from_the_times():
    case = next(iter(attention_drawn.cases(1, seed=1)))
    cells = [
        measured({**case, "batch": 1}, {"default": 2.0, "ffi": 1.0, "xla": 4.0}),
        measured({**case, "batch": 2}, {"default": 1.0, "cudnn": 1.0, "ffi": 2.0}),
        measured({**case, "batch": 3}, {"ffi": 2.0}),
    ]
    assert [attention_drawn.over_best(m) for m in cells] == [2.0, 1.0, None]
    said = text_of(attention.SUITE, cells)
    assert "default over the best of 2 cases: geometric mean 1.414, worst 2.000" in said
    assert "1 beyond 1.03" in said
    assert attention_drawn.summary([]) == "no case was measured"
    line = attention_drawn.said(cells[0])
    assert line.endswith("; ms default 2000.000, ffi 1000.000, xla 4000.000, 2.000 of the best")
    assert attention_drawn.said(measured({"group": "layers"}, {})) == ""
