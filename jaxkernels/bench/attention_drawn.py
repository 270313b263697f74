"""Attention of drawn sizes in the suite ``attention``: is the default as fast as the best that can be named?

A seed draws batch, heads, heads that share keys, lengths, odd ones too, depth, and what hides scores or
is added to them. Seed 1 is for tuning the table of `jaxkernels/_attention/choice.py`. Seed 2 is for
what is published: nothing is ever tuned on its sizes.

``default`` names no implementation; ``cudnn``, ``ffi`` and ``xla`` do. A program that two of them have
in common is compiled once and timed for each. Programs are compiled by all cores, those of a part while
none is sampled.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import forward, normal, rotations, with_gradient
from jaxkernels.bench.records import Case, Measured
from jaxkernels.bench.suite import Arguments, Function, Program
from jaxkernels.bench.timing import first_line

GROUP = "drawn"
TUNING, PUBLISHED = 1, 2
NAMED = ("cudnn", "ffi", "xla")
# The default is too slow where it takes so many times the best one's time.
TOLERANCE = 1.03
KINDS = ("plain", "causal", "mask", "padding", "bias", "lengths")
_KIND_WEIGHTS = (5, 8, 2, 2, 2, 2)
_DEPTHS = (32, 40, 64, 64, 64, 72, 96, 128, 128, 160, 256)
# Scores of one case: four arrays of them in float32 are 4 GiB.
_MOST_SCORES = 2**28
_CPU_SCORES = 2**18
# Cases whose programs are compiled together, and whose arrays are in memory together.
_PART = 5
_SIZES = ("batch", "length", "keys", "heads", "key_heads", "depth")


def cases(count: int, seed: int) -> Iterable[Case]:
    """So many cases, forward and with gradients by turns.

    Example:
        >>> first, second = cases(2, seed=1)
        >>> first["direction"], second["direction"], first["part"]
        ('fwd', 'both', 0)
    """
    draw = random.Random(seed)
    most = _CPU_SCORES if jax.default_backend() == "cpu" else _MOST_SCORES
    for i in range(count):
        (kind,) = draw.choices(KINDS, _KIND_WEIGHTS)
        sizes = _sizes(draw, most)
        if kind in ("mask", "padding", "bias"):  # cuDNN takes even lengths alone
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


def _types(case: Case) -> list[jax.ShapeDtypeStruct]:
    """The cotangent, queries, keys and values, and what the kind of the case has."""
    batch, length, keys, heads, key_heads, depth = (case[name] for name in _SIZES)
    queries, of_keys = (batch, length, heads, depth), (batch, keys, key_heads, depth)
    found = [jax.ShapeDtypeStruct(x, case["dtype"]) for x in (queries, queries, of_keys, of_keys)]
    side = {
        "mask": ((batch, 1, length, keys), bool),
        "padding": ((batch, 1, 1, keys), bool),
        "bias": ((1, heads, length, keys), case["dtype"]),
        "lengths": ((batch,), "int32"),
    }
    if case["kind"] in side:
        found.append(jax.ShapeDtypeStruct(*side[case["kind"]]))
    return found


def _array(seed: int, kind: str, like: jax.ShapeDtypeStruct, keys: int) -> jax.Array:
    drawn = jax.random.key(seed)
    if kind == "mask" and like.dtype == bool:
        return jax.random.uniform(drawn, like.shape) < 0.7
    if like.dtype in (bool, jnp.int32):  # a quarter of the keys at least
        lengths = jax.random.randint(drawn, like.shape[:1], max(1, keys // 4), keys + 1)
        if like.dtype == jnp.int32:
            return lengths
        return jnp.arange(keys) < lengths[:, None, None, None]
    return normal(seed, like.shape, like.dtype.name)


def draw(case: Case) -> list[Arguments]:
    """The arguments, as often as they push one another out of the cache."""
    types = _types(case)
    turns = rotations(sum(math.prod(x.shape) * x.dtype.itemsize for x in types))
    return [
        tuple(
            _array(len(types) * turn + i, case["kind"], x, case["keys"])
            for i, x in enumerate(types)
        )
        for turn in range(turns)
    ]


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


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor()


def _compile(lowered: Any) -> Function:
    return lowered.compile()


def _made(make: Callable[[], Future[Function]], _: Arguments) -> Function:
    return make().result()


def path(program: Any, arguments: Arguments) -> str:
    """Who computes a compiled program."""
    text = program.as_text() or ""
    return "cudnn" if "__cudnn$fmha" in text else "ffi" if "jaxkernels_row" in text else "xla"


def contenders(case: Case) -> Mapping[str, Program]:
    """The default and those that can be named; they begin to compile now."""
    drawn = partial(draw, case)
    types = _types(case)
    compiled: dict[str, Future[Function]] = {}
    programs = {}

    def program_of(implementation: str | None) -> Future[Function]:
        of = partial(_attention, implementation, case["kind"])
        whole = with_gradient(of, 3) if case["direction"] == "both" else forward(of)

        def attention(*arguments: jax.Array) -> Any:
            return whole(*arguments)

        try:
            lowered = jax.jit(attention).lower(*types)
        except (RuntimeError, ValueError) as error:
            failed: Future[Function] = Future()
            failed.set_exception(NotImplementedError(first_line(error)))
            return failed
        text = lowered.as_text()
        if text not in compiled:
            compiled[text] = _pool().submit(_compile, lowered)
        return compiled[text]

    for name in ("default", *NAMED):
        look = {"path": path} if name == "default" else {}
        future = program_of(None if name == "default" else name)
        programs[name] = Program(partial(_made, lambda future=future: future), drawn, inspect=look)
    return programs


def label(case: Case) -> str:
    """The case in one line."""
    size = "x".join(str(case[name]) for name in _SIZES)
    return f"{GROUP} {case['kind']} {case['direction']} {case['dtype']} {size}"


def over_best(m: Measured) -> float | None:
    """The default's time over that of the fastest; None without both.

    The default and the path that it takes, pinned, run the same calls. So their two times are samples of
    one, of which this takes the mean.
    """
    times = {name: seconds for name in NAMED if (seconds := m.seconds(name))}
    own, path = m.seconds("default"), m.extra("default", "path")
    if not own or not times:
        return None
    if path in times:
        own = times[path] = statistics.mean((own, times[path]))
    return own / min(times.values())


def said(m: Measured) -> str:
    """A drawn case with its times in one line; empty for another."""
    if m["group"] != GROUP:
        return ""
    times = [f"{name} {s * 1e3:.3f}" for name in ("default", *NAMED) if (s := m.seconds(name))]
    ratio = over_best(m)
    over = "" if ratio is None else f", {ratio:.3f} of the best"
    return f"{label(m.case)}: {m.extra('default', 'path')}; ms {', '.join(times)}{over}"


def summary(members: Iterable[Measured]) -> str:
    """The default over the best: geometric mean, the worst, and how many are beyond the tolerance."""
    found = [(ratio, m) for m in members if (ratio := over_best(m))]
    if not found:
        return "no case was measured"
    ratios = [ratio for ratio, _ in found]
    worst, where = max(found, key=lambda pair: pair[0])
    beyond = sum(ratio > TOLERANCE for ratio in ratios)
    return (
        f"default over the best of {len(ratios)} cases: geometric mean "
        f"{statistics.geometric_mean(ratios):.3f}, worst {worst:.3f} ({label(where.case)}), "
        f"{beyond} beyond {TOLERANCE}"
    )


def view(members: Iterable[Measured]) -> t.View:
    """A line for each case, in the order of the draw."""
    columns = t.fields("kind", "direction", "dtype", *_SIZES)
    columns.append(t.Column("path", lambda m: m.extra("default", "path"), "{}"))
    columns += [t.time(f"{name} ms", name) for name in ("default", *NAMED)]
    columns.append(t.Column("over best", over_best, "{:.3f}"))
    return t.View(
        "attention of drawn sizes",
        columns,
        lambda m: m["group"] == GROUP,
        notes=(summary(m for m in members if m["group"] == GROUP),),
    )


OPTIONS = {
    "--drawn": {"type": int, "metavar": "N", "help": "so many layers of drawn sizes, nothing else"},
    "--seed": {
        "type": int,
        "default": TUNING,
        "metavar": "S",
        "help": f"draws them (default: {TUNING}, for tuning; {PUBLISHED} is what is published)",
    },
}
