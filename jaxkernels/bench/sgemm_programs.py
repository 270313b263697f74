"""What the suite ``sgemm`` measures: every rung of the ladder beside XLA's float32 product.

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
from collections.abc import Iterable, Mapping
from functools import partial, reduce
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithmPreset, Precision

import jaxkernels as jk
from jaxkernels.bench import products
from jaxkernels.bench.product_data import errors, operands
from jaxkernels.bench.products import flops, is_chain, is_transposed, touched_bytes
from jaxkernels.bench.programs import rotations
from jaxkernels.bench.records import Case
from jaxkernels.bench.suite import (
    Arguments,
    Function,
    Options,
    Program,
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
