"""The bars of every suite, by platform: they are for an H200, and a CPU."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import geometric_mean

from jaxkernels.bench import linear_loss, rows
from jaxkernels.bench.attention import of_model
from jaxkernels.bench.products import flops, size
from jaxkernels.bench.records import Measured
from jaxkernels.bench.rows import is_rows
from jaxkernels.bench.scaling import is_weak
from jaxkernels.bench.sgemm import PEERS, RUNGS

from .bar import Bar, Members, by, complete, over_second, without_time

Bars = dict[str, Sequence[Bar]]


def over_xla(m: Measured) -> float | None:
    """How many times faster than XLA ours is."""
    return m.ratio("xla", "ours")


def _is_any(m: Measured) -> bool:
    return True


def _memory(m: Measured) -> int | None:
    return m.extra("ours", "temp_bytes")


# Row operations: fractions of a ceiling's rate.


def _rows_are_complete(*names: str, few: Sequence[str] = ()) -> Bar:
    def missing(m: Measured) -> list[str]:
        if not is_rows(m):
            return without_time(m, *few) if few else []
        ceiling = rows.traffic(m).ceiling
        return [*([] if rows.rate(m, ceiling) else [ceiling]), *without_time(m, *names)]

    return complete(missing)


def _of_ceiling(name: str, direction: str, limit: float, of: str) -> Bar:
    return Bar(
        what="{dtype} {direction}, of " + f"{of}, least",
        select=lambda m: is_rows(m) and m["direction"] == direction,
        metric=partial(rows.of_ceiling, name=name),
        reduce=min,
        limit=limit,
        groups=by("dtype"),
    )


# Softmax by region and direction: the least of all column counts, and their geometric mean.
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
_SHORT_COLS = 4096  # the longest row that a warp can hold
_SM_BYTES = 227 * 1024  # of shared memory, on an H200
_CLUSTER_BYTES = 16 * _SM_BYTES


def region(m: Measured) -> str:
    """The region of row lengths of a case; "all" without a plan."""
    if not m["tier"]:
        return "all"
    if m["cols"] <= _SHORT_COLS:
        return "short"
    if m["tier"] == "block_uncached":
        return "uncached"
    # A row of a cluster counts as shared if the memory of one SM would hold it, and as filling
    # if an SM has room for one part of a row only.
    read = rows.traffic(m).reads * m["cols"] * rows.ITEM_BYTES[m["dtype"]]
    if m["tier"] != "cluster" or read <= _SM_BYTES:
        return "shared"
    return "cluster" if read <= _CLUSTER_BYTES / 2 else "filling"


def _of_region(name: str, direction: str, limit: float, of: str, reduce: Callable) -> Bar:
    return Bar(
        what="{dtype} {direction} " + f"{name}, of copy, {of}",
        select=lambda m: is_rows(m) and (region(m), m["direction"]) == (name, direction),
        metric=rows.of_ceiling,
        reduce=reduce,
        limit=limit,
        groups=by("dtype"),
    )


def odd_pairs(members: Members) -> list[Members]:
    """Each case of an odd column count with that of an even neighbour, where both were measured."""
    found = {(m["dtype"], m["direction"], m["cols"]): m for m in members}
    pairs = []
    for (*kind, cols), m in found.items():
        even = [found[key] for step in (-1, 1) if (key := (*kind, cols + step)) in found]
        if cols % 2 and even:
            pairs.append([m, even[0]])
    return pairs


def _odd(members: Members) -> str:
    odd, even = members
    return f"{odd['dtype']} {odd['direction']}, {odd['cols']} over {even['cols']} columns"


SOFTMAX: Bars = {
    "gpu": [
        _rows_are_complete("xla", "auto"),
        *(_of_region(*where, limit, "least", min) for where, limit in _EACH.items()),
        *(
            _of_region(*where, limit, "geometric mean", geometric_mean)
            for where, limit in _MEAN.items()
        ),
        # An odd row length may cost at most 10 %.
        Bar(_odd, is_rows, rows.rate, over_second, 0.90, groups=odd_pairs),
    ],
    "cpu": [
        _rows_are_complete("xla", "auto"),
        *(
            Bar(
                what=f"{dtype} fwd, over XLA, geometric mean",
                select=lambda m, dtype=dtype: (
                    is_rows(m) and (m["dtype"], m["direction"]) == (dtype, "fwd")
                ),
                metric=lambda m: m.ratio("xla", "auto"),
                reduce=geometric_mean,
                limit=limit,
            )
            for dtype, limit in {"float32": 1.2, "bfloat16": 2.0}.items()
        ),
    ],
}
LOGSUMEXP: Bars = {
    "gpu": [
        _rows_are_complete("xla", "auto"),
        _of_ceiling("auto", "fwd", 0.92, "read"),
    ],
    # Nobody has shown that XLA's reductions come near the memory of a CPU.
    "cpu": [_rows_are_complete("xla", "auto")],
}
LOSSES: Bars = {
    "gpu": [
        _rows_are_complete("xla", "log_softmax", "ours", few=("xla", "ours")),
        _of_ceiling("ours", "loss", 0.92, "read"),
        _of_ceiling("ours", "mean", 0.94, "copy"),
        _of_ceiling("ours", "none", 0.93, "copy"),
        Bar(
            what="few rows, times faster than optax, least",
            select=lambda m: not is_rows(m),
            metric=over_xla,
            reduce=min,
            limit=1.0,
        ),
    ],
    "cpu": [_rows_are_complete("xla", "log_softmax", "ours", few=("xla", "ours"))],
}


LINEAR_LOSS: Bars = {
    "gpu": [
        complete(lambda m: without_time(m, "xla", "ours")),
        Bar(
            what="(4096, 4096, 128256) bfloat16, ms",
            select=lambda m: m.case == linear_loss.GPU_CASES[0],
            metric=lambda m: (s := m.seconds("ours")) and 1e3 * s,
            reduce=max,
            limit=23.0,
            passes=operator.le,
        ),
        Bar("times faster than optax, least", _is_any, over_xla, min, 1.0),
        Bar("temporary bytes, most", _is_any, _memory, max, 3_200_000_000, operator.le),
    ],
    "cpu": [complete(lambda m: without_time(m, "xla", "ours"))],
}

# Attention.


def _is_scores(m: Measured) -> bool:
    return m["group"] == "scores"


def _is_both(m: Measured) -> bool:
    return _is_scores(m) and m["direction"] == "both"


def _arrays(m: Measured) -> float | None:
    """Temporary bytes over q x k: the smallest further array of scores has a byte for each."""
    return None if (size := _memory(m)) is None else size / m["length"] ** 2


def _is_layer(m: Measured) -> bool:
    return m["group"] == "layers" and m["dtype"] == "float32"


def _missing_of_attention(m: Measured) -> list[str]:
    """cuDNN's layer is in no bar: it may refuse."""
    lacks = without_time(m, *(("copy",) if _is_scores(m) else ()), "xla", "ours")
    return lacks + (["memory"] if _is_both(m) and _arrays(m) is None else [])


