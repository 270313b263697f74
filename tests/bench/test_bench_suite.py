"""A suite of a made-up operation: what the engine, the pivot and the command line make of it."""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("rich")

from bench_cases import QUICK, measured, run_of

from jaxkernels.bench import __main__ as command
from jaxkernels.bench import records, timing
from jaxkernels.bench import tables as t
from jaxkernels.bench.__main__ import main
from jaxkernels.bench.programs import draw_normal
from jaxkernels.bench.records import Record
from jaxkernels.bench.suite import Program, Suite, measure

DRAWN = []


def _cases(options):
    for dtype in ("float32", "bfloat16"):
        for cols in options.cols or (4, 8):
            yield {"dtype": dtype, "cols": cols}


def _contenders(case, options):
    def draw():
        DRAWN.append(case)
        if case["cols"] > 100:
            raise ValueError("too long")
        return draw_normal((case["cols"],), case["dtype"], 1, 3)

    def refusing(_):
        raise NotImplementedError("not here")

    def unknown(function, arguments):
        raise NotImplementedError("nobody knows")

    return {
        "twice": Program(lambda _: jax.jit(lambda x: (x, x)), draw, operations=2),
        "ours": Program(
            lambda _: jax.jit(jnp.copy), draw, inspect={"size": lambda f, a: f(*a).size}
        ),
        "half": Program(
            lambda _: jax.jit(jnp.copy), draw, inspect={"one": lambda *_: 1, "no": unknown}
        ),
        "none": Program(refusing, draw),
    }


SUITE = Suite(
    name="copying",
    summary="copies",
    cases=_cases,
    contenders=_contenders,
    label=lambda case: f"{case['dtype']} {case['cols']}",
    views=lambda run: [
        t.View(
            "copies of {dtype}",
            by=("dtype",),
            columns=(
                *t.fields("cols"),
                t.time("ours ms", "ours"),
                t.times_faster("x twice", "twice", "ours"),
            ),
        )
    ],
    axes={"dtype": ("float32", "bfloat16")},
    options={"--cols": {"nargs": "+", "type": int}},
    defaults={"repeats": 3, "dtypes": ["float32"]},
)
OPTIONS = argparse.Namespace(repeats=2, min_sample_ms=0.01, cols=None, dtypes=("float32",))


@pytest.fixture(autouse=True)
def only_this_suite(monkeypatch):
    monkeypatch.setattr(command, "SUITES", (SUITE,))
    DRAWN.clear()


def test_a_case_gives_a_record_for_each_contender():
    found = {r.contender: r for r in measure(SUITE, OPTIONS, [{"dtype": "float32", "cols": 4}])}
    assert list(found) == ["twice", "ours", "half", "none"]
    assert found["ours"].extra == {"size": 4}
    assert found["twice"].extra == {"operations": 2}
    assert found["half"].extra == {"one": 1}
    assert found["half"].refused == "no not measured: nobody knows"
    assert found["half"].seconds is not None
    assert found["none"] == Record({"dtype": "float32", "cols": 4}, "none", refused="not here")


def test_times_are_of_one_operation(monkeypatch):
    from jaxkernels.bench import suite

    def timed(makes, arguments, **_):
        timed = [key for key in makes if not key.endswith("none")]
        for key in timed:
            makes[key]()
        return {key: [5.0, 6.0, 7.0] for key in timed}, {"0 none": "no"}

    monkeypatch.setattr(suite, "measure_together", timed)
    twice, ours, *_ = measure(SUITE, OPTIONS, [{"dtype": "float32", "cols": 4}])
    assert (twice.seconds, twice.samples) == (3.0, [2.5, 3.0, 3.5])
    assert (ours.seconds, ours.samples) == (6.0, [5.0, 6.0, 7.0])


def test_contenders_of_a_case_share_their_inputs_and_cases_do_not(monkeypatch):
    from jaxkernels.bench import suite

    handed = {}

    def record(makes, arguments, **how):
        handed.update(arguments, how=how)
        return {}, dict.fromkeys(makes, "not timed")

    monkeypatch.setattr(suite, "measure_together", record)
    cases = [{"dtype": "float32", "cols": cols} for cols in (4, 8)]
    assert len(measure(SUITE, OPTIONS, cases)) == 8
    assert handed.pop("how") == {"repeats": 2, "min_sample_seconds": 0.01 / 1e3}
    assert cases == DRAWN
    assert [len(each) for each in handed.values()] == [3] * 8
    assert handed["0 twice"] is handed["0 ours"] is handed["0 none"]
    assert handed["1 ours"] is handed["1 half"]
    assert handed["0 ours"] is not handed["1 ours"]


def test_contenders_are_sampled_in_turn_through_their_rotations():
    calls = []

    def make(name):
        def call(number):
            if name == "late" and len(calls) > 12:
                raise ValueError("no memory any more")
            calls.append((name, number))

        return lambda: call

    def refuse():
        raise NotImplementedError("never")

    turns = [(0,), (1,)]
    makes = {"a": make("a"), "late": make("late"), "never": refuse}
    samples, refused = timing.measure_together(
        makes, dict.fromkeys(makes, turns), repeats=3, min_sample_seconds=1e-7
    )
    assert {name: len(each) for name, each in samples.items()} == {"a": 3}
    assert refused == {"never": "never", "late": "no memory any more"}
    # Each is compiled and estimated first, through all of its inputs; then they take turns.
    assert calls[:8] == [(n, i) for n in ("a", "late") for i in (0, 1, 0, 0)]
    assert [name for name, _ in calls[8:]] == ["a", "late", "a", "late", "a"]


