"""The bars of every suite, by platform: they are for an H200, and a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import gt, le, lt
from statistics import geometric_mean

from jaxkernels.bench import linear_loss, rows
from jaxkernels.bench.__main__ import SUITES
from jaxkernels.bench.attention import of_model
from jaxkernels.bench.products import flops, size
from jaxkernels.bench.records import Measured
from jaxkernels.bench.rows import is_rows
from jaxkernels.bench.sgemm import PEERS, RUNGS

from .bar import Bar, Members, Verdict, by, complete, over_second, where, without_time


def over_xla(m: Measured, name: str = "ours") -> float | None:
    """How many times faster than XLA a contender is."""
    return m.ratio("xla", name)


def _memory(m: Measured) -> int | None:
    return m.extra("ours", "temp_bytes")


# What a case lacks, by suite.


def _rows_lack(*names: str) -> Callable[[Measured], list[str]]:
    """A case of few rows has the first and the last of the contenders."""

    def missing(m: Measured) -> list[str]:
        if not is_rows(m):
            return without_time(m, names[0], names[-1])
        ceiling = rows.traffic(m).ceiling
        return [*([] if rows.rate(m, ceiling) else [ceiling]), *without_time(m, *names)]

    return missing


def _attention_lacks(m: Measured) -> list[str]:
    """cuDNN's layer is in no bar: it may refuse."""
    lacks = without_time(m, *(("copy",) if m["group"] == "scores" else ()), "xla", "ours")
    return lacks + (["memory"] if where(**_BOTH)(m) and _memory(m) is None else [])


def _scaling_lacks(m: Measured) -> list[str]:
    unknown = [name for name in m.records if m.extra(name, "collectives") is None]
    return sorted({*without_time(m), *unknown})


def _products_lack(m: Measured) -> list[str]:
    """XLA may refuse its other ways to a product."""
    return [name for name, record in m.records.items() if record.refused and name not in PEERS]


_BOTH = {"group": "scores", "direction": "both"}
COMPLETE: dict[str, Callable[[Measured], Sequence[str]]] = {
    "softmax": _rows_lack("xla", "auto"),
    "logsumexp": _rows_lack("xla", "auto"),
    "losses": _rows_lack("xla", "log_softmax", "ours"),
    "linear_loss": lambda m: without_time(m, "xla", "ours"),
    "attention": _attention_lacks,
    "scaling": _scaling_lacks,
    "sgemm": _products_lack,
}

# Row operations: fractions of a ceiling's rate.


def _of_ceiling(name: str, direction: str, limit: float, of: str) -> Bar:
    what = "{dtype} {direction}, of " + f"{of}, least"
    select = where(group="rows", direction=direction)
    return Bar(what, select, partial(rows.of_ceiling, name=name), min, limit, groups=by("dtype"))


