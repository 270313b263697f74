"""Writes the tables and pictures of the documents from the runs in ``docs/runs``.

* ``python docs/generate.py``: after a run was added, or this file was changed.
* ``python docs/generate.py --add FOLDER``: first adds the runs that ``docs/runs/run FOLDER`` wrote.

A document has ``<!-- generated: NAME -->`` and ``<!-- end -->`` around what the table or picture NAME writes, from the
latest run of its file. A comment hides a section, with its heading, if none of its tables and pictures has a run; the
block ``missing`` lists these sections. ``tests/package/test_performance_pages.py`` fails if a document or a picture differs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import charts

from jaxkernels.bench import attention, records, row_map, rows, sgemm, traffic
from jaxkernels.bench.__main__ import SUITES
from jaxkernels.bench.losses import OPTIONS, PEERS
from jaxkernels.bench.records import Measured, Run
from jaxkernels.bench.tables import group_by, to_markdown

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_EMPTY = re.compile(r"<!-- generated: (\w+) -->\n<!-- end -->")
_HIDDEN = re.compile(r"^<!-- no run\n(.*?)\n-->$", re.DOTALL | re.MULTILINE)
# A link to the file of a run, until it is known which page has it.
_DATA = re.compile(r"\]\(run:([^)]+)\)")
_MISSING = "No run is kept for: {}. [How to make one](run:README.md)."
_DIRECTIONS = {"fwd": "forward", "grad": "gradient", "both": "forward and gradient"}

Cases = Sequence[Measured]


@dataclass(frozen=True)
class Source:
    """A run, and its file in docs/runs."""

    run: Run
    path: str

    @property
    def where(self) -> str:
        """The device, versions and the date."""
        about = self.run.environment
        driver = f", driver {about['driver']}" if about["driver"] else ""
        return f"{about['device']}{driver}, JAX {about['jax']}, {about['date'][:10]}"

    @property
    def caption(self) -> str:
        """The run, above its tables."""
        return (
            f"{self.where}; `{self.run.environment['command']}` ([all numbers](run:{self.path}))."
        )

    def having(self, **fields: Any) -> Cases:
        """The cases with these fields, without rows of the tier "spread", which is gone."""
        cases = (m for m in self.run.measured if m.case.get("tier") != "spread")
        return [m for m in cases if fields.items() <= m.case.items()]


Runs = Mapping[str, Source]


def load(folder: Path = DOCS / "runs") -> Runs:
    """The latest run of each file; a name begins with "cpu_" if it is one of a CPU."""
    found = {}
    for path in sorted(folder.glob("*/*.json")):
        run = records.read(path)
        name = f"cpu_{path.stem}" if run.platform == "cpu" else path.stem
        found[name] = Source(run, path.relative_to(folder).as_posix())
    return found


def add(folder: Path, to: Path = DOCS / "runs") -> list[Path]:
    """Adds the runs in a folder, without samples, to the folder of their day and device."""
    found = []
    for path in sorted(folder.glob("*.json")):
        run = records.read(path)
        about = dict(run.environment)
        if not about["commit"]:
            describe = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=10"]
            about["commit"] = subprocess.check_output(describe, text=True).strip()
        about["command"] = re.sub(r" --json \S+", "", about["command"])
        card = about["device"].removeprefix("NVIDIA ").split()[0].lower()
        name = f"{about['date'][:10]}-{'cpu' if run.platform == 'cpu' else card}"
        shorter = tuple(
            replace(r, seconds=r.seconds and float(f"{r.seconds:.5g}"), samples=())
            for r in run.records
        )
        found.append(to / name / path.name)
        found[-1].parent.mkdir(parents=True, exist_ok=True)
        records.write(replace(run, environment=about, records=shorter), found[-1])
    return found


def grid(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is a label."""
    parts = [heads, ["---", *["--:"] * (len(heads) - 1)], *lines]
    return "\n".join(f"| {' | '.join(part)} |" for part in parts)


def number(value: float | None, form: str = ".2f") -> str:
    """A number of a cell; "-" for none."""
    return "-" if value is None else f"{value:{form}}"


