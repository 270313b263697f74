"""The performance pages and pictures are what docs/generate.py makes of the runs in docs/runs."""

import re
import shlex
from xml.etree import ElementTree

import pytest
from programs import ROOT, module_of

from jaxkernels.bench import records
from jaxkernels.bench.__main__ import SUITES as BENCHMARKS
from jaxkernels.bench.options import build_parser

PERFORMANCE = ROOT / "docs" / "performance"


@pytest.fixture(scope="module")
def generate():
    return module_of(ROOT / "docs" / "generate.py")


def test_documents_are_those_of_the_runs(generate):
    """Repair by `python docs/generate.py`."""
    found = generate.written(generate.load())
    for path, text in found.items():
        assert path.read_text() == text, path
        if path.suffix == ".svg":
            ElementTree.fromstring(text)  # raises an error for text that is no XML
    assert {path for path in found if path.suffix == ".svg"} == {*PERFORMANCE.glob("*.svg")}
    for name, source in generate.load().items():
        about = source.run.environment
        assert all(about[n] for n in ("device", "date", "command", "commit", "jax")), name
        assert about["platform"] == "cpu" or (about["driver"] and about["nvcc"]), name


# A number with the unit of a measurement, a cell with a fraction that is not the first of its row, or a
# table whose head has such a unit.
MEASUREMENT = (
    r"(?<![\w.^])\d[\d.,]* ?(?:(?:times|fold|[mun]?s|[GT]B/s|TFLOP/s|percent)\b|%|of (?:the|its) (?:time|rate))"
    r"|\d+(?:\.\d+)?x\b|(?<=.)\| \d+\.\d+(?: to \d+\.\d+)? \|"
    r"|\|[^|\n]*\b(?:[mun]s|[GT]B/s|TFLOP/s)\b[^|\n]*\|(?=.*\n *\|[ :-]+\|)"
)
PAGES = [
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "ffi/**/*.md")
    for path in sorted(ROOT.glob(pattern))
]
# No measurements of kernels: the time of a build, with its machine; thresholds of two tools.
ALLOWED = {
    "docs/install.md": ["146 s"],
    "CONTRIBUTING.md": ["2 %"],
    "docs/reference/commands.md": ["3 %"],
}


@pytest.mark.parametrize("page", PAGES)
def test_no_measurement_is_written_by_hand(generate, page):
    """Outside of code and of what docs/generate.py writes. Numbers of kernels are in comments there."""
    text = generate._BLOCK.sub("", (ROOT / page).read_text())
    text = re.sub(r"^ *```.*?^ *```$|`[^`\n]+`", "", text, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(MEASUREMENT, text) == ALLOWED.get(page, [])


def test_runs_are_added_with_their_commit_and_without_samples(generate, tmp_path):
    about = {"platform": "gpu", "device": "NVIDIA H100 80GB HBM3", "date": "2030-01-02 03:04 UTC"}
    about |= {"command": "bench --json a/b.json", "commit": None}
    record = records.Record({"cols": 8}, "ours", 1 / 3, [1 / 3])
    records.write(records.Run("softmax", about, {}, (record,)), tmp_path / "softmax.json")
    (added,) = generate.add(tmp_path, tmp_path / "runs")
    assert added == tmp_path / "runs" / "2030-01-02-h100" / "softmax.json"
    run = records.read(added)
    assert run.environment["commit"]
    assert run.environment["command"] == "bench"
    assert run.records == (records.Record({"cols": 8}, "ours", 0.33333),)


def test_sections_without_runs(generate):
    """They are hidden with their headings, are listed once, and come back with a run."""
    found = generate.written({})
    assert all(path.suffix == ".md" for path in found)
    assert found[ROOT / "README.md"] == (ROOT / "README.md").read_text()
    names = {"missing"}
    for path, text in found.items():
        shown = re.sub("^<!-- no run$.*?^-->$", "", text, flags=re.DOTALL | re.MULTILINE)
        kept = re.findall(r"^## (.+)\n", shown, flags=re.MULTILINE)
        hidden = re.findall(r"^<!-- no run\n## (.+)\n", text, flags=re.MULTILINE)
        assert not {*kept} & {*hidden}
        if path.parent == PERFORMANCE and path.stem != "index":
            assert not kept
            assert f"No run is kept for: {'; '.join(hidden)}. [How to make one](../runs/" in shown
        runs = generate.load()
        assert generate.filled(text, runs) == generate.filled(path.read_text(), runs)
        names |= {name for _, name, _ in generate._BLOCK.findall(path.read_text())}
        names |= {*re.findall(r"^{(\w+)}$", text, flags=re.MULTILINE)}
    assert names == {*generate.SECTIONS, "missing"}


def test_commands_of_the_runs(generate):
    """Each is one that the benchmarks take, and every run of a GPU has one."""
    text = (ROOT / "docs" / "runs" / "run").read_text()
    found = dict(re.findall(r"^ +bench (\w+) \d+ (.+)$", text, flags=re.MULTILINE))
    runs = {name: of.run for name, of in generate.load().items() if of.run.platform == "gpu"}
    parser = build_parser(BENCHMARKS)
    suites = {name: parser.parse_args(shlex.split(x)).suite.name for name, x in found.items()}
    assert suites == {name: run.suite for name, run in runs.items()}
