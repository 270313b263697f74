"""The bars of every suite, by platform: they are for an H200, and a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import gt, le, lt
from statistics import geometric_mean as mean

from jaxkernels.bench import linear_loss, rows
from jaxkernels.bench.__main__ import SUITES
from jaxkernels.bench.attention import of_model
from jaxkernels.bench.products import flops, size
from jaxkernels.bench.records import Measured
from jaxkernels.bench.rows import is_rows
from jaxkernels.bench.sgemm import PEERS, RUNGS

from .bar import Bar, Members, Verdict, by, complete, over_second, where, without_time


def over_xla(name: str = "ours") -> Callable[[Measured], float | None]:
    """How many times faster than XLA a contender is."""
    return lambda m: m.ratio("xla", name)


def _milliseconds(m: Measured) -> float | None:
    return (s := m.seconds("ours")) and 1e3 * s


def _memory(m: Measured) -> int | None:
    return m.extra("ours", "temp_bytes")


# Fields that a case lacks, by suite.


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
    return lacks + (["memory"] if _BOTH(m) and _memory(m) is None else [])


def _scaling_lacks(m: Measured) -> list[str]:
    unknown = [name for name in m.records if m.extra(name, "collectives") is None]
    return sorted({*without_time(m), *unknown})


def _products_lack(m: Measured) -> list[str]:
    """XLA may refuse its other ways to a product."""
    return [name for name, record in m.records.items() if record.refused and name not in PEERS]


_BOTH = where(group="scores", direction="both")

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

        of = {"least": min, "geometric mean": mean}
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


def _on_a_cpu(dtype: str, limit: float) -> Bar:
    select = where(group="rows", dtype=dtype, direction="fwd")
    return Bar(f"{dtype} fwd, over XLA, geometric mean", select, over_xla("auto"), mean, limit)


SOFTMAX = [
    *_of_regions(),
    # An odd row length may cost at most 10 %.
    Bar(_odd, is_rows, rows.rate, over_second, 0.90, groups=odd_pairs),
]
SOFTMAX_OF_A_CPU = [_on_a_cpu("float32", 1.2), _on_a_cpu("bfloat16", 2.0)]
LOSSES = [
    _of_ceiling("ours", "loss", 0.92, "read"),
    _of_ceiling("ours", "mean", 0.94, "copy"),
    _of_ceiling("ours", "none", 0.93, "copy"),
    Bar("few rows, times faster than optax, least", rows.is_few, over_xla(), min, 1.0),
]
_is_first = where(**linear_loss.GPU_CASES[0])
LINEAR_LOSS = [
    Bar("(4096, 4096, 128256) bfloat16, ms", _is_first, _milliseconds, max, 23.0, le),
    Bar("times faster than optax, least", where(), over_xla(), min, 1.0),
    Bar("temporary bytes, most", where(), _memory, max, 3_200_000_000, le),
]

# Attention.


def _arrays(m: Measured) -> float | None:
    """Temporary bytes over q x k: the smallest further array of scores has a byte for each."""
    return None if (size := _memory(m)) is None else size / m["length"] ** 2


# Scores, result and gradient are all that is in memory.
_NO_ARRAY = "temporary bytes of forward and backward over q k, most"
_OF_ATTENTION = Bar(_NO_ARRAY, _BOTH, _arrays, max, 1.0, lt)
_LAYERS, _is_layer = "float32 layers, over XLA, least", where(group="layers", dtype="float32")
_is_forward = where(group="scores", direction="fwd")
_is_masked = where(group="scores", direction="both", variant=("mask", "causal"))
_UNDER_MASKS = "forward and backward under masks, over XLA, geometric mean"
ATTENTION = [
    _OF_ATTENTION,
    Bar("forward, time over that of the model bytes, most", _is_forward, of_model, max, 1.08, le),
    Bar(_UNDER_MASKS, _is_masked, over_xla(), mean, 1.7),
    Bar("forward and backward, over XLA, least", _BOTH, over_xla(), min, 1.0),
    Bar(_LAYERS, _is_layer, over_xla(), min, 1.0, gt),
]

ATTENTION_OF_A_CPU = [
    _OF_ATTENTION,
    Bar("scores, over XLA, least", where(group="scores"), over_xla(), min, 1.0),
    Bar(_LAYERS, _is_layer, over_xla(), min, 1.0),
]

# Several devices.


def _several_devices(members: Members) -> list[Members]:
    """All numbers of devices but one, of all cases."""
    return [[replace(m, contender=name) for m in members for name in m.records if name != "1"]]


def _efficiency(group: str, what: str) -> Bar:
    what, metric = f"{what}, efficiency, least", lambda m: m.ratio("1")
    return Bar(what, where(group=group), metric, min, 0.95, groups=_several_devices)


def _over_gathered(m: Measured) -> float | None:
    """n devices have to be n / 2 times faster than the program that gathers."""
    return (r := m.ratio("gathered", "ours")) and r / m["devices"]


_OF_VOCABULARY = "a vocabulary over {devices} devices, over gathered and devices, least"


def _is_divided(m: Measured) -> bool:
    return m["group"] == "vocabulary" and m["devices"] > 1


SCALING = [
    _efficiency("softmax", "softmax of rows"),
    _efficiency("attention", "attention over a batch"),
    Bar(_OF_VOCABULARY, _is_divided, _over_gathered, min, 0.5, groups=by("devices")),
]

# Products. On an H200 23 of the 30 listed products are planned on tensor cores, and 10 of the 60
# that seed 2 draws: the least of drawn ones is one on FFMA.
_KINDS = {
    "listed": where("auto", group=("square", "other", "transposed")),
    "drawn": where("auto", group="drawn"),
}


def _over_plain(members: Members) -> str:
    return f"{size(members[0].case)} over NN"


def _planned_rate(m: Measured) -> float | None:
    return m.rate(flops(m.case), "auto")


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
    what = f"{name} products, of cuBLAS, {of}"
    return Bar(what, _KINDS[name], over_xla("auto"), reduce, limit)


_is_transposed, _ladder = where("auto", group="transposed"), where(group="ladder")
_has_warp_tile = where("warp_tile", group="ladder")
SGEMM = [
    _of_cublas("listed", "geometric mean", mean, 2.2),
    _of_cublas("listed", "least", min, 1.0),
    _of_cublas("drawn", "geometric mean", mean, 1.5),
    _of_cublas("drawn", "least", min, 0.95),
    Bar(_over_plain, _is_transposed, _planned_rate, over_second, 0.95, groups=_beside_plain),
    Bar("warp_tile, of cuBLAS", _has_warp_tile, over_xla("warp_tile"), min, 0.80),
    Bar("ladder, least step", _ladder, _least_step, min, 1.0, gt),
    Bar("largest error / (k eps |A| |B|)", where(), _largest_error, max, 1.0, le),
    # Two orders of summation differ by luck, two equal ones do not; few numbers err by luck.
    Bar("relF over cuBLAS's, most", _KINDS["listed"], _over_xlas_error, max, 1.05, le),
]
# By suite what a case lacks, the bars of a GPU, and those of a CPU. A CPU's other suites are held to
# completeness: both products are XLA's there, simulated devices share the CPU, and nobody has shown
# that XLA's reductions come near its memory.
BARS: dict[str, tuple[Callable[[Measured], Sequence[str]], Sequence[Bar], Sequence[Bar]]] = {
    "softmax": (_rows_lack("xla", "auto"), SOFTMAX, SOFTMAX_OF_A_CPU),
    "logsumexp": (_rows_lack("xla", "auto"), [_of_ceiling("auto", "fwd", 0.92, "read")], ()),
    "losses": (_rows_lack("xla", "log_softmax", "ours"), LOSSES, ()),
    "linear_loss": (lambda m: without_time(m, "xla", "ours"), LINEAR_LOSS, ()),
    "attention": (_attention_lacks, ATTENTION, ATTENTION_OF_A_CPU),
    "scaling": (_scaling_lacks, SCALING, ()),
    "sgemm": (_products_lack, SGEMM, ()),
}
_LABELS = {suite.name: suite.label for suite in SUITES}


def judge(suite: str, measured: Iterable[Measured], platform: str) -> list[Verdict]:
    """All verdicts on the cases of a suite; ValueError if there are no bars for it."""
    if suite not in BARS:
        raise ValueError(f"no bars for a benchmark {suite!r}")
    cases = list(measured)
    lacks, *bars = BARS[suite]
    bars = [complete(lacks), *bars[platform == "cpu"]]
    return [verdict for bar in bars for verdict in bar.verdicts(cases, _LABELS[suite])]
