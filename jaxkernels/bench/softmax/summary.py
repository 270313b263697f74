"""Measurements summed up: "auto" in each region, and on odd row lengths. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxkernels.bench.softmax.cases import REGIONS, Measurement, even_neighbour


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
    """

    dtype: str
    direction: str
    region: str
    cols: tuple[int, ...]
    least: float
    least_cols: int
    mean: float
    speedup: float | None


@dataclass(frozen=True)
class OddRatio:
    """Throughput of an odd column count over that of its even neighbour, for "auto"."""

    dtype: str
    direction: str
    odd: int
    even: int
    ratio: float


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
                )
            )
    return summaries


def odd_ratios(measurements: Sequence[Measurement]) -> list[OddRatio]:
    """Compares each odd column count with its even neighbour, where both were measured."""
    ratios = []
    for dtype, direction in groups(measurements):
        mine = select(measurements, dtype, direction)
        rates = {m.cols: rate for m in mine if (rate := m.throughput("auto")) is not None}
        for cols in sorted(rates):
            even = even_neighbour(cols, set(rates))
            if even is not None:
                ratio = rates[cols] / rates[even]
                ratios.append(OddRatio(dtype, direction, cols, even, ratio))
    return ratios
