"""The suite ``sgemm``: every rung of the ladder beside XLA's float32 product.

A call of a small product costs the host more time than the GPU, so what is timed is a program of
several products, which XLA captures into CUDA graphs. Plain squares make a chain, in which each
result is the next product's b: an argument for every product and one result, so that the host keeps
up with the smallest of them. Other products are independent, with inputs of their own, and all
results are returned. The number of products makes a program last about a millisecond.

On a GPU a chain from 256^3 on is as long as it takes to make its operands a too many for the cache;
small b and results stay there, as they do between the layers of a network. Other inputs and results
that would stay in the cache are not used in successive calls. (A chain's are, because new ones have
to be told to CUDA graphs, which takes the host up to ten microseconds a product.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels.bench import plot
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import normal, rotations
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite, several, sizes
from jaxkernels.bench.timing import last_level_cache_bytes
from jaxkernels.typing import Algorithm

RUNGS: tuple[Algorithm, ...] = get_args(Algorithm)
AUTO = "auto"  # what is planned where no rung is named
OURS = (AUTO, "tensor")
GROUPS = ("square", "other", "transposed", "ladder")
_PROGRAM_SECONDS = 1e-3
_MAX_PRODUCTS = 64
# What a product takes at most, by guess: a part of a GPU's rate, and the latency of a launch.
_GUESSED_RATE = {"gpu": 50e12, "cpu": 50e9}
_GUESSED_LATENCY = 5e-6
# How many times the cache the operands a of a chain are, on a GPU, and the longest chain.
_CACHES_OF_CHAIN = 2
_MAX_CHAIN = 1024
# Rows of C whose error is measured.
_SAMPLED_ROWS = 256
_EPSILON = 2.0**-24


def product(group: str, batch: int, m: int, n: int, k: int, transposes: str = "NN") -> Case:
    """C[m, n] = A[m, k] B[k, n], `batch` times; `transposes` says how a and b lie in memory."""
    case = {"group": group, "batch": batch, "m": m, "n": n, "k": k}
    return {**case, "transposes": transposes}


def _squares(*lengths: int, group: str = "square", kinds: Sequence[str] = ("NN",)) -> list[Case]:
    return [product(group, 1, n, n, n, kind) for n in lengths for kind in kinds]


_KINDS = ("NN", "NT", "TN", "TT")
_OTHERS = [
    *(product("other", 1, 4096, 4096, 64), product("other", 1, 64, 4096, 4096)),
    *(product("other", 1, 8192, 128, 8192), product("other", 1, 128, 128, 65536)),
    *(product("other", 1, 4097, 4095, 4093), product("other", 1, 1000, 1000, 1000)),
    product("other", 1, 50257, 768, 1024),
    *(product("other", 64, 512, 512, 64), product("other", 512, 128, 128, 128)),
]
GPU_PRODUCTS = (
    *_squares(256, 512, 1024, 2048, 4096, 8192),
    *_OTHERS,
    *_squares(1024, 4096, group="transposed", kinds=_KINDS),
    *_squares(4096, group="ladder"),
)
CPU_PRODUCTS = (*_squares(256, 512), product("other", 4, 96, 80, 64))


def is_square(case: Case) -> bool:
    """Whether all matrices have one shape, and there is one product: those make a chain."""
    return case["m"] == case["n"] == case["k"] and case["batch"] == 1


def cases(options: Options) -> Iterable[Case]:
    """The shapes that were asked for, n, (m, n, k) or (batch, m, n, k), or the platform's."""
    if not options.shapes:
        return CPU_PRODUCTS if jax.default_backend() == "cpu" else GPU_PRODUCTS
    four = ((1, *shape * 3) if len(shape) == 1 else (1, *shape)[-4:] for shape in options.shapes)
    asked = [product("other", b, m, n, k) for b, m, n, k in four]
    return [{**case, "group": "square"} if is_square(case) else case for case in asked]


def flops(case: Case) -> float:
    """Operations of the product: a multiplication and an addition for each of m n k."""
    return 2.0 * case["batch"] * case["m"] * case["n"] * case["k"]


def touched_bytes(case: Case) -> int:
    """Size of the operands and the result."""
    batch, m, n, k = (case[name] for name in ("batch", "m", "n", "k"))
    return 4 * batch * (m * k + k * n + m * n)


def _is_transposed(case: Case) -> tuple[bool, bool]:
    return case["transposes"][0] == "T", case["transposes"][1] == "T"


def _inputs(case: Case, count: int) -> list[Arguments]:
    """Operands of independent products, as they lie in memory."""
    trans_a, trans_b = _is_transposed(case)
    m, n, k = case["m"], case["n"], case["k"]
    batch = (case["batch"],) if case["batch"] > 1 else ()
    shapes = (*batch, *((k, m) if trans_a else (m, k))), (*batch, *((n, k) if trans_b else (k, n)))
    return [tuple(normal(2 * i + j, s) for j, s in enumerate(shapes)) for i in range(count)]


