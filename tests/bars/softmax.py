"""What softmax is held against, by region."""

from __future__ import annotations

from jaxkernels.bench.records import Measured
from jaxkernels.bench.rows_model import is_rows, kind, odd_pairs, over_xla
from jaxkernels.bench.softmax import MODEL
from jaxkernels.bench.tables import geometric_mean, group_by, least, over_second

from .bar import Bar, Members, complete, without_time

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


def _missing(m: Measured) -> list[str]:
    return without_time(m, "copy", "xla", "auto") if is_rows(m) else []


def _by_dtype(members: Members) -> list[Members]:
    return list(group_by(members, lambda m: m["dtype"]).values())


def _of_region(region: str, direction: str, of: str, reduce, limit: float) -> Bar:
    return Bar(
        what=lambda members: f"{members[0]['dtype']} {direction} {region}, of copy, {of}",
        select=lambda m: is_rows(m) and (MODEL.region(m), m["direction"]) == (region, direction),
        metric=MODEL.of_ceiling,
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
        *(_of_region(*where, "least", least, limit) for where, limit in _EACH.items()),
        *(_of_region(*where, "geometric mean", geometric_mean, v) for where, v in _MEAN.items()),
        Bar(_odd, is_rows, MODEL.rate, over_second, _ODD_BAR, groups=odd_pairs),
    ],
    # Odd row lengths have no bar on a CPU.
    "cpu": [
        complete(_missing),
        *(
            Bar(
                what=f"{' '.join(of)}, over XLA, geometric mean",
                select=lambda m, of=of: is_rows(m) and kind(m) == of,
                metric=over_xla,
                reduce=geometric_mean,
                limit=limit,
            )
            for of, limit in _OVER_XLA.items()
        ),
    ],
}
