"""The suite ``sgemm``: its metrics and tables. What it measures is in ``sgemm_programs``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import geometric_mean

from jaxkernels.bench import products
from jaxkernels.bench import tables as t
from jaxkernels.bench.products import flops, size
from jaxkernels.bench.records import Measured, Run
from jaxkernels.bench.sgemm_programs import AUTO, RUNGS, contenders, watched
from jaxkernels.bench.suite import (
    Suite,
    count,
    several,
    sizes,
)


def over_xla(m: Measured, name: str = AUTO) -> float | None:
    """How many times XLA's rate a contender's is."""
    return m.ratio("xla", name)


def error(m: Measured, name: str, what: str) -> float | None:
    """An error of a contender, "relF" or "of_bound"; None if it was not measured."""
    return (m.extra(name, "errors") or {}).get(what)


def _peer(run: Run) -> str:
    """What serves XLA's float32 product at the highest precision on a platform."""
    return "cuBLAS" if run.platform == "gpu" else "XLA"


def summary(members: Iterable[Measured], peer: str) -> str:
    """The geometric mean and the least of what is planned over XLA's rate, and how many are below 1.

    And how many ran on tensor cores, where that is known: the others say nothing of those.
    """
    timed = [(gain, m) for m in members if (gain := over_xla(m)) is not None]
    gains = [(gain, size(m.case)) for gain, m in timed]
    if not gains:
        return "no product was measured"
    mean, (least, where) = geometric_mean(gain for gain, _ in gains), min(gains)
    below = sum(gain < 1 for gain, _ in gains)
    said = f"auto over {peer}: geometric mean {mean:.2f}, least {least:.2f} at {where}"
    said = f"{said}; {below} of {len(gains)} below 1"
    rungs = [m.extra(AUTO, "rung") for _, m in timed]
    return f"{said}, {rungs.count('tensor')} on tensor cores" if any(rungs) else said


def views(run: Run) -> list[t.View]:
    """A table for each group of products, with a line for each contender, XLA's product last."""
    unit, text = t.rates(run.platform, "FLOP")
    peer = _peer(run)
    on_cpu = ("on a CPU both are XLA's own product",) if run.platform == "cpu" else ()
    columns = [
        t.Column("product", lambda m: size(m.case)),
        t.Column("by", lambda m: peer if m.contender == "xla" else m.contender),
        t.time("us", unit="us", digits=1),
        t.Column(unit, lambda m: m.rate(flops(m.case)), text),
        t.Column("relF", lambda m: error(m, "", "relF"), "{:.1e}"),
        t.Column("of bound", lambda m: error(m, "", "of_bound"), "{:.3f}"),
        t.Column(f"of {peer}", lambda m: over_xla(m, ""), "{:.3f}"),
    ]

    def view(group: str, members: Sequence[Measured]) -> t.View:
        is_planned = any(AUTO in m.records for m in members)
        return t.View(
            "{group}: (m, n, k), batch x (m, n, k), T is transposed in memory",
            columns,
            lambda m: m["group"] == group,
            contenders=lambda m: sorted(m.records, key=lambda name: name == "xla"),
            notes=(*((summary(members, peer),) if is_planned else ()), *on_cpu),
        )

    return [view(*pair) for pair in t.group_by(run.measured, lambda m: m["group"]).items()]


_ALGORITHMS_HELP = "rungs of every product (default: all for the ladder, what is planned and pipelined for the others)"
_SHAPES_HELP = "as n, mxnxk or batchxmxnxk (default: squares, other shapes, transposes)"
_DRAWN_HELP = "so many products that a seed draws, in place of the listed ones"
_SEED_HELP = f"of --drawn (default: {products.TUNING}, for tuning; {products.PUBLISHED} is what is published)"
SUITE = Suite(
    name="sgemm",
    summary="float32 matrix products, every rung of the ladder, beside XLA's at the highest precision",
    cases=products.cases,
    contenders=contenders,
    label=lambda case: f"product {size(case)}",
    views=views,
    axes={"group": products.GROUPS},
    options={
        "--shapes": several(sizes(1, 3, 4), "SHAPE", _SHAPES_HELP),
        "--drawn": {"type": count, "metavar": "N", "help": _DRAWN_HELP},
        "--seed": {"type": int, "default": products.TUNING, "metavar": "N", "help": _SEED_HELP},
        "--algorithms": {"nargs": "+", "choices": (AUTO, *RUNGS), "help": _ALGORITHMS_HELP},
    },
    defaults={"groups": (*products.LISTED, "drawn")},
    watched=watched,
)
