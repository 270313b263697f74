"""Pictures: panels of lines, dots and bars as values, and matplotlib to draw them.

A suite says what is in a picture by the values of this module, of which matplotlib is no part: it is
optional, and imported where a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INK, MUTED, OURS, PEER = "#111827", "#6b7280", "#2563eb", "#ea580c"
_GRID, _BAND = "#e5e7eb", "#f5f7fa"
_DASHES = (0, (5, 2))


@dataclass(frozen=True)
class Curve:
    """A line of `Lines`.

    Attributes:
        label: in the legend; curves of several panels with one label have one entry.
        points: (x, y), ascending.
        colour: of the line.
        width: of the line; 0 for markers alone, which are then hollow.
        dashes: matplotlib's style of lines.
        marker: of a point; empty for none.
    """

    label: str
    points: Sequence[tuple[float, float]]
    colour: str = OURS
    width: float = 1.5
    dashes: Any = "-"
    marker: str = ""


@dataclass(frozen=True)
class Lines:
    """Curves over a logarithmic axis.

    Attributes:
        title: above the panel.
        xlabel: below it.
        ylabel: beside it.
        curves: from back to front.
        ticks: of the x axis.
        ylim: the least and the greatest y of the panel; None for those of the points.
        log_y: whether the y axis is logarithmic as well.
        spans: (x, name) where a shaded span begins, ascending.
    """

    title: str
    xlabel: str
    ylabel: str
    curves: Sequence[Curve]
    ticks: Sequence[int]
    ylim: tuple[float, float] | None = None
    log_y: bool = False
    spans: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Dots:
    """A line of dots for each label, the first label on top.

    Attributes:
        title: above the panel.
        labels: of the lines.
        series: for each name in the legend its colour and a value for each label, or None.
        stems: whether a dot is joined with 1.
    """

    title: str
    labels: Sequence[str]
    series: Mapping[str, tuple[str, Sequence[float | None]]]
    stems: bool = False


@dataclass(frozen=True)
class Bars:
    """Bars, and levels to compare them with.

    Attributes:
        title: above the panel.
        ylabel: beside it.
        heights: by the name of a bar.
        levels: by the name of a level its height and colour.
    """

    title: str
    ylabel: str
    heights: Mapping[str, float]
    levels: Mapping[str, tuple[float, str]] = field(default_factory=dict)


Panel = Lines | Dots | Bars


@dataclass(frozen=True)
class Figure:
    """A picture: its title, and rows of panels of one size in inches.

    Attributes:
        title: above all panels.
        panels: in rows.
        size: width and height of a panel.
    """

    title: str
    panels: Sequence[Sequence[Panel]]
    size: tuple[float, float] = (6.0, 4.0)


def _draw_lines(axes: Any, panel: Lines) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

    for curve in panel.curves:
        axes.plot(
            *zip(*curve.points, strict=True),
            label=curve.label,
            color=curve.colour,
            linewidth=curve.width,
            linestyle=curve.dashes if curve.width else "",
            marker=curve.marker or ("o" if len(curve.points) == 1 else ""),
            markersize=4 if curve.width else 5.4,
            markerfacecolor=curve.colour if curve.width else "white",
            zorder=2 if curve.width else 5,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(panel.ticks, [str(tick) for tick in panel.ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    if panel.log_y:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
    if panel.ylim is not None:
        axes.set_ylim(*panel.ylim)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_xlabel(panel.xlabel, fontsize=9, color=INK)
    axes.set_ylabel(panel.ylabel, fontsize=9, color=INK)
    if panel.spans:
        _draw_spans(axes, panel.spans)


def _draw_spans(axes: Any, spans: Sequence[tuple[float, str]]) -> None:
    """Names the spans of an axis, and shades every other one."""
    left, right = axes.get_xlim()
    axes.set_xlim(left, right)
    starts = [left, *(x for x, _ in spans[1:]), right]
    for index, (_, name) in enumerate(spans):
        start, end = starts[index : index + 2]
        if index % 2 == 1:
            axes.axvspan(start, end, color=_BAND, zorder=0)
        where = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
        axes.text((start * end) ** 0.5, 0.025, name, fontsize=8.5, color=MUTED, **where)


def _draw_dots(axes: Any, panel: Dots) -> None:
    positions = range(len(panel.labels))[::-1]
    for name, (colour, values) in panel.series.items():
        points = [(v, p) for v, p in zip(values, positions, strict=True) if v is not None]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, "o", color=colour, markersize=5, label=name)
            if panel.stems:
                axes.hlines(y, 1.0, x, color=colour, linewidth=2, alpha=0.35)
    axes.axvline(1.0, color=PEER if panel.stems else MUTED, linewidth=1.2, linestyle=_DASHES)
    axes.set_yticks(positions, panel.labels)


def _draw_bars(axes: Any, panel: Bars) -> None:
    bars = axes.bar(list(panel.heights), list(panel.heights.values()), color=OURS, width=0.62)
    axes.bar_label(bars, [f"{height:.1f}" for height in panel.heights.values()], fontsize=8)
    for name, (height, colour) in panel.levels.items():
        axes.axhline(height, color=colour, linewidth=1.4, linestyle=_DASHES)
        where = {"transform": axes.get_yaxis_transform(), "va": "bottom"}
        axes.text(0.02, height, f"{name} {height:.1f}", fontsize=8, color=colour, **where)
    axes.set_ylabel(panel.ylabel, fontsize=9, color=INK)


_DRAW: dict[type, Any] = {Lines: _draw_lines, Dots: _draw_dots, Bars: _draw_bars}


def draw(figure: Figure, subtitle: str, path: Path) -> None:
    """Draws a picture into a file, whose suffix says in which format.

    Args:
        figure: what to draw; without panels it has its title alone.
        subtitle: one line below the title.
        path: the file to write.
    """
    import matplotlib.figure

    rows, columns = len(figure.panels), max(map(len, figure.panels), default=0)
    size = (figure.size[0] * max(1, columns), 1.4 + figure.size[1] * rows)
    drawn = matplotlib.figure.Figure(figsize=size, layout="constrained")
    drawn.suptitle(f"{figure.title}\n", x=0.01, ha="left", fontsize=13, color=INK)
    drawn.text(0.01, 1 - 0.45 / size[1], subtitle, fontsize=8, color=MUTED)
    handles: dict[str, Any] = {}
    for index, panel in enumerate(p for row in figure.panels for p in row):
        axes = drawn.add_subplot(rows, columns, index + 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=8)
        axes.set_title(panel.title, fontsize=10, loc="left", color=INK)
        _DRAW[type(panel)](axes, panel)
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    if len(handles) > 1:
        drawn.legend(
            handles=list(handles.values()),
            loc="outside lower left",
            ncols=3 * max(1, columns),
            frameon=False,
            fontsize=8,
            handlelength=4,  # long enough for dashes
        )
    drawn.savefig(path, dpi=150)
