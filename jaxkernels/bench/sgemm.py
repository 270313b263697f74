"""The suite ``sgemm``: every rung of the ladder beside XLA's float32 product.

A call of a small product costs the host more time than the GPU, so what is timed is a program of
several products, which XLA captures into CUDA graphs. Plain squares make a chain, in which each
result is the next product's b: an argument for every product and one result, so that the host keeps
up with the smallest of them. Other products are independent, with inputs of their own, and all
results are returned. The number of products makes a program last about a millisecond.

On a GPU a chain from 256^3 on is as long as it takes to make its operands a too many for the cache;
small b and results stay there, as they do between the layers of a network. Other inputs and results
that would stay in the cache are not used in successive calls. (A chain's are, because new ones have
to be told to CUDA graphs, which takes the host up to ten microseconds a product; those of products
that take less, by guess, are used again too.)

``families`` are products of what networks multiply, and of what is hard to hold in 16 bits. ``peers``
are beside XLA's other ways to a product: TF32, sums of products of bfloat16 or TF32, and float16
operands, whose rounding counts as their error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from statistics import geometric_mean
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset, Precision

import jaxkernels as jk
from jaxkernels.bench import plot, products
from jaxkernels.bench import tables as t
from jaxkernels.bench.dots import Dots, of_dots
from jaxkernels.bench.product_data import errors, operands
from jaxkernels.bench.products import flops, is_chain, is_transposed, size, touched_bytes
from jaxkernels.bench.programs import rotations
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import (
    Arguments,
    Function,
    Options,
    Program,
    Suite,
    count,
    several,
    sizes,
)
from jaxkernels.bench.timing import last_level_cache_bytes
from jaxkernels.typing import Algorithm

RUNGS: tuple[Algorithm, ...] = get_args(Algorithm)
LADDER = tuple(rung for rung in RUNGS if rung != "thin")  # that serve a large square
AUTO = "auto"  # what is planned where no rung is named
OURS = (AUTO, "pipelined")
# XLA's product of float32 by name; of float16, which has no such choice, as well.
_PRECISIONS = {
    "xla": Precision.HIGHEST,
    "tf32_x3": DotAlgorithmPreset.TF32_TF32_F32_X3,
    "bf16_x6": DotAlgorithmPreset.BF16_BF16_F32_X6,
    "tf32": DotAlgorithmPreset.TF32_TF32_F32,
    "float16": Precision.DEFAULT,
}
PEERS = tuple(_PRECISIONS)[1:]
_PROGRAM_SECONDS = 1e-3
_MAX_PRODUCTS = 64
# What a product takes at most, by guess: a part of a GPU's rates, and the latency of a launch.
_GUESSED_RATE = {"gpu": 200e12, "cpu": 50e9}
_GUESSED_BANDWIDTH = {"gpu": 3e12, "cpu": 10e9}
_GUESSED_LATENCY = 5e-6
# What it takes to tell CUDA graphs of a product's new inputs.
_TELLING_SECONDS = 10e-6
# How many times the cache the operands a of a chain are, on a GPU, and the longest chain.
_CACHES_OF_CHAIN = 2
_MAX_CHAIN = 1024


def _function(case: Case, name: str) -> Function:
    """One product by a contender; operands are read as they lie in memory by all of them."""
    trans_a, trans_b = is_transposed(case)
    if name not in _PRECISIONS:
        on_gpu = jax.default_backend() == "gpu"
        rung = None if name == AUTO else name
        options = {"algorithm": rung, "implementation": "ffi"} if on_gpu else {}
        return partial(jk.sgemm, trans_a=trans_a, trans_b=trans_b, **options)
    first = 1 if case["batch"] > 1 else 0
    contract = ((first + (0 if trans_a else 1),), (first + (1 if trans_b else 0),))
    batch = ((0,), (0,)) if first else ((), ())
    how: dict[str, Any] = {"preferred_element_type": jnp.float32, "precision": _PRECISIONS[name]}
    return partial(jax.lax.dot_general, dimension_numbers=(contract, batch), **how)


def _dtype(name: str) -> str:
    """What a contender's operands are."""
    return "float16" if name == "float16" else "float32"


def program(case: Case, name: str) -> Function:
    """A chain of products, or several independent ones."""
    function = _function(case, name)
    if is_chain(case):
        return jax.jit(lambda b, *many_a: reduce(lambda b, a: function(a, b), many_a, b))
    return jax.jit(lambda *pairs: [function(a, b) for a, b in pairs])


def _guessed_seconds(case: Case, platform: str) -> float:
    computing = flops(case) / _GUESSED_RATE[platform]
    moving = touched_bytes(case) / _GUESSED_BANDWIDTH[platform]
    return max(computing, moving, _GUESSED_LATENCY)


