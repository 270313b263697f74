"""Writes the tables and pictures of the documents from the runs in ``docs/runs``.

* ``python docs/generate.py``: after a run was added, or this file was changed.
* ``python docs/generate.py --add FOLDER``: first adds the runs that ``docs/runs/run FOLDER`` wrote.

A document has ``<!-- generated: NAME -->`` and ``<!-- end -->`` around what the table or picture NAME writes, from the
latest run of its file. A comment hides a section, with its heading, if none of its tables and pictures has a run; the
block ``missing`` lists these sections. ``tests/package/test_performance_pages.py`` fails if a document or a picture differs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import charts

from jaxkernels.bench import attention, records, row_map, rows, sgemm_products, traffic
from jaxkernels.bench import tables as t
from jaxkernels.bench.__main__ import SUITES
from jaxkernels.bench.losses import PEERS
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
        command = self.run.environment["command"]
        return f"{self.where}; `{command}` ([all numbers](run:{self.path}))."


Runs = Mapping[str, Source]


def having(runs: Runs, file: str, fields: Mapping[str, Any]) -> Cases:
    """The cases of a file with these fields, without rows that run XLA's own operation by default."""

    def is_xlas(m: Measured) -> bool:
        return m["tier"] == "block_uncached" and "softmax" in m.case.get("operation", "")

    found = runs[file].run.measured if file in runs else ()
    return [m for m in found if fields.items() <= m.case.items() and not is_xlas(m)]


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


def by_case(cases: Cases, *columns: t.Column) -> str:
    """A Markdown table with a line for each case."""
    return grid([c.head for c in columns], ([c.cell(m) for c in columns] for m in cases))


def place(case: records.Case) -> str:
    """A case in a few words."""
    if "cols" in case:
        return f"{case['dtype']} {case['rows']} x {case['cols']}"
    if "classes" in case:
        return f"{case['dtype']} {case['rows']} x {case['features']} x {case['classes']}"
    if "model" in case:
        return case["model"]
    return sgemm_products.size(case) if "m" in case else attention.label(case).partition(" ")[2]


class Gains(NamedTuple):
    """Ratios of some cases, ascending, each with its case."""

    pairs: list[tuple[float, str]]

    @classmethod
    def of(cls, cases: Iterable[Measured], peer: str, name: str) -> Gains:
        """The speeds of a contender relative to a peer, of cases that have both."""
        found = (
            (value, place(m.case)) for m in cases if (value := m.ratio(peer, name)) is not None
        )
        return cls(sorted(found))

    @property
    def counted(self) -> list[str]:
        """The number of cases and the geometric mean."""
        return [str(len(self.pairs)), f"{geometric_mean(value for value, _ in self.pairs):.2f}"]

    @property
    def cells(self) -> list[str]:
        """The number of cases, geometric mean, least and most."""
        return [*self.counted, *map(_said, (self.pairs[0], self.pairs[-1]))]

    def slowest(self, least: float, shown: int) -> list[str]:
        """The number of cases, geometric mean, the number below the least one, and the slowest."""
        below = sum(value < least for value, _ in self.pairs)
        return [*self.counted, str(below), ", ".join(map(_said, self.pairs[:shown]))]

    def said(self, what: str) -> str:
        """A sentence: the geometric mean and the slowest cases."""
        count, mean, below, worst = self.slowest(1, 3)
        return f"{what}: geometric mean {mean}; {below} of {count} below 1; lowest {worst}."


def _said(pair: tuple[float, str]) -> str:
    return f"{pair[0]:.2f} ({pair[1]})"


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
            cases = having(runs, file, fields)
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
    """A line of the summary: two contenders, and cases of a file with a group, a direction or a dtype."""

    what: str
    peer: str
    file: str
    names: tuple[str, str] = ("xla", "ours")
    group: str = ""
    direction: str = ""
    dtype: str = ""

    def gains(self, runs: Runs) -> Gains:
        """The ratios of its cases."""
        fields = {name: getattr(self, name) for name in ("group", "direction", "dtype")}
        asked = {name: value for name, value in fields.items() if value}
        return Gains.of(having(runs, self.file, asked), *self.names)


