"""Charts as SVG text: bars, lines and dots in panels, in the colours of the reader's light or dark screen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

# Each series on white and on black. Okabe and Ito's, which colour-blind people tell apart, and lighter ones.
_COLOURS = (
    *(("#0072b2", "#56b4e9"), ("#d55e00", "#f28e4c"), ("#009e73", "#2fcf9f")),
    *(("#a0528a", "#dd9cc9"), ("#8a6d00", "#e6c34a"), ("#6b7280", "#9ca3af")),
)
_STYLE = """
text { fill: #1f2937 } .page { fill: #fff } .grid { stroke: #e5e7eb } .level { stroke: #6b7280; stroke-dasharray: 5 3 }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } .page { fill: #0d1117 } .grid { stroke: #30363d } .level { stroke: #9ca3af }
}
.line { fill: none; stroke-width: 2 } .dot { fill-opacity: 0.75; stroke: none }"""
# Sizes in pixels: a panel's axes, and the room around them.
_WIDTH, _HEIGHT = 350, 200
_LEFT, _RIGHT, _ABOVE, _BELOW = 56, 14, 34, 46
_TOP = 62


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    # Points (x, y) by name. The x of bars are names of groups, other x are on a logarithmic axis.
    series: Mapping[str, Sequence[tuple[Any, float]]]
    labels: tuple[str, str]  # of the x-axis and the y-axis
    marks: str = "lines"  # or "bars" or "dots"
    level: float | None = None  # a value of y that is marked by a dashed line
    log: bool = False  # whether y is on a logarithmic axis; else it begins at 0


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _line(x: float, y: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def ticks(most: float) -> list[float]:
    """Round values from 0 to the first one that is no less than `most`, six at most.

    Example:
        >>> ticks(4.2)
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    size = 10 ** math.floor(math.log10(most / 5))
    step = next(size * part for part in (1, 2, 5, 10) if size * part * 5 >= most)
    return [step * i for i in range(math.ceil(most / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Values 1, 2 and 5 times powers of ten between two values, and one on either side of them."""
    found = [m * 10.0**e for e in range(-3, 4) for m in (1, 2, 5)]
    first = max((i for i, tick in enumerate(found) if tick <= low), default=0)
    last = min((i for i, tick in enumerate(found) if tick >= high), default=len(found) - 1)
    return found[first : last + 1]


def _panel(panel: Panel, names: Sequence[str], left: float, top: float) -> list[str]:
    """The elements of a panel whose axes begin at a point of the picture."""
    points = [point for series in panel.series.values() for point in series]
    bottom = top + _HEIGHT
    heights = [y for _, y in points] + ([panel.level] if panel.level else [])
    marks = _log_ticks(min(heights), max(heights)) if panel.log else ticks(max(heights))
    scale = math.log if panel.log else float
    low, high = scale(marks[0]), scale(marks[-1])

    def at(y: float) -> float:
        return bottom - _HEIGHT * (scale(y) - low) / (high - low)

    found = [_text(left, top - 12, panel.title, "start", ' font-weight="bold"')]
    for tick in marks:
        found += [_line(left, at(tick), left + _WIDTH, at(tick), "grid")]
        found += [_text(left - 6, at(tick) + 4, f"{tick:g}", "end")]
    if panel.level is not None:
        found.append(_line(left, at(panel.level), left + _WIDTH, at(panel.level), "level"))
    turned = f' transform="rotate(-90 {left - 40:.1f} {top + _HEIGHT / 2:.1f})"'
    found.append(_text(left + _WIDTH / 2, bottom + 36, panel.labels[0]))
    found.append(_text(left - 40, top + _HEIGHT / 2, panel.labels[1], more=turned))
    draw = _bars if panel.marks == "bars" else _curves
    return found + draw(panel, names, left, bottom, at)


def _bars(panel: Panel, names: Sequence[str], left: float, bottom: float, at: Any) -> list[str]:
    """Groups of bars with their values above them."""
    groups = list(dict.fromkeys(x for series in panel.series.values() for x, _ in series))
    room = _WIDTH / len(groups)
    wide = 0.84 * room / len(panel.series)
    found = [_text(left + room * (i + 0.5), bottom + 16, group) for i, group in enumerate(groups)]
    for place, (name, series) in enumerate(panel.series.items()):
        for group, y in series:
            x = left + room * (groups.index(group) + 0.08) + wide * place
            found.append(
                f'<rect x="{x + 1:.1f}" y="{at(y):.1f}" width="{wide - 2:.1f}" '
                f'height="{bottom - at(y):.1f}" class="s{names.index(name)}"/>'
            )
            if wide > 18:
                value = f"{y:.2f}" if y < 9.995 else f"{y:.1f}"
                found.append(_text(x + wide / 2, at(y) - 3, value, more=' font-size="9.5"'))
    return found


def _curves(panel: Panel, names: Sequence[str], left: float, bottom: float, at: Any) -> list[str]:
    """Lines or dots over a logarithmic axis."""
    xs = [math.log10(x) for series in panel.series.values() for x, _ in series]
    low, high = min(xs), max(max(xs), min(xs) + 1e-9)

    def across(x: float) -> float:
        return left + 8 + (_WIDTH - 16) * (math.log10(x) - low) / (high - low)

    powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    found = [
        _text(across(10.0**e), bottom + 16, f"{10 ** (e % 3)}{('', 'k', 'M')[e // 3]}")
        for e in powers
    ]
    for name, series in panel.series.items():
        kind = f"s{names.index(name)}"
        if panel.marks == "lines":
            path = " ".join(f"{across(x):.1f},{at(y):.1f}" for x, y in series)
            found.append(f'<polyline points="{path}" class="line {kind}"/>')
        size = 2.2 if panel.marks == "lines" else 3
        found += [
            f'<circle cx="{across(x):.1f}" cy="{at(y):.1f}" r="{size}" class="dot {kind}"/>'
            for x, y in series
        ]
    return found


def picture(title: str, panels: Sequence[Panel], columns: int = 2) -> str:
    """A picture of panels, some in a row, with a legend."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    across, down = _LEFT + _WIDTH + _RIGHT, _ABOVE + _HEIGHT + _BELOW
    width = across * columns
    height = _TOP + down * math.ceil(len(panels) / columns)
    light, dark = (
        " ".join(
            f".s{i} {{ fill: {_COLOURS[i][dim]} }} .line.s{i} {{ fill: none; stroke: {_COLOURS[i][dim]} }}"
            for i in range(len(names))
        )
        for dim in (0, 1)
    )
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}\n{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}</style>",
        f'<rect width="{width}" height="{height}" class="page"/>',
        _text(14, 24, title, "start", ' font-size="15" font-weight="bold"'),
    ]
    x = 14.0
    for i, name in enumerate(names):
        found.append(f'<rect x="{x:.1f}" y="36" width="12" height="12" rx="2" class="s{i}"/>')
        found.append(_text(x + 18, 46.5, name, "start"))
        x += 40 + 6.8 * len(name)
    for i, panel in enumerate(panels):
        left = across * (i % columns) + _LEFT
        found += _panel(panel, names, left, _TOP + down * (i // columns) + _ABOVE)
    return "\n".join([*found, "</svg>\n"])


def title(svg: str) -> str:
    """The title of a picture."""
    return unescape(svg.partition("<title>")[2].partition("</title>")[0])
