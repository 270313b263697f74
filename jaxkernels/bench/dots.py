"""Pictures of dots: a line for each case, a mark on it for each metric.

A panel has at most a dozen lines, so that they can be read: more become panels of their own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from jaxkernels.bench import plot
from jaxkernels.bench.records import Measured

MOST_LINES = 12
_ROOM = 0.05  # that is shown on either side of 1, at least: less is mostly noise
_COLUMNS = 3  # of panels, at most
_WIDTHS = {1: 6.5, 2: 5.0, 3: 3.6}  # of a panel in inches, by the number of columns
_COLOURS = (plot.OURS, plot.PEER, plot.GREEN, plot.PURPLE, plot.ORANGE, plot.SKY)

T = TypeVar("T")
Metric = Callable[[Measured], float | None]
Label = Callable[[Measured], str]
Mark = tuple[str, str]  # colour, matplotlib's marker


class Dots(NamedTuple):
    """What a panel shows."""

    title: str
    xlabel: str  # what all metrics measure
    members: Sequence[Measured]  # the lines, the first one on top
    label: Label  # names a line
    series: Mapping[str, Metric]  # the metrics by their names


def _panel(axes: Any, *, shown: Dots, marks: Mapping[str, Mark], is_named: bool) -> None:
    """Draws a panel; marks after the first are hollow, so that none hides another."""
    for place, (name, metric) in enumerate(shown.series.items()):
        points = [(v, -y) for y, m in enumerate(shown.members) if (v := metric(m)) is not None]
        colour, marker = marks[name]
        style = {"color": colour, "markeredgewidth": 1.4, "markersize": 5.5, "zorder": 3 + place}
        face = colour if place == 0 else "none"
        xy = zip(*points, strict=True) if points else ((), ())
        axes.plot(*xy, marker, label=name, markerfacecolor=face, **style)
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, 1 - _ROOM), max(right, 1 + _ROOM))
    axes.axvline(1.0, color=plot.MUTED, linewidth=1.2, linestyle=plot.DASHES)
    lines = range(len(shown.members))
    names = list(map(shown.label, shown.members)) if is_named else [""] * len(lines)
    axes.set_yticks([-y for y in lines], names)
    axes.set_ylim(0.6 - len(lines), 0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(color=plot.GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(shown.title)
    axes.set_xlabel(shown.xlabel)


def cut(items: Sequence[T]) -> list[Sequence[T]]:
    """What several panels have, `MOST_LINES` of the items each at most, as equal as can be.

    Example:
        >>> [len(part) for part in cut(range(25))], cut([])
        ([9, 9, 7], [])
    """
    count = math.ceil(len(items) / MOST_LINES)
    size = math.ceil(len(items) / max(1, count))
    return [items[start : start + size] for start in range(0, len(items), max(1, size))]


def parts(shown: Dots) -> list[Dots]:
    """The panel, or several, where it has too many lines; none of no lines.

    Example:
        >>> many = Dots("products", "times", [Measured({}, {})] * 25, str, {})
        >>> [(part.title, len(part.members)) for part in parts(many)]
        [('products, 1 of 3', 9), ('products, 2 of 3', 9), ('products, 3 of 3', 7)]
    """
    found = cut(shown.members)
    if len(found) < 2:
        return [shown] * len(found)
    return [
        shown._replace(title=f"{shown.title}, {number} of {len(found)}", members=members)
        for number, members in enumerate(found, 1)
    ]


def of_dots(title: str, rows: Sequence[Sequence[Dots]]) -> plot.Figure:
    """A picture of rows of panels, in which a metric has one mark.

    A panel whose lines are those of the panel on its left does not name them again.
    """
    shorter = [[part for shown in row for part in parts(shown)] for row in rows]
    lines = [row[i : i + _COLUMNS] for row in shorter for i in range(0, len(row), _COLUMNS)]
    found = dict.fromkeys(name for row in lines for shown in row for name in shown.series)
    names = sorted(found, key=lambda name: name != "ours")  # whose colour is the first one
    every = zip(itertools.cycle(_COLOURS), itertools.cycle("oDs^vPX"), strict=False)
    marks = dict(zip(names, every, strict=False))

    def is_named(row: Sequence[Dots], column: int) -> bool:
        left, here = row[max(0, column - 1)], row[column]
        return column == 0 or [*map(left.label, left.members)] != [*map(here.label, here.members)]

    panels = [
        [
            partial(_panel, shown=shown, marks=marks, is_named=is_named(row, column))
            for column, shown in enumerate(row)
        ]
        for row in lines
    ]
    most = max((len(shown.members) for row in lines for shown in row), default=0)
    width = _WIDTHS[max(map(len, lines), default=1)]
    return plot.Figure(title, panels, (width, max(2.4, 0.9 + 0.2 * most)))
