"""What a run found: tables, lines to repeat failures, and a summary for machines."""

from __future__ import annotations

import collections
import dataclasses
import math
import shlex
from collections.abc import Iterable
from typing import Any

from jaxkernels.bench.tables import Table
from jaxkernels.verify import draw
from jaxkernels.verify.problem import to_spec
from jaxkernels.verify.run import Failure, Outcome


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

    def as_json(self) -> dict[str, Any]:
        """Without the infinity that JSON lacks."""
        worst = self.worst if math.isfinite(self.worst) else None
        return dataclasses.asdict(self) | {"worst": worst}


Tallies = dict[tuple[str, ...], Tally]


class Summary:
    """Everything that a run found, by kernel and by how the function is called."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.total = Tally()
        self.failures: list[Failure] = []
        self._kernels: Tallies = collections.defaultdict(Tally)
        self._calls: Tallies = collections.defaultdict(Tally)

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Counts programs."""
        for outcome in outcomes:
            p = outcome.problem
            self.failures += outcome.failures
            self.total.add(outcome)
            self._kernels[p.operation, p.dtype, p.how or "auto"].add(outcome)
            self._calls[p.delivery, p.derivative].add(outcome)

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

        def listed(tallies: Tallies) -> list[dict[str, Any]]:
            return [{"of": key, **tally.as_json()} for key, tally in sorted(tallies.items())]

        failures = [{"what": f.what, "spec": to_spec(f.problem, f.draw)} for f in self.failures]
        return self.total.as_json() | {
            "kernels": listed(self._kernels),
            "calls": listed(self._calls),
            "failures": failures,
        }


def line_of(failure: Failure) -> str:
    """What failed, and the command that repeats it."""
    spec = shlex.quote(to_spec(failure.problem, failure.draw))
    return (
        f"FAIL {draw.describe(failure.problem)}, draw {failure.draw}: {failure.what}\n"
        f"     python -m jaxkernels.verify --repeat {spec}"
    )


def _table(title: str, labels: tuple[str, ...], tallies: Tallies, notes: tuple[str, ...]) -> Table:
    rows = [
        (*key, str(t.programs), str(t.checks), f"{t.worst:.3f}", str(t.failed), verdict)
        for key, t in sorted(tallies.items())
        for verdict in ["FAIL" if t.failed else "pass"]
    ]
    return Table(title, (*labels, "programs", "checks", "worst", "failed", ""), rows, notes)
