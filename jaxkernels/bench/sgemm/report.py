"""Tables from measurements. Pure: the same from a run and from its JSON file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxkernels.bench.console import Table
from jaxkernels.bench.sgemm.cases import RUNGS, Measurement, name_of_xla, peak_of
from jaxkernels.bench.softmax.summary import geometric_mean

_BLANK = "-"
_GROUPS = {
    "square": "squares",
    "other": "other shapes (m, n, k), batch x (m, n, k)",
    "transposed": "transposes: N as it is, T transposed in memory",
}


def _format(value: float | None, pattern: str) -> str:
    return _BLANK if value is None else pattern.format(value)


def _scale(platform: str) -> tuple[str, float]:
    return ("GFLOP/s", 1e9) if platform == "cpu" else ("TFLOP/s", 1e12)


def _notes(members: Sequence[Measurement], peak: float | None) -> tuple[str, ...]:
    """What the peak is, and what was refused."""
    assumed = () if peak is None else (f"of peak: of {peak / 1e12:.1f} TFLOP/s, by data sheet",)
    refused = (
        f"{m.product.label}: {name}: {why}" for m in members for name, why in m.refused.items()
    )
    return (*assumed, *refused)


def _cells(m: Measurement, name: str, scale: float, peak: float | None) -> list[str]:
    """One contender: time, rate, of XLA, of the peak, relF."""
    seconds, rate = m.seconds.get(name), m.rate(name)
    return [
        _format(None if seconds is None else seconds * 1e6, "{:.1f}"),
        _format(None if rate is None else rate / scale, "{:.2f}"),
        _format(m.speedup(name), "{:.3f}"),
        _format(None if rate is None or peak is None else rate / peak, "{:.3f}"),
        _format(m.relative_errors.get(name), "{:.1e}"),
        _format(m.bound_ratios.get(name), "{:.3f}"),
    ]


def group_tables(measurements: Sequence[Measurement], platform: str, device: str) -> list[Table]:
    """One table for each group of products: ours beside XLA's."""
    unit, scale = _scale(platform)
    peak, peer = peak_of(device), name_of_xla(platform)
    tables = []
    for group, title in _GROUPS.items():
        members = [m for m in measurements if m.group == group and not m.is_ladder]
        if not members:
            continue
        rows = []
        for m in members:
            xla = _cells(m, "xla", scale, peak)
            ours = _cells(m, "pipelined", scale, peak)
            rows.append((m.product.label, xla[0], ours[0], xla[1], *ours[1:4], xla[4], *ours[4:]))
        headers = (
            "product",
            f"{peer} us",
            "ours us",
            f"{peer} {unit}",
            "ours",
            f"of {peer}",
            "of peak",
            f"{peer} relF",
            "ours",
            "of bound",
        )
        tables.append(Table(title, headers, tuple(rows), _notes(members, peak)))
    return tables


def ladder_table(m: Measurement, platform: str, device: str) -> Table:
    """The rungs at one size."""
    unit, scale = _scale(platform)
    peak, peer = peak_of(device), name_of_xla(platform)
    rows = [
        (peer if name == "xla" else name, *_cells(m, name, scale, peak))
        for name in (*RUNGS, "xla")
        if name in m.seconds
    ]
    headers = ("rung", "us", unit, f"of {peer}", "of peak", "relF", "of bound")
    title = f"the ladder at {m.product.label}"
    return Table(title, headers, tuple(rows), _notes([m], peak))


def summary_table(measurements: Sequence[Measurement], platform: str) -> Table | None:
    """The mean gain of each kind of products, and the least; None if there is none."""
    kinds = {
        "squares from 1024": lambda m: m.group == "square" and m.n >= 1024,
        "squares below 1024": lambda m: m.group == "square" and m.n < 1024,
        "other shapes": lambda m: m.group == "other",
    }
    rows = []
    for name, belongs in kinds.items():
        found = {m.product.label: s for m in measurements if belongs(m) and (s := m.speedup())}
        if found:
            least = min(found, key=lambda label: found[label])
            mean = geometric_mean(found.values())
            rows.append((name, f"{mean:.3f}", f"{found[least]:.3f} at {least}"))
    title = f"ours, of {name_of_xla(platform)}"
    return Table(title, ("products", "geometric mean", "least"), tuple(rows)) if rows else None


def tables(measurements: Sequence[Measurement], platform: str, device: str) -> list[Table]:
    """All tables of a run."""
    found = group_tables(measurements, platform, device)
    found += [ladder_table(m, platform, device) for m in measurements if m.is_ladder]
    summary = summary_table(measurements, platform)
    found += [] if summary is None else [summary]
    if platform == "cpu":
        note = "on a CPU both are XLA's own product"
        return [dataclasses.replace(table, notes=(*table.notes, note)) for table in found]
    return found
