"""Tables from measurements. Pure: the same from a run and from its JSON file."""

from __future__ import annotations

from collections.abc import Sequence

from jaxkernels.bench.console import Table
from jaxkernels.bench.softmax.cases import TIERS, FewRows, Measurement
from jaxkernels.bench.softmax.summary import (
    copy_spread,
    groups,
    odd_ratios,
    select,
    summarise_regions,
)

_BLANK = "-"
_REGION_NAMES = {
    "short": "up to 4096 columns",
    "shared": "larger, while an SM could hold them",
    "cluster": "larger still, held by a cluster",
    "filling": "one row fills a cluster",
    "uncached": "beyond shared memory",
    "": "all",
}


def unit_of(platform: str) -> tuple[str, float]:
    """Returns the unit of throughput for a platform and its size in bytes per second."""
    return ("GB/s", 1e9) if platform == "cpu" else ("TB/s", 1e12)


def format_rate(rate: float | None, scale: float) -> str:
    """Formats bytes per second with three or four significant digits; "-" for None."""
    if rate is None:
        return _BLANK
    value = rate / scale
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _format(value: float | None, pattern: str) -> str:
    return _BLANK if value is None else pattern.format(value)


def detail_tables(
    measurements: Sequence[Measurement], operation: str, platform: str
) -> list[Table]:
    """Returns one table per (dtype, direction): every column count, every contender."""
    unit, scale = unit_of(platform)
    tables = []
    for dtype, direction in groups(measurements):
        mine = select(measurements, dtype, direction)
        forced = [t for t in TIERS[1:] if any(t in m.seconds or t in m.refused for m in mine)]
        planned = any(m.tier for m in mine)
        headers = ["cols", "rows", "copy", "jax.nn", "ours", "of copy", "x jax.nn"]
        rows = []
        for m in mine:
            cells = [str(m.cols), str(m.rows)]
            cells += [format_rate(m.throughput(name), scale) for name in ("copy", "xla", "auto")]
            cells += [_format(m.fraction_of_copy(), "{:.3f}"), _format(m.speedup(), "{:.2f}")]
            cells += [m.tier or _BLANK] if planned else []
            cells += [format_rate(m.throughput(tier), scale) for tier in forced]
            rows.append(tuple(cells))
        headers += (["tier"] if planned else []) + forced
        title = f"{operation} {direction}, {dtype} ({unit} of model bytes)"
        tables.append(Table(title, tuple(headers), tuple(rows), _refusal_notes(mine)))
    return tables


def _refusal_notes(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Returns one line per contender with empty cells: how many, and the first reason."""
    notes = []
    for name in dict.fromkeys(name for m in measurements for name in m.refused):
        refusals = [m for m in measurements if name in m.refused]
        first = refusals[0]
        notes.append(
            f"{name}: no time for {len(refusals)} of {len(measurements)} column counts; "
            f"at {first.cols}: {first.refused[name]}"
        )
    return tuple(notes)


def summary_table(measurements: Sequence[Measurement], platform: str) -> Table:
    """Returns "auto" per region: the least and the mean fraction of copy, and the mean gain."""
    headers = ("region", "dtype", "direction", "cols", "least of copy", "mean of copy")
    rows = []
    for s in summarise_regions(measurements):
        first, last = s.cols[0], s.cols[-1]
        span = str(first) if first == last else f"{first}..{last}"
        least = f"{s.least:.3f} at {s.least_cols}"
        cells = (_REGION_NAMES[s.region], s.dtype, s.direction, span, least, f"{s.mean:.3f}")
        rows.append((*cells, _format(s.speedup, "{:.2f}")))
    title = "ours (auto) by region: fraction of copy, speed-up over jax.nn (geometric means)"
    notes = tuple(
        _noise_note(measurements, dtype, platform)
        for dtype in dict.fromkeys(m.dtype for m in measurements)
    )
    return Table(title, (*headers, "x jax.nn"), tuple(rows), notes)


def _noise_note(measurements: Sequence[Measurement], dtype: str, platform: str) -> str:
    """Returns a line on how far the same copy differs from case to case: the run's noise."""
    unit, scale = unit_of(platform)
    least, median, most = (format_rate(r, scale) for r in copy_spread(measurements, dtype))
    return (
        f"copy, {dtype}, over all cases: {least} to {most} {unit}, median {median}; "
        "no fraction of copy is known better than that."
    )


def odd_table(measurements: Sequence[Measurement]) -> Table | None:
    """Returns the odd row lengths beside their even neighbours; None if none was measured."""
    ratios = odd_ratios(measurements)
    if not ratios:
        return None
    rows = tuple((f"{r.odd} / {r.even}", r.dtype, r.direction, f"{r.ratio:.3f}") for r in ratios)
    title = "odd over even row length, ours (auto), throughput"
    return Table(title, ("cols", "dtype", "direction", "ratio"), rows)


def few_rows_table(few_rows: Sequence[FewRows], operation: str) -> Table | None:
    """Returns microseconds per call on small inputs; None if they were not measured."""
    if not few_rows:
        return None
    dtypes = list(dict.fromkeys(f.dtype for f in few_rows))
    found = {(f.dtype, f.rows, f.cols): f for f in few_rows}
    rows = []
    for shape in dict.fromkeys((f.rows, f.cols) for f in few_rows):
        cells = [f"{shape[0]} x {shape[1]}"]
        for dtype in dtypes:
            seconds = found[dtype, *shape].seconds
            for name in ("xla", "auto"):
                cells.append(f"{seconds[name] * 1e6:.1f}" if name in seconds else _BLANK)
        rows.append(tuple(cells))
    headers = [f"{dtype} {name}" for dtype in dtypes for name in ("jax.nn", "ours")]
    title = f"{operation} fwd on few rows (microseconds per call)"
    return Table(title, ("rows x cols", *headers), tuple(rows))


def overview_tables(
    measurements: Sequence[Measurement], operation: str, platform: str
) -> list[Table]:
    """Returns one narrow table per direction, dtypes side by side: the form for a README."""
    unit, scale = unit_of(platform)
    tables = []
    for direction in dict.fromkeys(m.direction for m in measurements):
        mine = [m for m in measurements if m.direction == direction]
        dtypes = list(dict.fromkeys(m.dtype for m in mine))
        found = {(m.dtype, m.cols): m for m in mine}
        rows = []
        for cols in sorted({m.cols for m in mine}):
            cells = [str(cols)]
            for dtype in dtypes:
                m = found[dtype, cols]
                cells += [format_rate(m.throughput(n), scale) for n in ("copy", "xla", "auto")]
                cells += [_format(m.fraction_of_copy(), "{:.2f}")]
                cells += [_format(m.speedup(), "{:.2f}")]
            rows.append(tuple(cells))
        names = ("copy", "jax.nn", "ours", "of copy", "x jax.nn")
        headers = ("cols", *(f"{dtype} {name}" for dtype in dtypes for name in names))
        title = f"{operation} {direction} ({unit} of model bytes)"
        tables.append(Table(title, headers, tuple(rows)))
    return tables
