"""The one form of bars: which cases, what of them, what becomes of many, and what has to be reached."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxkernels.bench.records import Case, Measured
from jaxkernels.bench.tables import Metric, Reduction, Values

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
        reduce: one value of many, and the case that it comes from.
        limit: what the value is held against.
        passes: whether a value and the limit are in order; by default a value that is no less.
        groups: cases that are reduced together; all of them by default.
    """

    what: str | Callable[[Members], str]
    select: Callable[[Measured], bool]
    metric: Metric
    reduce: Reduction
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
        value, where = self.reduce(values)
        reached = _text(value) + ("" if where is None else f" at {label(where.case)}")
        return Verdict(what, reached, _text(self.limit), bool(self.passes(value, self.limit)))


def _text(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def complete(missing: Callable[[Measured], Sequence[str]]) -> Bar:
    """The bar that everything has a value which another bar needs: one without may be in none of them.

    Args:
        missing: names what a case lacks.
    """

    def reduce(values: Values) -> tuple[str, None]:
        lacks = [f"{name} at {fields(m)}" for names, m in values for name in names]
        return (f"without {', '.join(lacks)}" if lacks else "all"), None

    def fields(m: Measured) -> str:
        return " ".join(str(value) for value in m.case.values())

    return Bar("contenders measured", lambda m: True, missing, reduce, "all", operator.eq)


def without_time(m: Measured, *names: str) -> list[str]:
    """The contenders of a case, or some of them, that have no time."""
    return [name for name in names or m.records if m.seconds(name) is None]


def over(ours: float | None, peer: float | None) -> float | None:
    """The ratio of two errors, either of which may be none at all, or not known."""
    if ours is None or peer is None:
        return None
    if peer == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / peer