# Softmax by region and direction: the least of all column counts, and their geometric mean.
_REGIONS = {
    ("short", "fwd"): (0.93, 0.96),
    ("short", "grad"): (0.93, 0.96),
    ("shared", "fwd"): (0.90, None),
    ("shared", "grad"): (0.90, None),
    ("cluster", "fwd"): (0.83, 0.89),
    ("cluster", "grad"): (0.93, 0.96),
    ("filling", "fwd"): (0.60, None),
    ("filling", "grad"): (0.85, None),
    ("uncached", "fwd"): (0.60, None),
    ("uncached", "grad"): (0.55, None),
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


def _of_regions() -> Iterable[Bar]:
    for kind, limits in _REGIONS.items():

        def select(m: Measured, kind: tuple[str, str] = kind) -> bool:
            return is_rows(m) and (region(m), m["direction"]) == kind

        of = {"least": min, "geometric mean": geometric_mean}
        for (name, reduce), limit in zip(of.items(), limits, strict=True):
            what = f"{{dtype}} {{direction}} {kind[0]}, of copy, {name}"
            if limit is not None:
                yield Bar(what, select, rows.of_ceiling, reduce, limit, groups=by("dtype"))


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


def _over_xla_of(dtype: str, limit: float) -> Bar:
    select = where(group="rows", dtype=dtype, direction="fwd")
    metric = partial(over_xla, name="auto")
    return Bar(f"{dtype} fwd, over XLA, geometric mean", select, metric, geometric_mean, limit)


# Attention.


def _arrays(m: Measured) -> float | None:
    """Temporary bytes over q x k: the smallest further array of scores has a byte for each."""
    return None if (size := _memory(m)) is None else size / m["length"] ** 2


# Scores, result and gradient are all that is in memory.
_NO_ARRAY = "temporary bytes of forward and backward over q k, most"
_OF_ATTENTION = Bar(_NO_ARRAY, where(**_BOTH), _arrays, max, 1.0, lt)
_LAYERS = "float32 layers, over XLA, least"
_is_layer = where(group="layers", dtype="float32")

# Several devices.


def _several_devices(members: Members) -> list[Members]:
    """All numbers of devices but one, of all cases."""
    return [[replace(m, contender=name) for m in members for name in m.records if name != "1"]]


def _efficiency(group: str, what: str) -> Bar:
    what, metric = f"{what}, efficiency, least", lambda m: m.ratio("1")
    return Bar(what, where(group=group), metric, min, 0.95, groups=_several_devices)


# Products. On an H200 23 of the 30 listed products are planned on tensor cores, and 10 of the 60
# that seed 2 draws: the least of drawn ones is one on FFMA.
_KINDS = {"listed": ("square", "other", "transposed"), "drawn": "drawn"}


def _is_kind(name: str, m: Measured) -> bool:
    """Whether a product is of a kind, and has a planned rung."""
    return "auto" in m.records and where(group=_KINDS[name])(m)


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
    ours = [name for name in m.records if name not in ("xla", *PEERS)]
    errors = [m.extra(name, "errors", "of_bound") for name in ours]
    return None if any(e is None or e != e for e in errors) else max(errors, default=0.0)


def _over_xlas_error(m: Measured) -> float | None:
    ours, peer = (m.extra(name, "errors", "relF") for name in ("auto", "xla"))
    if ours is None or peer is None:
        return None
    return ours / peer if peer else math.inf if ours else 1.0


def _of_cublas(name: str, of: str, reduce: Callable, limit: float) -> Bar:
    what, metric = f"{name} products, of cuBLAS, {of}", partial(over_xla, name="auto")
    return Bar(what, partial(_is_kind, name), metric, reduce, limit)


# A CPU's other suites are held to completeness: both products are XLA's there, simulated devices share
# the CPU, and nobody has shown that XLA's reductions come near its memory.
CPU: dict[str, Sequence[Bar]] = {
    "softmax": [_over_xla_of("float32", 1.2), _over_xla_of("bfloat16", 2.0)],
    "attention": [
        _OF_ATTENTION,
        Bar("scores, over XLA, least", where(group="scores"), over_xla, min, 1.0),
        Bar(_LAYERS, _is_layer, over_xla, min, 1.0),
    ],
}
GPU: dict[str, Sequence[Bar]] = {
    "softmax": [
        *_of_regions(),
        # An odd row length may cost at most 10 %.
        Bar(_odd, is_rows, rows.rate, over_second, 0.90, groups=odd_pairs),
    ],
    "logsumexp": [_of_ceiling("auto", "fwd", 0.92, "read")],
    "losses": [
        _of_ceiling("ours", "loss", 0.92, "read"),
        _of_ceiling("ours", "mean", 0.94, "copy"),
        _of_ceiling("ours", "none", 0.93, "copy"),
        Bar("few rows, times faster than optax, least", rows.is_few, over_xla, min, 1.0),
    ],
    "linear_loss": [
        Bar(
            what="(4096, 4096, 128256) bfloat16, ms",
            select=lambda m: m.case == linear_loss.GPU_CASES[0],
            metric=lambda m: (s := m.seconds("ours")) and 1e3 * s,
            reduce=max,
            limit=23.0,
            passes=le,
        ),
        Bar("times faster than optax, least", where(), over_xla, min, 1.0),
        Bar("temporary bytes, most", where(), _memory, max, 3_200_000_000, le),
    ],
    "attention": [
        _OF_ATTENTION,
        Bar(
            what="forward, time over that of the model bytes, most",
            select=where(group="scores", direction="fwd"),
            metric=of_model,
            reduce=max,
            limit=1.08,
            passes=le,
        ),
        Bar(
            what="forward and backward under masks, over XLA, geometric mean",
            select=where(**_BOTH, variant=("mask", "causal")),
            metric=over_xla,
            reduce=geometric_mean,
            limit=1.7,
        ),
        Bar("forward and backward, over XLA, least", where(**_BOTH), over_xla, min, 1.0),
        Bar(_LAYERS, _is_layer, over_xla, min, 1.0, gt),
    ],
    "scaling": [
        _efficiency("softmax", "softmax of rows"),
        _efficiency("attention", "attention over a batch"),
        # n devices have to be n / 2 times faster than the program that gathers.
        Bar(
            what="a vocabulary over {devices} devices, over gathered and devices, least",
            select=lambda m: m["group"] == "vocabulary" and m["devices"] > 1,
            metric=lambda m: (r := m.ratio("gathered", "ours")) and r / m["devices"],
            reduce=min,
            limit=0.5,
            groups=by("devices"),
        ),
    ],
    "sgemm": [
        _of_cublas("listed", "geometric mean", geometric_mean, 2.2),
        _of_cublas("listed", "least", min, 1.0),
        _of_cublas("drawn", "geometric mean", geometric_mean, 1.5),
        _of_cublas("drawn", "least", min, 0.95),
        Bar(
            what=lambda members: f"{size(members[0].case)} over NN",
            select=lambda m: m["group"] == "transposed" and "auto" in m.records,
            metric=lambda m: m.rate(flops(m.case), "auto"),
            reduce=over_second,
            limit=0.95,
            groups=_beside_plain,
        ),
        Bar(
            what="warp_tile, of cuBLAS",
            select=lambda m: m["group"] == "ladder" and "warp_tile" in m.records,
            metric=partial(over_xla, name="warp_tile"),
            reduce=min,
            limit=0.80,
        ),
        Bar("ladder, least step", where(group="ladder"), _least_step, min, 1.0, gt),
        Bar("largest error / (k eps |A| |B|)", where(), _largest_error, max, 1.0, le),
        # Two orders of summation differ by luck, two equal ones do not; few numbers err by luck.
        Bar(
            what="relF over cuBLAS's, most",
            select=partial(_is_kind, "listed"),
            metric=_over_xlas_error,
            reduce=max,
            limit=1.05,
            passes=le,
        ),
    ],
}
_LABELS = {suite.name: suite.label for suite in SUITES}


def judge(suite: str, measured: Iterable[Measured], platform: str) -> list[Verdict]:
    """All verdicts on the cases of a suite; ValueError if there are no bars for it."""
    if suite not in COMPLETE:
        raise ValueError(f"no bars for a benchmark {suite!r}")
    cases = list(measured)
    bars = [complete(COMPLETE[suite]), *(CPU if platform == "cpu" else GPU).get(suite, ())]
    return [verdict for bar in bars for verdict in bar.verdicts(cases, _LABELS[suite])]
