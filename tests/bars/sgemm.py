"""What products are held against. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from jaxkernels.bench.sgemm.cases import RUNGS, Measurement
from jaxkernels.bench.softmax.summary import geometric_mean

from .verdict import Verdict

# A transposed product may be this much slower than the plain one of its size.
_TRANSPOSED_BAR = 0.95
# What warp_tile has to reach of XLA's rate.
_WARP_TILE_BAR = 0.80


def _complete(measurements: Sequence[Measurement]) -> Verdict:
    """Whether every contender has a time and an error: one without is in none of the other bars."""
    missing = [f"{name} at {m.product.label}" for m in measurements for name in m.refused]
    reached = f"without {', '.join(missing)}" if missing else "all"
    return Verdict("contenders measured", reached, "all", not missing)


def _speedups(
    name: str, members: Sequence[Measurement], mean_bar: float, each_bar: float
) -> list[Verdict]:
    """The mean of a group of products, and the least of them, against XLA."""
    found = {m.product.label: s for m in members if (s := m.speedup()) is not None}
    if not found:
        return []
    mean, least = geometric_mean(found.values()), min(found, key=lambda label: found[label])
    return [
        Verdict(
            f"{name}, of cuBLAS, geometric mean", f"{mean:.3f}", f"{mean_bar:.2f}", mean >= mean_bar
        ),
        Verdict(
            f"{name}, of cuBLAS, least",
            f"{found[least]:.3f} at {least}",
            f"{each_bar:.2f}",
            found[least] >= each_bar,
        ),
    ]


def _transposed(measurements: Sequence[Measurement]) -> list[Verdict]:
    """Every transposed product against the plain one of its size."""
    verdicts = []
    members = [m for m in measurements if m.group == "transposed" and m.rate("pipelined")]
    plain = {m.m: m.seconds["pipelined"] for m in members if m.transposes == "NN"}
    for m in members:
        if m.transposes != "NN" and m.m in plain:
            ratio = plain[m.m] / m.seconds["pipelined"]
            verdicts.append(
                Verdict(
                    f"{m.product.label} over NN",
                    f"{ratio:.3f}",
                    f"{_TRANSPOSED_BAR:.2f}",
                    ratio >= _TRANSPOSED_BAR,
                )
            )
    return verdicts


def _ladder(measurements: Sequence[Measurement]) -> list[Verdict]:
    """warp_tile against XLA, and whether every rung is faster than the one below."""
    verdicts = []
    for m in measurements:
        if m.group != "ladder":
            continue
        reached = m.speedup("warp_tile")
        if reached is not None:
            verdicts.append(
                Verdict(
                    "warp_tile, of cuBLAS",
                    f"{reached:.3f}",
                    f"{_WARP_TILE_BAR:.2f}",
                    reached >= _WARP_TILE_BAR,
                )
            )
        rates = [rate for rung in RUNGS if (rate := m.rate(rung)) is not None]
        rising = all(below < above for below, above in pairwise(rates))
        text = " < ".join(f"{rate / 1e12:.1f}" for rate in rates)
        verdicts.append(Verdict("ladder, TFLOP/s", text, "rising", rising))
    return verdicts


def _nan_is_worst(value: float) -> float:
    """A key for max, which otherwise passes over NaN wherever another value comes first."""
    return math.inf if math.isnan(value) else value


def _over(ours: float, xla: float) -> float:
    """The ratio of two errors, either of which may be none at all."""
    if xla == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / xla


def _errors(measurements: Sequence[Measurement]) -> list[Verdict]:
    """Ours within k eps |A| |B|, and no worse than XLA's."""
    ratios = [r for m in measurements for name, r in m.bound_ratios.items() if name != "xla"]
    relative = {
        m.product.label: _over(m.relative_errors["pipelined"], m.relative_errors["xla"])
        for m in measurements
        if {"pipelined", "xla"} <= set(m.relative_errors)
    }
    if not relative:
        return []
    worst = max(relative, key=lambda label: _nan_is_worst(relative[label]))
    largest = max(ratios, key=_nan_is_worst)
    return [
        Verdict("largest error / (k eps |A| |B|)", f"{largest:.3f}", "1", largest <= 1.0),
        # Two orders of summation differ by luck; two equal ones do not.
        Verdict(
            "relF over cuBLAS's, most",
            f"{relative[worst]:.3f} at {worst}",
            "1.05",
            relative[worst] <= 1.05,
        ),
    ]


def judge(measurements: Sequence[Measurement], platform: str) -> list[Verdict]:
    """All verdicts on a run; on a CPU, where both are XLA's product, whether it is complete."""
    if platform == "cpu":
        return [_complete(measurements)]

    def squares(wanted: Callable[[int], bool]) -> list[Measurement]:
        return [m for m in measurements if m.group == "square" and wanted(m.n)]

    others = [m for m in measurements if m.group == "other"]
    return [
        _complete(measurements),
        *_speedups("squares from 1024", squares(lambda n: n >= 1024), 1.0, 0.97),
        *_speedups("squares below 1024", squares(lambda n: n < 1024), 1.0, 1.0),
        *_speedups("other shapes", others, 1.0, 0.9),
        *_transposed(measurements),
        *_ladder(measurements),
        *_errors(measurements),
    ]
