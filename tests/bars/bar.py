"""The one form of bars: which cases, what of them, what becomes of many, and what has to be reached."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxkernels.bench.records import Case, Measured
from jaxkernels.bench.tables import Metric

Members = Sequence[Measured]


@dataclass(frozen=True)
class Verdict:
    """A bar: what was asked for, what was reached."""

    what: str
    reached: str
    bar: str
    passed: bool


@dataclass(frozen=True)
class Bar:
    """What some cases have to reach. A case without a value does not.

    Attributes:
        what: names the bar; of several groups from the cases of each.
        select: which cases it is about.
        metric: the value of a case.
        reduce: one value of many; of `min` and `max` it is said which case it comes from.
        limit: what the value is held against.
        passes: whether a value and the limit are in order; by default a value that is no less.
        groups: cases that are reduced together; all of them by default.
    """

    what: str | Callable[[Members], str]
    select: Callable[[Measured], bool]
    metric: Metric
    reduce: Callable[[list[Any]], Any]
    limit: Any
    passes: Callable[[Any, Any], bool] = operator.ge
    groups: Callable[[Members], Iterable[Members]] = lambda members: [members]

    def verdicts(self, measured: Iterable[Measured], label: Callable[[Case], str]) -> list[Verdict]:
        """One verdict for each group that has a case."""
        chosen = list(filter(self.select, measured))
        return [self._verdict(group, label) for group in self.groups(chosen) if group]

    def _verdict(self, members: Members, label: Callable[[Case], str]) -> Verdict:
        what = self.what if isinstance(self.what, str) else self.what(members)
        values = [(self.metric(m), m) for m in members]
        missing = [m for value, m in values if value is None or value != value]
        if missing:
            return Verdict(what, f"none at {label(missing[0].case)}", _text(self.limit), False)
        value = self.reduce([value for value, _ in values])
        reached = _text(value)
        if self.reduce in (min, max):
            reached += f" at {label(next(m.case for v, m in values if v == value))}"
        return Verdict(what, reached, _text(self.limit), bool(self.passes(value, self.limit)))


def _text(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def complete(missing: Callable[[Measured], Sequence[str]]) -> Bar:
    """The bar that everything has a value which another bar needs: one without may be in none of them.

    Args:
        missing: names what a case lacks.
    """

    def lacking(m: Measured) -> list[str]:
        fields = " ".join(str(value) for value in m.case.values())
        return [f"{name} at {fields}" for name in missing(m)]

    def reduce(values: list[list[str]]) -> str:
        lacks = ", ".join(itertools.chain.from_iterable(values))
        return f"without {lacks}" if lacks else "all"

    return Bar("contenders measured", lambda m: True, lacking, reduce, "all", operator.eq)


def without_time(m: Measured, *names: str) -> list[str]:
    """The contenders of a case, or some of them, that have no time."""
    return [name for name in names or m.records if m.seconds(name) is None]


def over_second(values: list[float]) -> float:
    """The first of two values over the second."""
    first, second = values
    return first / second


def over(ours: float | None, peer: float | None) -> float | None:
    """The ratio of two errors, either of which may be none at all, or not known."""
    if ours is None or peer is None:
        return None
    if peer == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / peer
