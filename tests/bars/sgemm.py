"""What products are held against."""

from __future__ import annotations

import operator
from itertools import pairwise
from statistics import geometric_mean

from jaxkernels.bench.products import flops, size
from jaxkernels.bench.records import Measured
from jaxkernels.bench.sgemm import error, over_xla
from jaxkernels.bench.sgemm_programs import PEERS, RUNGS

from .bar import Bar, Members, complete, over, over_second

# What products have to reach of XLA's rate: the geometric mean of a kind, and every one. On an H200 23 of the 30
# listed products are planned on tensor cores, and 10 of the 60 that seed 2 draws: the second bar is one on FFMA.
_OF_XLA = {
    "listed products": (2.2, 1.0),
    "drawn products": (1.5, 0.95),
}


def kind(m: Measured) -> str:
    """What a product counts as; empty for none."""
    if m["group"] in ("square", "other", "transposed"):
        return "listed products"
    return "drawn products" if m["group"] == "drawn" else ""


def _missing(m: Measured) -> list[str]:
    """Contenders without a time or an error; XLA may refuse its other ways to a product."""
    return [name for name, record in m.records.items() if record.refused and name not in PEERS]


def _has_ours(m: Measured) -> bool:
    return "auto" in m.records


def _sizes(m: Measured) -> tuple[int, int, int]:
    return m["m"], m["n"], m["k"]


def _beside_plain(members: Members) -> list[Members]:
    """Every transposed product with the plain one of its size."""
    plain = {_sizes(m): m for m in members if m["transposes"] == "NN"}
    others = [m for m in members if m["transposes"] != "NN"]
    return [[m, plain[_sizes(m)]] for m in others if _sizes(m) in plain]


def _least_step(m: Measured) -> float:
    """The least ratio of a rung's rate to that of the rung below."""
    rates = [found for rung in RUNGS if (found := m.rate(flops(m.case), rung)) is not None]
    return min((above / below for below, above in pairwise(rates)), default=float("inf"))


def _largest_error(m: Measured) -> float | None:
    """The largest of all of ours; None if one is not known, or NaN, which is in no order."""
    errors = [error(m, name, "of_bound") for name in m.records if name not in ("xla", *PEERS)]
    if any(e is None or e != e for e in errors):
        return None
    return max(errors, default=0.0)


def _over_xlas_error(m: Measured) -> float | None:
    return over(error(m, "auto", "relF"), error(m, "xla", "relF"))


def _of_xla(name: str, of: str, reduce, limit: float) -> Bar:
    what = f"{name}, of cuBLAS, {of}"
    return Bar(what, lambda m: kind(m) == name and _has_ours(m), over_xla, reduce, limit)


def _is_ladder(m: Measured) -> bool:
    return m["group"] == "ladder"


BARS = {
    # Both are XLA's product there.
    "cpu": [complete(_missing)],
    "gpu": [
        complete(_missing),
        *(
            _of_xla(name, "geometric mean", geometric_mean, mean)
            for name, (mean, _) in _OF_XLA.items()
        ),
        *(_of_xla(name, "least", min, each) for name, (_, each) in _OF_XLA.items()),
        Bar(
            what=lambda members: f"{size(members[0].case)} over NN",
            select=lambda m: m["group"] == "transposed" and _has_ours(m),
            metric=lambda m: m.rate(flops(m.case), "auto"),
            reduce=over_second,
            limit=0.95,
            groups=_beside_plain,
        ),
        Bar(
            what="warp_tile, of cuBLAS",
            select=lambda m: _is_ladder(m) and "warp_tile" in m.records,
            metric=lambda m: over_xla(m, "warp_tile"),
            reduce=min,
            limit=0.80,
        ),
        Bar("ladder, least step", _is_ladder, _least_step, min, 1.0, operator.gt),
        Bar(
            what="largest error / (k eps |A| |B|)",
            select=lambda m: True,
            metric=_largest_error,
            reduce=max,
            limit=1.0,
            passes=operator.le,
        ),
        # Two orders of summation differ by luck; two equal ones do not. Of a few numbers luck is all.
        Bar(
            what="relF over cuBLAS's, most",
            select=lambda m: _has_ours(m) and kind(m) == "listed products",
            metric=_over_xlas_error,
            reduce=max,
            limit=1.05,
            passes=operator.le,
        ),
    ],
}