def ms(m: Measured, name: str) -> str:
    """The milliseconds of a contender."""
    seconds = m.seconds(name)
    return number(seconds and seconds * 1e3)


def us(m: Measured, name: str) -> str:
    """The microseconds of a contender."""
    seconds = m.seconds(name)
    return number(seconds and seconds * 1e6, ".1f")


def place(case: records.Case) -> str:
    """A case in a few words."""
    if "cols" in case:
        return f"{case['dtype']} {case['rows']} x {case['cols']}"
    if "classes" in case:
        return f"{case['dtype']} {case['rows']} x {case['features']} x {case['classes']}"
    if "model" in case:
        return case["model"]
    return sgemm.size(case) if "m" in case else attention.label(case).partition(" ")[2]


class Gains(NamedTuple):
    """Ratios of some cases, ascending, each with its case."""

    pairs: list[tuple[float, str]]

    @classmethod
    def of(cls, cases: Iterable[Measured], ratio: Callable[[Measured], float | None]) -> Gains:
        """The ratios of cases that have one."""
        return cls(sorted((value, place(m.case)) for m in cases if (value := ratio(m)) is not None))

    @property
    def cells(self) -> list[str]:
        """The number of cases, geometric mean, least and most."""
        values = [value for value, _ in self.pairs]
        ends = [f"{value:.2f} ({where})" for value, where in (self.pairs[0], self.pairs[-1])]
        return [str(len(values)), f"{geometric_mean(values):.2f}", *ends]

    def said(self, what: str) -> str:
        """A sentence: the geometric mean and the slowest cases."""
        count, mean, *_ = self.cells
        below = sum(value < 1 for value, _ in self.pairs)
        worst = ", ".join(f"{value:.2f} ({where})" for value, where in self.pairs[:3])
        return f"{what}: geometric mean {mean}; {below} of {count} below 1; lowest {worst}."


# Sections: by name, from the runs to Markdown, or to nothing where a run is missing.
SECTIONS: dict[str, Callable[[Runs], str | None]] = {}
# Pictures likewise, by the name of the file in docs/performance.
PICTURES: dict[str, Callable[[Runs], str | None]] = {}

Make = Callable[[Source, Cases], str]
Picture = tuple[str, Sequence[charts.Panel]]  # a title and panels
Draw = Callable[[Source, Cases], Picture]
Points = Mapping[str, Sequence[tuple[Any, float]]]


def of_run(into: dict[str, Callable[[Runs], str | None]], name: str, file: str, **fields: Any):
    """Registers what is made of the cases of a file that have some fields."""

    def register(make: Make) -> Make:
        def made(runs: Runs) -> str | None:
            cases = runs[file].having(**fields) if file in runs else ()
            return make(runs[file], cases) if cases else None

        into[name] = made
        return make

    return register


section = partial(of_run, SECTIONS)


def drawing(name: str, file: str, **fields: Any) -> Callable[[Draw], Draw]:
    """Registers a picture, and the section that shows it."""

    def register(draw: Draw) -> Draw:
        def make(source: Source, cases: Cases) -> str:
            title, panels = draw(source, cases)
            return charts.picture(f"{title}, {source.run.environment['device']}", panels)

        of_run(PICTURES, name, file, **fields)(make)
        SECTIONS[f"{name}_picture"] = shown
        return draw

    def shown(runs: Runs) -> str | None:
        svg = PICTURES[name](runs)
        return svg and f"![{charts.title(svg)}]({name}.svg)"

    return register


class Comparison(NamedTuple):
    """A line of the summary: cases of a file, and two contenders."""

    what: str
    file: str
    fields: Mapping[str, Any]
    peer: str
    names: tuple[str, str] = ("xla", "ours")


