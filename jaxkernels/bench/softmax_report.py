"""Tables and picture of the suite ``softmax``. Pure: from records alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import get_args

from jaxkernels.bench import plot
from jaxkernels.bench import tables as t
from jaxkernels.bench.records import Measured, Run
from jaxkernels.typing import Tier

# Arrays of the size of x that each direction must move.
STREAMS = {"fwd": 2, "grad": 3}
_DIRECTIONS = {"fwd": "forward", "grad": "backward"}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# The last column count of the first region, whose rows a warp can hold.
_SHORT_COLS = 4096
_SM_BYTES = 227 * 1024  # of shared memory, on an H200
_CLUSTER_BYTES = 16 * _SM_BYTES
REGIONS = {
    "short": "up to 4096 columns",
    "shared": "larger, while an SM could hold them",
    "cluster": "larger still, held by a cluster",
    "filling": "one row fills a cluster",
    "uncached": "beyond shared memory",
    "all": "all",
}


def throughput(m: Measured, name: str = "auto") -> float | None:
    """The model bytes per second of a contender: each array moved once."""
    seconds, streams = m.seconds(name), STREAMS["fwd" if name == "copy" else m["direction"]]
    size = m["rows"] * m["cols"] * _ITEM_BYTES[m["dtype"]]
    return None if seconds is None else streams * size / seconds


def of_copy(m: Measured) -> float | None:
    """The throughput of ours as a fraction of the copy's in this very case."""
    copy, own = throughput(m, "copy"), throughput(m)
    return None if copy is None or own is None else own / copy


def over_xla(m: Measured) -> float | None:
    """How many times faster than XLA ours is."""
    return m.ratio("xla", "auto")


def is_rows(m: Measured) -> bool:
    """Whether a case is one of throughput, and not of few rows."""
    return m["group"] == "rows"


def kind(m: Measured) -> tuple[str, str]:
    """The dtype and the direction."""
    return m["dtype"], m["direction"]


def region(m: Measured) -> str:
    """The region of row lengths that a case belongs to, of `REGIONS`; "all" without a plan (CPU)."""
    if not m["tier"]:
        return "all"
    if m["cols"] <= _SHORT_COLS:
        return "short"
    if m["tier"] == "block_uncached":
        return "uncached"
    # Rows of clusters count as shared where the memory of an SM would hold them, and as a
    # region of their own where an SM has room for one part of a row only.
    read = (STREAMS[m["direction"]] - 1) * m["cols"] * _ITEM_BYTES[m["dtype"]]
    if m["tier"] != "cluster" or read <= _SM_BYTES:
        return "shared"
    return "cluster" if read <= _CLUSTER_BYTES / 2 else "filling"


def odd_pairs(members: Sequence[Measured]) -> list[Sequence[Measured]]:
    """Each case of an odd column count with that of its even neighbour, where both were measured."""
    found = {(*kind(m), m["cols"]): m for m in members if is_rows(m)}
    pairs = []
    for (dtype, direction, cols), m in found.items():
        neighbours = [(dtype, direction, cols + step) for step in (-1, 1)]
        even = [found[key] for key in neighbours if key in found]
        if cols % 2 and even:
            pairs.append([m, even[0]])
    return pairs


def _copy_notes(measured: Sequence[Measured], unit: str, scale: float) -> list[str]:
    """How far the same copy differs from case to case: the run's noise."""
    notes = []
    for dtype, members in t.group_by(measured, lambda m: m["dtype"]).items():
        rates = sorted(rate * scale for m in members if (rate := throughput(m, "copy")))
        if rates:
            least, median, most = map(t.rate, (rates[0], statistics.median(rates), rates[-1]))
            notes.append(
                f"copy, {dtype}, over all cases: {least} to {most} {unit}, median {median}; "
                "no fraction of copy is known better than that."
            )
    return notes


