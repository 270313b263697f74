"""Draws throughput over row length: one panel per dtype and direction."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from jaxkernels.bench.environment import summarise_environment
from jaxkernels.bench.softmax.cases import Measurement
from jaxkernels.bench.softmax.report import unit_of
from jaxkernels.bench.softmax.summary import select

_INK, _MUTED, _GRID, _BAND = "#111827", "#6b7280", "#e5e7eb", "#f5f7fa"
_DIRECTION_NAMES = {"fwd": "forward", "grad": "backward"}


@dataclass(frozen=True)
class _Style:
    """How one contender is drawn; ``marked`` lines show each measured point."""

    label: str
    colour: str
    width: float
    dashes: tuple[float, ...] = ()
    opacity: float = 1.0
    marked: bool = False


# In drawing order: what matters most is drawn last, on top.
_STYLES = {
    "warp": _Style("warp, forced", "#0d9488", 1.2, (1, 1.2), 0.8),
    "block": _Style("block, forced", "#db2777", 1.2, (2, 1.2), 0.7),
    "block_smem": _Style("block_smem, forced", "#8b5cf6", 1.2, (4, 1.4), 0.7),
    "cluster": _Style("cluster, forced", "#65a30d", 1.2, (3, 1.2), 0.8),
    "block_uncached": _Style("block_uncached, forced", "#d4a017", 1.2, (5, 1.4, 1, 1.4), 0.8),
    "copy": _Style("device copy", "#374151", 1.5, (6, 2)),
    "xla": _Style("{peer} (XLA)", "#ea580c", 1.9, marked=True),
    "auto": _Style("jaxkernels (auto)", "#2563eb", 2.5, marked=True),
}


def _curve(measurements: Sequence[Measurement], name: str, scale: float) -> list[tuple[int, float]]:
    """Returns (cols, throughput) of a contender, ascending; cases without a time are left out."""
    points = [(m.cols, m.throughput(name)) for m in measurements]
    return sorted((cols, rate / scale) for cols, rate in points if rate is not None)


def _draw_curve(axes: Axes, curve: Sequence[tuple[int, float]], style: _Style) -> None:
    """Draws one line; odd row lengths stand beside it as hollow diamonds.

    An odd length lies next to an even one on the axis: joined to it, it would show as a spike.
    """
    even = [point for point in curve if point[0] % 2 == 0]
    odd = [point for point in curve if point[0] % 2 == 1]
    if len(even) < 2:
        even, odd = list(curve), []
    axes.plot(
        *zip(*even, strict=True),
        color=style.colour,
        linewidth=style.width,
        dashes=style.dashes or (None, None),
        alpha=style.opacity,
        marker="o" if style.marked or len(even) == 1 else "",
        markersize=3.6,
        solid_capstyle="round",
    )
    if odd and style.marked:
        axes.plot(
            *zip(*odd, strict=True),
            linestyle="",
            marker="D",
            markersize=5.4,
            markerfacecolor="white",
            markeredgecolor=style.colour,
            markeredgewidth=1.5,
            zorder=5,
        )


def _draw_tiers(axes: Axes, measurements: Sequence[Measurement]) -> None:
    """Shades and names the spans of row lengths in which each tier is the chosen one."""
    planned = sorted((m.cols, m.tier) for m in measurements if m.tier)
    if not planned:
        return
    left, right = axes.get_xlim()
    # A border lies (geometrically) midway between the last row length of a tier and the next.
    borders = [
        ((a * b) ** 0.5, tier)
        for (a, before), (b, tier) in itertools.pairwise(planned)
        if before != tier
    ]
    spans = [(left, planned[0][1]), *borders]
    for index, (start, tier) in enumerate(spans):
        end = borders[index][0] if index < len(borders) else right
        if index % 2 == 1:
            axes.axvspan(start, end, color=_BAND, zorder=0)
        axes.text(
            (start * end) ** 0.5,
            0.025,
            tier,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=8.5,
            color=_MUTED,
        )


def _dress(axes: Axes, cols: Sequence[int]) -> None:
    """Sets scale, ticks and grid of one panel."""
    axes.set_xscale("log", base=2)
    first, last = min(cols), max(cols)
    axes.set_xlim(first / 1.25, last * 1.25)
    exponents = range((first - 1).bit_length(), last.bit_length())
    every = 2 if len(exponents) > 9 else 1
    axes.xaxis.set_major_locator(FixedLocator([float(2**e) for e in exponents][::every]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value)}"))
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, colors=_INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)


def _legend_handles(shown: Sequence[str], operation: str, has_odd: bool) -> list[Line2D]:
    """Returns the legend: the most important line first."""
    handles = []
    for name in ("auto", "xla", "copy", "warp", "block", "block_smem", "cluster", "block_uncached"):
        if name not in shown:
            continue
        style = _STYLES[name]
        handles.append(
            Line2D(
                [],
                [],
                label=style.label.format(peer=f"jax.nn.{operation}"),
                color=style.colour,
                linewidth=style.width,
                dashes=style.dashes or (None, None),
                alpha=style.opacity,
                marker="o" if style.marked else "",
                markersize=4,
            )
        )
    if has_odd:
        handles.append(
            Line2D(
                [],
                [],
                label="odd row length",
                linestyle="",
                marker="D",
                markersize=5.4,
                markerfacecolor="white",
                markeredgecolor=_INK,
                markeredgewidth=1.3,
            )
        )
    return handles


def draw(
    measurements: Sequence[Measurement],
    operation: str,
    environment: dict[str, str],
    path: Path,
) -> None:
    """Draws throughput over row length and writes it as a PNG.

    Args:
        measurements: the measurements of one run.
        operation: "softmax" or "log_softmax".
        environment: where the run was made; gives the subtitle and the unit.
        path: the file to write.
    """
    unit, scale = unit_of(environment["platform"])
    directions = list(dict.fromkeys(m.direction for m in measurements))
    dtypes = list(dict.fromkeys(m.dtype for m in measurements))
    figure = Figure(figsize=(6.4 * len(dtypes), 1.7 + 3.5 * len(directions)), dpi=160)
    panels = figure.subplots(len(directions), len(dtypes), squeeze=False, sharex=True, sharey=True)
    shown: set[str] = set()
    highest = 0.0
    all_cols = [m.cols for m in measurements]
    for row, direction in enumerate(directions):
        for column, dtype in enumerate(dtypes):
            axes = panels[row, column]
            mine = select(measurements, dtype, direction)
            for name, style in _STYLES.items():
                curve = _curve(mine, name, scale)
                if curve:
                    shown.add(name)
                    highest = max(highest, *(rate for _, rate in curve))
                    _draw_curve(axes, curve, style)
            _dress(axes, all_cols)
            _draw_tiers(axes, mine)
            title = f"{dtype}, {_DIRECTION_NAMES[direction]}"
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK)
            if column == 0:
                axes.set_ylabel(f"throughput ({unit} of model bytes)", fontsize=9.5, color=_INK)
            if row == len(directions) - 1:
                axes.set_xlabel("row length (columns)", fontsize=9.5, color=_INK)
    panels[0, 0].set_ylim(0.0, 1.06 * highest)  # shared by all panels
    height = figure.get_figheight()
    figure.suptitle(
        f"{operation}: throughput by row length",
        x=0.015, y=1 - 0.12 / height, ha="left", va="top", fontsize=15, fontweight="bold",
        color=_INK,
    )  # fmt: skip
    subtitle = summarise_environment(environment)
    figure.text(0.015, 1 - 0.46 / height, subtitle, va="top", fontsize=9.5, color=_MUTED)
    has_odd = any(cols % 2 for cols in all_cols)
    handles = _legend_handles(sorted(shown), operation, has_odd)
    legend_columns = min(len(handles), 3 * len(dtypes))
    legend_rows = -(-len(handles) // legend_columns)
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.008, 1 - 0.64 / height),
        ncols=legend_columns,
        frameon=False,
        fontsize=9,
        handlelength=2.6,
        columnspacing=1.4,
        labelcolor=_INK,
    )
    figure.tight_layout(
        rect=(0, 0, 1, 1 - (0.48 + 0.22 * legend_rows) / height), h_pad=1.6, w_pad=1.8
    )
    figure.savefig(path, facecolor="white")