_AUTO, _OURS = ("xla", "auto"), ("xla", "ours")
_GRADIENT = {"group": "rows", "direction": "mean"}
_LOSS_PEERS = {"optax": _OURS, "torch.compile": ("compiled", "ours")}
COMPARISONS = [
    *(
        Comparison(what, "losses", fields, peer, names)
        for what, fields in (
            ("cross entropy and gradient, bfloat16", _GRADIENT | {"dtype": "bfloat16"}),
            ("cross entropy and gradient, float32", _GRADIENT | {"dtype": "float32"}),
            ("cross entropy", _GRADIENT | {"direction": "loss"}),
        )
        for peer, names in _LOSS_PEERS.items()
    ),
    Comparison("cross entropy, gradient, drawn", "losses_drawn", {"direction": "mean"}, "optax"),
    Comparison("cross entropy of a linear layer, gradients", "linear_loss", {}, "optax"),
    Comparison("softmax", "softmax", {"group": "rows", "direction": "fwd"}, "jax.nn", _AUTO),
    Comparison("softmax gradient", "softmax", {"direction": "grad"}, "jax.nn", _AUTO),
    Comparison("softmax, drawn, many rows", "map", {"group": "many_rows"}, "jax.nn", _AUTO),
    Comparison("softmax, drawn, 1 to 132 rows", "map", {"group": "few_rows"}, "jax.nn", _AUTO),
    Comparison("logsumexp", "logsumexp", {"direction": "fwd"}, "jax.nn", _AUTO),
    Comparison("masked softmax of scores", "attention", {"group": "scores"}, "XLA"),
    *(
        Comparison(
            f"attention, {dtype}", "attention", {"group": "layers", "dtype": dtype}, *against
        )
        for dtype in ("bfloat16", "float32")
        for against in (("jax.nn",), ("jax.nn with cuDNN", ("cudnn", "ours")))
    ),
    Comparison("float32 products, squares", "sgemm", {"group": "square"}, "cuBLAS", _AUTO),
    Comparison("float32 products, other shapes", "sgemm", {"group": "other"}, "cuBLAS", _AUTO),
    Comparison("float32 products, drawn", "sgemm_drawn", {}, "cuBLAS", _AUTO),
    Comparison("Flax models in float32", "float32", {}, "XLA's highest", ("highest", "ours")),
]


def _gains(runs: Runs, line: Comparison) -> Gains | None:
    """The ratios of a line of the summary; None where nothing was measured."""
    cases = runs[line.file].having(**line.fields) if line.file in runs else ()
    found = Gains.of(cases, lambda m: m.ratio(*line.names))
    return found if found.pairs else None


def summary(runs: Runs, about: str = "") -> str | None:
    """A line for each comparison whose name begins with `about`: how many times a peer's speed."""
    lines = [
        [line.what, line.peer, *found.cells]
        for line in COMPARISONS
        if line.what.startswith(about) and (found := _gains(runs, line))
    ]
    heads = ["", "times the speed of", "cases", "geometric mean", "least", "most"]
    return grid(heads, lines) if lines else None


def attention_summary(runs: Runs) -> str | None:
    """The lines of the summary about attention, with their run."""
    table = summary(runs, "attention")
    return table and f"{runs['attention'].caption}\n\n{table}"


def headline(runs: Runs) -> str | None:
    """The sentence of README, which keeps its text until there is a run."""
    found = {
        line.what.rpartition(" ")[2]: gains.pairs
        for line in COMPARISONS
        if line.what.startswith("cross entropy and gradient") and line.peer == "optax"
        if (gains := _gains(runs, line))
    }
    if not found:
        return None
    speeds = " and ".join(
        f"{pairs[0][0]:.1f} to {pairs[-1][0]:.1f} times optax's speed in {dtype}"
        for dtype, pairs in found.items()
    )
    lengths = [m["cols"] for m in runs["losses"].having(group="rows")]
    vocabularies = f"vocabularies of {min(lengths):,} to {max(lengths):,}"
    return f"Cross entropy with its gradient: {speeds} ({vocabularies}; {runs['losses'].where})."


SECTIONS |= {made.__name__: made for made in (summary, attention_summary, headline)}


