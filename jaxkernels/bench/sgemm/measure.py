"""Measures matrix products: builds inputs and contenders, hands them to ``bench.timing``.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels.bench.sgemm import cases
from jaxkernels.bench.timing import (
    REFUSALS,
    Contender,
    Timing,
    first_line,
    last_level_cache_bytes,
    measure_together,
    rotations_for,
)

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


@dataclass(frozen=True)
class Settings:
    """Everything that decides what is measured.

    Attributes:
        products: which products.
        rungs: the rungs that every product runs; None is all of them for the products of the ladder
            and the fastest one for the others.
        repeats: samples per median.
        min_sample_seconds: least duration of a sample.
    """

    products: tuple[cases.Product, ...]
    rungs: tuple[str, ...] | None
    repeats: int
    min_sample_seconds: float


@partial(jax.jit, static_argnums=1)
def _normal(seed: int, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def _inputs(product: cases.Product, count: int) -> list[tuple[jax.Array, jax.Array]]:
    """Operands of independent products, as they lie in memory."""
    m, n, k = product.m, product.n, product.k
    batch = (product.batch,) if product.batch > 1 else ()
    a_shape = (*batch, *((k, m) if product.transposes[0] == "T" else (m, k)))
    b_shape = (*batch, *((n, k) if product.transposes[1] == "T" else (k, n)))
    return [(_normal(2 * i, a_shape), _normal(2 * i + 1, b_shape)) for i in range(count)]


def _function(product: cases.Product, name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """One product by a contender; operands are read as they lie in memory by all of them."""
    trans_a, trans_b = (letter == "T" for letter in product.transposes)
    if name != "xla":
        on_gpu = jax.default_backend() == "gpu"
        options = {"algorithm": name, "implementation": "ffi"} if on_gpu else {}
        return partial(jk.sgemm, trans_a=trans_a, trans_b=trans_b, **options)
    first = 1 if product.batch > 1 else 0
    contract = ((first + (0 if trans_a else 1),), (first + (1 if trans_b else 0),))
    batch = ((0,), (0,)) if first else ((), ())
    return partial(
        jax.lax.dot_general,
        dimension_numbers=(contract, batch),
        precision=jax.lax.Precision.HIGHEST,
    )


def _program(product: cases.Product, name: str) -> Callable[..., Any]:
    """A chain of products, or several independent ones."""
    function = _function(product, name)
    if product.is_square:
        return jax.jit(lambda b, *many_a: reduce(lambda b, a: function(a, b), many_a, b))
    return jax.jit(lambda *pairs: [function(a, b) for a, b in pairs])


def _arguments(
    product: cases.Product, pairs: Sequence[tuple[jax.Array, jax.Array]]
) -> tuple[Any, ...]:
    """What a program of these operands takes; a chain's are scaled, so that its results stay finite."""
    if not product.is_square:
        return tuple(pairs)
    return (pairs[0][1], *(a / math.sqrt(product.k) for a, _ in pairs))


def products_per_call(product: cases.Product, platform: str) -> int:
    """How many products make a program that lasts long enough, and a chain that no cache holds.

    Example:
        >>> products_per_call(cases.Product("square", 1, 4096, 4096, 4096), "gpu")
        4
        >>> products_per_call(cases.Product("other", 1, 256, 256, 64), "gpu")
        64
        >>> products_per_call(cases.Product("square", 1, 16, 16, 16), "gpu")
        1024
    """
    guess = max(product.flops / _GUESSED_RATE[platform], _GUESSED_LATENCY)
    count = max(1, min(_MAX_PRODUCTS, math.ceil(_PROGRAM_SECONDS / guess)))
    if platform == "gpu" and product.is_square:
        cache = last_level_cache_bytes(platform)
        fill_cache = math.ceil(_CACHES_OF_CHAIN * cache / (4 * product.m * product.k))
        count = max(count, min(_MAX_CHAIN, fill_cache))
    return count


