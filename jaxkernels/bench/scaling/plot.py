"""Draws the efficiency of weak scaling, and the gains on a vocabulary that is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

from jaxkernels.bench.environment import summarise_environment
from jaxkernels.bench.scaling.cases import DIRECTIONS, Vocabulary, Weak

_INK, _MUTED, _OURS, _PEER = "#111827", "#6b7280", "#2563eb", "#ea580c"
_COLOURS = {("softmax", "float32"): _OURS, ("softmax", "bfloat16"): "#0d9488"}
# Solid forward, dashed with the gradient.
_LINES = {"fwd": "-", "both": "--"}


def _clean(axes: Axes, counts: Sequence[int], title: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_MUTED, labelcolor=_INK, labelsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("devices", fontsize=8, color=_INK)
    axes.set_title(title, fontsize=10, loc="left", color=_INK)
    if axes.get_legend_handles_labels()[0]:  # else nothing has a time
        axes.legend(frameon=False, fontsize=7, handlelength=4)  # long enough for dashes


def _line(
    axes: Axes, points: Sequence[tuple[int, float]], label: str, colour: str, direction: str
) -> None:
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        marker="o",
        markersize=4,
        color=colour,
        linestyle=_LINES[direction],
        label=label,
    )


def _draw_weak(axes: Axes, weak: Sequence[Weak]) -> None:
    for m in weak:
        points = [(count, e) for count in m.devices if (e := m.efficiency(count)) is not None]
        colour = _COLOURS.get((m.group, m.dtype), _PEER)
        _line(axes, points, f"{m.group} {m.dtype} {m.direction}", colour, m.direction)
    # What is at stake lies between 0.9 and 1; where more is lost, the axis goes on down.
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.9, low), max(1.01, high))
    counts = sorted({count for m in weak for count in m.devices})
    _clean(axes, counts, "weak scaling: efficiency")


def _draw_vocabulary(axes: Axes, vocabulary: Sequence[Vocabulary]) -> None:
    for peer, label, colour in (("gathered", "gathered", _OURS), ("xla", "XLA", _PEER)):
        for direction in DIRECTIONS:
            mine = [m for m in vocabulary if m.direction == direction]
            points = [(m.devices, gain) for m in mine if (gain := m.speedup(peer)) is not None]
            if points:
                _line(axes, points, f"over {label}, {direction}", colour, direction)
    counts = sorted({m.devices for m in vocabulary})
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    _clean(axes, counts, "log_softmax of a vocabulary cut over devices: times faster")


def draw(
    weak: Sequence[Weak], vocabulary: Sequence[Vocabulary], environment: dict[str, str], path: Path
) -> None:
    """Writes a PNG: efficiencies, then gains."""
    panels: list[tuple[Callable[..., None], Sequence]] = [
        (drawing, members)
        for drawing, members in ((_draw_weak, weak), (_draw_vocabulary, vocabulary))
        if members
    ]
    figure = Figure(figsize=(6 * len(panels), 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for (drawing, members), each in zip(panels, axes, strict=True):
        drawing(each, members)
    figure.text(0.01, -0.03, summarise_environment(environment), fontsize=7, color=_MUTED)
    figure.savefig(path, dpi=150, bbox_inches="tight", format="png")
