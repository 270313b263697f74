"""What logsumexp is held against."""

from __future__ import annotations

from jaxkernels.bench import rows
from jaxkernels.bench.records import Measured
from jaxkernels.bench.tables import group_by

from .bar import Bar, Members, complete, without_time

# Fraction of the read's rate, of every column count.
_FORWARD = 0.92


def _missing(m: Measured) -> list[str]:
    ceiling = rows.traffic(m).ceiling
    without = [] if rows.rate(m, ceiling) else [ceiling]
    return [*without, *without_time(m, "xla", "auto")]


def _by_dtype(members: Members) -> list[Members]:
    return list(group_by(members, lambda m: m["dtype"]).values())


BARS = {
    "gpu": [
        complete(_missing),
        Bar(
            what=lambda members: f"{members[0]['dtype']} fwd, of read, least",
            select=lambda m: m["direction"] == "fwd",
            metric=rows.of_ceiling,
            reduce=min,
            limit=_FORWARD,
            groups=_by_dtype,
        ),
    ],
    # Nobody has shown that XLA's reductions come near the memory of a CPU.
    "cpu": [complete(_missing)],
}
