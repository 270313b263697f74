"""Tables from measurements. Pure: the same from a run and from its JSON file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxkernels.bench.console import Table
from jaxkernels.bench.scaling.cases import (
    CONTENDERS,
    DIRECTIONS,
    Collectives,
    Vocabulary,
    Weak,
    size,
)

_BLANK = "-"
_DIRECTIONS = {"fwd": "forward", "both": "forward and backward"}
_NAMES = {"gathered": "gathered", "xla": "XLA", "ours": "ours"}


def _format(value: float | None, pattern: str, scale: float = 1.0) -> str:
    return _BLANK if value is None else pattern.format(value * scale)


def _collectives(found: Collectives | None) -> str:
    if found is None:
        return _BLANK
    return ", ".join(f"{count} {name}" for name, count in found.items()) or "none"


def _refusals(members: Sequence[Weak] | Sequence[Vocabulary]) -> tuple[str, ...]:
    return tuple(f"{m.label}, {name}: {why}" for m in members for name, why in m.refused.items())


def weak_tables(weak: Sequence[Weak]) -> list[Table]:
    """One table for each direction: every case on every number of devices."""
    tables = []
    for direction in DIRECTIONS:
        mine = [m for m in weak if m.direction == direction]
        if not mine:
            continue
        rows = tuple(
            (
                f"{m.group} {m.dtype} {size(m.shape)}",
                str(count),
                _format(m.seconds.get(str(count)), "{:.3f}", 1e3),
                _format(m.efficiency(count), "{:.3f}"),
                _collectives(m.collectives.get(str(count))),
            )
            for m in mine
            for count in m.devices
        )
        notes = (
            "weak scaling: the shape is what each device has, whatever their number",
            "efficiency: the time on 1 device over the time on n",
            *_refusals(mine),
        )
        headers = ("on each device", "devices", "ms", "efficiency", "collectives")
        title = f"rows and batches over devices, {_DIRECTIONS[direction]}"
        tables.append(Table(title, headers, rows, notes))
    return tables


def vocabulary_tables(vocabulary: Sequence[Vocabulary]) -> list[Table]:
    """One table of times for each direction, and one of all collectives."""
    tables = []
    for direction in DIRECTIONS:
        mine = [m for m in vocabulary if m.direction == direction]
        if not mine:
            continue
        rows = tuple(
            (
                f"{m.dtype} {size((m.rows, m.cols))}",
                str(m.devices),
                *(_format(m.seconds.get(name), "{:.3f}", 1e3) for name in CONTENDERS),
                *(_format(m.speedup(peer), "{:.2f}") for peer in ("gathered", "xla")),
            )
            for m in mine
        )
        times = [f"{_NAMES[name]} ms" for name in CONTENDERS]
        headers = ("whole array", "devices", *times, "x gathered", "x XLA")
        title = f"log_softmax over a vocabulary cut over devices, {_DIRECTIONS[direction]}"
        notes = ("strong scaling: one array, whatever the number of devices", *_refusals(mine))
        tables.append(Table(title, headers, rows, notes))
    if vocabulary:
        headers = ("program", *(_NAMES[name] for name in CONTENDERS))
        rows = tuple(
            (m.label, *(_collectives(m.collectives.get(name)) for name in CONTENDERS))
            for m in vocabulary
        )
        tables.append(Table("collectives of the compiled programs", headers, rows))
    return tables


def _has_comparison(weak: Sequence[Weak], vocabulary: Sequence[Vocabulary]) -> bool:
    """Whether anything was asked of more than one device."""
    return any(max(case.devices) > 1 for case in weak) or any(m.devices > 1 for m in vocabulary)


def tables(weak: Sequence[Weak], vocabulary: Sequence[Vocabulary], platform: str) -> list[Table]:
    """All tables of a run."""
    notes = []
    if not _has_comparison(weak, vocabulary):
        notes.append("one device: there is nothing to compare")
    if platform == "cpu":
        notes.append("simulated devices share the cores of the CPU")
    found = [*weak_tables(weak), *vocabulary_tables(vocabulary)]
    return [dataclasses.replace(table, notes=(*table.notes, *notes)) for table in found]