def views(run: Run, markdown: bool) -> list[t.View]:
    """Every length and contender; in a document dtypes side by side; then regions and few rows."""
    unit, scale = t.unit(run.platform)
    measured = list(filter(is_rows, run.measured))

    def rate(head: str, name: str) -> t.Column:
        return t.Column(head, lambda m: throughput(m, name), t.rate, scale)

    compared = (
        *(rate("copy", "copy"), rate("jax.nn", "xla"), rate("ours", "auto")),
        t.Column("of copy", of_copy, "{:.2f}" if markdown else "{:.3f}"),
        t.times_faster("x jax.nn", "xla", "auto"),
    )
    tier = [t.field("tier")] if any(m["tier"] for m in measured) else []
    forced = [n for n in get_args(Tier) if any(n in m.records for m in measured)]
    detail = t.View(
        title=lambda m: f"{m['operation']} {m['direction']}, {m['dtype']} ({unit} of model bytes)",
        by=kind,
        labels=(t.field("cols"), t.field("rows")),
        columns=(*compared, *tier, *(rate(name, name) for name in forced)),
        select=is_rows,
    )
    overview = t.View(
        title=lambda m: f"{m['operation']} {m['direction']} ({unit} of model bytes)",
        by=lambda m: m["direction"],
        labels=(t.field("cols"),),
        lines=t.same(lambda m: m["cols"]),
        columns=compared,
        across="dtype",
        select=is_rows,
        refusals=False,
    )
    regions = t.View(
        title=lambda m: (
            "ours (auto) by region: fraction of copy, speed-up over jax.nn (geometric means)"
        ),
        labels=(
            t.Column("region", lambda m: REGIONS[region(m)]),
            *(t.field("dtype"), t.field("direction")),
        ),
        lines=t.same(lambda m: (*kind(m), region(m))),
        columns=(
            t.Column("cols", lambda m: m["cols"], reduce=t.span),
            t.Column("least of copy", of_copy, "{:.3f}", reduce=t.least, at=lambda m: m["cols"]),
            t.Column("mean of copy", of_copy, "{:.3f}", reduce=t.geometric_mean),
            t.Column("x jax.nn", over_xla, "{:.2f}", reduce=t.geometric_mean),
        ),
        select=lambda m: is_rows(m) and of_copy(m) is not None,
        notes=_copy_notes(measured, unit, scale),
        refusals=False,
    )
    odd = t.View(
        title=lambda m: "odd over even row length, ours (auto), throughput",
        labels=(
            t.Column("cols", lambda m: m["cols"], reduce=t.joined(" / ")),
            *(t.field("dtype"), t.field("direction")),
        ),
        lines=odd_pairs,
        columns=(t.Column("ratio", throughput, "{:.3f}", reduce=t.over_second),),
        select=lambda m: throughput(m) is not None,
        refusals=False,
    )
    few_rows = t.View(
        title=lambda m: f"{m['operation']} fwd on few rows (microseconds per call)",
        labels=(t.Column("rows x cols", lambda m: f"{m['rows']} x {m['cols']}"),),
        lines=t.same(lambda m: (m["rows"], m["cols"])),
        columns=(
            t.Column("jax.nn", lambda m: m.seconds("xla"), "{:.1f}", 1e6),
            t.Column("ours", lambda m: m.seconds("auto"), "{:.1f}", 1e6),
        ),
        across="dtype",
        select=lambda m: not is_rows(m),
    )
    return [overview if markdown else detail, regions, odd, few_rows]


# In drawing order: what matters most is drawn last, on top. Label, colour, width, dashes.
_STYLES = {
    "warp": ("warp, forced", "#0d9488", 1.2, (0, (1, 1.2))),
    "block": ("block, forced", "#db2777", 1.2, (0, (2, 1.2))),
    "block_smem": ("block_smem, forced", "#8b5cf6", 1.2, (0, (4, 1.4))),
    "cluster": ("cluster, forced", "#65a30d", 1.2, (0, (3, 1.2))),
    "block_uncached": ("block_uncached, forced", "#d4a017", 1.2, (0, (5, 1.4, 1, 1.4))),
    "copy": ("device copy", "#374151", 1.5, (0, (6, 2))),
    "xla": ("jax.nn (XLA)", plot.PEER, 1.9, "-"),
    "auto": ("jaxkernels (auto)", plot.OURS, 2.5, "-"),
}


def _curves(members: Sequence[Measured], scale: float) -> list[plot.Curve]:
    """A line for each contender; odd lengths, which would be spikes beside even ones, are hollow."""
    curves = []
    for name, (text, colour, width, dashes) in _STYLES.items():
        rates = [(m["cols"], rate * scale) for m in members if (rate := throughput(m, name))]
        even, odd = ([p for p in rates if p[0] % 2 == rest] for rest in (0, 1))
        even, odd = (even, odd) if len(even) > 1 else (rates, [])
        is_compared = name in ("xla", "auto")
        if even:
            marker = "o" if is_compared else ""
            curves.append(plot.Curve(text, even, colour, width, dashes, marker))
        if odd and is_compared:
            curves.append(plot.Curve(f"{text}, odd length", odd, colour, 0, marker="D"))
    return curves


def _spans(members: Sequence[Measured]) -> list[tuple[float, str]]:
    """Where each planned tier begins: (geometrically) midway between two lengths."""
    planned = [(m["cols"], m["tier"]) for m in members if m["tier"]]
    borders = [
        ((a * b) ** 0.5, tier)
        for (a, before), (b, tier) in itertools.pairwise(planned)
        if tier != before
    ]
    return [*planned[:1], *borders]


def figure(run: Run) -> plot.Figure:
    """Throughput over row length: a row of panels for each direction, a panel for each dtype."""
    unit, scale = t.unit(run.platform)
    measured = list(filter(is_rows, run.measured))
    low, *_, high = sorted(m["cols"] for m in [*measured, *measured])
    powers = [2**e for e in range(32) if low <= 2**e <= high]
    rates = [rate for m in measured for name in m.records if (rate := throughput(m, name))]

    def panel(members: Sequence[Measured]) -> plot.Lines:
        return plot.Lines(
            title=f"{members[0]['dtype']}, {_DIRECTIONS[members[0]['direction']]}",
            xlabel="row length (columns)",
            ylabel=f"throughput ({unit} of model bytes)",
            curves=_curves(members, scale),
            ticks=powers[:: 2 if len(powers) > 9 else 1],
            ylim=(0.0, 1.06 * scale * max(rates, default=1 / scale)),
            spans=_spans(members),
        )

    rows = [
        [panel(members) for members in t.group_by(across, lambda m: m["dtype"]).values()]
        for across in t.group_by(measured, lambda m: m["direction"]).values()
    ]
    operation = measured[0]["operation"]
    return plot.Figure(f"{operation}: throughput by row length", rows, (6.4, 3.5))