_AUTO, _OURS = ("xla", "auto"), ("xla", "ours")
_LOSSES = {"optax": _OURS, "torch.compile": ("compiled", "ours")}
_LAYERS = {"jax.nn": _OURS, "jax.nn with cuDNN": ("cudnn", "ours")}
COMPARISONS = [
    *(
        Comparison(
            f"cross entropy and gradient, {dtype}", peer, "losses", by, "rows", "mean", dtype
        )
        for dtype, (peer, by) in itertools.product(("bfloat16", "float32"), _LOSSES.items())
    ),
    *(
        Comparison("cross entropy", peer, "losses", by, "rows", "loss")
        for peer, by in _LOSSES.items()
    ),
    Comparison("cross entropy, gradient, drawn", "optax", "losses_drawn", direction="mean"),
    Comparison("cross entropy of a linear layer, gradients", "optax", "linear_loss"),
    Comparison("softmax", "jax.nn", "softmax", _AUTO, "rows", "fwd"),
    Comparison("softmax gradient", "jax.nn", "softmax", _AUTO, "rows", "grad"),
    Comparison("softmax, drawn, many rows", "jax.nn", "map", _AUTO, "many_rows"),
    Comparison("softmax, drawn, 1 to 132 rows", "jax.nn", "map", _AUTO, "few_rows"),
    Comparison("logsumexp", "jax.nn", "logsumexp", _AUTO, direction="fwd"),
    Comparison("masked softmax of scores", "XLA", "attention", group="scores"),
    *(
        Comparison(f"attention, {dtype}", peer, "attention", by, "layers", dtype=dtype)
        for dtype, (peer, by) in itertools.product(("bfloat16", "float32"), _LAYERS.items())
    ),
    Comparison("float32 products, squares", "cuBLAS", "sgemm", _AUTO, "square"),
    Comparison("float32 products, other shapes", "cuBLAS", "sgemm", _AUTO, "other"),
    Comparison("float32 products, drawn", "cuBLAS", "sgemm_drawn", _AUTO),
    Comparison("Flax models in float32", "XLA's highest", "float32", ("highest", "ours")),
]


def summary(runs: Runs, about: str = "") -> str | None:
    """A line for each comparison whose name begins with `about`: how many times a peer's speed."""
    lines = [
        [line.what, line.peer, *found.cells]
        for line in COMPARISONS
        if line.what.startswith(about) and (found := line.gains(runs)).pairs
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
        if (gains := line.gains(runs)).pairs
    }
    if not found:
        return None
    speeds = " and ".join(
        f"{pairs[0][0]:.1f} to {pairs[-1][0]:.1f} times optax's speed in {dtype}"
        for dtype, pairs in found.items()
    )
    lengths = [m["cols"] for m in having(runs, "losses", {"group": "rows"})]
    vocabularies = f"vocabularies of {min(lengths):,} to {max(lengths):,}"
    return f"Cross entropy with its gradient: {speeds} ({vocabularies}; {runs['losses'].where})."


SECTIONS |= {made.__name__: made for made in (summary, attention_summary, headline)}


def _kinds(cases: Cases) -> Mapping[tuple[str, str], Cases]:
    """Cases by dtype and direction."""
    return group_by(cases, lambda m: (m["dtype"], m["direction"]))


def _panels(cases: Cases, series: Callable[[Cases], Points], *how: Any) -> list[charts.Panel]:
    """A panel for each dtype and direction."""
    return [
        charts.Panel(f"{dtype}, {_DIRECTIONS[direction]}", series(members), *how)
        for (dtype, direction), members in _kinds(cases).items()
    ]


def _points(
    cases: Cases,
    names: Mapping[str, Any],
    x: Callable[[Measured], Any],
    y: Callable[[Measured, Any], float | None],
) -> Points:
    """The points of each series, whose name is shown; y gets what `names` has for it."""
    return {
        shown: [(x(m), value) for m in cases if (value := y(m, name))]
        for shown, name in names.items()
    }


def _slowest(groups: Mapping[str, Cases], least: float, shown: int) -> list[list[str]]:
    """A line for each group: its ratios to XLA, the number below the least one, and the slowest."""
    found = {name: Gains.of(members, *_AUTO) for name, members in groups.items()}
    return [[name, *gains.slowest(least, shown)] for name, gains in found.items() if gains.pairs]


