"""Tables from measurements and comparisons. Pure: the same from a run and from its JSON file."""

from __future__ import annotations

from collections.abc import Sequence

from jaxkernels.bench.console import Table
from jaxkernels.bench.regress.cases import GROUPS, Measurement
from jaxkernels.bench.regress.compare import TOLERANCE, Change, Comparison


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"


def tables(measurements: Sequence[Measurement]) -> list[Table]:
    """One table for each group: the median, the quartiles and the spread of every cell."""
    found = []
    for group in GROUPS:
        mine = [m for m in measurements if m.group == group]
        if not mine:
            continue
        rows = tuple(
            (
                m.label,
                _microseconds(m.seconds),
                *(_microseconds(quartile) for quartile in m.quartiles),
                f"{m.spread:.2%}",
            )
            for m in mine
            if m.samples
        )
        notes = tuple(f"{m.label}: {m.refused}" for m in mine if m.refused)
        headers = ("cell", "us", "first quartile", "third", "spread")
        found.append(Table(f"ours, {group.replace('_', ' ')}", headers, rows, notes))
    return found


def _row(change: Change, what: str) -> tuple[str, ...]:
    times = (_microseconds(change.before), _microseconds(change.after))
    return (change.label, *times, f"{change.ratio:.3f}", f"{change.spread:.2%}", what)


def comparison_table(comparison: Comparison, before: str) -> Table:
    """The cells that are slower or faster than in an earlier run, and how many there are."""
    rows = [_row(change, "slower") for change in comparison.slower]
    rows += [_row(change, "faster") for change in comparison.changes if change.is_faster]
    slower, count = len(comparison.slower), len(comparison.changes)
    notes = [
        f"{slower or 'no'} cell{'s' if slower > 1 else ''} slower, of {count}: by more than "
        f"{TOLERANCE:.0%} beyond the spread, which is the larger distance of quartiles of the two runs"
    ]
    notes += [f"lost: {label}: {why}" for label, why in comparison.lost.items()]
    if comparison.unmatched:
        first, more = comparison.unmatched[0], len(comparison.unmatched) - 1
        notes.append(f"in one of the runs only: {first}" + (f" and {more} more" if more else ""))
    headers = ("cell", "us before", "us", "ratio", "spread", "")
    return Table(f"against {before}", headers, tuple(rows), tuple(notes))
