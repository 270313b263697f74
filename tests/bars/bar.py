"""The one form of bars: cases, a value of each, one value of many, and its limit."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxkernels.bench.records import Case, Measured
from jaxkernels.bench.tables import Metric, group_by

Members = Sequence[Measured]


@dataclass(frozen=True)
class Verdict:
    """A bar, the value that was reached, and whether it passes."""

    what: str
    reached: str
    bar: str
    passed: bool


def where(contender: str = "", **fields: Any) -> Callable[[Measured], bool]:
    """Selects cases by fields, with one value or a tuple of them, and by a contender."""
    asked = {name: x if isinstance(x, tuple) else (x,) for name, x in fields.items()}

    def select(m: Measured) -> bool:
        has_fields = all(m[name] in some for name, some in asked.items())
        return has_fields and (not contender or contender in m.records)

    return select


def by(*fields: str) -> Callable[[Members], Iterable[Members]]:
    """Groups of cases with equal fields."""
    return lambda members: group_by(members, lambda m: tuple(m[name] for name in fields)).values()


@dataclass(frozen=True)
class Bar:
    """A limit for some cases. A case without a value does not reach it."""

    # Names the bar, with fields of the first case in braces; or from the cases of a group.
    what: str | Callable[[Members], str]
    select: Callable[[Measured], Any]  # the cases
    metric: Metric  # the value of a case
    # One value of many; `min` and `max` say which case it comes from.
    reduce: Callable[[list[Any]], Any]
    limit: Any  # the value is held against it
    # Whether a value and the limit are in order; by default a value that is no less.
    passes: Callable[[Any, Any], bool] = operator.ge
    # Cases that are reduced together; all of them by default.
    groups: Callable[[Members], Iterable[Members]] = lambda members: [members]

    def verdicts(self, measured: Iterable[Measured], label: Callable[[Case], str]) -> list[Verdict]:
        """One verdict for each group that has a case."""
        chosen = list(filter(self.select, measured))
        return [self._verdict(group, label) for group in self.groups(chosen) if group]

    def _verdict(self, members: Members, label: Callable[[Case], str]) -> Verdict:
        what = self.what(members) if callable(self.what) else self.what.format(**members[0].case)
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
    """The bar that every case has the values that other bars need; names what a case lacks."""

    def lacking(m: Measured) -> str:
        fields = " ".join(map(str, m.case.values()))
        return ", ".join(f"{name} at {fields}" for name in missing(m))

    def reduce(lacks: list[str]) -> str:
        found = ", ".join(filter(None, lacks))
        return f"without {found}" if found else "all"

    return Bar("contenders measured", where(), lacking, reduce, "all", operator.eq)


def without_time(m: Measured, *names: str) -> list[str]:
    """The contenders of a case, or some of them, that have no time."""
    return [name for name in names or m.records if m.seconds(name) is None]


def over_second(values: list[float]) -> float:
    """The first of two values over the second."""
    first, second = values
    return first / second
