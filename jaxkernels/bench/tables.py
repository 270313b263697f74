"""The pivot: tables from records. Pure: the same from a run and from its file.

A `View` says which cases are in a table, which of them share a line, and what its columns are. A
`Column` is a metric of each case of a line, and a reduction where a line has several.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxkernels.bench.console import Table
from jaxkernels.bench.records import Case, Measured

BLANK = "-"

Metric = Callable[[Measured], Any]
Key = Callable[[Measured], Hashable]
# The values of a metric, none of them None, each with its case.
Values = Sequence[tuple[Any, Measured]]
# One value of many, and the case that it comes from, if it comes from one.
Reduction = Callable[[Values], tuple[Any, Measured | None]]


def only(values: Values) -> tuple[Any, Measured | None]:
    """The first value: of one case, the only one."""
    return values[0][0], None


def least(values: Values) -> tuple[Any, Measured | None]:
    """The smallest value and its case."""
    return min(values, key=lambda pair: pair[0])


def most(values: Values) -> tuple[Any, Measured | None]:
    """The largest value and its case."""
    return max(values, key=lambda pair: pair[0])


def geometric_mean(values: Values) -> tuple[Any, Measured | None]:
    """The geometric mean of positive values."""
    return math.exp(statistics.fmean(math.log(value) for value, _ in values)), None


def over_second(values: Values) -> tuple[Any, Measured | None]:
    """The first of two values over the second; None if one is missing."""
    return (values[0][0] / values[1][0] if len(values) > 1 else None), None


def joined(separator: str) -> Reduction:
    """All values as one text."""
    return lambda values: (separator.join(str(value) for value, _ in values), None)


def span(values: Values) -> tuple[Any, Measured | None]:
    """The smallest and the largest value, as "32..4096"; of one value, that."""
    low, high = least(values)[0], most(values)[0]
    return (str(low) if low == high else f"{low}..{high}"), None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: its head.
        metric: the value of a case; None shows as "-".
        pattern: how a value is written: a format, or a function of the value.
        scale: what a value is multiplied with before.
        reduce: what becomes of the values of several cases that share a line.
        at: names the case that a reduction chose.
    """

    head: str
    metric: Metric
    pattern: str | Callable[[Any], str] = "{}"
    scale: float = 1.0
    reduce: Reduction = only
    at: Metric | None = None

    def cell(self, members: Iterable[Measured]) -> str:
        """The text for the cases of a line."""
        values = [(v, m) for m in members if (v := self.metric(m)) is not None]
        if not values:
            return BLANK
        value, where = self.reduce(values)
        if value is None:
            return BLANK
        value = value if self.scale == 1.0 else value * self.scale
        text = self.pattern(value) if callable(self.pattern) else self.pattern.format(value)
        return text if where is None or self.at is None else f"{text} at {self.at(where)}"


def cases(members: Sequence[Measured]) -> list[Sequence[Measured]]:
    """A line for each case."""
    return [[m] for m in members]


def each_contender(*order: str) -> Callable[[Sequence[Measured]], list[Sequence[Measured]]]:
    """A line for each contender that was tried, in an order of names; without one, as tried."""
    return lambda members: [
        [replace(m, contender=name)]
        for m in members
        for name in order or m.records
        if name in m.records
    ]


def group_by(members: Iterable[Measured], key: Key) -> dict[Hashable, list[Measured]]:
    """The cases by a key, in the order in which keys come first."""
    found: dict[Hashable, list[Measured]] = {}
    for m in members:
        found.setdefault(key(m), []).append(m)
    return found


def same(key: Key) -> Callable[[Sequence[Measured]], list[Sequence[Measured]]]:
    """A line for all cases that have a key in common."""
    return lambda members: list(group_by(members, key).values())