def _kinds(cases: Cases) -> Mapping[tuple[str, str], Cases]:
    """Cases by dtype and direction."""
    return group_by(cases, lambda m: (m["dtype"], m["direction"]))


def _panels(
    cases: Cases, points: Callable[[Cases], Points], x: str, y: str, *how: Any
) -> list[charts.Panel]:
    """A panel for each dtype and direction."""
    return [
        charts.Panel(f"{dtype}, {_DIRECTIONS[direction]}", (x, y), points(members), *how)
        for (dtype, direction), members in _kinds(cases).items()
    ]


def _slowest(groups: Mapping[str, Cases], least: float, shown: int) -> list[list[str]]:
    """A line for each group: its ratios to XLA, the number below the least one, and the slowest."""
    lines = []
    for name, members in groups.items():
        pairs = Gains.of(members, lambda m: m.ratio(*_AUTO)).pairs
        if pairs:
            below = sum(value < least for value, _ in pairs)
            worst = ", ".join(f"{value:.2f} ({where})" for value, where in pairs[:shown])
            mean = geometric_mean(value for value, _ in pairs)
            lines.append([name, str(len(pairs)), f"{mean:.2f}", str(below), worst])
    return lines


@section("softmax", "softmax", group="rows")
@section("logsumexp", "logsumexp", group="rows", direction="fwd")
def by_length(source: Source, cases: Cases) -> str:
    """A line for each length: the fraction of memory's rate, and the speed over jax.nn's."""
    ceiling = traffic.of(cases[0]).ceiling
    kinds = _kinds(cases)
    at = {(m["cols"], kind): m for kind, members in kinds.items() for m in members}
    heads = ["columns"]
    for dtype, direction in kinds:
        heads += [f"{dtype} {_DIRECTIONS[direction]}, of {ceiling}", "times jax.nn"]
    lines = []
    for cols in sorted({m["cols"] for m in cases}):
        of_length = [at.get((cols, kind), Measured({}, {})) for kind in kinds]
        cells = [
            (number(traffic.of_ceiling(m) if m.case else None), number(m.ratio(*_AUTO)))
            for m in of_length
        ]
        lines.append([str(cols), *(cell for pair in cells for cell in pair)])
    rates = [rate / 1e12 for m in cases if (rate := traffic.rate(m, ceiling))]
    said = [
        Gains.of(members, lambda m: m.ratio(*_AUTO)).said(
            f"Times jax.nn's speed, {dtype} {_DIRECTIONS[direction]}"
        )
        for (dtype, direction), members in kinds.items()
    ]
    return "\n".join(
        [
            f"{source.caption} The {ceiling} moves {min(rates):.2f} to {max(rates):.2f} TB/s.\n",
            *(f"- {sentence}" for sentence in said),
            "",
            grid(heads, lines),
        ]
    )


@drawing("softmax", "softmax", group="rows")
def softmax_picture(source: Source, cases: Cases) -> Picture:
    """Throughput by length."""
    names = {"ours": "auto", "jax.nn": "xla", "device copy": "copy"}

    def points(members: Cases) -> Points:
        return {
            shown: [(m["cols"], r / 1e12) for m in members if (r := traffic.rate(m, name))]
            for shown, name in names.items()
        }

    panels = _panels(cases, points, "columns", "TB/s of model bytes")
    return "Throughput of softmax by the length of a row", panels


@section("map", "map")
def drawn_lengths(source: Source, cases: Cases) -> str:
    """A line for each number of rows."""
    groups = group_by(cases, lambda m: m["rows"] if rows.is_few(m) else 0)
    by_height = {
        str(n) if n else "many": groups[n] for n in sorted(groups, key=lambda n: (n > 0, -n))
    }
    lines = _slowest(by_height, 1 / row_map.TOLERANCE, shown=3)
    heads = ["rows", "cases", "times jax.nn, geometric mean", "slower by more than 3 %", "slowest"]
    seed = source.run.settings["seed"]
    return f"{source.caption} Lengths are those of seed {seed}.\n\n{grid(heads, lines)}"