# Scores, result and gradient are all that is in memory.
_NO_ARRAY = "temporary bytes of forward and backward over q k, most"
_OF_ATTENTION = [
    complete(_missing_of_attention),
    Bar(_NO_ARRAY, _is_both, _arrays, max, 1.0, operator.lt),
]
_LAYERS = "float32 layers, over XLA, least"
ATTENTION: Bars = {
    "cpu": [
        *_OF_ATTENTION,
        Bar("scores, over XLA, least", _is_scores, over_xla, min, 1.0),
        Bar(_LAYERS, _is_layer, over_xla, min, 1.0),
    ],
    "gpu": [
        *_OF_ATTENTION,
        Bar(
            what="forward, time over that of the model bytes, most",
            select=lambda m: _is_scores(m) and not _is_both(m),
            metric=of_model,
            reduce=max,
            limit=1.08,
            passes=operator.le,
        ),
        Bar(
            what="forward and backward under masks, over XLA, geometric mean",
            select=lambda m: _is_both(m) and m["variant"] != "plain",
            metric=over_xla,
            reduce=geometric_mean,
            limit=1.7,
        ),
        Bar("forward and backward, over XLA, least", _is_both, over_xla, min, 1.0),
        Bar(_LAYERS, _is_layer, over_xla, min, 1.0, operator.gt),
    ],
}

# Several devices.


def _several_devices(members: Members) -> list[Members]:
    """All numbers of devices but one, of all cases."""
    return [[replace(m, contender=name) for m in members for name in m.records if name != "1"]]


def _unknown_of_scaling(m: Measured) -> list[str]:
    unknown = [name for name in m.records if m.extra(name, "collectives") is None]
    return sorted({*without_time(m), *unknown})


def _efficiency(group: str, what: str) -> Bar:
    return Bar(
        what=f"{what}, efficiency, least",
        select=lambda m: m["group"] == group,
        metric=lambda m: m.ratio("1"),
        reduce=min,
        limit=0.95,
        groups=_several_devices,
    )


