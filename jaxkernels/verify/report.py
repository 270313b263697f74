"""Reports a run: tables, commands that repeat failures, and a machine-readable summary."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxkernels.bench.tables import Table, group_by
from jaxkernels.verify.problem import to_spec
from jaxkernels.verify.run import Outcome


class Tally(NamedTuple):
    """Sums over some programs."""

    programs: int
    checks: int
    failed: int
    worst: float


def tally(outcomes: Sequence[Outcome]) -> Tally:
    """Counts programs, their checks and failed checks; the largest error over its bound."""
    checks = sum(x.checks for x in outcomes)
    failed = sum(len({draw for draw, _ in x.failures}) for x in outcomes)
    return Tally(len(outcomes), checks, failed, max((x.worst for x in outcomes), default=0.0))


def text_of(total: Tally) -> str:
    """How far a run is."""
    return f"{total.checks} checks of {total.programs} programs, {total.failed} failed"


def _kernel_of(outcome: Outcome) -> tuple[str, ...]:
    p = outcome.problem
    return p.operation, p.dtype, p.how or "auto"


def _by_kernel(outcomes: Sequence[Outcome]) -> list[tuple[tuple[str, ...], Tally]]:
    return [(name, tally(some)) for name, some in sorted(group_by(outcomes, _kernel_of).items())]


def table(outcomes: Sequence[Outcome]) -> Table:
    """The table of results by kernel."""
    rows = []
    for name, t in _by_kernel(outcomes):
        counts = str(t.programs), str(t.checks), f"{t.worst:.3f}", str(t.failed)
        rows.append((*name, *counts, "FAIL" if t.failed else "pass"))
    labels = "operation", "dtype", "tier or rung", "programs", "checks", "worst", "failed", ""
    return Table("Error over bound", labels, rows)


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The summary as JSON, for machines."""

    def finite(total: Tally) -> dict[str, Any]:
        """Replaces infinity, which JSON lacks."""
        worst = total.worst if math.isfinite(total.worst) else None
        return total._asdict() | {"worst": worst}

    kernels = [{"of": name, **finite(total)} for name, total in _by_kernel(outcomes)]
    failures = [
        {"what": what, "spec": to_spec(x.problem, draw)}
        for x in outcomes
        for draw, what in x.failures
    ]
    return finite(tally(outcomes)) | {"kernels": kernels, "failures": failures}


def line_of(outcome: Outcome) -> str:
    """The first failure of a program, and the command that repeats it."""
    (draw, what), p = outcome.failures[0], outcome.problem
    shape = next(str(p.options[x]) for x in ("shape", "shapes", "sizes") if x in p.options)
    words = " ".join([*_kernel_of(outcome), p.derivative, p.delivery, shape])
    again = f"python -m jaxkernels.verify --repeat {shlex.quote(to_spec(p, draw))}"
    return f"FAIL {words}, draw {draw}: {what}\n     {again}"