@drawing("map", "map")
def map_picture(source: Source, cases: Cases) -> Picture:
    """A dot for each case."""
    kinds = {"many rows": (133, 1 << 60), "16 to 132 rows": (16, 132), "1 or 4 rows": (1, 4)}

    def points(members: Cases) -> Points:
        return {
            name: [
                (m["cols"], gain)
                for m in members
                if low <= (m["rows"] if rows.is_few(m) else 1 << 40) <= high
                if (gain := m.ratio(*_AUTO))
            ]
            for name, (low, high) in kinds.items()
        }

    panels = _panels(cases, points, "columns", "times jax.nn's speed", "dots", 1.0, True)
    return "Softmax at lengths that a seed drew", panels


_OF_LOSSES = {
    "loss": "The mean of the losses",
    "mean": "The mean and its gradient",
    "none": "The loss of each row and the gradient",
    "log_probs": "Log-probabilities and entropies",
}


@section("losses", "losses", group="rows")
def losses(source: Source, cases: Cases) -> str:
    """A table for each direction."""
    found = [source.caption]
    for direction, members in group_by(cases, lambda m: m["direction"]).items():
        ceiling = traffic.of(members[0]).ceiling
        names = PEERS | ({"xla": "jax.nn"} if direction == "log_probs" else {})
        peers = [n for n in names if n != "log_softmax" and any(m.seconds(n) for m in members)]
        heads = ["dtype, columns", "ours ms", f"of {ceiling}", f"times {names['xla']}"]
        heads += [f"{names[name]} ms" for name in peers]
        lines = [
            [
                f"{m['dtype']} {m['cols']}",
                ms(m, "ours"),
                number(traffic.of_ceiling(m, "ours")),
                number(m.ratio("xla", "ours")),
                *(ms(m, name) for name in peers),
            ]
            for m in members
        ]
        found.append(f"**{_OF_LOSSES[direction]}**\n\n{grid(heads, lines)}")
    return "\n\n".join(found)


@drawing("losses", "losses", group="rows", direction="mean")
def losses_picture(source: Source, cases: Cases) -> Picture:
    """Times of the loss and its gradient."""
    names = {"ours": "ours", "torch.compile": "compiled", "optax": "xla"}

    def panel(dtype: str, members: Cases) -> charts.Panel:
        found = {
            shown: [(str(m["cols"]), s * 1e3) for m in members if (s := m.seconds(name))]
            for shown, name in names.items()
        }
        series = {name: points for name, points in found.items() if points}
        return charts.Panel(dtype, ("classes", "milliseconds, less is better"), series, "bars")

    panels = [panel(*item) for item in group_by(cases, lambda m: m["dtype"]).items()]
    size = max(m["rows"] * m["cols"] for m in cases)
    return f"Cross entropy and its gradient, 2^{(size - 1).bit_length()} logits", panels


@section("losses_drawn", "losses_drawn")
def losses_drawn(source: Source, cases: Cases) -> str:
    """The tables that the benchmark prints, then the times of optax and of options over all lengths."""
    lines = [
        [f"{dtype}, {_OF_LOSSES[direction].lower()}", shown.replace("_", " "), *found.cells[1:]]
        for (dtype, direction), members in _kinds(cases).items()
        for name, shown in ({"xla": "optax"} | {name: name for name in OPTIONS}).items()
        if (found := Gains.of(members, lambda m, name=name: m.ratio(name, "ours"))).pairs
    ]
    heads = ["", "time over ours", "geometric mean", "least", "most"]
    return f"{as_printed(source, cases)}\n\n{grid(heads, lines)}"


@section("few_rows", "losses", group="few_rows")
def few_rows(source: Source, cases: Cases) -> str:
    """Latencies."""
    lines = [
        [
            f"{m['dtype']} {m['rows']} x {m['cols']}, {_OF_LOSSES[m['direction']].lower()}",
            *(us(m, name) for name in ("ours", "xla")),
            number(m.ratio("xla", "ours")),
        ]
        for m in cases
    ]
    return f"{source.caption}\n\n{grid(['', 'ours us', 'optax us', 'times optax'], lines)}"


