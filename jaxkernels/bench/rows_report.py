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

_DIRECTIONS = {"fwd": "forward", "grad": "backward", "both": "forward and backward"}


def views(model: RowModel, run: Run, markdown: bool) -> list[t.View]:
    """Every length and contender; in a document dtypes side by side; then regions and few rows."""
    unit, scale = t.unit(run.platform)
    of_ceiling, has_tier = model.of_ceiling, any(m["tier"] for m in run.measured)
    forced = [name for name in get_args(Tier) if any(name in m.records for m in run.measured)]

    def rate(head: str, name: str) -> t.Column:
        return t.Column(head, lambda m: model.rate(m, name), t.rate, scale)

    def compared(members: Sequence[Measured]) -> list[t.Column]:
        ceiling = model.ceiling(members[0])
        return [
            *(rate(ceiling, ceiling), rate("jax.nn", "xla"), rate("ours", "auto")),
            t.Column(f"of {ceiling}", of_ceiling, "{:.2f}" if markdown else "{:.3f}"),
            t.times_faster("x jax.nn", "xla", "auto"),
        ]

    def detailed(members: Sequence[Measured]) -> list[t.Column]:
        tier = [t.field("tier")] if has_tier else []
        return [*compared(members), *tier, *(rate(name, name) for name in forced)]

    def of_region(members: Sequence[Measured]) -> list[t.Column]:
        least, mean = (f"{what} of {model.ceiling(members[0])}" for what in ("least", "mean"))
        return [
            t.Column("cols", lambda m: m["cols"], reduce=t.span),
            t.Column(least, of_ceiling, "{:.3f}", reduce=t.least, at=lambda m: m["cols"]),
            t.Column(mean, of_ceiling, "{:.3f}", reduce=t.geometric_mean),
            t.Column("x jax.nn", over_xla, "{:.2f}", reduce=t.geometric_mean),
        ]

    def noise(members: Sequence[Measured]) -> list[str]:
        """How far the same pass over memory differs from case to case."""
        name, notes = model.ceiling(members[0]), []
        for dtype, those in t.group_by(members, lambda m: m["dtype"]).items():
            rates = sorted(rate * scale for m in those if (rate := model.rate(m, name)))
            least, median, most = map(t.rate, (rates[0], statistics.median(rates), rates[-1]))
            notes.append(
                f"{name}, {dtype}, over all cases: {least} to {most} {unit}, median {median}; "
                f"no fraction of {name} is known better than that."
            )
        return notes

    detail = t.View(
        title=lambda m: f"{m['operation']} {m['direction']}, {m['dtype']} ({unit} of model bytes)",
        by=kind,
        labels=(t.field("cols"), t.field("rows")),
        columns=detailed,
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
            f"ours (auto) by region: fraction of {model.ceiling(m)}, "
            "speed-up over jax.nn (geometric means)"
        ),
        by=model.ceiling,
        labels=(
            t.Column("region", lambda m: REGIONS[model.region(m)]),
            *(t.field("dtype"), t.field("direction")),
        ),
        lines=t.same(lambda m: (*kind(m), model.region(m))),
        columns=of_region,
        select=lambda m: is_rows(m) and of_ceiling(m) is not None,
        notes=noise,
        refusals=False,
    )
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
    few_rows = t.View(
        title=lambda m: f"{m['operation']} fwd on few rows (microseconds per call)",
        labels=(t.Column("rows x cols", lambda m: f"{m['rows']} x {m['cols']}"),),
        lines=t.same(lambda m: (m["rows"], m["cols"])),
        columns=(t.microseconds("jax.nn", "xla"), t.microseconds("ours", "auto")),
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
