"""What a run found: tables, lines to repeat failures, and a summary for machines."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Iterable
from typing import Any

from jaxkernels.bench.tables import Table
from jaxkernels.verify import draw
from jaxkernels.verify.problem import Problem, to_spec
from jaxkernels.verify.run import Failure, Outcome

Key = Callable[[Problem], tuple[str, ...]]


@dataclasses.dataclass
class Tally:
    """Sums over some programs."""

    programs: int = 0
    checks: int = 0
    failed: int = 0
    worst: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Counts one more program."""
        self.programs += 1
        self.checks += outcome.checks
        self.failed += len({failure.draw for failure in outcome.failures})
        self.worst = max(self.worst, outcome.worst)


def by_kernel(problem: Problem) -> tuple[str, ...]:
    """Operation, dtype, tier or rung."""
    return problem.operation, problem.dtype, problem.how or "auto"


def by_call(problem: Problem) -> tuple[str, ...]:
    """How operands reach the function, and what is wanted of it."""
    return problem.delivery, problem.derivative


class Summary:
    """Everything that a run found."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.total = Tally()
        self.failures: list[Failure] = []
        self._kernels: dict[tuple[str, ...], Tally] = {}
        self._calls: dict[tuple[str, ...], Tally] = {}

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Counts programs."""
        for outcome in outcomes:
            self.failures += outcome.failures
            for tally in (
                self.total,
                self._kernels.setdefault(by_kernel(outcome.problem), Tally()),
                self._calls.setdefault(by_call(outcome.problem), Tally()),
            ):
                tally.add(outcome)

    def tables(self) -> list[Table]:
        """By kernel, and by how it is called."""
        total = self.total
        note = f"{total.checks} checks of {total.programs} programs, {total.failed} failed"
        return [
            _table("Error over bound", ("operation", "dtype", "tier or rung"), self._kernels, ()),
            _table("The same by call", ("operands", "result"), self._calls, (note,)),
        ]

    def as_json(self) -> dict[str, Any]:
        """The same for machines."""

        def listed(tallies: dict[tuple[str, ...], Tally]) -> list[dict[str, Any]]:
            return [{"of": key, **_finite(tally)} for key, tally in sorted(tallies.items())]

        return {
            **_finite(self.total),
            "kernels": listed(self._kernels),
            "calls": listed(self._calls),
            "failures": [
                {"what": f.what, "spec": to_spec(f.problem, f.draw)} for f in self.failures
            ],
        }


def line_of(failure: Failure) -> str:
    """What failed, and the command that repeats it."""
    spec = shlex.quote(to_spec(failure.problem, failure.draw))
    return (
        f"FAIL {draw.describe(failure.problem)}, draw {failure.draw}: {failure.what}\n"
        f"     python -m jaxkernels.verify --repeat {spec}"
    )


def _finite(tally: Tally) -> dict[str, Any]:
    """Without the infinity that JSON lacks."""
    worst = tally.worst if math.isfinite(tally.worst) else None
    return dataclasses.asdict(tally) | {"worst": worst}


def _table(
    title: str,
    labels: tuple[str, ...],
    tallies: dict[tuple[str, ...], Tally],
    notes: tuple[str, ...],
) -> Table:
    rows = tuple(
        (
            " ".join(x.ljust(w) for x, w in zip(key, _widths(tallies, labels), strict=True)),
            str(t.programs),
            str(t.checks),
            f"{t.worst:.3f}",
            str(t.failed),
            "FAIL" if t.failed else "pass",
        )
        for key, t in sorted(tallies.items())
    )
    head = " ".join(x.ljust(w) for x, w in zip(labels, _widths(tallies, labels), strict=True))
    return Table(title, (head, "programs", "checks", "worst", "failed", ""), rows, notes)


def _widths(tallies: Iterable[tuple[str, ...]], labels: tuple[str, ...]) -> list[int]:
    return [max(map(len, column)) for column in zip(labels, *tallies, strict=True)]
