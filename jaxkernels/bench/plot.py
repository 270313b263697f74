"""Pictures: what is drawn as values, and matplotlib to draw it.

matplotlib is optional: it is imported where a picture is drawn. A panel is a function of axes of
matplotlib; a suite makes it of `lines` or `heat` with ``functools.partial``, or all of them by
`of_dots`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxkernels.bench.records import Measured

INK, MUTED, OURS, PEER = "#111827", "#6b7280", "#2563eb", "#ea580c"
_GRID, _BAND = "#e5e7eb", "#f5f7fa"
_DASHES = (0, (5, 2))
_LETTERS_OF_INCH = 16  # of the text below a title, at most
_WIDTH_OF_LETTER = 0.085  # of a span's name, in inches, and some room
_HEAT_TICKS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)

Panel = Callable[[Any], None]
Metric = Callable[[Measured], float | None]
Label = Callable[[Measured], str]
Place = tuple[str, str]  # a line or a column of `heat`: its group and its name


class Curve(NamedTuple):
    """A line of `lines`; of width 0 it is hollow markers alone."""

    label: str  # in the legend, where curves of several panels with one label have one entry
    points: Sequence[tuple[float, float]]  # (x, y), ascending
    colour: str
    width: float
    dashes: Any = "-"  # matplotlib's style of lines
    marker: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture: its title, and rows of panels of one size in inches."""

    title: str
    panels: Sequence[Sequence[Panel]]
    size: tuple[float, float] = (6.0, 4.0)


def lines(
    axes: Any,
    *,
    labels: tuple[str, str, str],
    curves: Sequence[Curve],
    ticks: Sequence[int],
    top: float,
    spans: Sequence[tuple[float, str]] = (),
) -> None:
    """Curves over a logarithmic axis, from back to front, y from 0 to `top`.

    `labels` are the title and those of the axes; a span of `spans`, (x, name), is shaded and begins
    at x.
    """
    from matplotlib.ticker import NullLocator

    for curve in curves:
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
    title, xlabel, ylabel = labels
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, top)
    axes.grid(color=_GRID, linewidth=0.8)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right)
    starts = [left, *(x for x, _ in spans[1:]), right]
    where = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
    for index, (_, name) in enumerate(spans):
        start, end = starts[index : index + 2]
        axes.axvspan(start, end, color=_BAND if index % 2 else "none", zorder=0)
        share = math.log(end / start) / math.log(right / left)  # of the panel's width
        fits = len(name) * _WIDTH_OF_LETTER < share * _width_of(axes)
        axes.text(
            (start * end) ** 0.5,
            0.025,
            name,
            fontsize=8.5,
            color=MUTED,
            rotation=0 if fits else 90,
            **where,
        )


def _width_of(axes: Any) -> float:
    """The width of a panel in inches."""
    return axes.get_position().width * axes.figure.get_figwidth()


def _starts(places: Sequence[Place]) -> dict[Place, float]:
    """Where lines or columns begin, with a gap between groups."""
    groups = list(dict.fromkeys(group for group, _ in places))
    return {place: i + 0.4 * groups.index(place[0]) for i, place in enumerate(places)}