def _errors(product: cases.Product, name: str) -> tuple[float, float]:
    """RelF and the largest error in units of k eps |A| |B|, against float64, over sampled rows."""
    a, b = _inputs(product, 1)[0]
    c = jax.jit(_function(product, name))(a, b)
    a = jnp.swapaxes(a, -1, -2) if product.transposes[0] == "T" else a
    b = jnp.swapaxes(b, -1, -2) if product.transposes[1] == "T" else b
    if product.batch > 1:
        a, b, c = a[:2], b[:2], c[:2]
    rows = np.unique(np.linspace(0, product.m - 1, _SAMPLED_ROWS).astype(int))
    with jax.enable_x64(True):
        wide_a, wide_b = a[..., rows, :].astype(jnp.float64), b.astype(jnp.float64)
        truth = wide_a @ wide_b
        error = c[..., rows, :].astype(jnp.float64) - truth
        bound = product.k * _EPSILON * (jnp.abs(wide_a) @ jnp.abs(wide_b))
        relative = jnp.linalg.norm(error.ravel()) / jnp.linalg.norm(truth.ravel())
        return float(relative), float(jnp.max(jnp.abs(error) / bound))


def _plan(product: cases.Product) -> str:
    if jax.default_backend() != "gpu":
        return ""
    trans_a, trans_b = (letter == "T" for letter in product.transposes)
    batch = product.batch if product.batch > 1 else ()
    plan = jk.plan_sgemm(
        product.m, product.n, product.k, batch=batch, trans_a=trans_a, trans_b=trans_b
    )
    return repr(plan)


def time_products(
    product: cases.Product, count: int, names: tuple[str, ...], settings: Settings
) -> tuple[dict[str, Timing], dict[str, str]]:
    """The times of a program of `count` products, and who has none; inputs may not fit either."""
    platform = jax.default_backend()
    keeps_inputs = platform == "gpu" and product.is_square
    cache = last_level_cache_bytes(platform)
    rotations = 1 if keeps_inputs else rotations_for(count * product.bytes, cache)
    try:
        pairs = _inputs(product, rotations * count)
        arguments = [_arguments(product, pairs[first::rotations]) for first in range(rotations)]
    except REFUSALS as error:
        return {}, dict.fromkeys(names, first_line(error))
    return measure_together(
        [Contender(name, partial(_program, product, name), arguments) for name in names],
        repeats=settings.repeats,
        min_sample_seconds=settings.min_sample_seconds,
    )


def measure(settings: Settings, announce: Callable[[str], None]) -> list[cases.Measurement]:
    """Measures every product.

    Args:
        settings: what to measure.
        announce: called with a description when a product begins.

    Returns:
        One measurement for each product. One that was refused, or ran out of memory, says so, and
        the others are measured all the same.
    """
    results = []
    for product in settings.products:
        announce(f"{product.group} {product.label}")
        rungs = settings.rungs or (cases.RUNGS if product.group == "ladder" else ("pipelined",))
        count = products_per_call(product, jax.default_backend())
        timings, refused = time_products(product, count, ("xla", *rungs), settings)
        errors = {}
        for name in timings:
            try:
                errors[name] = _errors(product, name)
            except REFUSALS as error:
                refused[name] = f"error not measured: {first_line(error)}"
        results.append(
            cases.Measurement(
                group=product.group,
                batch=product.batch,
                m=product.m,
                n=product.n,
                k=product.k,
                transposes=product.transposes,
                plan=_plan(product),
                products_per_call=count,
                seconds={name: t.seconds / count for name, t in timings.items()},
                samples={name: [s / count for s in t.samples] for name, t in timings.items()},
                relative_errors={name: relative for name, (relative, _) in errors.items()},
                bound_ratios={name: ratio for name, (_, ratio) in errors.items()},
                refused=refused,
            )
        )
    return results
