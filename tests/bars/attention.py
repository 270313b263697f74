"""What attention is held against. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from jaxkernels.bench.attention.cases import Layer, Scores
from jaxkernels.bench.softmax.summary import geometric_mean

from .verdict import Verdict

# A forward pass may take this much more than its model bytes at the rate of the copy.
_MODEL_BAR = 1.08
# Forward and backward, times faster than XLA, where there is a mask to fuse.
_FUSED_BAR = 1.7

Value = tuple[float, str]


def _is_time(seconds: float | None) -> bool:
    return seconds is not None and 0 < seconds < math.inf


def _complete(scores: Sequence[Scores], layers: Sequence[Layer]) -> Verdict:
    """Whether every contender that a bar needs has a time, and ours its memory.

    cuDNN's layer is in no bar: it may refuse.
    """
    wanted = [(case, ("copy", "xla", "ours")) for case in scores]
    wanted += [(case, ("xla", "ours")) for case in layers]
    missing = [
        f"{name} at {case.label}"
        for case, names in wanted
        for name in names
        if not _is_time(case.seconds.get(name))
    ]
    missing += [
        f"memory at {case.label}"
        for case in scores
        if case.direction == "both" and "ours" not in case.temp_bytes
    ]
    reached = f"without {', '.join(missing)}" if missing else "all"
    return Verdict("contenders measured", reached, "all", not missing)


def _values(cases: Iterable, value: Callable) -> list[Value]:
    """Values with their labels; NaN, which passes no bar, where there is none."""
    return [(math.nan if (v := value(case)) is None else v, case.label) for case in cases]


def _most(what: str, values: list[Value], bar: str, passes: Callable) -> list[Verdict]:
    """The largest value against a bar; NaN is larger than any."""
    if not values:
        return []
    most, label = max(values, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])
    return [Verdict(what, f"{most:.3f} at {label}", bar, bool(passes(most)))]


def _least(what: str, values: list[Value], bar: str, passes: Callable) -> list[Verdict]:
    """The smallest value against a bar; NaN is smaller than any."""
    if not values:
        return []
    least, label = min(values, key=lambda pair: -math.inf if math.isnan(pair[0]) else pair[0])
    return [Verdict(what, f"{least:.3f} at {label}", bar, bool(passes(least)))]


def _fused(scores: Sequence[Scores]) -> list[Verdict]:
    """The mean gain of forward and backward under masks."""
    masked = [m for m in scores if m.direction == "both" and m.variant != "plain"]
    speedups = _values(masked, Scores.speedup)
    if not speedups:
        return []
    mean = geometric_mean(value for value, _ in speedups)
    what = "forward and backward under masks, over XLA, geometric mean"
    return [Verdict(what, f"{mean:.3f}", f"{_FUSED_BAR:.2f}", mean >= _FUSED_BAR)]


def _memory(scores: Sequence[Scores]) -> list[Verdict]:
    """Scores, result and gradient are all that is in memory.

    The smallest further array of a sequence's scores has a byte for each of q x k elements.
    """

    def arrays(m: Scores) -> float | None:
        size = m.temp_bytes.get("ours")
        return None if size is None else size / m.length**2

    both = [m for m in scores if m.direction == "both"]
    what = "temporary bytes of forward and backward over q k, most"
    return _most(what, _values(both, arrays), "below 1", lambda value: value < 1)


def _forward_model(scores: Sequence[Scores]) -> list[Verdict]:
    values = _values([m for m in scores if m.direction == "fwd"], Scores.of_model)
    what = "forward, time over that of the model bytes, most"
    return _most(what, values, f"{_MODEL_BAR:.2f}", lambda value: value <= _MODEL_BAR)


def judge(scores: Sequence[Scores], layers: Sequence[Layer], platform: str) -> list[Verdict]:
    """All verdicts on a run: a GPU is held to the copy's rate and to gains, a CPU to no losses."""
    exact = _values([m for m in layers if m.dtype == "float32"], Layer.speedup)
    if platform == "cpu":
        speedups = _values(scores, Scores.speedup)
        return [
            _complete(scores, layers),
            *_least("scores, over XLA, least", speedups, "1.00", lambda value: value >= 1),
            *_memory(scores),
            *_least("float32 layers, over XLA, least", exact, "1.00", lambda value: value >= 1),
        ]
    both = _values([m for m in scores if m.direction == "both"], Scores.speedup)
    what = "forward and backward, over XLA, least"
    return [
        _complete(scores, layers),
        *_forward_model(scores),
        *_fused(scores),
        *_least(what, both, "1.00", lambda value: value >= 1),
        *_memory(scores),
        *_least("float32 layers, over XLA, least", exact, "above 1", lambda value: value > 1),
    ]
