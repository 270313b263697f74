"""Pictures: what is drawn as values, and matplotlib to draw it.

matplotlib is optional: it is imported where a picture is drawn. A panel is a function of axes of
matplotlib; a suite makes it of `lines`, `bars` or `heat` with ``functools.partial``, or all of them
by ``dots.of_dots``. Colours are those of Okabe and Ito, which colour-blind people tell apart.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

OURS, PEER, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, ORANGE = "#56b4e9", "#e69f00"
INK, MUTED = "#111827", "#6b7280"
GRID, _BAND = "#e5e7eb", "#f5f7fa"
DASHES = (0, (5, 2))
_LETTERS_OF_INCH = 16  # of the text below a title, at most
_WIDTH_OF_LETTER = 0.085  # of a span's name, in inches, and some room
_LINE = 11  # from a line of text above a panel to the next, in points
_SHOWN_RATIOS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)

Panel = Callable[[Any], None]
Place = tuple[str, str]  # a column of `heat`: its group and its name


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
    """A picture: its title, and rows of panels, whose size in inches is that of the longest row.

    The panels of a shorter row are wider.
    """

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

    `labels` are the title and those of the axes; a span of `spans`, (x, name), is shaded, begins at
    x, and is named above the panel.
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
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, top)
    axes.grid(color=GRID, linewidth=0.8)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right)
    starts = [left, *(x for x, _ in spans[1:]), right]
    for index, (start, end) in enumerate(itertools.pairwise(starts if spans else ())):
        axes.axvspan(start, end, color=_BAND if index % 2 else "none", zorder=0)
    share = [math.log(x / left) / math.log(right / left) for x in starts]
    names = [name for _, name in spans]
    placed = _in_lines([*zip(share, share[1:], names, strict=False)], _width_of(axes))
    for (x, line), name in zip(placed, names, strict=True):
        _above(axes, left * (right / left) ** x, 3 + _LINE * line, name, fontsize=8.5)
    axes.set_title(title, pad=6 + _LINE * len({line for _, line in placed}))


def _in_lines(spans: Sequence[tuple[float, float, str]], width: float) -> list[tuple[float, int]]:
    """Where spans of a panel are named: the middle of each name, and its line above the panel.

    A span is (start, end, name), as shares of the panel's width in inches. A name stands over the
    middle of its span, within the panel, and in the first line where it meets no other.

    Example:
        >>> _in_lines([(0.0, 0.8, "warp"), (0.8, 0.875, "block_smem"), (0.875, 1.0, "cluster")], 4.0)
        [(0.4, 0), (0.8375, 0), (0.925625, 1)]
    """
    ends: list[float] = []
    placed = []
    for start, end, name in spans:
        half = len(name) * _WIDTH_OF_LETTER / width / 2
        x = max(half, min((start + end) / 2, 1 - half))
        line = next((i for i, taken in enumerate(ends) if taken <= x - half), len(ends))
        ends[line : line + 1] = [x + half]
        placed.append((x, line))
    return placed


def _above(axes: Any, x: float, points: float, text: str, ha: str = "center", **style: Any) -> None:
    """Text so many points above a panel."""
    where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, (x, 1), (0, points), color=MUTED, ha=ha, **where, **style)


def _width_of(axes: Any) -> float:
    """The width of a panel in inches."""
    return axes.get_position().width * axes.figure.get_figwidth()


def bars(
    axes: Any,
    *,
    labels: tuple[str, str, str],
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    colours: Mapping[str, str],
    ceiling: tuple[float, str],
) -> None:
    """Bars in groups, a bar of a group for each of `series`, below a ceiling: its height and its name.

    `labels` are the title and those of the axes. What is None has no bar, and
    leaves its place empty; a series of nothing else is not in the legend.
    """
    height, name = ceiling
    width = 0.8 / max(1, len(series))
    for place, (label, values) in enumerate(series.items()):
        found = [(group, value) for group, value in enumerate(values) if value is not None]
        xs = [group + width * (place - (len(series) - 1) / 2) for group, _ in found]
        if found:  # bars of nothing would have no colour in the legend
            heights = [value for _, value in found]
            axes.bar(xs, heights, 0.9 * width, label=label, color=colours[label])
    axes.axhline(height, color=INK, linewidth=1.2, linestyle=DASHES, label=name)
    title, xlabel, ylabel = labels
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_ylim(0, 1.1 * max([height, *(v for each in series.values() for v in each if v)]))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _starts(places: Sequence[Place]) -> dict[Place, float]:
    """Where columns begin, with a gap between groups."""
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
    labels: tuple[str, str, str],
    note: str,
    lines: Sequence[str],
    columns: Sequence[Place],
    values: Mapping[tuple[str, Place], float],
) -> None:
    """A map of ratios by line and column: 1 is white, less is warm, more is cold.

    `labels` are the title and those of the axes. The groups of columns are named above them, the
    note stands below the title, and the legend says what colours mean.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.patches import Rectangle

    colours = LinearSegmentedColormap.from_list("", [PEER, "white", OURS])
    scale = LogNorm(0.625, 1.6)
    edge = {"edgecolor": GRID, "linewidth": 0.6}
    xs = _starts(columns)
    for (line, column), value in values.items():
        x, y, shade = xs[column], lines.index(line), float(scale(value))
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colours(shade), **edge))
        ink = {"color": INK if 0.1 < shade < 0.9 else "white", "fontsize": 7}
        axes.text(x + 0.5, y + 0.5, _two_digits(value), ha="center", va="center_baseline", **ink)

    for group in dict.fromkeys(group for group, _ in columns):
        inside = [x for column, x in xs.items() if column[0] == group]
        _above(axes, (inside[0] + inside[-1] + 1) / 2, 15, group, fontsize=7)
    below = textwrap.wrap(note, int(_LETTERS_OF_INCH * _width_of(axes)))
    _above(axes, 0, 28, "\n".join(below), "left", va="bottom", fontsize=8)
    title, xlabel, ylabel = labels
    axes.set_title(title, pad=32 + _LINE * len(below))
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_xlim(0, max(xs.values()) + 1)
    axes.set_ylim(len(lines), 0)
    axes.set_xticks([x + 0.5 for x in xs.values()], [name for _, name in columns])
    axes.set_yticks([y + 0.5 for y in range(len(lines))], lines)
    axes.tick_params(length=0, pad=2, labelsize=7, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    for ratio in _SHOWN_RATIOS:
        shown = {"facecolor": colours(float(scale(ratio))), "label": f"{ratio} times"}
        axes.add_patch(Rectangle((0, 0), 0, 0, **shown, **edge))


_STYLE: dict[Any, Any] = {
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
    cells = math.lcm(*(len(panels) or 1 for panels in figure.panels))
    grid = drawn.add_gridspec(max(1, rows), cells)
    with matplotlib.rc_context(_STYLE):
        for row, panels in enumerate(figure.panels):
            for column, panel in enumerate(panels):
                wide = cells // len(panels)
                axes = drawn.add_subplot(grid[row, column * wide : (column + 1) * wide])
                panel(axes)
                found, labels = axes.get_legend_handles_labels()
                for label, handle in zip(labels, found, strict=True):
                    handles.setdefault(label, handle)
    if len(handles) > 1:
        where = {"loc": "outside lower left", "ncols": 3 * max(1, columns), "frameon": False}
        # Long enough for dashes.
        drawn.legend(handles=list(handles.values()), fontsize=8, handlelength=4, **where)
    drawn.savefig(path, dpi=150)