def test_inputs_that_do_not_fit_are_a_refusal_of_that_case_alone():
    cases = [{"dtype": "float32", "cols": cols} for cols in (4, 1000)]
    found = records.by_case(measure(SUITE, OPTIONS, cases))
    assert found[0].seconds("ours")
    assert {r.refused for r in found[1].records.values()} == {"too long"}


def test_bugs_surface():
    def broken(case, options):
        return {"ours": Program(lambda _: jax.jit(lambda x: x.nothing), lambda: [(jnp.ones(4),)])}

    suite = Suite("broken", "", _cases, broken, str, lambda run: [])
    with pytest.raises(AttributeError):
        measure(suite, OPTIONS, [{"dtype": "float32", "cols": 4}])


def test_command_line_is_derived_from_the_suite(tmp_path, capsys):
    path = tmp_path / "b.json"
    assert main(["copying", "--cols", "4", "16", *QUICK, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "copies of float32" in out
    assert "bfloat16" not in out  # not among the default ones
    assert "none: not here (float32 4 and 1 more)" in out
    run = records.read(path, "copying")
    assert [m.case for m in run.measured] == [{"dtype": "float32", "cols": c} for c in (4, 16)]
    assert run.settings == {
        "dtypes": ["float32"],
        "cols": [4, 16],
        "repeats": 2,
        "min_sample_ms": 0.1,
        "limit": None,
    }
    options = command.build_parser().parse_args(["copying", "--dtypes", "bfloat16"])
    assert options.repeats == 3
    assert [case["dtype"] for (case,) in SUITE.chosen(options)] == ["bfloat16"] * 2
    with pytest.raises(SystemExit):  # nothing to compare
        main(["copying", "--against", str(path)])


def test_a_limit_leaves_cases_out(monkeypatch, tmp_path, capsys):
    clock = iter([0.0, 1.0, 3.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(command, "measure", lambda suite, options, part: [])
    assert main(["copying", "--cols", "4", "8", "16", "--limit", "2"]) == 0
    said = capsys.readouterr().err
    assert "[1/3]" in said
    assert "[2/3]" not in said
    assert "2 cases left out" in said


def test_a_file_has_a_record_a_line(tmp_path):
    cases = [measured({"cols": n}, {"ours": 1.0 / n}, refused={"xla": "no"}) for n in (1, 2)]
    found = tuple(r for m in cases for r in m.records.values())
    run = records.Run("copying", {"platform": "cpu"}, {"repeats": 2}, found)
    records.write(run, tmp_path / "b.json")
    assert len((tmp_path / "b.json").read_text().splitlines()) == 1 + 4
    assert records.read(tmp_path / "b.json", "copying") == run
    assert [m.case for m in run.measured] == [{"cols": 1}, {"cols": 2}]
    with pytest.raises(ValueError, match="softmax"):
        records.read(tmp_path / "b.json", "softmax")


def test_a_file_that_cannot_be_read_is_said(tmp_path, capsys):
    for text in ("", "no", "{}", '{"suite": "copying", "schema": 2}'):
        (tmp_path / "b.json").write_text(text)
        assert main(["copying", "--from-json", str(tmp_path / "b.json")]) == 2
        assert "cannot read" in capsys.readouterr().err


TIMES = [(4, "a", 2.0), (4, "b", 8.0), (8, "a", 1.0), (8, "b", None)]
CASES = [
    measured(
        {"cols": cols, "kind": kind},
        {"xla": 2.0} | ({"ours": s} if s else {}),
        {},
        {} if s else {"ours": "no"},
    )
    for cols, kind, s in TIMES
]
GAIN = t.times_faster("gain", "xla", "ours")


def _tables(**fields):
    view = t.View(**{"title": "T", "columns": (*t.fields("cols"), GAIN), **fields})
    return view.tables(CASES)


def test_a_table_has_a_line_for_each_case():
    (table,) = _tables()
    assert table.headers == ["cols", "gain"]
    assert table.rows == [["4", "1.00"], ["4", "0.25"], ["8", "2.00"], ["8", "-"]]


def test_there_is_a_table_for_each_value_of_fields():
    a, b = _tables(title="T {kind}", by=("kind",))
    assert (a.title, a.rows) == ("T a", [["4", "1.00"], ["8", "2.00"]])
    assert (b.title, b.rows) == ("T b", [["4", "0.25"], ["8", "-"]])
    assert _tables(select=lambda m: m["kind"] == "c") == []


def test_columns_may_depend_on_the_first_case_of_a_table():
    a, b = _tables(by=("kind",), columns=lambda m: t.fields("cols", m["kind"]))
    assert a.headers == ["cols", "a"]
    assert b.headers == ["cols", "b"]


def test_a_line_for_each_contender():
    (table,) = _tables(
        columns=[t.Column("who", lambda m: m.contender), t.time("us", unit="us", digits=0)],
        contenders=lambda m: ("ours", "xla"),
        select=lambda m: m["cols"] == 4,
    )
    ours, xla = ["ours", "2000000"], ["xla", "2000000"]
    assert table.rows == [ours, xla, ["ours", "8000000"], xla]


def test_reasons_are_counted_where_values_are_missing():
    again = measured({"cols": 9, "kind": "c"}, {}, refused={"ours": "no", "xla": "never"})
    run = run_of([*CASES, again])
    assert command.refusals(run, dataclasses.replace(SUITE, label=lambda case: case["kind"])) == [
        "ours: no (b and 1 more)",
        "xla: never (c)",
    ]


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, None])
def test_what_is_no_time_counts_as_none(seconds):
    m = measured({}, {"ours": seconds, "xla": 1.0})
    assert m.seconds("ours") is None
    assert m.ratio("xla", "ours") is None
    assert m.ratio("ours", "xla") is None