def products_per_call(case: Case, platform: str) -> int:
    """How many products make a program that lasts long enough, and a chain that no cache holds.

    Example:
        >>> products_per_call(products.product("square", 1, 4096, 4096, 4096), "gpu")
        4
        >>> products_per_call(products.product("square", 1, 16, 16, 16), "gpu")
        1024
    """
    wanted = math.ceil(_PROGRAM_SECONDS / _guessed_seconds(case, platform))
    count = max(1, min(_MAX_PRODUCTS, wanted))
    if platform == "gpu" and is_chain(case):
        cache = _CACHES_OF_CHAIN * last_level_cache_bytes(platform)
        count = max(count, min(_MAX_CHAIN, math.ceil(cache / (4 * case["m"] * case["k"]))))
    return count


def _keeps_inputs(case: Case) -> bool:
    """Whether successive calls have the same inputs."""
    if jax.default_backend() != "gpu":
        return False
    return is_chain(case) or _guessed_seconds(case, "gpu") < _TELLING_SECONDS


def draw(case: Case, count: int, dtype: str = "float32") -> list[Arguments]:
    """What a program of `count` products takes; a chain's are scaled, so its results stay finite."""
    turns = 1 if _keeps_inputs(case) else rotations(count * touched_bytes(case))
    pairs = operands(case, turns * count, dtype)
    calls = [pairs[first::turns] for first in range(turns)]
    if not is_chain(case):
        return [tuple(call) for call in calls]
    return [(call[0][1], *(a / math.sqrt(case["k"]) for a, _ in call)) for call in calls]


def _errors(case: Case, name: str) -> dict[str, float]:
    """Those of a contender's product; from that of float32 operands, whatever it reads."""
    (pair,) = operands(case, 1)
    read = (x.astype(_dtype(name)) for x in pair)
    return errors(case, pair, jax.jit(_function(case, name))(*read))


def _rung(case: Case) -> str:
    """What is planned on this GPU."""
    trans_a, trans_b = is_transposed(case)
    shape = (case["m"], case["n"], case["k"])
    plan = jk.plan_sgemm(*shape, batch=case["batch"], trans_a=trans_a, trans_b=trans_b)
    return plan.algorithm


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """XLA and rungs that are asked for; or all of the ladder, of peers XLA's others, else what is planned and FFMA."""
    names = {"ladder": LADDER, "peers": (AUTO, *PEERS)}.get(case["group"], OURS)
    count = products_per_call(case, jax.default_backend())
    drawn = {dtype: partial(draw, case, count, dtype) for dtype in ("float32", "float16")}

    def of(name: str) -> Program:
        look: dict[str, Function] = {"errors": lambda *_: _errors(case, name)}
        if name == AUTO and jax.default_backend() == "gpu":
            look["rung"] = lambda *_: _rung(case)
        return Program(lambda _: program(case, name), drawn[_dtype(name)], count, look)

    return {name: of(name) for name in ("xla", *(options.algorithms or names))}


def watched(platform: str) -> Iterable[tuple[str, Case, Program]]:
    """Products of many kinds."""
    options = Options(algorithms=[AUTO])
    cases = products.watched(platform)
    return (("products", case, contenders(case, options)[AUTO]) for case in cases)


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


def _ladder(peer: str, m: Measured) -> plot.Panel:
    """A bar for each rung, below XLA's rate."""
    rungs = [name for name in m.records if name != "xla"]
    return partial(
        plot.bars,
        labels=(f"the ladder at {size(m.case)}", "rung", f"times {peer}'s rate"),
        groups=rungs,
        series={"rungs": [over_xla(m, name) for name in rungs]},
        colours={"rungs": plot.OURS},
        ceiling=(1.0, peer),
    )


def _name(contender: str) -> str:
    """A contender in the legend of a picture."""
    return "ours" if contender == AUTO else contender


def figure(run: Run) -> plot.Figure:
    """The ladder, XLA's other ways, and what is planned, or asked for, of all other products."""
    ladders = [m for m in run.measured if m["group"] == "ladder"]
    peers = [m for m in run.measured if m["group"] == "peers"]
    others = [m for m in run.measured if m["group"] not in ("ladder", "peers")]
    lines = [replace(m, contender=n) for m in peers for n in m.records if n != "xla"]
    names = dict.fromkeys(n for m in others for n in m.records if n != "xla")
    peer = _peer(run)
    times = f"times {peer}'s rate"
    of_one = {"rate": lambda m: over_xla(m, "")}
    series = {_name(name): partial(over_xla, name=name) for name in names}
    drawn = of_dots(
        "sgemm: float32 products",
        [
            [Dots("peers", times, lines, lambda m: f"{_name(m.contender)} {size(m.case)}", of_one)],
            [Dots("products", times, others, lambda m: size(m.case), series)],
        ],
    )
    return replace(drawn, panels=[*([_ladder(peer, m)] for m in ladders), *drawn.panels])


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
    figure=figure,
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
