"""What softmax is held against, by region. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxkernels.bench.softmax.cases import Measurement
from jaxkernels.bench.softmax.summary import RegionSummary, odd_ratios, summarise_regions

from .verdict import Verdict

# An odd row length may cost at most 10 % beside its even neighbour.
_ODD_BAR = 0.90


@dataclass(frozen=True)
class _Bars:
    """The least acceptable values of a region; None where nothing is asked.

    Attributes:
        each: fraction of copy, for every column count.
        mean: fraction of copy, geometric mean.
        speedup: times faster than XLA, geometric mean.
    """

    each: float | None = None
    mean: float | None = None
    speedup: float | None = None


_GPU_BARS = {
    ("short", "fwd"): _Bars(each=0.93, mean=0.96),
    ("short", "grad"): _Bars(each=0.93, mean=0.96),
    ("shared", "fwd"): _Bars(each=0.90),
    ("shared", "grad"): _Bars(each=0.90),
    ("cluster", "fwd"): _Bars(each=0.83, mean=0.89),
    ("cluster", "grad"): _Bars(each=0.93, mean=0.96),
    ("filling", "fwd"): _Bars(each=0.60),
    ("filling", "grad"): _Bars(each=0.85),
    ("uncached", "fwd"): _Bars(each=0.60),
    ("uncached", "grad"): _Bars(each=0.55),
}
_CPU_BARS = {("float32", "fwd"): _Bars(speedup=1.2), ("bfloat16", "fwd"): _Bars(speedup=2.0)}


def _complete(measurements: Sequence[Measurement]) -> Verdict:
    """Whether what the other bars need has a time: one without is in none of them."""
    missing = [
        f"{name} at {m.dtype} {m.direction} {m.cols}"
        for m in measurements
        for name in ("copy", "xla", "auto")
        if name not in m.seconds
    ]
    reached = f"without {', '.join(missing)}" if missing else "all"
    return Verdict("contenders measured", reached, "all", not missing)


def _of_region(summary: RegionSummary) -> list[Verdict]:
    s = summary
    bars = _GPU_BARS.get((s.region, s.direction), _Bars()) if s.region else _Bars()
    if not s.region:
        bars = _CPU_BARS.get((s.dtype, s.direction), _Bars())
    name = f"{s.dtype} {s.direction} {s.region or 'all'}"
    asked = (
        ("of copy, least", bars.each, s.least, f" at {s.least_cols}"),
        ("of copy, geometric mean", bars.mean, s.mean, ""),
        ("over XLA, geometric mean", bars.speedup, s.speedup or 0.0, ""),
    )
    return [
        Verdict(f"{name}, {what}", f"{value:.3f}{where}", f"{bar:.2f}", value >= bar)
        for what, bar, value, where in asked
        if bar is not None
    ]


def judge(measurements: Sequence[Measurement], platform: str) -> list[Verdict]:
    """All verdicts on a run; odd row lengths have no bar on a CPU."""
    verdicts = [_complete(measurements)]
    for summary in summarise_regions(measurements):
        verdicts += _of_region(summary)
    if platform == "cpu":
        return verdicts
    for odd in odd_ratios(measurements):
        what = f"{odd.dtype} {odd.direction}, {odd.odd} over {odd.even} columns"
        verdicts.append(Verdict(what, f"{odd.ratio:.3f}", f"{_ODD_BAR:.2f}", odd.ratio >= _ODD_BAR))
    return verdicts
