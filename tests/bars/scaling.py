"""What many devices are held against."""

from __future__ import annotations

from dataclasses import replace

from jaxkernels.bench.records import Measured
from jaxkernels.bench.scaling import efficiency, is_weak
from jaxkernels.bench.tables import group_by

from .bar import Bar, Members, complete, without_time

# What n devices have to reach of one, each with the same work.
_EFFICIENCY_BAR = 0.95
_WHAT = {"softmax": "softmax of rows", "attention": "attention over a batch"}


def _missing(m: Measured) -> list[str]:
    """Contenders without a time, or whose collectives are not known."""
    unknown = [name for name in m.records if m.extra(name, "collectives") is None]
    return sorted({*without_time(m), *unknown})


def _several_devices(members: Members) -> list[Members]:
    """All numbers of devices but one, of all cases."""
    return [[replace(m, contender=name) for m in members for name in m.records if name != "1"]]


def _by_devices(members: Members) -> list[Members]:
    return list(group_by(members, lambda m: m["devices"]).values())


def _over_gathered(members: Members) -> str:
    devices = members[0]["devices"]
    return f"log_softmax of a vocabulary over {devices} devices, over gathered and devices, least"


BARS = {
    # Simulated devices, which share a CPU, are not held to times.
    "cpu": [complete(_missing)],
    "gpu": [
        complete(_missing),
        *(
            Bar(
                what=f"{what}, efficiency, least",
                select=lambda m, group=group: m["group"] == group,
                metric=efficiency,
                reduce=min,
                limit=_EFFICIENCY_BAR,
                groups=_several_devices,
            )
            for group, what in _WHAT.items()
        ),
        # n devices have to be n / 2 times faster than the program that gathers.
        Bar(
            what=_over_gathered,
            select=lambda m: not is_weak(m) and m["devices"] > 1,
            metric=lambda m: (
                None if (r := m.ratio("gathered", "ours")) is None else r / m["devices"]
            ),
            reduce=min,
            limit=0.5,
            groups=_by_devices,
        ),
    ],
}
