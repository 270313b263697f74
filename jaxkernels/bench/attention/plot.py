"""Draws the forward beside its model bytes, and all gains over XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxkernels.bench.attention.cases import Layer, Scores
from jaxkernels.bench.environment import summarise_environment

_INK, _MUTED, _OURS, _PEER = "#111827", "#6b7280", "#2563eb", "#ea580c"


def _clean(axes: Axes, labels: Sequence[str], title: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_MUTED, labelcolor=_INK, labelsize=7)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_title(title, fontsize=10, loc="left", color=_INK)


def _draw_model(axes: Axes, forward: Sequence[Scores]) -> None:
    """Time over that of the model bytes, XLA's beside ours."""
    for name, label, colour in (("xla", "XLA", _PEER), ("ours", "ours", _OURS)):
        points = [(v, i) for i, m in enumerate(forward) if (v := m.of_model(name)) is not None]
        axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=5, label=label)
    axes.axvline(1.0, color=_MUTED, linewidth=1.2, linestyle=(0, (5, 2)))
    axes.legend(frameon=False, fontsize=8)
    labels = [f"{m.dtype} {m.variant} {m.size}" for m in forward]
    _clean(axes, labels, "forward: time over that of the model bytes")


def _draw_gains(axes: Axes, members: Sequence[Scores | Layer]) -> None:
    found = [(m.label, gain) for m in members if (gain := m.speedup()) is not None]
    gains, positions = [gain for _, gain in found], range(len(found))
    axes.hlines(positions, 1.0, gains, color=_OURS, linewidth=2, alpha=0.35)
    axes.plot(gains, positions, "o", color=_OURS, markersize=5)
    axes.axvline(1.0, color=_PEER, linewidth=1.2, linestyle=(0, (5, 2)))
    _clean(axes, [label for label, _ in found], "times faster than XLA")


def draw(
    scores: Sequence[Scores], layers: Sequence[Layer], environment: dict[str, str], path: Path
) -> None:
    """Writes a PNG: forward passes beside the copy, then forward and backward and layers."""
    # From top to bottom as measured; the axis counts upwards.
    forward = [m for m in scores if m.direction == "fwd" and m.of_model() is not None][::-1]
    others = [*[m for m in scores if m.direction == "both"], *layers][::-1]
    panels: list[tuple[Callable[..., None], Sequence]] = [
        (drawing, members)
        for drawing, members in ((_draw_model, forward), (_draw_gains, others))
        if members
    ]
    most = max((len(members) for _, members in panels), default=1)
    figure = Figure(figsize=(6.5 * max(1, len(panels)), 1.5 + 0.18 * most), layout="constrained")
    axes = figure.subplots(1, max(1, len(panels)), squeeze=False)[0]
    for (drawing, members), each in zip(panels, axes, strict=False):
        drawing(each, members)
    figure.text(0.01, -0.03, summarise_environment(environment), fontsize=7, color=_MUTED)
    figure.savefig(path, dpi=150, bbox_inches="tight", format="png")