def _two_digits(value: float) -> str:
    """A number of a cell.

    Example:
        >>> [_two_digits(value) for value in (0.968, 0.999, 1.04, 12.3)]
        ['.97', '1.0', '1.0', '12']
    """
    if value < 0.995:
        return f"{value:.2f}"[1:]
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def heat(
    axes: Any,
    *,
    title: str,
    note: str,
    lines: Sequence[Place],
    columns: Sequence[Place],
    values: Mapping[tuple[Place, Place], float],
) -> None:
    """A map of ratios by line and column: 1 is white, less is warm, more is cold.

    The groups of columns are named above them, the note stands below the title.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.patches import Rectangle

    colours = LinearSegmentedColormap.from_list("", [PEER, "white", OURS])
    scale = LogNorm(0.625, 1.6)
    ys, xs = _starts(lines), _starts(columns)
    for (line, column), value in values.items():
        x, y, shade = xs[column], ys[line], float(scale(value))
        box = {"facecolor": colours(shade), "edgecolor": _GRID, "linewidth": 0.6}
        axes.add_patch(Rectangle((x, y), 1, 1, **box))
        ink = {"color": INK if 0.2 < shade < 0.8 else "white", "fontsize": 7}
        axes.text(x + 0.5, y + 0.5, _two_digits(value), ha="center", va="center_baseline", **ink)

    def above(x: float, points: float, text: str, **style: Any) -> None:
        where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(text, (x, 1), (0, points), color=MUTED, **where, **style)

    for group in dict.fromkeys(group for group, _ in columns):
        inside = [x for column, x in xs.items() if column[0] == group]
        above((inside[0] + inside[-1] + 1) / 2, 15, group, fontsize=7, ha="center")
    above(0, 31, note, fontsize=8)
    axes.set_title(title, pad=44)
    axes.set_xlim(0, max(xs.values()) + 1)
    axes.set_ylim(max(ys.values()) + 1, 0)
    axes.set_xticks([x + 0.5 for x in xs.values()], [name for _, name in columns])
    axes.set_yticks([y + 0.5 for y in ys.values()], [name for _, name in lines])
    axes.tick_params(length=0, pad=2, labelsize=7, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    where = {"location": "bottom", "aspect": 50, "pad": 0.01, "ticks": _HEAT_TICKS}
    bar = axes.figure.colorbar(ScalarMappable(scale, colours), ax=axes, **where)
    bar.ax.minorticks_off()
    bar.ax.set_xticklabels(map(str, _HEAT_TICKS), fontsize=7)
    bar.outline.set_visible(False)


def dots(
    axes: Any,
    *,
    title: str,
    members: Sequence[Measured],
    label: Label,
    series: Mapping[str, Metric],
) -> None:
    """A line of dots for each case, the first one on top: the values of metrics by their names."""
    for name, metric in series.items():
        points = [(v, -y) for y, m in enumerate(members) if (v := metric(m)) is not None]
        axes.plot(*(zip(*points, strict=True) if points else ((), ())), "o", label=name)
    if len(series) > 1:
        axes.legend(fontsize=8, frameon=False)
    axes.axvline(1.0, color=MUTED, linewidth=1.2, linestyle=_DASHES)
    axes.set_yticks([-y for y in range(len(members))], list(map(label, members)))
    axes.set_title(title)


def of_dots(
    title: str,
    label: Label,
    panels: Mapping[str, tuple[Sequence[Measured], Mapping[str, Metric]]],
) -> Figure:
    """A picture of dots: by the title of a panel the cases that are in it, and their metrics."""
    found = [
        partial(dots, title=text, members=members, label=label, series=series)
        for text, (members, series) in panels.items()
        if members
    ]
    most = max(len(members) for members, _ in panels.values())
    return Figure(title, [found], (6.5, 1.5 + 0.18 * most))


_STYLE: dict[Any, Any] = {
    "axes.prop_cycle": "cycler('color', ['2563eb', 'ea580c', '0d9488', 'db2777', '8b5cf6', '6b7280'])",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.labelcolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def draw(figure: Figure, subtitle: str, path: Path) -> None:
    """Draws a picture, with some lines below its title, into a file, whose suffix says the format."""
    import matplotlib.figure

    rows, columns = len(figure.panels), max(map(len, figure.panels), default=1)
    width = figure.size[0] * max(1, columns)
    below = textwrap.wrap(subtitle, int(_LETTERS_OF_INCH * width))
    size = (width, 1.4 + figure.size[1] * rows)
    drawn = matplotlib.figure.Figure(figsize=size, layout="constrained")
    room = "\n" * max(1, len(below))
    drawn.suptitle(f"{figure.title}{room}", x=0.01, ha="left", fontsize=13, color=INK)
    top = 1 - 0.34 / size[1]
    drawn.text(0.01, top, "\n".join(below), va="top", fontsize=8, color=MUTED)
    handles: dict[str, Any] = {}
    with matplotlib.rc_context(_STYLE):
        for index, panel in enumerate(panel for row in figure.panels for panel in row):
            axes = drawn.add_subplot(rows, columns, index + 1)
            panel(axes)
            if axes.get_legend() is None:
                found, labels = axes.get_legend_handles_labels()
                handles |= dict(zip(labels, found, strict=True))
    if len(handles) > 1:
        where = {"loc": "outside lower left", "ncols": 3 * max(1, columns), "frameon": False}
        # Long enough for dashes.
        drawn.legend(handles=list(handles.values()), fontsize=8, handlelength=4, **where)
    drawn.savefig(path, dpi=150)
