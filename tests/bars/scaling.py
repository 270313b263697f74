"""What many devices are held against. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxkernels.bench.scaling.cases import CONTENDERS, Vocabulary, Weak, is_time

from .verdict import Verdict

# What n devices have to reach of one, each with the same work.
_EFFICIENCY_BAR = 0.95

_WHAT = {"softmax": "softmax of rows", "attention": "attention over a batch"}


def _gathered_bar(devices: int) -> float:
    """How many times faster than the gathering program ours has to be."""
    return devices / 2


def _complete(weak: Sequence[Weak], vocabulary: Sequence[Vocabulary]) -> Verdict:
    """Whether every contender has a time, and its collectives are known."""
    wanted = [(case, [str(count) for count in case.devices]) for case in weak]
    wanted += [(case, list(CONTENDERS)) for case in vocabulary]
    missing = [
        f"{name} at {case.label}"
        for case, names in wanted
        for name in names
        if not is_time(case.seconds.get(name)) or name not in case.collectives
    ]
    reached = f"without {', '.join(missing)}" if missing else "all"
    return Verdict("contenders measured", reached, "all", not missing)


def _least(what: str, values: Sequence[tuple[float | None, str]], bar: float) -> list[Verdict]:
    """The smallest value against a bar; one that is not there is smaller than any."""
    if not values:
        return []
    value, label = min(values, key=lambda pair: -math.inf if pair[0] is None else pair[0])
    reached = f"{math.nan if value is None else value:.3f} at {label}"
    return [Verdict(what, reached, f"{bar:.2f}", value is not None and value >= bar)]


def _efficiencies(weak: Sequence[Weak]) -> list[Verdict]:
    verdicts = []
    for group, what in _WHAT.items():
        values = [
            (m.efficiency(count), f"{m.label} on {count}")
            for m in weak
            for count in m.devices
            if m.group == group and count > 1
        ]
        verdicts += _least(f"{what}, efficiency, least", values, _EFFICIENCY_BAR)
    return verdicts


def _over_gathered(vocabulary: Sequence[Vocabulary]) -> list[Verdict]:
    verdicts = []
    for count in sorted({m.devices for m in vocabulary if m.devices > 1}):
        values = [(m.speedup("gathered"), m.label) for m in vocabulary if m.devices == count]
        what = f"log_softmax of a vocabulary over {count} devices, over gathered, least"
        verdicts += _least(what, values, _gathered_bar(count))
    return verdicts


def judge(weak: Sequence[Weak], vocabulary: Sequence[Vocabulary], platform: str) -> list[Verdict]:
    """All verdicts on a run; simulated devices, which share a CPU, are not held to times."""
    complete = _complete(weak, vocabulary)
    if platform == "cpu":
        return [complete]
    return [complete, *_efficiencies(weak), *_over_gathered(vocabulary)]
