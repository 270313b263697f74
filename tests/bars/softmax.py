"""What softmax is held against, by region."""

from __future__ import annotations

from statistics import geometric_mean

from jaxkernels.bench import rows
from jaxkernels.bench.records import Measured
from jaxkernels.bench.rows import is_rows
from jaxkernels.bench.tables import group_by

from .bar import Bar, Members, complete, over_second, without_time

# An odd row length may cost at most 10 % beside its even neighbour.
_ODD_BAR = 0.90
# Fraction of copy by region and direction: of every column count, and the geometric mean of all.
_EACH = {
    ("short", "fwd"): 0.93,
    ("short", "grad"): 0.93,
    ("shared", "fwd"): 0.90,
    ("shared", "grad"): 0.90,
    ("cluster", "fwd"): 0.83,
    ("cluster", "grad"): 0.93,
    ("filling", "fwd"): 0.60,
    ("filling", "grad"): 0.85,
    ("uncached", "fwd"): 0.60,
    ("uncached", "grad"): 0.55,
}
_MEAN = {
    ("short", "fwd"): 0.96,
    ("short", "grad"): 0.96,
    ("cluster", "fwd"): 0.89,
    ("cluster", "grad"): 0.96,
}
# Times faster than XLA on a CPU, geometric mean of all column counts.
_OVER_XLA = {("float32", "fwd"): 1.2, ("bfloat16", "fwd"): 2.0}


# The last column count of the first region, whose rows a warp can hold.
_SHORT_COLS = 4096
_SM_BYTES = 227 * 1024  # of shared memory, on an H200
_CLUSTER_BYTES = 16 * _SM_BYTES


def region(m: Measured) -> str:
    """The region of row lengths of a case; "all" without a plan."""
    if not m["tier"]:
        return "all"
    if m["cols"] <= _SHORT_COLS:
        return "short"
    if m["tier"] in ("block_uncached", "spread"):  # a tier of earlier runs
        return "uncached"
    # Rows of clusters count as shared where the memory of an SM would hold them, and as a
    # region of their own where an SM has room for one part of a row only.
    reads = rows.traffic(m).reads
    read = reads * m["cols"] * (4 if m["dtype"] == "float32" else 2)
    if m["tier"] != "cluster" or read <= _SM_BYTES:
        return "shared"
    return "cluster" if read <= _CLUSTER_BYTES / 2 else "filling"


def odd_pairs(members: Members) -> list[Members]:
    """Each case of an odd column count with that of its even neighbour, where both were measured."""
    found = {(m["dtype"], m["direction"], m["cols"]): m for m in members}
    pairs = []
    for (*kind, cols), m in found.items():
        neighbours = [(*kind, cols + step) for step in (-1, 1)]
        even = [found[key] for key in neighbours if key in found]
        if cols % 2 and even:
            pairs.append([m, even[0]])
    return pairs


def _missing(m: Measured) -> list[str]:
    return without_time(m, "copy", "xla", "auto") if is_rows(m) else []


def _by_dtype(members: Members) -> list[Members]:
    return list(group_by(members, lambda m: m["dtype"]).values())


def _of_region(name: str, direction: str, of: str, reduce, limit: float) -> Bar:
    return Bar(
        what=lambda members: f"{members[0]['dtype']} {direction} {name}, of copy, {of}",
        select=lambda m: is_rows(m) and (region(m), m["direction"]) == (name, direction),
        metric=rows.of_ceiling,
        reduce=reduce,
        limit=limit,
        groups=_by_dtype,
    )


def _odd(members: Members) -> str:
    odd, even = members
    return f"{odd['dtype']} {odd['direction']}, {odd['cols']} over {even['cols']} columns"


BARS = {
    "gpu": [
        complete(_missing),
        *(_of_region(*where, "least", min, limit) for where, limit in _EACH.items()),
        *(_of_region(*where, "geometric mean", geometric_mean, v) for where, v in _MEAN.items()),
        Bar(_odd, is_rows, rows.rate, over_second, _ODD_BAR, groups=odd_pairs),
    ],
    # Odd row lengths have no bar on a CPU.
    "cpu": [
        complete(_missing),
        *(
            Bar(
                what=f"{' '.join(of)}, over XLA, geometric mean",
                select=lambda m, of=of: is_rows(m) and (m["dtype"], m["direction"]) == of,
                metric=lambda m: m.ratio("xla", "auto"),
                reduce=geometric_mean,
                limit=limit,
            )
            for of, limit in _OVER_XLA.items()
        ),
    ],
}