@dataclass(frozen=True)
class View:
    """Some tables of one form.

    Attributes:
        title: of a table, from its first case.
        labels: the columns that name a line.
        columns: the columns of values, or what they are for the cases of a table.
        select: which cases are shown.
        by: a table for each value of this key.
        lines: which cases of a table share a line.
        across: a field whose values stand side by side, each with all columns of values.
        notes: lines below each table, or what they are for its cases.
        refusals: whether reasons for missing values follow the notes.
    """

    title: Callable[[Measured], str]
    labels: Sequence[Column]
    columns: Sequence[Column] | Callable[[Sequence[Measured]], Sequence[Column]]
    select: Callable[[Measured], bool] = lambda m: True
    by: Key = lambda m: ()
    lines: Callable[[Sequence[Measured]], list[Sequence[Measured]]] = cases
    across: str = ""
    notes: Sequence[str] | Callable[[Sequence[Measured]], Sequence[str]] = ()
    refusals: bool = True

    def tables(self, measured: Iterable[Measured], label: Callable[[Case], str]) -> list[Table]:
        """The tables of a run; those without a line are left out.

        Args:
            measured: the cases of the run.
            label: names a case in notes.
        """
        groups = group_by(filter(self.select, measured), self.by).values()
        return [table for members in groups if (table := self._table(members, label)).rows]

    def _table(self, members: Sequence[Measured], label: Callable[[Case], str]) -> Table:
        columns = self.columns(members) if callable(self.columns) else self.columns
        notes = self.notes(members) if callable(self.notes) else self.notes
        values = list(group_by(members, lambda m: m[self.across])) if self.across else [None]
        heads = [f"{v} {c.head}" if self.across else c.head for v in values for c in columns]
        rows = []
        for line in self.lines(members):
            parts = [[m for m in line if not self.across or m[self.across] == v] for v in values]
            cells = [c.cell(line) for c in self.labels]
            rows.append((*cells, *(c.cell(part) for part in parts for c in columns)))
        notes = (*notes, *(refusals(members, label) if self.refusals else ()))
        headers = (*(c.head for c in self.labels), *heads)
        return Table(self.title(members[0]), headers, tuple(rows), notes)


def refusals(members: Iterable[Measured], label: Callable[[Case], str]) -> list[str]:
    """One line for each reason of a contender: where it came first, and how often."""
    found: dict[tuple[str, str], list[str]] = {}
    for m in members:
        for name, record in m.records.items():
            if record.refused:
                found.setdefault((name, record.refused), []).append(label(m.case))
    return [
        f"{name}: {why} ({labels[0]}" + (f" and {len(labels) - 1} more)" if labels[1:] else ")")
        for (name, why), labels in found.items()
    ]


def unit(platform: str, of: str = "B") -> tuple[str, float]:
    """The unit of rates for a platform, and what bytes or operations per second are multiplied with.

    Example:
        >>> unit("cpu"), unit("gpu", "FLOP")
        (('GB/s', 1e-09), ('TFLOP/s', 1e-12))
    """
    return (f"G{of}/s", 1e-9) if platform == "cpu" else (f"T{of}/s", 1e-12)


def rate(value: float) -> str:
    """A rate with three digits or four.

    Example:
        >>> rate(4.051), rate(123.44)
        ('4.05', '123.4')
    """
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def field(name: str, head: str = "") -> Column:
    """A column of a field of cases."""
    return Column(head or name, lambda m: m[name])


def milliseconds(head: str, contender: str = "") -> Column:
    """A column of the times of a contender, or of that which a line is about."""
    return Column(head, lambda m: m.seconds(contender), "{:.3f}", 1e3)


def microseconds(head: str, contender: str = "", pattern: str = "{:.1f}") -> Column:
    """A column of the same, in microseconds."""
    return Column(head, lambda m: m.seconds(contender), pattern, 1e6)


def times_faster(head: str, peer: str, contender: str) -> Column:
    """A column of how many times faster than a peer a contender is."""
    return Column(head, lambda m: m.ratio(peer, contender), "{:.2f}")