SCALING: Bars = {
    # Simulated devices, which share a CPU, are not held to times.
    "cpu": [complete(_unknown_of_scaling)],
    "gpu": [
        complete(_unknown_of_scaling),
        _efficiency("softmax", "softmax of rows"),
        _efficiency("attention", "attention over a batch"),
        # n devices have to be n / 2 times faster than the program that gathers.
        Bar(
            what="a vocabulary over {devices} devices, over gathered and devices, least",
            select=lambda m: not is_weak(m) and m["devices"] > 1,
            metric=lambda m: (r := m.ratio("gathered", "ours")) and r / m["devices"],
            reduce=min,
            limit=0.5,
            groups=by("devices"),
        ),
    ],
}

# Products. On an H200 23 of the 30 listed products are planned on tensor cores, and 10 of the 60
# that seed 2 draws: the least of drawn ones is one on FFMA.


def kind(m: Measured) -> str:
    """The kind of a product that has a planned rung; empty for none."""
    if "auto" not in m.records:
        return ""
    if m["group"] in ("square", "other", "transposed"):
        return "listed products"
    return "drawn products" if m["group"] == "drawn" else ""


def _beside_plain(members: Members) -> list[Members]:
    """Every transposed product with the plain one of its size."""

    def shape(m: Measured) -> tuple[int, int, int]:
        return m["m"], m["n"], m["k"]

    plain = {shape(m): m for m in members if m["transposes"] == "NN"}
    others = [m for m in members if m["transposes"] != "NN"]
    return [[m, plain[shape(m)]] for m in others if shape(m) in plain]


def _least_step(m: Measured) -> float:
    """The least ratio of a rung's rate to that of the rung below."""
    rates = [found for rung in RUNGS if (found := m.rate(flops(m.case), rung)) is not None]
    return min((above / below for below, above in pairwise(rates)), default=math.inf)


def _largest_error(m: Measured) -> float | None:
    """The largest of all of ours; None if one is not known, or NaN, which is in no order."""
    errors = [
        m.extra(name, "errors", "of_bound") for name in m.records if name not in ("xla", *PEERS)
    ]
    if any(e is None or e != e for e in errors):
        return None
    return max(errors, default=0.0)


def _over_xlas_error(m: Measured) -> float | None:
    ours, peer = (m.extra(name, "errors", "relF") for name in ("auto", "xla"))
    if ours is None or peer is None:
        return None
    if peer == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / peer


def _is_ladder(m: Measured) -> bool:
    return m["group"] == "ladder"


def _of_cublas(name: str, of: str, reduce: Callable, limit: float) -> Bar:
    what = f"{name}, of cuBLAS, {of}"
    return Bar(what, lambda m: kind(m) == name, lambda m: m.ratio("xla", "auto"), reduce, limit)


# XLA may refuse its other ways to a product.
_ALL_PRODUCTS = complete(
    lambda m: [name for name, record in m.records.items() if record.refused and name not in PEERS]
)
SGEMM: Bars = {
    # Both are XLA's product there.
    "cpu": [_ALL_PRODUCTS],
    "gpu": [
        _ALL_PRODUCTS,
        _of_cublas("listed products", "geometric mean", geometric_mean, 2.2),
        _of_cublas("listed products", "least", min, 1.0),
        _of_cublas("drawn products", "geometric mean", geometric_mean, 1.5),
        _of_cublas("drawn products", "least", min, 0.95),
        Bar(
            what=lambda members: f"{size(members[0].case)} over NN",
            select=lambda m: m["group"] == "transposed" and kind(m),
            metric=lambda m: m.rate(flops(m.case), "auto"),
            reduce=over_second,
            limit=0.95,
            groups=_beside_plain,
        ),
        Bar(
            what="warp_tile, of cuBLAS",
            select=lambda m: _is_ladder(m) and "warp_tile" in m.records,
            metric=lambda m: m.ratio("xla", "warp_tile"),
            reduce=min,
            limit=0.80,
        ),
        Bar("ladder, least step", _is_ladder, _least_step, min, 1.0, operator.gt),
        Bar("largest error / (k eps |A| |B|)", _is_any, _largest_error, max, 1.0, operator.le),
        # Two orders of summation differ by luck, two equal ones do not; few numbers err by luck.
        Bar(
            what="relF over cuBLAS's, most",
            select=lambda m: kind(m) == "listed products",
            metric=_over_xlas_error,
            reduce=max,
            limit=1.05,
            passes=operator.le,
        ),
    ],
}
BARS: dict[str, Bars] = {
    "softmax": SOFTMAX,
    "logsumexp": LOGSUMEXP,
    "losses": LOSSES,
    "linear_loss": LINEAR_LOSS,
    "attention": ATTENTION,
    "scaling": SCALING,
    "sgemm": SGEMM,
}