def _function(case: Case, name: str) -> Function:
    """One product by a contender; operands are read as they lie in memory by all of them."""
    trans_a, trans_b = _is_transposed(case)
    if name != "xla":
        on_gpu = jax.default_backend() == "gpu"
        rung = None if name == AUTO else name
        options = {"algorithm": rung, "implementation": "ffi"} if on_gpu else {}
        return partial(jk.sgemm, trans_a=trans_a, trans_b=trans_b, **options)
    first = 1 if case["batch"] > 1 else 0
    contract = ((first + (0 if trans_a else 1),), (first + (1 if trans_b else 0),))
    batch = ((0,), (0,)) if first else ((), ())
    highest = jax.lax.Precision.HIGHEST
    return partial(jax.lax.dot_general, dimension_numbers=(contract, batch), precision=highest)


def program(case: Case, name: str) -> Function:
    """A chain of products, or several independent ones."""
    function = _function(case, name)
    if is_square(case):
        return jax.jit(lambda b, *many_a: reduce(lambda b, a: function(a, b), many_a, b))
    return jax.jit(lambda *pairs: [function(a, b) for a, b in pairs])


def products_per_call(case: Case, platform: str) -> int:
    """How many products make a program that lasts long enough, and a chain that no cache holds.

    Example:
        >>> products_per_call(product("square", 1, 4096, 4096, 4096), "gpu")
        4
        >>> products_per_call(product("square", 1, 16, 16, 16), "gpu")
        1024
    """
    guess = max(flops(case) / _GUESSED_RATE[platform], _GUESSED_LATENCY)
    count = max(1, min(_MAX_PRODUCTS, math.ceil(_PROGRAM_SECONDS / guess)))
    if platform == "gpu" and is_square(case):
        cache = _CACHES_OF_CHAIN * last_level_cache_bytes(platform)
        count = max(count, min(_MAX_CHAIN, math.ceil(cache / (4 * case["m"] * case["k"]))))
    return count


def draw(case: Case, count: int) -> list[Arguments]:
    """What a program of `count` products takes; a chain's are scaled, so its results stay finite."""
    keeps_inputs = jax.default_backend() == "gpu" and is_square(case)
    turns = 1 if keeps_inputs else rotations(count * touched_bytes(case))
    pairs = _inputs(case, turns * count)
    calls = [pairs[first::turns] for first in range(turns)]
    if not is_square(case):
        return [tuple(call) for call in calls]
    return [(call[0][1], *(a / math.sqrt(case["k"]) for a, _ in call)) for call in calls]


def _errors(case: Case, name: str) -> dict[str, float]:
    """Against float64, over sampled rows: RelF, and the largest error in units of k eps |A| |B|."""
    a, b = _inputs(case, 1)[0]
    c = jax.jit(_function(case, name))(a, b)
    trans_a, trans_b = _is_transposed(case)
    a = jnp.swapaxes(a, -1, -2) if trans_a else a
    b = jnp.swapaxes(b, -1, -2) if trans_b else b
    if case["batch"] > 1:
        a, b, c = a[:2], b[:2], c[:2]
    rows = np.unique(np.linspace(0, case["m"] - 1, _SAMPLED_ROWS).astype(int))
    with jax.enable_x64(True):
        wide_a, wide_b = a[..., rows, :].astype(jnp.float64), b.astype(jnp.float64)
        truth = wide_a @ wide_b
        error = c[..., rows, :].astype(jnp.float64) - truth
        bound = case["k"] * _EPSILON * (jnp.abs(wide_a) @ jnp.abs(wide_b))
        relative = jnp.linalg.norm(error.ravel()) / jnp.linalg.norm(truth.ravel())
        return {"relF": float(relative), "of_bound": float(jnp.max(jnp.abs(error) / bound))}


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """XLA and rungs: those asked for, all of the ladder; what is planned, and tensor, of others."""
    rungs = options.algorithms or (RUNGS if case["group"] == "ladder" else OURS)
    count = products_per_call(case, jax.default_backend())
    drawn = partial(draw, case, count)

    def of(name: str) -> Program:
        look = {"errors": lambda *_: _errors(case, name)}
        return Program(lambda _: program(case, name), drawn, count, look)

    return {name: of(name) for name in ("xla", *rungs)}