@section("softmax", "softmax", group="rows")
@section("logsumexp", "logsumexp", group="rows", direction="fwd")
def by_length(source: Source, cases: Cases) -> str:
    """A line for each length: the fraction of memory's rate, and the speed over jax.nn's."""
    ceiling = traffic.of(cases[0]).ceiling
    columns = t.Column(f"of {ceiling}", traffic.of_ceiling, "{:.2f}"), t.times_faster("", *_AUTO)
    rates = [rate / 1e12 for m in cases if (rate := traffic.rate(m, ceiling))]
    said = [f"{source.caption} The {ceiling} moves {min(rates):.2f} to {max(rates):.2f} TB/s.\n"]
    heads = ["columns"]
    for (dtype, direction), members in _kinds(cases).items():
        kind = f"{dtype} {_DIRECTIONS[direction]}"
        heads += [f"{kind}, of {ceiling}", "times jax.nn"]
        said.append("- " + Gains.of(members, *_AUTO).said(f"Times jax.nn's speed, {kind}"))
    lines = []
    for cols, members in sorted(group_by(cases, itemgetter("cols")).items()):
        at = _kinds(members)
        found = [at.get(kind) for kind in _kinds(cases)]
        cells = [column.cell(ms[0]) if ms else "-" for ms in found for column in columns]
        lines.append([str(cols), *cells])
    return "\n".join([*said, "", grid(heads, lines)])


@drawing("softmax", "softmax", group="rows")
def softmax_picture(source: Source, cases: Cases) -> Picture:
    """Throughput by length."""
    names = {"ours": "auto", "jax.nn": "xla", "device copy": "copy"}

    def teras(m: Measured, name: str) -> float | None:
        rate = traffic.rate(m, name)
        return rate and rate / 1e12

    series = partial(_points, names=names, x=itemgetter("cols"), y=teras)
    panels = _panels(cases, series, ("columns", "TB/s of model bytes"))
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

    def gain(m: Measured, ends: tuple[int, int]) -> float | None:
        is_in = ends[0] <= (m["rows"] if rows.is_few(m) else 1 << 40) <= ends[1]
        return m.ratio(*_AUTO) if is_in else None

    series = partial(_points, names=kinds, x=itemgetter("cols"), y=gain)
    panels = _panels(cases, series, ("columns", "times jax.nn's speed"), "dots", 1.0, True)
    return "Softmax at lengths that a seed drew", panels


_OF_LOSSES = {
    "loss": "The mean of the losses",
    "mean": "The mean and its gradient",
    "none": "The loss of each row and the gradient",
    "log_probs": "Log-probabilities and entropies",
    "ids_8": "Log-probabilities of 8 ids",
    "ids_1024": "Log-probabilities of 1024 ids",
    "kl": "The KL divergence of each row",
    "kl_mean": "Its mean and the gradient of the logits",
    "kl_both": "Its mean and both gradients",
}


@section("losses", "losses", group="rows")
def losses(source: Source, cases: Cases) -> str:
    """A table for each direction."""
    found = [source.caption]
    for direction, members in group_by(cases, itemgetter("direction")).items():
        ceiling = traffic.of(members[0]).ceiling
        names = PEERS | ({"xla": "jax.nn"} if direction == "log_probs" else {})
        peers = [n for n in names if n != "log_softmax" and any(m.seconds(n) for m in members)]
        table = by_case(
            members,
            t.Column("dtype, columns", lambda m: f"{m['dtype']} {m['cols']}"),
            t.time("ours ms", "ours", digits=2),
            t.Column(f"of {ceiling}", partial(traffic.of_ceiling, name="ours"), "{:.2f}"),
            t.times_faster(f"times {names['xla']}", "xla", "ours"),
            *(t.time(f"{names[name]} ms", name, digits=2) for name in peers),
        )
        found.append(f"**{_OF_LOSSES[direction]}**\n\n{table}")
    return "\n\n".join(found)


@drawing("losses", "losses", group="rows", direction="mean")
def losses_picture(source: Source, cases: Cases) -> Picture:
    """Times of the loss and its gradient."""
    names = {"ours": "ours", "torch.compile": "compiled", "optax": "xla"}

    def time(m: Measured, name: str) -> float | None:
        seconds = m.seconds(name)
        return seconds and seconds * 1e3

    def panel(dtype: str, members: Cases) -> charts.Panel:
        found = _points(members, names, lambda m: str(m["cols"]), time)
        series = {name: points for name, points in found.items() if points}
        return charts.Panel(dtype, series, ("classes", "milliseconds, less is better"), "bars")

    panels = [panel(*item) for item in group_by(cases, itemgetter("dtype")).items()]
    size = max(m["rows"] * m["cols"] for m in cases)
    return f"Cross entropy and its gradient, 2^{(size - 1).bit_length()} logits", panels


