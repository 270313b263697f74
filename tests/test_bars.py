"""The command that holds a benchmark's JSON file against this project's bars, and the bars of softmax."""

import dataclasses
import json
import re

import pytest
from bars import __main__ as command
from bars.softmax import judge
from programs import ROOT, run_python

from jaxkernels.bench.__main__ import main as bench
from jaxkernels.bench.softmax import cases

QUICK = ["--repeats", "2", "--min-sample-ms", "0.1"]
RUNS = {
    "softmax": ["--cols", "64", "--elements", "2^10", "--no-few-rows"],
    "sgemm": ["--shapes", "16"],
    "attention": ["--shapes", "1x1x8", "--layer-shapes", "1x1x8x4", "--dtypes", "float32"],
    "scaling": ["--devices", "1", "--groups", "softmax", "--softmax-shape", "4x8"],
}


@pytest.mark.parametrize("benchmark", RUNS)
def test_every_benchmark_can_be_judged(benchmark, tmp_path, capsys):
    """What is reached is not tested, only that every contender was measured."""
    path = tmp_path / "b.json"
    assert bench([benchmark, *RUNS[benchmark], *QUICK, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    for word in ("bars", "verdict", "FAIL", "pass"):  # the benchmark judges nothing
        assert word not in printed
    code = command.main([str(path)])
    out = capsys.readouterr().out
    complete = next(line for line in out.splitlines() if "contenders measured" in line)
    assert complete.endswith("pass")
    assert code == (1 if "FAIL" in out else 0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"benchmark": "softmax", "schema": 0}'])
def test_other_files_are_refused(text, tmp_path, capsys):
    path = tmp_path / "b.json"
    path.write_text(text)
    assert command.main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert command.main([str(tmp_path / "none.json")]) == 2


def test_command_as_it_is_written():
    stdout, _ = run_python("-c", PROGRAM)
    assert "python -m tests.bars" in stdout


PROGRAM = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
sys.argv = ["bars", "--help"]
runpy.run_module("tests.bars", run_name="__main__", alter_sys=True)
"""


def test_the_package_ships_no_bars():
    """Nobody who measures a laptop is told that it fails."""
    for path in (ROOT / "jaxkernels" / "bench").rglob("*.py"):
        assert path.stem not in ("verdicts", "bars"), path
        words = set(re.findall(r"\w+", path.read_text()))
        assert not words & {"Verdict", "judge"}, path


def measured(dtype="float32", direction="fwd", cols=1024, tier="warp", of_copy=1.0, over_xla=2.0):
    """A measurement whose copy takes a second."""
    streams = 1 if direction == "fwd" else 1.5
    ours = streams / of_copy
    seconds = {"copy": 1.0, "auto": ours, "xla": ours * over_xla}
    return cases.Measurement(dtype, direction, 8, cols, tier, seconds)


SHORT = "float32 fwd short, of copy, least"
MEAN = "float32 fwd short, of copy, geometric mean"


@pytest.mark.parametrize(
    ("case", "failing"),
    [
        ({}, set()),
        ({"of_copy": 0.94}, set()),
        ({"of_copy": 0.92}, {SHORT}),
        ({"of_copy": 0.80}, {SHORT, MEAN}),
        ({"direction": "grad", "of_copy": 0.92}, {"float32 grad short, of copy, least"}),
        ({"cols": 65536, "tier": "cluster", "of_copy": 0.9}, set()),
        (
            {"cols": 65536, "tier": "cluster", "of_copy": 0.8},
            {"float32 fwd cluster, of copy, least"},
        ),
        ({"cols": 1 << 20, "tier": "block_uncached", "of_copy": 0.61}, set()),
        (
            {"cols": 1 << 20, "tier": "block_uncached", "of_copy": 0.5},
            {"float32 fwd uncached, of copy, least"},
        ),
        ({"cols": 1023, "of_copy": 0.95}, set()),
    ],
)
def test_bars_of_softmax_on_a_gpu(case, failing):
    good = [measured(cols=2048), measured(cols=512), measured(cols=1022)]
    found = {v.what for v in judge([*good, measured(**case)], "gpu") if not v.passed}
    ignored = {what for what in found if what.endswith("geometric mean") and what != MEAN}
    assert found - ignored == failing


def test_odd_row_lengths_have_a_bar_on_a_gpu():
    slow = dataclasses.replace(measured(cols=1001), seconds={"copy": 1.0, "auto": 1.05, "xla": 2.0})
    even = dataclasses.replace(measured(cols=1000), seconds={"copy": 1.0, "auto": 0.94, "xla": 2.0})
    what = "float32 fwd, 1001 over 1000 columns"
    assert what in {v.what for v in judge([even, slow], "gpu") if not v.passed}
    assert what not in {v.what for v in judge([even, slow], "cpu")}


@pytest.mark.parametrize(("dtype", "bar"), [("float32", 1.2), ("bfloat16", 2.0)])
def test_bars_of_softmax_on_a_cpu(dtype, bar):
    for over_xla, passed in ((bar + 0.01, True), (bar - 0.01, False)):
        found = judge([measured(dtype, tier="", over_xla=over_xla)], "cpu")
        assert [v.passed for v in found] == [True, passed]


def test_what_was_not_measured_is_a_failure():
    good = measured()
    without = dataclasses.replace(good, cols=512, seconds={"copy": 1.0, "xla": 1.0})
    failed = [v for v in judge([good, without], "gpu") if not v.passed]
    assert [v.what for v in failed] == ["contenders measured"]
    assert failed[0].reached == "without auto at float32 fwd 512"


def test_judged_files_are_those_of_the_package(tmp_path):
    """A file of another schema is refused, whatever its name."""
    path = tmp_path / "b.json"
    assert bench(["sgemm", "--shapes", "8", *QUICK, "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema": 99}))
    assert command.main([str(path)]) == 2
