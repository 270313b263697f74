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
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels.bench import sgemm_report
from jaxkernels.bench.options import several, sizes
from jaxkernels.bench.programs import normal, rotations
from jaxkernels.bench.records import Case
from jaxkernels.bench.sgemm_report import GROUPS, RUNGS, flops, is_square
from jaxkernels.bench.suite import Arguments, Axis, Function, Options, Program, Suite, Watched
from jaxkernels.bench.timing import last_level_cache_bytes

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
    sizes_of = {"batch": batch, "m": m, "n": n, "k": k}
    return {"group": group, **sizes_of, "transposes": transposes}


def _of_sizes(shape: tuple[int, ...]) -> Case:
    """The product of an option: n, (m, n, k) or (batch, m, n, k)."""
    batch, m, n, k = (1, *shape * 3) if len(shape) == 1 else (1, *shape)[-4:]
    return product("square" if batch == 1 and m == n == k else "other", batch, m, n, k)


def _squares(*lengths: int) -> list[Case]:
    return [product("square", 1, n, n, n) for n in lengths]


def _transposed(*lengths: int, kinds: Sequence[str] = ("NN", "NT", "TN", "TT")) -> list[Case]:
    return [product("transposed", 1, n, n, n, kind) for n in lengths for kind in kinds]


_OTHERS = {
    shape: _of_sizes(shape) | {"group": "other"}
    for shape in (
        (4096, 4096, 64),
        (64, 4096, 4096),
        (8192, 128, 8192),
        (128, 128, 65536),
        (4097, 4095, 4093),
        (1000, 1000, 1000),
        (50257, 768, 1024),
        (64, 512, 512, 64),
        (512, 128, 128, 128),
    )
}
GPU_PRODUCTS = (
    *_squares(256, 512, 1024, 2048, 4096, 8192),
    *_OTHERS.values(),
    *_transposed(1024, 4096),
    product("ladder", 1, 4096, 4096, 4096),
)
CPU_PRODUCTS = (*_squares(256, 512), product("other", 4, 96, 80, 64))


def cases(options: Options) -> Iterable[Case]:
    """The shapes that were asked for, or the platform's."""
    if options.shapes:
        return [_of_sizes(shape) for shape in options.shapes]
    return CPU_PRODUCTS if jax.default_backend() == "cpu" else GPU_PRODUCTS


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
        options = {"algorithm": name, "implementation": "ffi"} if on_gpu else {}
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
        >>> products_per_call(product("other", 1, 256, 256, 64), "gpu")
        64
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


def _plan(case: Case) -> str:
    """The plan of the kernel that "pipelined" runs."""
    trans_a, trans_b = _is_transposed(case)
    batch = case["batch"] if case["batch"] > 1 else ()
    m, n, k = case["m"], case["n"], case["k"]
    return repr(jk.plan_sgemm(m, n, k, batch=batch, trans_a=trans_a, trans_b=trans_b))


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """XLA and rungs: those asked for, all of the ladder, the fastest one of other products."""
    rungs = options.algorithms or (RUNGS if case["group"] == "ladder" else ("pipelined",))
    count = products_per_call(case, jax.default_backend())
    drawn = partial(draw, case, count)
    programs = {}
    for name in ("xla", *rungs):
        look: dict[str, Any] = {"errors": lambda *_, name=name: _errors(case, name)}
        if name == "pipelined" and jax.default_backend() == "gpu":
            look["plan"] = lambda *_: _plan(case)
        programs[name] = Program(lambda _, name=name: program(case, name), drawn, count, look)
    return programs


def watched(platform: str) -> Iterable[Watched]:
    """Products of many kinds, by the fastest rung."""
    products = (CPU_PRODUCTS[0], CPU_PRODUCTS[-1])
    if platform != "cpu":
        left_out = ((8192, 128, 8192), (1000, 1000, 1000))
        products = (
            *_squares(256, 512, 1024, 2048, 4096),
            *(case for shape, case in _OTHERS.items() if shape not in left_out),
            *_transposed(1024, kinds=("NT", "TN", "TT")),
        )
    for case in products:
        count = products_per_call(case, jax.default_backend())
        make = lambda _, case=case: program(case, "pipelined")  # noqa: E731
        yield Watched("products", case, Program(make, partial(draw, case, count), count))


_FORM = "n, mxnxk or batchxmxnxk"
_SHAPES_HELP = f"products as {_FORM} (default: squares, other shapes, transposes)"
_ALGORITHMS_HELP = "rungs of every product (default: all for the ladder, pipelined for the others)"

SUITE = Suite(
    name="sgemm",
    summary="float32 matrix products, every rung of the ladder, beside XLA's at the highest precision",
    cases=cases,
    contenders=contenders,
    label=sgemm_report.label,
    views=sgemm_report.views,
    figure=sgemm_report.figure,
    axes=(Axis("group", tuple(GROUPS)),),
    options={
        "--shapes": several(sizes(_FORM, 1, 3, 4), "SHAPE", _SHAPES_HELP),
        "--algorithms": {"nargs": "+", "choices": RUNGS, "help": _ALGORITHMS_HELP},
    },
    watched=watched,
)
