"""The pivot: tables from records, the same from a run and from its file; and how they are printed.

A `View` says which cases are in a table and what its columns are, a `Column` what is shown of each.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from jaxkernels.bench.records import Measured

try:
    import rich.box
    import rich.console
    import rich.table
    import rich.text
except ImportError:  # it comes with the extra "bench"; Markdown serves as well
    rich = None  # pyright: ignore[reportAssignmentType]

# Every other cell is plain.
_STYLES = {"pass": "green", "FAIL": "bold red", "slower": "bold red", "faster": "green"}

Metric = Callable[[Measured], Any]
# How a value is written: a format, or a function of it.
Pattern = str | Callable[[Any], str]


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first column is a label, the others are right-aligned."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def to_markdown(table: Table) -> str:
    """Renders a table as GitHub Markdown, with its title in bold above it.

    Example:
        >>> print(to_markdown(Table("T", ("cols", "TB/s"), (("32", "4.1"),))))
        **T**
        <BLANKLINE>
        | cols | TB/s |
        |---|--:|
        | 32 | 4.1 |
    """
    lines = [f"**{table.title}**", "", f"| {' | '.join(table.headers)} |"]
    lines.append("|---|" + "--:|" * (len(table.headers) - 1))
    lines += [f"| {' | '.join(cells)} |" for cells in table.rows]
    return "\n".join([*lines, *(f"\n{note}" for note in table.notes)])


def print_table(table: Table, markdown: bool = False) -> None:
    """Prints a table on stdout, drawn by rich where that is installed."""
    if markdown or rich is None:
        print(to_markdown(table) + "\n")
        return
    drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in table.headers:
        drawn.add_column(head, justify="right" if drawn.columns else "left", no_wrap=True)
    for cells in table.rows:
        drawn.add_row(*(rich.text.Text(cell, style=_STYLES.get(cell, "")) for cell in cells))
    # Piped output has no width to keep to.
    console = rich.console.Console(width=None if sys.stdout.isatty() else 1000)
    console.print(rich.text.Text(table.title, style="bold"), drawn, sep="\n")
    console.print(*(rich.text.Text(note, style="dim") for note in (*table.notes, "")), sep="\n")


def group_by(members: Iterable[Any], key: Callable[[Any], Hashable]) -> dict[Any, list[Any]]:
    """Members by their key, in the order in which keys come first."""
    found: dict[Any, list[Any]] = {}
    for m in members:
        found.setdefault(key(m), []).append(m)
    return found


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    head: str
    metric: Metric  # the value of a case; None shows as "-"
    pattern: Pattern = "{}"

    def cell(self, m: Measured) -> str:
        """The text for a line."""
        if (value := self.metric(m)) is None:
            return "-"
        return self.pattern.format(value) if isinstance(self.pattern, str) else self.pattern(value)


@dataclass(frozen=True)
class View:
    """Some tables of one form, with a line for each case."""

    title: str  # with fields of the first case in braces
    columns: Sequence[Column] | Callable[[Measured], Sequence[Column]]  # or from the first case
    select: Callable[[Measured], bool] = lambda m: True
    by: Sequence[str] = ()  # fields; each of their values has a table
    contenders: Callable[[Measured], Iterable[str]] | None = None  # with a line each
    notes: Sequence[str] | Callable[[Sequence[Measured]], Sequence[str]] = ()  # or from the cases
    order: Callable[[Measured], Any] | None = None  # of the lines, if not that of measuring

    def tables(self, measured: Iterable[Measured]) -> list[Table]:
        """The tables of a run."""
        chosen = filter(self.select, measured)
        groups = group_by(chosen, lambda m: tuple(map(m.case.get, self.by)))
        return [self._table(members) for members in groups.values()]

    def _table(self, members: list[Measured]) -> Table:
        columns = self.columns(members[0]) if callable(self.columns) else self.columns
        notes = self.notes(members) if callable(self.notes) else self.notes
        title = self.title.format(**members[0].case)
        lines = members if self.order is None else sorted(members, key=self.order)
        if self.contenders is not None:
            lines = [replace(m, contender=name) for m in lines for name in self.contenders(m)]
        rows = [[column.cell(m) for column in columns] for m in lines]
        return Table(title, [column.head for column in columns], rows, notes)


def rates(platform: str, of: str = "B") -> tuple[str, Callable[[float], str]]:
    """The unit of rates for a platform, and how bytes or operations per second are written in it.

    Example:
        >>> unit, text = rates("gpu")
        >>> unit, text(4.051e12)
        ('TB/s', '4.05')
    """
    prefix, scale = ("G", 1e-9) if platform == "cpu" else ("T", 1e-12)
    return f"{prefix}{of}/s", lambda value: f"{value * scale:.2f}"


def fields(*names: str) -> list[Column]:
    """Columns of fields of cases."""
    return [Column(name, itemgetter(name)) for name in names]


def time(head: str, contender: str = "", unit: str = "ms", digits: int = 3) -> Column:
    """A column of the times of a contender, by default of that of a line."""
    scale = {"ms": 1e3, "us": 1e6}[unit]
    return Column(head, lambda m: m.seconds(contender), lambda s: f"{s * scale:.{digits}f}")


def extra(head: str, *names: str, pattern: Pattern = "{}", contender: str = "") -> Column:
    """A column of a further value of a contender, by default of that of a line."""
    return Column(head, lambda m: m.extra(contender, *names), pattern)


def memory(head: str, unit: float, digits: int, contender: str = "") -> Column:
    """A column of the temporary memory of a contender's program."""

    def text(size: int) -> str:
        return f"{size / unit:.{digits}f}"

    return extra(head, "temp_bytes", pattern=text, contender=contender)


