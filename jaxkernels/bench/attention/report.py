"""Tables from measurements. Pure: the same from a run and from its JSON file."""

from __future__ import annotations

from collections.abc import Sequence

from jaxkernels.bench.attention.cases import DIRECTIONS, DTYPES, Layer, Scores
from jaxkernels.bench.console import Table
from jaxkernels.bench.softmax.report import format_rate, unit_of

_BLANK = "-"
_DIRECTIONS = {"fwd": "forward", "both": "forward and backward"}


def _format(value: float | None, pattern: str, scale: float = 1.0) -> str:
    return _BLANK if value is None else pattern.format(value * scale)


def _refusals(members: Sequence[Scores] | Sequence[Layer]) -> tuple[str, ...]:
    """One line for each reason of a contender: where it came first, and how often."""
    found: dict[tuple[str, str], list[str]] = {}
    for m in members:
        for name, why in m.refused.items():
            found.setdefault((name, why), []).append(m.label)
    return tuple(
        f"{name}: {why} ({labels[0]}" + (f" and {len(labels) - 1} more)" if labels[1:] else ")")
        for (name, why), labels in found.items()
    )


def _score_row(m: Scores, scale: float) -> tuple[str, ...]:
    cells = [f"{m.size} {m.variant}", format_rate(m.copy_rate(), scale)]
    cells += [_format(m.seconds.get(name), "{:.3f}", 1e3) for name in ("xla", "ours")]
    cells.append(_format(m.speedup(), "{:.2f}"))
    cells += [_format(m.of_model(name), "{:.2f}") for name in ("xla", "ours")]
    if m.direction == "both":
        cells += [_format(m.temp_bytes.get(n), "{:.1f}", 2**-20) for n in ("xla", "ours")]
    return tuple(cells)


def score_tables(scores: Sequence[Scores], platform: str) -> list[Table]:
    """One table for each dtype and direction."""
    unit, scale = unit_of(platform)
    tables = []
    for dtype in DTYPES:
        for direction in DIRECTIONS:
            mine = [m for m in scores if (m.dtype, m.direction) == (dtype, direction)]
            if not mine:
                continue
            headers = ["length xbatchxheads", f"copy {unit}", "XLA ms", "ours ms", "x XLA"]
            headers += ["XLA of model", "ours of model"]
            headers += ["XLA temp MiB", "ours temp MiB"] if direction == "both" else []
            title = f"scale, mask and softmax, {_DIRECTIONS[direction]}, {dtype}"
            note = "of model: time over that of the model bytes at the rate of the copy"
            rows = tuple(_score_row(m, scale) for m in mine)
            tables.append(Table(title, tuple(headers), rows, (note, *_refusals(mine))))
    return tables


def layer_table(layers: Sequence[Layer]) -> Table | None:
    """All layers; None if none was measured."""
    if not layers:
        return None
    rows = []
    for m in layers:
        times = [_format(m.seconds.get(n), "{:.3f}", 1e3) for n in ("xla", "cudnn", "ours")]
        gains = [_format(m.speedup(peer), "{:.2f}") for peer in ("xla", "cudnn")]
        rows.append((m.label, *times, *gains))
    headers = ("layer", "XLA ms", "cuDNN ms", "ours ms", "x XLA", "x cuDNN")
    kernels = sorted({name for m in layers for name in m.kernels})
    notes = (
        "XLA's float32 at the highest precision; cuDNN has no float32",
        f"our kernels in our programs: {', '.join(kernels) or 'none'}",
        *_refusals(layers),
    )
    title = "attention layers (batch, length, heads, depth)"
    return Table(title, headers, tuple(rows), notes)


def tables(scores: Sequence[Scores], layers: Sequence[Layer], platform: str) -> list[Table]:
    """All tables of a run."""
    layer = layer_table(layers)
    return score_tables(scores, platform) + ([] if layer is None else [layer])
