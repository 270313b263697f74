"""What the losses over a vocabulary are held against."""

from __future__ import annotations

from functools import partial

from jaxkernels.bench import rows
from jaxkernels.bench.records import Measured
from jaxkernels.bench.tables import group_by

from .bar import Bar, Members, complete, without_time

# Fraction of the ceiling's rate, of every length.
_OF_CEILING = {"loss": 0.92, "mean": 0.94, "none": 0.93}


def _missing(m: Measured) -> list[str]:
    if not rows.is_rows(m):
        return without_time(m, "xla", "ours")
    ceiling = rows.traffic(m).ceiling
    without = [] if rows.rate(m, ceiling) else [ceiling]
    return [*without, *without_time(m, "xla", "log_softmax", "ours")]


def _by_dtype(members: Members) -> list[Members]:
    return list(group_by(members, lambda m: m["dtype"]).values())


def _of_direction(direction: str, limit: float) -> Bar:
    ceiling = rows.TRAFFIC["losses"][direction].ceiling
    return Bar(
        what=lambda members: f"{members[0]['dtype']} {direction}, of {ceiling}, least",
        select=lambda m: rows.is_rows(m) and m["direction"] == direction,
        metric=partial(rows.of_ceiling, name="ours"),
        reduce=min,
        limit=limit,
        groups=_by_dtype,
    )


BARS = {
    "gpu": [
        complete(_missing),
        *(_of_direction(*item) for item in _OF_CEILING.items()),
        Bar(
            what="few rows, times faster than optax, least",
            select=lambda m: not rows.is_rows(m),
            metric=lambda m: m.ratio("xla", "ours"),
            reduce=min,
            limit=1.0,
        ),
    ],
    "cpu": [complete(_missing)],
}