@section("linear_loss", "linear_loss")
@section("attention_drawn", "attention_drawn")
@section("ladder", "sgemm", group="ladder")
@section("peers", "sgemm_peers", group="peers")
@section("models", "float32")
@section("scaling", "scaling")
@section("cpu_softmax", "cpu_softmax")
@section("cpu_losses", "cpu_losses")
def as_printed(source: Source, cases: Cases) -> str:
    """The tables that the benchmark prints."""
    (suite,) = (suite for suite in SUITES if suite.name == source.run.suite)
    tables = [t for view in suite.views(source.run) for t in view.tables(cases)]
    return "\n\n".join([source.caption, *map(to_markdown, tables)])


@section("layers", "attention", group="layers")
def layers(source: Source, cases: Cases) -> str:
    """A line for each layer."""
    lines = [
        [
            f"{m['dtype']}, {m['variant']}, {_DIRECTIONS[m['direction']]}",
            *(ms(m, name) for name in ("ours", "xla", "cudnn")),
            *(number(m.ratio(name, "ours")) for name in ("xla", "cudnn")),
        ]
        for m in cases
    ]
    heads = ["", "ours ms", "XLA ms", "cuDNN ms", "times XLA", "times cuDNN"]
    first = cases[0]
    size = ", ".join(f"{name} {first[name]}" for name in attention.SIZES)
    return f"{source.caption} Layers have {size}.\n\n{grid(heads, lines)}"


@section("scores", "attention", group="scores")
def scores(source: Source, cases: Cases) -> str:
    """A line for each kind, over all lengths."""
    lines = []
    kinds = group_by(cases, lambda m: (m["dtype"], m["variant"], m["direction"]))
    for (dtype, variant, direction), members in kinds.items():
        gains = Gains.of(members, lambda m: m.ratio(*_OURS))
        over = [o for m in members if (o := attention.of_model(m))]
        cells = [gains.cells[1], f"{gains.pairs[0][0]:.2f}", f"{gains.pairs[-1][0]:.2f}"]
        cells.append(f"{min(over):.2f} to {max(over):.2f}")
        lines.append([f"{dtype}, {variant}, {_DIRECTIONS[direction]}", *cells])
    heads = ["", "times XLA, geometric mean", "least", "most", "time over memory's"]
    lengths = ", ".join(map(str, sorted({m["length"] for m in cases})))
    return f"{source.caption} Lengths are {lengths}.\n\n{grid(heads, lines)}"


@drawing("attention", "attention", group="scores")
def scores_picture(source: Source, cases: Cases) -> Picture:
    """A bar for each length and kind."""

    def points(members: Cases) -> Points:
        return {
            variant: [(str(m["length"]), g) for m in of_kind if (g := m.ratio(*_OURS))]
            for variant, of_kind in group_by(members, lambda m: m["variant"]).items()
        }

    panels = _panels(cases, points, "length", "times XLA's speed", "bars", 1.0)
    return "Scale, mask and softmax of attention scores", panels


def _teraflops(m: Measured, name: str) -> str:
    rate = m.rate(sgemm.flops(m.case), name)
    return number(rate and rate / 1e12, ".1f")


@section("squares", "sgemm", group="square")
@section("other_products", "sgemm", group="other")
@section("transposed", "sgemm", group="transposed")
@section("families", "sgemm_peers", group="families")
def of_products(source: Source, cases: Cases) -> str:
    """A line for each product."""
    lines = [
        [
            sgemm.size(m.case),
            str(m.extra("auto", "rung")),
            _teraflops(m, "auto"),
            _teraflops(m, "xla"),
            *(number(m.ratio("xla", name)) for name in sgemm.OURS),
            *(number(m.extra(name, "errors", "relF"), ".1e") for name in ("auto", "xla")),
        ]
        for m in cases
    ]
    heads = ["product", "kernel", "ours TFLOP/s", "cuBLAS TFLOP/s", "times cuBLAS"]
    heads += ["`pipelined`, times cuBLAS", "ours relF", "cuBLAS relF"]
    said = Gains.of(cases, lambda m: m.ratio(*_AUTO)).said("Times cuBLAS's rate")
    return f"{source.caption} {said}\n\n{grid(heads, lines)}"


