"""Makes tables from records, of a run or of its file, and prints them.

A `View` selects the cases and the columns of a table. A `Column` selects a value of each case.
"""

import math
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
except ImportError:  # the extra "bench" has it; without it, tables are Markdown
    rich = None  # pyright: ignore[reportAssignmentType]

# Styles of cells by their text; other cells are plain.
_STYLES = {"pass": "green", "FAIL": "bold red", "slower": "bold red", "faster": "green"}

# Formats a value: a format string or a function.
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
    """Prints a table on stdout, by rich if it is installed."""
    if markdown or rich is None:
        print(to_markdown(table) + "\n")
        return
    drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in table.headers:
        drawn.add_column(head, justify="right" if drawn.columns else "left", no_wrap=True)
    for cells in table.rows:
        drawn.add_row(*(rich.text.Text(cell, style=_STYLES.get(cell, "")) for cell in cells))
    # Piped output has no width limit.
    console = rich.console.Console(width=None if sys.stdout.isatty() else 1000)
    console.print(rich.text.Text(table.title, style="bold"), drawn, sep="\n")
    console.print(*(rich.text.Text(note, style="dim") for note in (*table.notes, "")), sep="\n")


def group_by(members: Iterable[Any], key: Callable[[Any], Hashable]) -> dict[Any, list[Any]]:
    """Groups members by key, in the order of each key's first member."""
    found: dict[Any, list[Any]] = {}
    for m in members:
        found.setdefault(key(m), []).append(m)
    return found


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    head: str
    metric: Callable[[Measured], Any]  # the value of a case; None shows as "-"
    pattern: Pattern = "{}"

    def cell(self, m: Measured) -> str:
        """The text of a cell."""
        if (value := self.metric(m)) is None:
            return "-"
        return self.pattern.format(value) if isinstance(self.pattern, str) else self.pattern(value)


Columns = Sequence[Column] | Callable[[Measured], Sequence[Column]]  # or f(first case)


@dataclass(frozen=True)
class View:
    """Tables of one form, with a line for each case; a table for all cases with one title."""

    title: str  # a format string with fields of cases
    columns: Columns
    groups: Sequence[str] = ()  # only cases with one of these values of "group"; (): all
    contenders: Callable[[Measured], Iterable[str]] | None = None  # one line for each
    notes: Sequence[str] | Callable[[Sequence[Measured]], Sequence[str]] = ()  # or f(cases)
    order: Callable[[Measured], Any] | None = None  # sort key of the lines; None: as measured

    def tables(self, measured: Iterable[Measured]) -> list[Table]:
        """The tables of a run."""
        chosen = (m for m in measured if not self.groups or m["group"] in self.groups)
        by_title = group_by(chosen, lambda m: self.title.format(**m.case))
        return [self._table(title, members) for title, members in by_title.items()]

    def _table(self, title: str, members: list[Measured]) -> Table:
        columns = self.columns(members[0]) if callable(self.columns) else self.columns
        notes = self.notes(members) if callable(self.notes) else self.notes
        lines = members if self.order is None else sorted(members, key=self.order)
        if self.contenders is not None:
            lines = [replace(m, contender=name) for m in lines for name in self.contenders(m)]
        rows = [[column.cell(m) for column in columns] for m in lines]
        return Table(title, [column.head for column in columns], rows, notes)


def rates(platform: str, of: str = "B") -> tuple[str, Callable[[float], str]]:
    """The unit of rates for a platform, and a function that formats a rate in it.

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
    """A column of a contender's times; by default the contender of the line."""
    scale = {"ms": 1e3, "us": 1e6}[unit]
    return Column(head, lambda m: m.seconds(contender), lambda s: f"{s * scale:.{digits}f}")


def extra(head: str, *names: str, pattern: Pattern = "{}", contender: str = "") -> Column:
    """A column of a contender's `extra` value; by default the contender of the line."""
    return Column(head, lambda m: m.extra(contender, *names), pattern)


def memory(head: str, unit: float, digits: int, contender: str = "") -> Column:
    """A column of the temporary memory of a contender's program."""
    text = lambda size: f"{size / unit:.{digits}f}"  # noqa: E731
    return extra(head, "temp_bytes", pattern=text, contender=contender)


def times_faster(head: str, peer: str, contender: str) -> Column:
    """A column of a contender's speed relative to a peer's."""
    return Column(head, lambda m: m.ratio(peer, contender), "{:.2f}")


@dataclass(frozen=True)
class Sweep:
    """A ratio of speeds over many random cases: the slowest first, and a summary of all."""

    what: str
    ratio: Callable[[Measured], float | None]
    label: Callable[[Measured], str]
    limit: float = 1.0  # ratios below it are counted
    shown: int = 1  # slowest cases in the summary

    def summary(self, members: Iterable[Measured]) -> str:
        """The geometric mean, the slowest cases, and the number of cases below the limit."""
        found = [(r, self.label(m)) for m in members if (r := self.ratio(m)) is not None]
        if not found:
            return "no case was measured"
        ratios = [ratio for ratio, _ in found]
        worst = (f"{ratio:.3f} ({label})" for ratio, label in sorted(found)[: self.shown])
        return (
            f"{self.what} of {len(found)} cases: geometric mean "
            f"{statistics.geometric_mean(ratios):.3f}, worst {', '.join(worst)}, "
            f"{sum(ratio < self.limit for ratio in ratios)} below {self.limit:.3g}"
        )

    def view(self, title: str, columns: Columns, groups: Sequence[str] = ()) -> View:
        """A view with a line for each case, the slowest first; cases without a ratio are last."""

        def order(m: Measured) -> float:
            ratio = self.ratio(m)
            return math.inf if ratio is None else ratio

        return View(title, columns, groups, notes=lambda some: [self.summary(some)], order=order)
