"""Two runs of one machine: what became slower. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jaxkernels.bench.console import Table
from jaxkernels.bench.records import Case, Record, key_of

# A time is slower, or faster, if its median differs by more than this beyond the spread.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Change:
    """A contender in a case of two runs.

    Attributes:
        label: of the case.
        before: median seconds of the earlier run.
        after: median seconds of the later one.
        spread: the larger of the two runs' distances of quartiles, as parts of their medians.
    """

    label: str
    before: float
    after: float
    spread: float

    @property
    def ratio(self) -> float:
        """The later time over the earlier one."""
        return self.after / self.before

    @property
    def is_slower(self) -> bool:
        """Whether the later run took longer than tolerance and spread explain."""
        return self.ratio > 1 + TOLERANCE + self.spread

    @property
    def is_faster(self) -> bool:
        """The same the other way round."""
        return 1 / self.ratio > 1 + TOLERANCE + self.spread


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Attributes:
        changes: what has a time in both.
        lost: what had a time and is refused now, and why.
        unmatched: what one of the runs did not try.
    """

    changes: tuple[Change, ...]
    lost: dict[str, str]
    unmatched: tuple[str, ...]

    @property
    def slower(self) -> list[Change]:
        """What is slower, the worst first."""
        return sorted((c for c in self.changes if c.is_slower), key=lambda c: -c.ratio)

    @property
    def is_empty(self) -> bool:
        """Whether the two runs have nothing in common that had a time."""
        return not self.changes and not self.lost

    @property
    def is_slower(self) -> bool:
        """Whether anything is slower or lost."""
        return bool(self.slower or self.lost)


def compare(
    before: Iterable[Record], after: Iterable[Record], label: Callable[[Case], str]
) -> Comparison:
    """Compares the records of two runs that have the same case and contender.

    Example:
        >>> old = [Record("s", {"n": n}, "ours", 1.0, [1.0, 1.0]) for n in (1, 2)]
        >>> new = [Record("s", {"n": n}, "ours", t, [t, t]) for n, t in ((1, 1.1), (2, 1.01))]
        >>> [change.label for change in compare(old, new, lambda case: str(case["n"])).slower]
        ['1']
    """
    earlier = {(key_of(r.case), r.contender): r for r in before}
    later = {(key_of(r.case), r.contender): r for r in after}
    changes, lost = [], {}
    for key in (key for key in earlier if key in later):
        old, new = earlier[key], later[key]
        name = label(old.case)
        if old.seconds is not None and new.seconds is not None:
            changes.append(Change(name, old.seconds, new.seconds, max(old.spread, new.spread)))
        elif old.seconds is not None:
            lost[name] = new.refused
    either = earlier | later
    unmatched = sorted(label(either[key].case) for key in set(earlier) ^ set(later))
    return Comparison(tuple(changes), lost, tuple(unmatched))


def comparison_table(comparison: Comparison, before: str) -> Table:
    """What is slower or faster than in an earlier run, and how much there is.

    Args:
        comparison: of the two runs.
        before: one line on the earlier run.
    """

    def row(change: Change, what: str) -> tuple[str, ...]:
        times = (f"{seconds * 1e6:.2f}" for seconds in (change.before, change.after))
        return (change.label, *times, f"{change.ratio:.3f}", f"{change.spread:.2%}", what)

    rows = [row(change, "slower") for change in comparison.slower]
    rows += [row(change, "faster") for change in comparison.changes if change.is_faster]
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
