"""Progress on stderr and tables on stdout; rich is used where it is installed and helps."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

try:
    import rich.console
    import rich.progress
    import rich.table
    import rich.text
except ImportError:  # rich comes with the extra "bench"; plain text serves as well
    rich = None  # pyright: ignore[reportAssignmentType]


# The colours of verdicts; every other cell is plain.
_STYLES = {"pass": "green", "FAIL": "bold red", "slower": "bold red", "faster": "green"}


@dataclass(frozen=True)
class Table:
    """A table of text cells.

    Attributes:
        title: one line above the table.
        headers: column heads; the first column is a label (left), the others are right-aligned.
        rows: cells, as many per row as there are headers.
        notes: lines below the table.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def to_plain(table: Table) -> str:
    """Renders a table as aligned plain text.

    Example:
        >>> print(to_plain(Table("T", ("cols", "TB/s"), (("32", "4.1"), ("1024", "4.05")))))
        T
        cols  TB/s
        ----------
        32     4.1
        1024  4.05
    """
    widths = [
        max(len(cells[i]) for cells in (table.headers, *table.rows))
        for i in range(len(table.headers))
    ]

    def line(cells: tuple[str, ...]) -> str:
        first = cells[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join([first, *rest]).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    body = [line(cells) for cells in table.rows]
    return "\n".join([table.title, line(table.headers), rule, *body, *table.notes])


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
    lines = [f"**{table.title}**", "", "| " + " | ".join(table.headers) + " |"]
    lines.append("|---|" + "--:|" * (len(table.headers) - 1))
    lines += ["| " + " | ".join(cells) + " |" for cells in table.rows]
    if table.notes:
        lines += ["", "\n\n".join(table.notes)]
    return "\n".join(lines)


def print_table(table: Table) -> None:
    """Prints a table on stdout: drawn by rich on a terminal, aligned plain text elsewhere."""
    if rich is None or not sys.stdout.isatty():
        print(to_plain(table) + "\n")
        return
    drawn = rich.table.Table(title=table.title, title_justify="left", header_style="bold")
    for index, header in enumerate(table.headers):
        drawn.add_column(header, justify="right" if index else "left", no_wrap=True)
    for cells in table.rows:
        drawn.add_row(*(rich.text.Text(cell, style=_STYLES.get(cell, "")) for cell in cells))
    console = rich.console.Console()
    console.print(drawn)
    for note in table.notes:
        console.print(rich.text.Text(note, style="dim"))
    console.print()


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Shows progress on stderr.

    Args:
        title: what is being done.
        total: number of steps.

    Yields:
        A function to call with a description when a step begins.
    """
    if rich is None or not sys.stderr.isatty():
        numbers = itertools.count(1)
        yield lambda description: print(
            f"{title} [{next(numbers)}/{total}] {description}", file=sys.stderr, flush=True
        )
        return
    columns = (
        rich.progress.TextColumn("{task.fields[title]}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeRemainingColumn(),
        rich.progress.TextColumn("[dim]{task.description}"),
    )
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, transient=True) as bar:
        task, finished = bar.add_task("", total=total, title=title), itertools.count()
        yield lambda description: bar.update(
            task, description=description, completed=next(finished)
        )
