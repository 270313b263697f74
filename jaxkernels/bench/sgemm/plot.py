"""Draws the ladder, and the top rung beside XLA's product over all products."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxkernels.bench.environment import summarise_environment
from jaxkernels.bench.sgemm.cases import RUNGS, Measurement, name_of_xla, peak_of

_INK, _MUTED, _OURS, _PEER = "#111827", "#6b7280", "#2563eb", "#ea580c"


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_MUTED, labelcolor=_INK, labelsize=8)


def _draw_ladder(axes: Axes, m: Measurement, peer: str, peak: float | None) -> None:
    names = [name for name in RUNGS if name in m.seconds]
    rates = [(m.rate(name) or 0.0) / 1e12 for name in names]
    bars = axes.bar(names, rates, color=_OURS, width=0.62)
    axes.bar_label(bars, [f"{rate:.1f}" for rate in rates], fontsize=8, color=_INK, padding=2)
    for rate, label, colour in ((m.rate("xla"), peer, _PEER), (peak, "FP32 peak", _MUTED)):
        if rate:
            axes.axhline(rate / 1e12, color=colour, linewidth=1.4, linestyle=(0, (5, 2)))
            axes.annotate(
                f"{label} {rate / 1e12:.1f}",
                (-0.45, rate / 1e12),
                xytext=(0, 3),
                textcoords="offset points",
                fontsize=8,
                color=colour,
            )
    axes.set_ylabel("TFLOP/s", fontsize=9)
    axes.set_title(f"The ladder at {m.product.label}", fontsize=10, loc="left", color=_INK)
    _clean(axes)


def _draw_ratios(axes: Axes, measurements: Sequence[Measurement], peer: str) -> None:
    found = [(m.product.label, s) for m in measurements if (s := m.speedup()) is not None]
    found = list(dict(found).items())[::-1]
    positions = range(len(found))
    ratios = [ratio for _, ratio in found]
    axes.hlines(positions, 1.0, ratios, color=_OURS, linewidth=2, alpha=0.35)
    axes.plot(ratios, positions, "o", color=_OURS, markersize=5)
    axes.axvline(1.0, color=_PEER, linewidth=1.4, linestyle=(0, (5, 2)))
    axes.set_yticks(positions, [label for label, _ in found])
    axes.set_title(f"pipelined, times {peer}'s rate", fontsize=10, loc="left", color=_INK)
    _clean(axes)


def draw(measurements: Sequence[Measurement], environment: dict[str, str], path: Path) -> None:
    """Writes a PNG: the rungs at one size (where they were measured), and all products."""
    ladder = [m for m in measurements if m.group == "ladder"]
    others = [m for m in measurements if m.group != "ladder"]
    panels = [bool(ladder), bool(others)]
    peer = name_of_xla(environment["platform"])
    figure = Figure(figsize=(6.0 * sum(panels), 5.2), layout="constrained")
    axes = iter(figure.subplots(1, sum(panels), squeeze=False)[0])
    if ladder:
        _draw_ladder(next(axes), ladder[0], peer, peak_of(environment["device"]))
    if others:
        _draw_ratios(next(axes), others, peer)
    figure.text(0.01, -0.03, summarise_environment(environment), fontsize=7, color=_MUTED)
    figure.savefig(path, dpi=150, bbox_inches="tight", format="png")