def watched(platform: str) -> Iterable[tuple[str, Case, Program]]:
    """Products of many kinds."""
    products = (CPU_PRODUCTS[0], CPU_PRODUCTS[-1])
    if platform != "cpu":
        transposed = _squares(1024, group="transposed", kinds=_KINDS[1:])
        others = (*_OTHERS[:2], *_OTHERS[3:5], *_OTHERS[6:])
        products = (*_squares(256, 512, 1024, 2048, 4096), *others, *transposed)
    options = Options(algorithms=[AUTO])
    return (("products", case, contenders(case, options)[AUTO]) for case in products)


def size(case: Case) -> str:
    """The product as tables name it."""
    text = f"{case['m']}^3" if is_square(case) else f"({case['m']}, {case['n']}, {case['k']})"
    text = text if case["batch"] == 1 else f"{case['batch']} x {text}"
    return text if case["transposes"] == "NN" else f"{text} {case['transposes']}"


def over_xla(m: Measured, name: str = AUTO) -> float | None:
    """How many times XLA's rate a rung's is."""
    return m.ratio("xla", name)


def _tensor_over_xla(m: Measured) -> float | None:
    return over_xla(m, "tensor")


def error(m: Measured, name: str, what: str) -> float | None:
    """An error of a contender, "relF" or "of_bound"; None if it was not measured."""
    return (m.extra(name, "errors") or {}).get(what)


def _is_ladder(m: Measured) -> bool:
    """Whether rungs are compared with one another, and not the fastest one with XLA."""
    return m["group"] == "ladder" or set(m.records) != {"xla", *OURS}


def _peer(run: Run) -> str:
    """What serves XLA's float32 product at the highest precision on a platform."""
    return "cuBLAS" if run.platform == "gpu" else "XLA"


def views(run: Run) -> list[t.View]:
    """Ours beside XLA's for each group of products, and the rungs of a ladder."""
    unit, text = t.rates(run.platform, "FLOP")
    peer = _peer(run)
    notes = ("on a CPU both are XLA's own product",) if run.platform == "cpu" else ()
    names = [t.Column("product", lambda m: size(m.case))]
    rung = t.Column("rung", lambda m: peer if m.contender == "xla" else m.contender)

    def columns(name: str = "") -> list[t.Column]:
        """Of a contender; without a name, of the line's own."""
        return [
            t.time("us", name, "us", 1),
            t.Column(unit, lambda m: m.rate(flops(m.case), name), text),
            t.Column("relF", lambda m: error(m, name, "relF"), "{:.1e}"),
            t.Column("of bound", lambda m: error(m, name, "of_bound"), "{:.3f}"),
            t.Column(f"of {peer}", lambda m: over_xla(m, name), "{:.3f}"),
        ]

    names_of_rungs = [*names, rung]
    names += [replace(c, head=f"{peer} {c.head}") for c in columns("xla")[:3]]
    of_tensor = [replace(c, head=f"tensor {c.head}") for c in columns("tensor")]
    return [
        t.View(
            "{group}: (m, n, k), batch x (m, n, k), T is transposed in memory",
            [*names, *columns(AUTO), *of_tensor],
            lambda m: not _is_ladder(m),
            by=("group",),
            notes=notes,
        ),
        t.View(
            "the rungs",
            [*names_of_rungs, *columns()],
            _is_ladder,
            contenders=lambda m: [name for name in (*RUNGS, "xla") if name in m.records],
            notes=notes,
        ),
    ]


def figure(run: Run) -> plot.Figure:
    """The rungs where they were measured, and the fastest one of other products, beside XLA's."""
    rungs = [replace(m, contender=n) for m in run.measured if _is_ladder(m) for n in RUNGS]
    products = [m for m in run.measured if not _is_ladder(m)]
    times = f"times {_peer(run)}'s rate"
    panels = {
        f"the ladder, {times}": (rungs, {"ours": lambda m: over_xla(m, m.contender)}),
        f"products, {times}": (products, {"as planned": over_xla, "tensor": _tensor_over_xla}),
    }
    return plot.of_dots(
        "sgemm: float32 products", lambda m: f"{m.contender} {size(m.case)}", panels
    )


_ALGORITHMS_HELP = "rungs of every product (default: all for the ladder, what is planned and tensor for the others)"
_SHAPES_HELP = "as n, mxnxk or batchxmxnxk (default: squares, other shapes, transposes)"

SUITE = Suite(
    name="sgemm",
    summary="float32 matrix products, every rung of the ladder, beside XLA's at the highest precision",
    cases=cases,
    contenders=contenders,
    label=lambda case: f"product {size(case)}",
    views=views,
    figure=figure,
    axes={"group": GROUPS},
    options={
        "--shapes": several(sizes(1, 3, 4), "SHAPE", _SHAPES_HELP),
        "--algorithms": {"nargs": "+", "choices": (AUTO, *RUNGS), "help": _ALGORITHMS_HELP},
    },
    watched=watched,
)
