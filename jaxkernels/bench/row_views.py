"""What the suites of row operations show: tables, a picture, and the options of the command line."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from jaxkernels.bench import plot
from jaxkernels.bench import tables as t
from jaxkernels.bench.records import Measured, Run
from jaxkernels.bench.rows import (
    DTYPES,
    TIERS,
    TRAFFIC,
    is_rows,
    label,
    of_ceiling,
    rate,
    traffic,
)
from jaxkernels.bench.suite import Suite, count, several


def views(run: Run) -> list[t.View]:
    """Every length and contender, and few rows."""
    unit, text = t.rates(run.platform)
    forced = [name for name in TIERS[1:] if any(name in m.records for m in run.measured)]

    def columns(m: Measured) -> list[t.Column]:
        ceiling = traffic(m).ceiling
        names = {ceiling: ceiling, "jax.nn": "xla", "ours": "auto"} | {n: n for n in forced}
        rates = [t.Column(head, partial(rate, name=name), text) for head, name in names.items()]
        of = t.Column(f"of {ceiling}", of_ceiling, "{:.3f}")
        gain = t.times_faster("x jax.nn", "xla", "auto")
        tier = t.fields("tier") if m["tier"] else []
        return [*t.fields("cols", "rows"), *rates[:3], of, gain, *tier, *rates[3:]]

    times = [t.time("jax.nn us", "xla", "us", 1), t.time("ours us", "auto", "us", 1)]
    return [
        t.View(
            "{operation} {direction}, {dtype}" + f" ({unit} of model bytes)",
            columns,
            is_rows,
            by=("dtype", "direction"),
        ),
        t.View(
            "{operation} on few rows",
            [*t.fields("rows", "cols", "dtype"), *times],
            lambda m: not is_rows(m),
        ),
    ]


# In drawing order: what matters most is drawn last, on top. Label, colour, width, dashes, marker.
_STYLES = {
    "warp": ("warp, forced", plot.GREEN, 1.2, (0, (1, 1.2)), ""),
    "block": ("block, forced", plot.PURPLE, 1.2, (0, (2, 1.2)), ""),
    "block_smem": ("block_smem, forced", plot.SKY, 1.2, (0, (4, 1.4)), ""),
    "cluster": ("cluster, forced", plot.ORANGE, 1.2, (0, (3, 1.2)), ""),
    "spread": ("spread, forced", plot.GREEN, 1.2, "-", "^"),
    "block_uncached": ("block_uncached, forced", plot.MUTED, 1.2, (0, (5, 1.4, 1, 1.4)), ""),
    "read": ("device read", plot.INK, 1.5, (0, (6, 2)), ""),
    "copy": ("device copy", plot.INK, 1.5, (0, (6, 2)), ""),
    "xla": ("jax.nn (XLA)", plot.PEER, 1.9, "-", "o"),
    "auto": ("ours", plot.OURS, 2.5, "-", "o"),
}


def _curves(members: Sequence[Measured], scale: float) -> list[plot.Curve]:
    """A line for each contender; odd lengths, which would be spikes beside even ones, are hollow."""
    curves = []
    for name, (text, colour, width, dashes, marker) in _STYLES.items():
        points = [(m["cols"], r * scale) for m in members if (r := rate(m, name))]
        even = [point for point in points if point[0] % 2 == 0]
        line = even if len(even) > 1 else points
        is_compared = name in ("xla", "auto")
        if line:
            curves.append(plot.Curve(text, line, colour, width, dashes, marker))
        if is_compared and (odd := [point for point in points if point not in line]):
            curves.append(plot.Curve(f"{text}, odd length", odd, colour, 0, marker="D"))
    return curves


def _spans(members: Sequence[Measured]) -> list[tuple[float, str]]:
    """Where each planned tier begins: (geometrically) midway between two lengths."""
    planned = [(m["cols"], m["tier"]) for m in members if m["tier"]]
    pairs = itertools.pairwise(planned)
    borders = [((a * b) ** 0.5, tier) for (a, before), (b, tier) in pairs if tier != before]
    return [*planned[:1], *borders]


def figure(run: Run) -> plot.Figure:
    """Throughput over row length: a row of panels for each direction, a panel for each dtype."""
    unit, scale = t.rates(run.platform)[0], 1e-9 if run.platform == "cpu" else 1e-12
    measured = list(filter(is_rows, run.measured))
    lengths = [m["cols"] for m in measured]
    powers = [2**e for e in range(32) if min(lengths) <= 2**e <= max(lengths)]
    rates = [r for m in measured for name in _STYLES if (r := rate(m, name))]

    def panel(members: Sequence[Measured]) -> plot.Panel:
        first = members[0]
        title = f"{first['operation']} {first['direction']}, {first['dtype']}"
        return partial(
            plot.lines,
            labels=(title, "row length (columns)", f"throughput ({unit} of model bytes)"),
            curves=_curves(members, scale),
            ticks=powers[:: 2 if len(powers) > 9 else 1],
            top=1.06 * scale * max(rates, default=1 / scale),
            spans=_spans(members),
        )

    rows = [
        [panel(members) for members in t.group_by(across, lambda m: m["dtype"]).values()]
        for across in t.group_by(measured, lambda m: m["direction"]).values()
    ]
    return plot.Figure(f"{measured[0]['operation']}: throughput by row length", rows, (6.4, 3.5))


_TIERS_HELP = "auto and the tiers to force (default: all on a GPU, auto on a CPU)"
_ELEMENTS_HELP = "size of each input, rows = N // cols (default: 2^28 on a GPU, 2^24 on a CPU)"
_OPTIONS: dict[str, dict[str, Any]] = {
    "--cols": several(count, "N", "row lengths, such as 1000 or 2^15"),
    "--tiers": {"nargs": "+", "choices": TIERS, "help": _TIERS_HELP},
    "--elements": {"type": count, "metavar": "N", "help": _ELEMENTS_HELP},
}


def suite(name: str, options: Mapping[str, Any] | None = None, **more: Any) -> Suite:
    """The suite of a row operation of `TRAFFIC`, with options beyond those of all of them."""
    return Suite(
        name=name,
        label=label,
        views=views,
        figure=figure,
        axes={"dtype": DTYPES, "direction": tuple(TRAFFIC[name])},
        defaults={"dtypes": DTYPES[:2]},
        options={**_OPTIONS, **(options or {})},
        **more,
    )
