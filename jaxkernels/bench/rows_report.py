"""Tables and picture of the suites of row operations. Pure: from records alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import get_args

from jaxkernels.bench import plot
from jaxkernels.bench import tables as t
from jaxkernels.bench.records import Measured, Run
from jaxkernels.bench.rows_model import REGIONS, RowModel, is_rows, kind, odd_pairs, over_xla
from jaxkernels.typing import Tier

_DIRECTIONS = {"fwd": "forward", "grad": "backward"}

_FEW_ROWS = t.View(
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


def views(model: RowModel, run: Run, markdown: bool) -> list[t.View]:
    """Every length and contender; in a document dtypes side by side; then regions and few rows."""
    unit, scale = t.unit(run.platform)
    measured = list(filter(is_rows, run.measured))
    odd = t.View(
        title=lambda m: "odd over even row length, ours (auto), throughput",
        labels=(
            t.Column("cols", lambda m: m["cols"], reduce=t.joined(" / ")),
            *(t.field("dtype"), t.field("direction")),
        ),
        lines=odd_pairs,
        columns=(t.Column("ratio", model.rate, "{:.3f}", reduce=t.over_second),),
        select=lambda m: model.rate(m) is not None,
        refusals=False,
    )
    lengths = _side_by_side if markdown else _in_detail
    return [
        *lengths(model, measured, unit, scale),
        *_by_region(model, measured, unit, scale),
        odd,
        _FEW_ROWS,
    ]


def _rate(model: RowModel, head: str, name: str, scale: float) -> t.Column:
    return t.Column(head, lambda m: model.rate(m, name), t.rate, scale)


def _compared(model: RowModel, ceiling: str, pattern: str, scale: float) -> list[t.Column]:
    names = {ceiling: ceiling, "jax.nn": "xla", "ours": "auto"}
    return [
        *(_rate(model, head, name, scale) for head, name in names.items()),
        t.Column(f"of {ceiling}", model.of_ceiling, pattern),
        t.times_faster("x jax.nn", "xla", "auto"),
    ]


def _in_detail(
    model: RowModel, measured: Sequence[Measured], unit: str, scale: float
) -> list[t.View]:
    """A table for each dtype and direction."""
    tier = [t.field("tier")] if any(m["tier"] for m in measured) else []
    forced = [n for n in get_args(Tier) if any(n in m.records for m in measured)]
    tiers = [*tier, *(_rate(model, name, name, scale) for name in forced)]
    return [
        t.View(
            title=lambda m: (
                f"{m['operation']} {m['direction']}, {m['dtype']} ({unit} of model bytes)"
            ),
            labels=(t.field("cols"), t.field("rows")),
            columns=(*_compared(model, model.ceiling(members[0]), "{:.3f}", scale), *tiers),
            select=lambda m, of=of: is_rows(m) and kind(m) == of,
        )
        for of, members in t.group_by(measured, kind).items()
    ]


def _side_by_side(
    model: RowModel, measured: Sequence[Measured], unit: str, scale: float
) -> list[t.View]:
    """A table for each direction."""
    directions = t.group_by(measured, lambda m: m["direction"])
    return [
        t.View(
            title=lambda m: f"{m['operation']} {m['direction']} ({unit} of model bytes)",
            labels=(t.field("cols"),),
            lines=t.same(lambda m: m["cols"]),
            columns=_compared(model, model.ceiling(members[0]), "{:.2f}", scale),
            across="dtype",
            select=lambda m, direction=direction: is_rows(m) and m["direction"] == direction,
            refusals=False,
        )
        for direction, members in directions.items()
    ]


def _by_region(
    model: RowModel, measured: Sequence[Measured], unit: str, scale: float
) -> list[t.View]:
    """A table for each ceiling."""
    measured = [m for m in measured if model.of_ceiling(m) is not None]

    def columns(ceiling: str) -> list[t.Column]:
        least, mean, of = f"least of {ceiling}", f"mean of {ceiling}", model.of_ceiling
        return [
            t.Column("cols", lambda m: m["cols"], reduce=t.span),
            t.Column(least, of, "{:.3f}", reduce=t.least, at=lambda m: m["cols"]),
            t.Column(mean, of, "{:.3f}", reduce=t.geometric_mean),
            t.Column("x jax.nn", over_xla, "{:.2f}", reduce=t.geometric_mean),
        ]

    return [
        t.View(
            title=lambda m: (
                f"ours (auto) by region: fraction of {model.ceiling(m)}, "
                "speed-up over jax.nn (geometric means)"
            ),
            labels=(
                t.Column("region", lambda m: REGIONS[model.region(m)]),
                *(t.field("dtype"), t.field("direction")),
            ),
            lines=t.same(lambda m: (*kind(m), model.region(m))),
            columns=columns(str(ceiling)),
            select=lambda m, ceiling=ceiling: (
                is_rows(m) and model.ceiling(m) == ceiling and model.of_ceiling(m) is not None
            ),
            notes=_notes(model, members, unit, scale),
            refusals=False,
        )
        for ceiling, members in t.group_by(measured, model.ceiling).items()
    ]


def _notes(model: RowModel, measured: Sequence[Measured], unit: str, scale: float) -> list[str]:
    """How far the same pass over memory differs from case to case: the run's noise."""
    name, notes = model.ceiling(measured[0]), []
    for dtype, members in t.group_by(measured, lambda m: m["dtype"]).items():
        rates = sorted(rate * scale for m in members if (rate := model.rate(m, name)))
        least, median, most = map(t.rate, (rates[0], statistics.median(rates), rates[-1]))
        notes.append(
            f"{name}, {dtype}, over all cases: {least} to {most} {unit}, median {median}; "
            f"no fraction of {name} is known better than that."
        )
    return notes