def times_faster(head: str, peer: str, contender: str) -> Column:
    """A column of how many times faster than a peer a contender is."""
    return Column(head, lambda m: m.ratio(peer, contender), "{:.2f}")


@dataclass(frozen=True)
class Sweep:
    """A ratio over many cases that nobody chose: the worst ones first, and a sentence on all.

    A limit above 1 is one of times: the largest is the worst. Another is one of speeds.
    """

    what: str
    ratio: Callable[[Measured], float | None]
    label: Callable[[Measured], str]
    limit: float
    shown: int = 1  # cases in the sentence

    def found(self, members: Iterable[Measured]) -> list[tuple[float, Measured]]:
        """The cases that have a ratio, the worst first."""
        pairs = [(ratio, m) for m in members if (ratio := self.ratio(m)) is not None]
        return sorted(pairs, key=lambda pair: pair[0], reverse=self.limit > 1)

    def summary(self, members: Iterable[Measured]) -> str:
        """The geometric mean, the worst cases, and how many miss the limit."""
        found = self.found(members)
        if not found:
            return "no case was measured"
        ratios = [ratio for ratio, _ in found]
        worst = ", ".join(f"{ratio:.3f} ({self.label(m)})" for ratio, m in found[: self.shown])
        is_time = self.limit > 1
        missed = sum(ratio > self.limit if is_time else ratio < self.limit for ratio in ratios)
        return (
            f"{self.what} of {len(found)} cases: geometric mean "
            f"{statistics.geometric_mean(ratios):.3f}, worst {worst}, "
            f"{missed} {'beyond' if is_time else 'below'} {self.limit:.3g}"
        )

    def order(self, m: Measured) -> tuple[bool, float]:
        """The order of lines; cases without a ratio are the last."""
        ratio = self.ratio(m)
        sign = -1 if self.limit > 1 else 1
        return ratio is None, sign * (ratio or 0)

    def view(self, title: str, columns: Sequence[Column], by: Sequence[str] = ()) -> View:
        """A line for each case."""
        return View(
            title, columns, by=by, notes=lambda members: [self.summary(members)], order=self.order
        )