@section("losses_drawn", "losses_drawn")
@section("cpu_losses_drawn", "cpu_losses_drawn")
def losses_drawn(source: Source, cases: Cases) -> str:
    """The tables that the benchmark prints, then the times of optax and with options over all cells."""
    lines = [
        [f"{dtype}, {_OF_LOSSES[direction].lower()}", shown, *found.cells[1:]]
        for (dtype, direction), members in _kinds(cases).items()
        for name, shown in {"xla": "optax", "options": "with options"}.items()
        if (found := Gains.of(members, name, "ours")).pairs
    ]
    heads = ["", "time over ours", "geometric mean", "least", "most"]
    return f"{as_printed(source, cases)}\n\n{grid(heads, lines)}"


@section("few_rows", "losses", group="few_rows")
def few_rows(source: Source, cases: Cases) -> str:
    """Latencies."""

    def what(m: Measured) -> str:
        return f"{m['dtype']} {m['rows']} x {m['cols']}, {_OF_LOSSES[m['direction']].lower()}"

    times = [
        t.time(f"{head} us", name, "us", 1) for head, name in (("ours", "ours"), ("optax", "xla"))
    ]
    table = by_case(cases, t.Column("", what), *times, t.times_faster("times optax", "xla", "ours"))
    return f"{source.caption}\n\n{table}"


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
    tables = [table for view in suite.views(source.run) for table in view.tables(cases)]
    return "\n\n".join([source.caption, *map(to_markdown, tables)])


@section("layers", "attention", group="layers")
def layers(source: Source, cases: Cases) -> str:
    """A line for each layer."""
    size = ", ".join(f"{name} {cases[0][name]}" for name in attention.SIZES)
    heads = {"ours": "ours", "xla": "XLA", "cudnn": "cuDNN"}
    table = by_case(
        cases,
        t.Column("", lambda m: f"{m['dtype']}, {m['variant']}, {_DIRECTIONS[m['direction']]}"),
        *(t.time(f"{head} ms", name, digits=2) for name, head in heads.items()),
        *(t.times_faster(f"times {heads[name]}", name, "ours") for name in ("xla", "cudnn")),
    )
    return f"{source.caption} Layers have {size}.\n\n{table}"


@section("scores", "attention", group="scores")
def scores(source: Source, cases: Cases) -> str:
    """A line for each kind, over all lengths."""
    lines = []
    kinds = group_by(cases, lambda m: (m["dtype"], m["variant"], m["direction"]))
    for (dtype, variant, direction), members in kinds.items():
        gains = Gains.of(members, *_OURS)
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
    variants = {m["variant"]: m["variant"] for m in cases}

    def gain(m: Measured, variant: str) -> float | None:
        return m.ratio(*_OURS) if m["variant"] == variant else None

    series = partial(_points, names=variants, x=lambda m: str(m["length"]), y=gain)
    panels = _panels(cases, series, ("length", "times XLA's speed"), "bars", 1.0)
    return "Scale, mask and softmax of attention scores", panels


def _teraflops(m: Measured, name: str) -> float | None:
    return m.rate(sgemm_products.flops(m.case) / 1e12, name)


@section("squares", "sgemm", group="square")
@section("other_products", "sgemm", group="other")
@section("transposed", "sgemm", group="transposed")
@section("families", "sgemm_peers", group="families")
def of_products(source: Source, cases: Cases) -> str:
    """A line for each product."""
    names = {"ours": "auto", "cuBLAS": "xla"}
    table = by_case(
        cases,
        t.Column("product", lambda m: sgemm_products.size(m.case)),
        t.Column("kernel", lambda m: str(m.extra("auto", "rung"))),
        *(
            t.Column(f"{head} TFLOP/s", partial(_teraflops, name=name), "{:.1f}")
            for head, name in names.items()
        ),
        t.times_faster("times cuBLAS", "xla", "auto"),
        t.times_faster("`pipelined`, times cuBLAS", "xla", "pipelined"),
        *(
            t.extra(f"{head} relF", "errors", "relF", pattern="{:.1e}", contender=name)
            for head, name in names.items()
        ),
    )
    said = Gains.of(cases, *_AUTO).said("Times cuBLAS's rate")
    return f"{source.caption} {said}\n\n{table}"


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
    found = _points(cases, names, lambda m: str(m["m"]), _teraflops)
    ours = {shown: name for shown, name in names.items() if name != "xla"}
    over = _points(cases, ours, itemgetter("m"), lambda m, name: m.ratio("xla", name))
    panels = [
        charts.Panel("rate", found, ("size of the square matrices", "TFLOP/s"), "bars"),
        charts.Panel("over cuBLAS", over, ("size", "times cuBLAS's rate"), "lines", 1.0),
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
