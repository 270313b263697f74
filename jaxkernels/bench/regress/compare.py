"""Compares two runs of one machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxkernels.bench.regress.cases import Measurement

# A cell is slower, or faster, if its median differs by more than this beyond the spread.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Change:
    """A cell in two runs.

    Attributes:
        label: of the cell.
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
        changes: cells that have a time in both.
        lost: cells that had a time and are refused now, and why.
        unmatched: labels of cells that one of the runs did not try.
    """

    changes: tuple[Change, ...]
    lost: dict[str, str]
    unmatched: tuple[str, ...]

    @property
    def slower(self) -> list[Change]:
        """The cells that are slower, the worst first."""
        return sorted((c for c in self.changes if c.is_slower), key=lambda c: -c.ratio)

    @property
    def passed(self) -> bool:
        """Whether no cell is slower or lost."""
        return not self.slower and not self.lost


def compare(before: Sequence[Measurement], after: Sequence[Measurement]) -> Comparison:
    """Compares the cells of two runs by their labels.

    Example:
        >>> old = [Measurement("rows", "a", [1.0, 1.0]), Measurement("rows", "b", [1.0, 1.0])]
        >>> new = [Measurement("rows", "a", [1.1, 1.1]), Measurement("rows", "b", [1.01, 1.01])]
        >>> [change.label for change in compare(old, new).slower]
        ['a']
    """
    earlier = {m.label: m for m in before}
    later = {m.label: m for m in after}
    changes, lost = [], {}
    for label in (label for label in earlier if label in later):
        old, new = earlier[label], later[label]
        if old.samples and new.samples:
            spread = max(old.spread, new.spread)
            changes.append(Change(label, old.seconds, new.seconds, spread))
        elif old.samples:
            lost[label] = new.refused
    unmatched = tuple(sorted(set(earlier) ^ set(later)))
    return Comparison(tuple(changes), lost, unmatched)
