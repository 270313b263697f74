"""Attention layers of random sizes in the suite ``attention``: is the default the fastest choice?

A seed draws the batch, query heads, key heads, lengths (including odd ones), the depth, and a mask or
bias. Seed 1 is for tuning the table of `jaxkernels/_attention/choice.py`. Seed 2 is for published
figures: nothing is tuned on its sizes.

``default`` names no implementation; ``cudnn``, ``ffi`` and ``xla`` name one. If two contenders have the
same program, it is compiled once and timed for each.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import tables as t
from jaxkernels.bench.options import seeded
from jaxkernels.bench.programs import draw, forward, refusing, with_gradient
from jaxkernels.bench.records import Case, Measured
from jaxkernels.bench.suite import Arguments, Program

GROUP = "drawn"
NAMED = ("cudnn", "ffi", "xla")
NAMES = ("default", *NAMED)
# The default counts as too slow above this multiple of the best time.
TOLERANCE = 1.03
KINDS = ("plain", "causal", "mask", "padding", "bias", "lengths")
_KIND_WEIGHTS = (5, 8, 2, 2, 2, 2)
_DEPTHS = (32, 40, 64, 64, 64, 72, 96, 128, 128, 160, 256)
# Most scores of a case; four float32 arrays of them take 4 GiB.
_MOST_SCORES = 2**28
_CPU_SCORES = 2**18
# Number of cases whose programs are compiled together and whose arrays share the memory.
_PART = 5
_SIZES = ("batch", "length", "keys", "heads", "key_heads", "depth")


def cases(count: int, seed: int) -> Iterable[Case]:
    """Random cases, alternately forward and with gradients."""
    draw = random.Random(seed)
    most = _CPU_SCORES if jax.default_backend() == "cpu" else _MOST_SCORES
    for i in range(count):
        (kind,) = draw.choices(KINDS, _KIND_WEIGHTS)
        sizes = _sizes(draw, most)
        if kind in ("mask", "padding", "bias"):  # cuDNN needs even lengths
            sizes["length"], sizes["keys"] = sizes["length"] & ~1, sizes["keys"] & ~1
        dtype = "bfloat16" if draw.random() < 0.7 else "float16"
        direction = ("fwd", "both")[i % 2]
        about = {"group": GROUP, "dtype": dtype, "direction": direction, "kind": kind}
        yield {**about, **sizes, "part": i // _PART}


def _sizes(draw: random.Random, most: int) -> dict[str, int]:
    def between(low: int, high: int) -> int:
        return round(low * (high / low) ** draw.random())

    def length() -> int:
        drawn = between(128, 8192)
        return drawn | 1 if draw.random() < 0.25 else max(128, drawn // 64 * 64)

    t = length()
    s = t if draw.random() < 0.8 else length()
    while t * s > most:
        t, s = t // 2, s // 2
    batch, heads = between(1, 64), between(1, 32)
    groups = draw.choice((1, 1, 1, 2, 4, 8))
    key_heads = max(1, heads // groups)
    heads = key_heads * groups if heads >= groups else heads
    while batch > 1 and batch * heads * t * s > most:
        batch = batch // 2
    while heads * t * s > most:
        heads, key_heads = heads // key_heads, 1
        heads = max(1, heads // 2) if heads * t * s > most else heads
    return dict(zip(_SIZES, (batch, t, s, heads, key_heads, draw.choice(_DEPTHS)), strict=True))


def _draw(case: Case) -> list[Arguments]:
    """The cotangent, queries, keys, values, and the bias, mask or lengths of the case's kind."""
    batch, length, keys, heads, key_heads, depth = (case[name] for name in _SIZES)
    queries, of_keys = (batch, length, heads, depth), (batch, keys, key_heads, depth)
    shapes, also, kind = [queries, queries, of_keys, of_keys], (), case["kind"]
    seed = jax.random.key(0)
    # Lengths keep at least a quarter of the keys visible.
    lengths = jax.random.randint(seed, (batch,), max(1, keys // 4), keys + 1)
    if kind == "bias":
        shapes.append((1, heads, length, keys))
    elif kind == "mask":
        also = (jax.random.uniform(seed, (batch, 1, length, keys)) < 0.7,)
    elif kind == "padding":
        also = (jnp.arange(keys) < lengths[:, None, None, None],)
    elif kind == "lengths":
        also = (lengths,)
    return draw([jax.ShapeDtypeStruct(shape, case["dtype"]) for shape in shapes], also=also)


def _attention(
    implementation: Any, kind: str, q: jax.Array, k: jax.Array, v: jax.Array, *side: jax.Array
) -> jax.Array:
    given = dict(zip((kind,), side, strict=False))
    return jk.dot_product_attention(
        *(q, k, v),
        bias=given.get("bias"),
        mask=given.get("mask", given.get("padding")),
        key_value_seq_lengths=given.get("lengths"),
        is_causal=kind == "causal",
        implementation=implementation,
    )


def path(program: Any, arguments: Arguments) -> str:
    """The implementation that a compiled program runs."""
    text = program.as_text() or ""
    return "cudnn" if "__cudnn$fmha" in text else "ffi" if "jaxkernels_row" in text else "xla"


def program(case: Case, name: str) -> Program:
    """The program of the default or of a named implementation."""
    function = refusing(partial(_attention, None if name == "default" else name, case["kind"]))
    whole = with_gradient(function, 3) if case["direction"] == "both" else forward(function)
    return Program(whole, partial(_draw, case), inspect={"path": path} if name == "default" else {})


def label(case: Case) -> str:
    """The case in one line."""
    size = "x".join(str(case[name]) for name in _SIZES)
    return f"{GROUP} {case['kind']} {case['direction']} {case['dtype']} {size}"


def over_best(m: Measured) -> float | None:
    """The default's time divided by the fastest one; None without both.

    The default and the implementation that it chose run the same program, so the mean of both times is
    used.
    """
    times = {name: seconds for name in NAMED if (seconds := m.seconds(name))}
    own, path = m.seconds("default"), m.extra("default", "path")
    if not own or not times:
        return None
    if path in times:
        own = times[path] = statistics.mean((own, times[path]))
    return own / min(times.values())


SWEEP = t.Sweep("default over the best", over_best, lambda m: label(m.case), TOLERANCE)


def view() -> t.View:
    """A line for each case."""
    columns = t.fields("kind", "direction", "dtype", *_SIZES)
    columns.append(t.extra("path", "path", contender="default"))
    columns += [t.time(f"{name} ms", name) for name in NAMES]
    columns.append(t.Column("over best", over_best, "{:.3f}"))
    return SWEEP.view("attention of drawn sizes", columns)


OPTIONS = {
    "--drawn": {"type": int, "metavar": "N", "help": "N layers of drawn sizes, nothing else"},
    "--seed": seeded("draws them", tuning=1, published=2, metavar="S"),
}
