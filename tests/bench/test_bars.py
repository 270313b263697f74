"""The command that holds a benchmark's JSON file against this project's bars, and the bars of softmax."""

import re

import pytest
from bars import __main__ as command
from bars import judge
from bars import softmax as regions
from bench_cases import QUICK, measured
from programs import ROOT, run_python

from jaxkernels.bench.__main__ import main as bench
from jaxkernels.bench.rows import row_case

RUNS = {
    "softmax": ["--cols", "64", "--elements", "2^10", "--no-few-rows"],
    "logsumexp": ["--cols", "64", "--elements", "2^10"],
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
    assert complete.split()[-1] == "pass"
    assert code == (1 if "FAIL" in out else 0)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"suite": "softmax", "schema": 1}', '{"suite": "regress", "schema": 2}'],
)
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
        assert not words & {"Verdict", "judge", "Bar"}, path


@pytest.mark.parametrize(
    ("cols", "tier", "direction", "region"),
    [
        (4096, "block", "fwd", "short"),
        (4097, "block", "fwd", "shared"),
        (16384, "block", "fwd", "shared"),
        (50257, "cluster", "fwd", "shared"),  # as block_smem would hold it
        (65536, "cluster", "fwd", "cluster"),
        (24576, "cluster", "grad", "shared"),
        (32768, "cluster", "grad", "cluster"),
        (262144, "cluster", "fwd", "cluster"),
        (524288, "cluster", "fwd", "filling"),
        (262144, "cluster", "grad", "filling"),
        (1 << 20, "block_uncached", "fwd", "uncached"),
        (4096, "", "fwd", "all"),
    ],
)
def test_regions(cols, tier, direction, region):
    """A row that one SM could hold counts as shared, whatever tier it takes."""
    case = row_case("softmax", direction, "float32", 8, cols) | {"tier": tier}
    assert regions.region(measured(case, {})) == region


def softmax(dtype="float32", direction="fwd", cols=1024, tier="warp", of_copy=1.0, over_xla=2.0):
    """A case whose copy takes a second."""
    streams = 1 if direction == "fwd" else 1.5
    ours = streams / of_copy
    seconds = {"copy": 1.0, "auto": ours, "xla": ours * over_xla}
    return measured(row_case("softmax", direction, dtype, 8, cols) | {"tier": tier}, seconds)


def failed(cases, platform="gpu"):
    return {v.what for v in judge("softmax", cases, platform) if not v.passed}


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
    good = [softmax(cols=2048), softmax(cols=512), softmax(cols=1022)]
    found = failed([*good, softmax(**case)])
    ignored = {what for what in found if what.endswith("geometric mean") and what != MEAN}
    assert found - ignored == failing


def test_a_dtype_does_not_hide_behind_another():
    found = failed([softmax(of_copy=0.97), softmax("bfloat16", of_copy=0.94, cols=512)])
    assert found == {"bfloat16 fwd short, of copy, geometric mean"}


def test_odd_row_lengths_have_a_bar_on_a_gpu():
    even, slow = softmax(cols=1000, of_copy=1.06), softmax(cols=1001, of_copy=0.95)
    what = "float32 fwd, 1001 over 1000 columns"
    assert what in failed([even, slow])
    assert what not in failed([even, slow], "cpu")
    assert what not in failed([even, softmax(cols=1001, of_copy=0.96)])


@pytest.mark.parametrize(("dtype", "bar"), [("float32", 1.2), ("bfloat16", 2.0)])
def test_bars_of_softmax_on_a_cpu(dtype, bar):
    for over_xla, passed in ((bar + 0.01, True), (bar - 0.01, False)):
        found = judge("softmax", [softmax(dtype, tier="", over_xla=over_xla)], "cpu")
        assert [v.passed for v in found] == [True, passed]


def test_what_was_not_measured_is_a_failure():
    case = row_case("softmax", "fwd", "float32", 8, 512) | {"tier": "warp"}
    without = measured(case, {"copy": 1.0, "xla": 1.0}, refused={"auto": "no memory"})
    found = judge("softmax", [softmax(), without], "gpu")
    assert {v.what for v in found if not v.passed} == {"contenders measured", SHORT, MEAN}
    assert found[0].reached.startswith("without auto at ")
    assert "512" in found[0].reached
    # Few rows have no bars.
    few = measured({**case, "group": "few_rows"}, {"xla": 1.0}, refused={"auto": "no memory"})
    assert failed([softmax(), few]) == set()
