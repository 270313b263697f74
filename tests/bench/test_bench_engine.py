"""A suite of a made-up operation: the engine, the clock, the tables and the command line."""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("rich")

from bench_cases import QUICK

from jaxkernels.bench import __main__ as command
from jaxkernels.bench import programs, records, suite, timing
from jaxkernels.bench import tables as t
from jaxkernels.bench.__main__ import main
from jaxkernels.bench.options import build_parser
from jaxkernels.bench.suite import Program, Suite, measure

DRAWN = []


def _cases(options):
    for dtype in ("float32", "bfloat16"):
        for cols in options.cols or (4, 8):
            yield {"dtype": dtype, "cols": cols}


def _program(case, name):
    def draw():
        DRAWN.append(case)
        if case["cols"] > 100:
            raise ValueError("too long")
        return programs.draw([jax.ShapeDtypeStruct((case["cols"],), case["dtype"])], turns=3)

    def unknown(function, arguments):
        raise NotImplementedError("nobody knows")

    if name == "twice":
        return Program(lambda x: (x, x), draw, operations=2)
    if name == "ours":
        return Program(jnp.copy, draw, inspect={"size": lambda f, a: f(*a).size})
    if name == "half":
        return Program(jnp.copy, draw, inspect={"one": lambda *_: 1, "no": unknown})
    raise NotImplementedError("not here")


COLUMNS = (*t.fields("cols"), t.times_faster("x twice", "twice", "ours"))
SUITE = Suite(
    name="copying",
    summary="copies",
    cases=_cases,
    names=lambda case, options: ("twice", "ours", "half", "none"),
    program=_program,
    label=lambda case: f"{case['dtype']} {case['cols']}",
    views=lambda run: [t.View("copies of {dtype}", COLUMNS)],
    axes={"dtype": ("float32", "bfloat16")},
    options={"--cols": {"nargs": "+", "type": int}},
    defaults={"repeats": 3, "dtypes": ["float32"]},
)
OPTIONS = argparse.Namespace(repeats=2, min_sample_ms=0.01, cols=None, dtypes=("float32",))
CASE = {"dtype": "float32", "cols": 4}


@pytest.fixture(autouse=True)
def only_this_suite(monkeypatch):
    monkeypatch.setattr(command, "SUITES", (SUITE,))
    DRAWN.clear()


@pytest.mark.parametrize("part", [{}, {"part": 0}], ids=["jitted", "compiled together"])
def test_a_case_gives_a_record_for_each_contender(part):
    found = measure(SUITE, OPTIONS, [CASE | part, CASE | part | {"cols": 1000}])
    ready, too_long = records.Run("copying", {}, {}, tuple(found)).measured
    assert {r.refused for r in too_long.records.values()} == {"too long", "not here"}
    found = ready.records
    assert list(found) == ["twice", "ours", "half", "none"]
    assert found["ours"].extra == {"size": 4}
    assert found["twice"].extra == {"operations": 2}
    assert found["half"].extra == {"one": 1}
    assert found["half"].refused == "no not measured: nobody knows"
    assert found["half"].seconds is not None
    assert found["none"] == records.Record(CASE | part, "none", refused="not here")


def test_inputs_and_times_of_a_case(monkeypatch):
    """Its contenders share their inputs, cases do not. Times are those of one operation."""
    handed = {}

    def record(functions, arguments, **how):
        handed.update(arguments)
        return {key: [5.0, 6.0, 7.0] for key in functions}, {}

    monkeypatch.setattr(suite, "measure_together", record)
    cases = [CASE, CASE | {"cols": 8}]
    twice, ours, *others = measure(SUITE, OPTIONS, cases)
    assert len(others) == 6
    assert (twice.seconds, twice.samples) == (3.0, [2.5, 3.0, 3.5])
    assert (ours.seconds, ours.samples) == (6.0, [5.0, 6.0, 7.0])
    assert cases == DRAWN
    assert [len(each) for each in handed.values()] == [3] * 6
    assert handed[0, "twice"] is handed[0, "ours"]
    assert handed[0, "ours"] is not handed[1, "ours"]
    (a,), (b,), (c,) = handed[0, "ours"]
    assert not jnp.array_equal(a, b)
    assert not jnp.array_equal(b, c)


def test_contenders_are_sampled_in_turn_through_their_rotations():
    calls = []

    def function(name):
        def call(number):
            if name == "late" and len(calls) > 12:
                raise ValueError("no memory any more")
            if name == "never":
                raise NotImplementedError("never")
            calls.append((name, number))

        return call

    functions = {name: function(name) for name in ("a", "late", "never")}
    turns = dict.fromkeys(functions, ((0,), (1,)))
    samples, refused = timing.measure_together(functions, turns, repeats=3, min_sample_seconds=1e-7)
    assert {name: len(each) for name, each in samples.items()} == {"a": 3}
    assert refused == {"never": "never", "late": "no memory any more"}
    # Each is compiled and estimated first, through all of its inputs; then they take turns.
    assert calls[:8] == [(n, i) for n in ("a", "late") for i in (0, 1, 0, 0)]
    assert [name for name, _ in calls[8:]] == ["a", "late", "a", "late", "a"]


def test_bugs_surface():
    program = Program(lambda x: x.nothing, lambda: [(jnp.ones(4),)])
    broken = dataclasses.replace(SUITE, program=lambda *_: program)
    with pytest.raises(AttributeError):
        measure(broken, OPTIONS, [CASE])


def test_command_line_is_derived_from_the_suite(tmp_path, capsys):
    path = tmp_path / "b.json"
    assert main(["copying", "--cols", "4", "16", *QUICK, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "copies of float32" in out
    assert "bfloat16" not in out  # not among the default ones
    assert "none: not here (float32 4 and 1 more)" in out
    run = records.read(path, "copying")
    assert [m.case for m in run.measured] == [{"dtype": "float32", "cols": c} for c in (4, 16)]
    asked = {"dtypes": ["float32"], "cols": [4, 16], "repeats": 2, "min_sample_ms": 0.1}
    assert run.settings == asked | {"limit": None}
    options = build_parser([SUITE]).parse_args(["copying", "--dtypes", "bfloat16"])
    assert options.repeats == 3
    assert [case["dtype"] for (case,) in SUITE.chosen(options)] == ["bfloat16"] * 2
    with pytest.raises(SystemExit):  # nothing to compare
        main(["copying", "--against", str(path)])


def test_a_limit_leaves_cases_out(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 3.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(command, "measure", lambda suite, options, part: [])
    assert main(["copying", "--cols", "4", "8", "16", "--limit", "2"]) == 0
    said = capsys.readouterr().err
    assert "[1/3]" in said
    assert "[2/3]" not in said
    assert "2 cases left out" in said


@pytest.mark.parametrize("text", ["", "no", "{}", '{"suite": "copying", "schema": 2}'])
def test_a_file_that_cannot_be_read_is_said(text, tmp_path, capsys):
    (tmp_path / "b.json").write_text(text)
    assert main(["copying", "--from-json", str(tmp_path / "b.json")]) == 2
    assert "cannot read" in capsys.readouterr().err