@section("products_drawn", "sgemm_drawn")
def products_drawn(source: Source, cases: Cases) -> str:
    """A line for each order of time, and the slowest."""
    ends = {"up to 10 us": (0, 10), "10 to 30 us": (10, 30), "more": (30, 1e9)}
    groups = {
        name: [m for m in cases if low < 1e6 * (m.seconds("xla") or 0) <= high]
        for name, (low, high) in ends.items()
    }
    heads = ["cuBLAS takes", "products", "times cuBLAS, geometric mean", "below 0.95", "slowest"]
    said = f"Seed {source.run.settings['seed']}."
    return f"{source.caption} {said}\n\n{grid(heads, _slowest(groups, 0.95, shown=4))}"


@drawing("products", "sgemm", group="square")
def products_picture(source: Source, cases: Cases) -> Picture:
    """Rates of squares."""
    names = {"ours": "auto", "without tensor cores": "pipelined", "cuBLAS": "xla"}
    found = {
        shown: [
            (str(m["m"]), rate / 1e12) for m in cases if (rate := m.rate(sgemm.flops(m.case), name))
        ]
        for shown, name in names.items()
    }
    over = {
        name: [(m["m"], g) for m in cases if (g := m.ratio("xla", names[name]))]
        for name in list(names)[:2]
    }
    panels = [
        charts.Panel("rate", ("size of the square matrices", "TFLOP/s"), found, "bars"),
        charts.Panel("over cuBLAS", ("size", "times cuBLAS's rate"), over, "lines", 1.0),
    ]
    return "float32 products of square matrices", panels


def filled(text: str, runs: Runs) -> str:
    """A document as the runs make it."""

    def block(match: re.Match[str]) -> str:
        if match[2] == "missing":
            return match[1] + match[3]
        made = SECTIONS[match[2]](runs)
        if made is None:
            return match[0] if match[2] == "headline" else match[1] + match[3]
        return f"{match[1]}{made}\n{match[3]}"

    def shown(match: re.Match[str]) -> str:
        return re.sub(r"{(\w+)}", r"<!-- generated: \1 -->\n<!-- end -->", match[1])

    parts = re.split(r"\n+(?=## )", _BLOCK.sub(block, _HIDDEN.sub(shown, text)).rstrip("\n"))
    missing = []
    for i, part in enumerate(parts):
        others, count = _EMPTY.subn("", part)
        if i > 0 and count and not _BLOCK.search(others):
            missing.append(part.partition("\n")[0].removeprefix("## "))
            parts[i] = "<!-- no run\n" + _EMPTY.sub(r"{\1}", part) + "\n-->"
    if missing:
        told = f"<!-- generated: missing -->\n{_MISSING.format('; '.join(missing))}\n"
        parts[0] = parts[0].replace("<!-- generated: missing -->\n", told)
    return "\n\n".join(parts) + "\n"


def written(runs: Runs) -> dict[Path, str]:
    """All documents with a table or picture, and all pictures, as the runs make them."""
    found = {}
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = page.read_text()
        if _BLOCK.search(text):
            folder = os.path.relpath(DOCS / "runs", page.parent)
            found[page] = _DATA.sub(rf"]({folder}/\1)", filled(text, runs))
    pictures = ((name, make(runs)) for name, make in PICTURES.items())
    return found | {DOCS / "performance" / f"{name}.svg": svg for name, svg in pictures if svg}


def main() -> None:
    """Adds runs, and writes what differs."""
    parser = argparse.ArgumentParser(description="Writes the tables and pictures of the documents.")
    parser.add_argument("--add", type=Path, metavar="FOLDER", help="first adds the runs in it")
    options = parser.parse_args()
    for path in add(options.add) if options.add else ():
        print(f"added {path.relative_to(ROOT)}")
    for path, text in written(load()).items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
