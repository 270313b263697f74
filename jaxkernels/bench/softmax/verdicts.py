"""Bars and verdicts: what is asked for in each region, and whether "auto" meets it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxkernels.bench.softmax.cases import REGIONS, Measurement, even_neighbour

# An odd row length may cost at most 10 % beside its even neighbour.
ODD_BAR = 0.90


@dataclass(frozen=True)
class Bars:
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
    ("short", "fwd"): Bars(each=0.93, mean=0.96),
    ("short", "grad"): Bars(each=0.93, mean=0.96),
    ("shared", "fwd"): Bars(each=0.90),
    ("shared", "grad"): Bars(each=0.90),
    ("cluster", "fwd"): Bars(each=0.83, mean=0.89),
    ("cluster", "grad"): Bars(each=0.93, mean=0.96),
    ("filling", "fwd"): Bars(each=0.60),
    ("filling", "grad"): Bars(each=0.85),
    ("uncached", "fwd"): Bars(each=0.60),
    ("uncached", "grad"): Bars(each=0.55),
}
_CPU_BARS = {("float32", "fwd"): Bars(speedup=1.2), ("bfloat16", "fwd"): Bars(speedup=2.0)}


@dataclass(frozen=True)
class RegionSummary:
    """How "auto" does over the column counts of one region.

    Attributes:
        dtype, direction, region: which measurements.
        cols: their column counts, ascending.
        least: the smallest fraction of copy.
        least_cols: where that is.
        mean: geometric mean of the fractions of copy.
        speedup: geometric mean of the speed-ups over XLA; None if XLA has no time.
        bars: what is asked for.
    """

    dtype: str
    direction: str
    region: str
    cols: tuple[int, ...]
    least: float
    least_cols: int
    mean: float
    speedup: float | None
    bars: Bars

    @property
    def passed(self) -> bool | None:
        """Whether every bar is met; None where there is no bar."""
        pairs = (
            (self.bars.each, self.least),
            (self.bars.mean, self.mean),
            (self.bars.speedup, self.speedup or 0.0),
        )
        verdicts = [value >= bar for bar, value in pairs if bar is not None]
        return all(verdicts) if verdicts else None


@dataclass(frozen=True)
class OddRatio:
    """Throughput of an odd column count over that of its even neighbour, for "auto"."""

    dtype: str
    direction: str
    odd: int
    even: int
    ratio: float
    has_bar: bool

    @property
    def passed(self) -> bool | None:
        """Whether the odd length costs at most 10 %; None where there is no bar (CPU)."""
        return self.ratio >= ODD_BAR if self.has_bar else None


def geometric_mean(values: Iterable[float]) -> float:
    """Returns the geometric mean of positive numbers.

    Example:
        >>> round(geometric_mean([1.0, 4.0]), 6)
        2.0
    """
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def groups(measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    """Returns the (dtype, direction) pairs in the order in which they were measured."""
    return list(dict.fromkeys((m.dtype, m.direction) for m in measurements))


def select(measurements: Sequence[Measurement], dtype: str, direction: str) -> list[Measurement]:
    """Returns the measurements of one (dtype, direction)."""
    return [m for m in measurements if (m.dtype, m.direction) == (dtype, direction)]


def copy_spread(measurements: Sequence[Measurement], dtype: str) -> tuple[float, float, float]:
    """Returns the copy's least, median and greatest bytes per second over the cases of a dtype.

    Every case copies the same number of bytes (up to a part of a row), so what differs between
    them is the noise of the run, and no fraction of copy is known better than that.
    """
    rates = [
        rate
        for m in measurements
        if m.dtype == dtype and (rate := m.throughput("copy")) is not None
    ]
    return min(rates), statistics.median(rates), max(rates)


def summarise_regions(measurements: Sequence[Measurement]) -> list[RegionSummary]:
    """Summarises "auto" per (dtype, direction, region); cases without a time are left out."""
    summaries = []
    for dtype, direction in groups(measurements):
        mine = select(measurements, dtype, direction)
        for region in REGIONS:
            members = {
                m.cols: (m, fraction)
                for m in mine
                if m.region == region and (fraction := m.fraction_of_copy()) is not None
            }
            if not members:
                continue
            fractions = {cols: fraction for cols, (_, fraction) in members.items()}
            least_cols = min(fractions, key=lambda cols: fractions[cols])
            speedups = [s for m, _ in members.values() if (s := m.speedup()) is not None]
            bars = _GPU_BARS.get((region, direction)) or (
                Bars() if region else _CPU_BARS.get((dtype, direction), Bars())
            )
            summaries.append(
                RegionSummary(
                    dtype=dtype,
                    direction=direction,
                    region=region,
                    cols=tuple(sorted(fractions)),
                    least=fractions[least_cols],
                    least_cols=least_cols,
                    mean=geometric_mean(fractions.values()),
                    speedup=geometric_mean(speedups) if speedups else None,
                    bars=bars,
                )
            )
    return summaries


def odd_ratios(measurements: Sequence[Measurement]) -> list[OddRatio]:
    """Compares each odd column count with its even neighbour, where both were measured."""
    ratios = []
    for dtype, direction in groups(measurements):
        mine = select(measurements, dtype, direction)
        has_bar = any(m.region for m in mine)
        rates = {m.cols: rate for m in mine if (rate := m.throughput("auto")) is not None}
        for cols in sorted(rates):
            even = even_neighbour(cols, set(rates))
            if even is not None:
                ratio = rates[cols] / rates[even]
                ratios.append(OddRatio(dtype, direction, cols, even, ratio, has_bar))
    return ratios