# In drawing order: what matters most is drawn last, on top. Label, colour, width, dashes.
_STYLES = {
    "warp": ("warp, forced", "#0d9488", 1.2, (0, (1, 1.2))),
    "block": ("block, forced", "#db2777", 1.2, (0, (2, 1.2))),
    "block_smem": ("block_smem, forced", "#8b5cf6", 1.2, (0, (4, 1.4))),
    "cluster": ("cluster, forced", "#65a30d", 1.2, (0, (3, 1.2))),
    "block_uncached": ("block_uncached, forced", "#d4a017", 1.2, (0, (5, 1.4, 1, 1.4))),
    "read": ("device read", "#374151", 1.5, (0, (6, 2))),
    "copy": ("device copy", "#374151", 1.5, (0, (6, 2))),
    "xla": ("jax.nn (XLA)", plot.PEER, 1.9, "-"),
    "auto": ("jaxkernels (auto)", plot.OURS, 2.5, "-"),
}


def _curves(model: RowModel, members: Sequence[Measured], scale: float) -> list[plot.Curve]:
    """A line for each contender; odd lengths, which would be spikes beside even ones, are hollow."""
    curves = []
    for name, (text, colour, width, dashes) in _STYLES.items():
        rates = [(m["cols"], rate * scale) for m in members if (rate := model.rate(m, name))]
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


def figure(model: RowModel, run: Run) -> plot.Figure:
    """Throughput over row length: a row of panels for each direction, a panel for each dtype."""
    unit, scale = t.unit(run.platform)
    measured = list(filter(is_rows, run.measured))
    low, *_, high = sorted(m["cols"] for m in [*measured, *measured])
    powers = [2**e for e in range(32) if low <= 2**e <= high]
    rates = [rate for m in measured for name in _STYLES if (rate := model.rate(m, name))]

    def panel(members: Sequence[Measured]) -> plot.Lines:
        return plot.Lines(
            title=f"{members[0]['dtype']}, {_DIRECTIONS[members[0]['direction']]}",
            xlabel="row length (columns)",
            ylabel=f"throughput ({unit} of model bytes)",
            curves=_curves(model, members, scale),
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
