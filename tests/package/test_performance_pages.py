"""The performance pages and pictures are what docs/generate.py makes of the runs in docs/runs."""

import importlib.util
import itertools
import re
import shlex
import sys
from xml.etree import ElementTree

import pytest
from bench_cases import measured, run_of
from programs import ROOT

from jaxkernels.bench import linear_loss, records, sgemm_products, traffic
from jaxkernels.bench.__main__ import SUITES as BENCHMARKS
from jaxkernels.bench.attention import DIRECTIONS, VARIANTS, heads_case
from jaxkernels.bench.options import build_parser
from jaxkernels.bench.rows import row_case

PERFORMANCE = ROOT / "docs" / "performance"
DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


def test_documents_are_those_of_the_runs(generate):
    """Repair by `python docs/generate.py`."""
    found = generate.written(generate.load())
    for path, text in found.items():
        assert path.read_text() == text, path
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


# In seconds; ours takes a quarter of the time of each peer, and as long as memory.
TIMES = {
    **{"ours": 1e-3, "auto": 1e-3, "default": 1e-3, "ffi": 1e-3, "pipelined": 2e-3, "copy": 1e-3},
    **{"row_max": 1e-3, "sum": 2e-3, "piece_max": 2e-3, "log_softmax": 3e-3, "naive": 9e-3},
    **dict.fromkeys(("xla", "compiled", "torch", "cudnn", "highest", "tf32", "logits", "2"), 4e-3),
    "1": 4e-3,
}
EXTRA = {"errors": {"relF": 2e-7, "dx": 1e-6, "dw": 1e-6}, "rung": "tensor", "path": "ffi"}
LAYER = {"kind": "bias", "batch": 1, "length": 9, "keys": 9, "heads": 2, "key_heads": 1, "depth": 8}


def cases_of_rows(operation, group="rows", directions=None):
    kinds = itertools.product(directions or traffic.TRAFFIC[operation], DTYPES, (64, 50257))
    return [row_case(operation, way, dtype, 1024, cols, group) for way, dtype, cols in kinds]


def cases_of_products(*groups):
    return [case for group in groups for case in sgemm_products.of_shapes(group, (256,), (4096,))]


CASES = {
    "softmax": cases_of_rows("softmax"),
    "logsumexp": cases_of_rows("logsumexp"),
    "losses": [*cases_of_rows("losses"), *cases_of_rows("losses", "few_rows", ("loss", "mean"))],
    "losses_drawn": cases_of_rows("losses"),
    "map": [*cases_of_rows("softmax", "many_rows"), *cases_of_rows("softmax", "few_rows")],
    "linear_loss": linear_loss.GPU_CASES,
    "attention": [
        heads_case(group, dtype, variant, way, (4, 16, 2048))
        for group in ("layers", "scores")
        for dtype, variant, way in itertools.product(DTYPES, VARIANTS, DIRECTIONS)
    ],
    "attention_drawn": [
        {"group": "drawn", "dtype": dtype, "direction": way, **LAYER}
        for dtype, way in itertools.product(DTYPES, DIRECTIONS)
    ],
    "sgemm": cases_of_products("square", "other", "transposed", "ladder"),
    "sgemm_peers": cases_of_products("families", "peers"),
    "sgemm_drawn": cases_of_products("drawn"),
    "float32": [{"model": "mlp", "direction": way, "rows": 8} for way in ("fwd", "step")],
    "scaling": [{"group": "softmax", "dtype": "float32", "direction": "fwd", "shape": [8, 8]}],
}
SUITES = {
    **{"losses_drawn": "losses", "attention_drawn": "attention"},
    **{"sgemm_drawn": "sgemm", "sgemm_peers": "sgemm"},
}
ABOUT = {
    **{"platform": "gpu", "device": "NVIDIA H100 80GB HBM3", "driver": "580", "jax": "0.12"},
    **{"date": "2030-01-02 03:04 UTC", "command": "bench --json a/b.json", "commit": None},
}


def made_up(name):
    found = run_of(measured(case, TIMES, dict.fromkeys(TIMES, EXTRA)) for case in CASES[name])
    suite = SUITES.get(name, name)
    return records.Run(suite, ABOUT, {"seed": 3}, found.records)


@pytest.fixture(scope="module")
def runs(generate, tmp_path_factory):
    """The runs that `--add` makes from invented files."""
    folder, to = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("runs")
    for name in CASES:
        records.write(made_up(name), folder / f"{name}.json")
    added = generate.add(folder, to)
    assert [path.parent.name for path in added] == ["2030-01-02-h100"] * len(CASES)
    return generate.load(to)


def test_runs_are_added_with_their_commit_and_without_samples(runs):
    assert {*runs} == {*CASES}
    for source in runs.values():
        assert source.run.environment["commit"]
        assert source.run.environment["command"] == "bench"
        assert {record.samples for record in source.run.records} == {()}


def test_every_section_and_picture(generate, runs):
    """Ours is 4 times as fast as a peer. Pictures are XML, with every contender and dark colours."""
    found = {name: make(runs) for name, make in generate.SECTIONS.items()}
    for name, text in found.items():
        if name.startswith("cpu_"):  # has no run
            assert text is None
        elif name.endswith("_picture"):
            assert re.fullmatch(r"!\[.+, NVIDIA H100 80GB HBM3\]\(\w+\.svg\)", text)
        else:
            assert re.search(r"\b4\.0+\b", text), name
            assert name in ("summary", "headline") or "NVIDIA H100 80GB HBM3, driver 580" in text
    assert "4.0 to 4.0 times optax's speed in bfloat16" in found["headline"]
    assert "| softmax | jax.nn | 4 | 4.00 | 4.00 (bfloat16 1024 x 50257) |" in found["summary"]
    assert "| bfloat16 64 | 1.00 | 1.00 | 4.00 | 4.00 | 4.00 |" in found["losses"]
    assert "| 256^3 | tensor | 0.0 | 0.0 | 4.00 | 2.00 |" in found["squares"]
    pictures = {name: make(runs) for name, make in generate.PICTURES.items()}
    for name, svg in pictures.items():
        ElementTree.fromstring(svg)
        assert svg.count("prefers-color-scheme: dark") == 2, name
        assert ">float32" in svg or name == "products"
    heights = re.findall(r'height="([\d.]+)" class="s0"', pictures["losses"])
    assert heights == ["50.0"] * 4  # ours, 1 ms on an axis of 4 ms, for two lengths of two dtypes
    words = ("optax", "torch.compile", "50257", "4.00")
    assert all(f">{word}</text>" in pictures["losses"] for word in words)


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


def test_commands_of_the_runs():
    """Each is one that the benchmarks take, and every file of a section has one."""
    text = (ROOT / "docs" / "runs" / "run").read_text()
    found = re.findall(r"^ +bench (\w+) \d+ (.+)$", text, flags=re.MULTILINE)
    parser = build_parser(BENCHMARKS)
    for name, command in found:
        suite = parser.parse_args(shlex.split(command)).suite
        assert suite.name == SUITES.get(name, name)
    assert {name for name, _ in found} == {*CASES}
