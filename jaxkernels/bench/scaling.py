"""The suite ``scaling``: arrays sharded over 1, 2, 4, ... devices.

All in one process, over devices of the default backend, timed as written down in
``jaxkernels.bench.timing``:

* Weak scaling, the same rows or the same batch on each device: ``jaxkernels.softmax`` of rows cut
  as P("devices", None), and ``jaxkernels.scaled_masked_softmax`` (scaled, causal) of attention
  scores whose batch is cut. The efficiency is the time on 1 device over the time on n. The numbers
  of devices are the contenders of one case: they are sampled in turn.
* Strong scaling, one array cut along its vocabulary as P(None, "devices"), log_softmax of it:

  - ``ours``: ``jaxkernels.log_softmax``, left to XLA's partitioner.
  - ``gathered``: the same behind a constraint that every device has the whole array, which is what
    a custom call costs of which the partitioner knows nothing.
  - ``xla``: ``jax.nn.log_softmax``.

``fwd`` is y from x; ``both`` is y and the gradient, from x and a given cotangent. The collectives
of every compiled program are counted, so that it shows what was gathered.

The devices of a CPU are simulated and share its cores: each call is waited for, and their
times tell nothing of a GPU.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxkernels as jk
from jaxkernels.bench import plot
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import SCALE, rotations, with_gradient
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite, count, shapes

CONTENDERS = {"gathered": "gathered", "xla": "XLA", "ours": "ours"}
DIRECTIONS = {"fwd": "forward", "both": "forward and backward"}
# The dtypes of each group.
DTYPES = {
    "softmax": ("float32", "bfloat16"),
    "attention": ("bfloat16",),
    "vocabulary": ("bfloat16",),
}
# (rows, cols) and (batch, heads, q, k) on each device, and the whole (rows, vocabulary). At 4 TB/s
# the shortest call of a device takes 1 ms, so that the host, which dispatches calls to all devices
# one after another, stays ahead of them.
GPU_SHAPES = {
    "softmax": (65536, 16384),
    "attention": (24, 16, 2048, 2048),
    "vocabulary": (8192, 131072),
}
CPU_SHAPES = {
    "softmax": (256, 4096),
    "attention": (1, 4, 512, 512),
    "vocabulary": (64, 32768),
}
# Ours refuse instead of falling back to XLA.
WEAK: dict[str, Function] = {
    "softmax": partial(jk.softmax, implementation="ffi"),
    "attention": partial(jk.scaled_masked_softmax, scale=SCALE, causal=True, implementation="ffi"),
}
_our_log_softmax = partial(jk.log_softmax, implementation="ffi")
# An asynchronous collective is a pair, of which the first counts.
_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def counts(options: Options) -> list[int]:
    """The numbers of devices, ascending, 1 the first: those asked for, or 1, 2, 4, ... up to all."""
    doublings = (2**power for power in range(len(jax.devices()).bit_length()))
    return sorted({1, *(options.devices or doublings)})


def cases(options: Options) -> Iterable[Case]:
    """Every group, dtype and direction; of a vocabulary every number of devices."""
    default = CPU_SHAPES if jax.default_backend() == "cpu" else GPU_SHAPES
    for group, dtypes in DTYPES.items():
        shape = getattr(options, f"{group}_shape") or default[group]
        for dtype, direction in product(dtypes, DIRECTIONS):
            case = {"group": group, "dtype": dtype, "direction": direction, "shape": list(shape)}
            if group != "vocabulary":
                yield case
                continue
            for devices in counts(options):
                yield {**case, "devices": devices}


def cut(devices: int, dimension: int) -> NamedSharding:
    """A dimension of a matrix, 0 or 1, cut over the first devices."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("devices",))
    return NamedSharding(mesh, PartitionSpec(*(None,) * dimension, "devices"))


def of_vocabulary(sharding: NamedSharding) -> dict[str, Function]:
    """The contenders on an array of a sharding."""
    whole = partial(
        jax.lax.with_sharding_constraint, shardings=NamedSharding(sharding.mesh, PartitionSpec())
    )

    def gathered(x: jax.Array) -> jax.Array:
        # The result is held whole as well, or the gradient would gather it once more.
        return whole(_our_log_softmax(whole(x)))

    return {"gathered": gathered, "xla": jax.nn.log_softmax, "ours": _our_log_softmax}


@cache
def _drawing(shape: tuple[int, ...], dtype: str, sharding: NamedSharding) -> Function:
    """From a seed to random normal numbers, drawn in float32; each device draws its own."""

    def draw(seed: int) -> jax.Array:
        return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)

    return jax.jit(draw, out_shardings=sharding)


def draw(
    shape: tuple[int, ...], dtype: str, sharding: NamedSharding, direction: str, turns: int
) -> list[Arguments]:
    """(x,) or (cotangent, x), as often as calls rotate."""
    drawing, each = _drawing(shape, dtype, sharding), 1 if direction == "fwd" else 2
    return [tuple(drawing(each * turn + i) for i in range(each)) for turn in range(turns)]


@dataclass(frozen=True)
class _Waiting:
    """A compiled program each of whose calls is waited for.

    Several programs in flight starve each other's collectives of the threads of a CPU.
    """

    program: jax.stages.Compiled

    def __call__(self, *arguments: jax.Array) -> Any:
        return jax.block_until_ready(self.program(*arguments))

    def as_text(self) -> str | None:
        return self.program.as_text()


def compiled(function: Function, arguments: Arguments) -> Any:
    """The program whose results are sharded as the first argument is."""
    sharding = arguments[0].sharding
    program = jax.jit(function, out_shardings=sharding).lower(*arguments).compile()
    return _Waiting(program) if jax.default_backend() == "cpu" else program


def count_collectives(text: str) -> dict[str, int]:
    """Counts the collectives of an HLO program.

    Example:
        >>> count_collectives("a = f32[8] all-gather-start(x); b = f32[8] all-gather-done(a)")
        {'all-gather': 1}
    """
    return dict(sorted(Counter(_COLLECTIVE.findall(text)).items()))


def _count(program: Any, arguments: Arguments) -> dict[str, int]:
    text = program.as_text()
    if text is None:
        raise NotImplementedError("this backend does not show the compiled program")
    return count_collectives(text)


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """Numbers of devices, or, of a vocabulary that is cut, functions."""
    group, dtype, direction, shape = (case[n] for n in ("group", "dtype", "direction", "shape"))
    # What one device touches has to leave the cache.
    touched = (2 if direction == "fwd" else 4) * math.prod(shape) * jnp.dtype(dtype).itemsize

    def program(function: Function, drawn: partial) -> Program:
        directed = function if direction == "fwd" else with_gradient(function)
        return Program(partial(compiled, directed), drawn, inspect={"collectives": _count})

    if group == "vocabulary":
        sharding = cut(case["devices"], 1)
        turns = rotations(touched // case["devices"])
        drawn = partial(draw, tuple(shape), dtype, sharding, direction, turns)
        return {name: program(f, drawn) for name, f in of_vocabulary(sharding).items()}
    programs = {}
    for devices in counts(options):
        whole = (devices * shape[0], *shape[1:])
        drawn = partial(draw, whole, dtype, cut(devices, 0), direction, rotations(touched))
        programs[str(devices)] = program(WEAK[group], drawn)
    return programs


def _devices(text: str) -> int:
    """A number of devices, of those that are there."""
    asked, visible = count(text), len(jax.devices())
    if asked > visible:
        raise argparse.ArgumentTypeError(f"{asked} devices were asked for, {visible} are visible")
    return asked


def is_weak(m: Measured) -> bool:
    """Whether the data grows with the number of devices."""
    return m["group"] != "vocabulary"


def efficiency(m: Measured) -> float | None:
    """The time on 1 device over that on the devices that a line is about."""
    return m.ratio("1")


def label(case: Case) -> str:
    """The case in one line."""
    devices = f" on {case['devices']}" if "devices" in case else ""
    shape = "x".join(map(str, case["shape"]))
    return f"{case['group']} {case['dtype']} {case['direction']} {shape}{devices}"


def _collectives(head: str, name: str = "") -> t.Column:
    def text(found: dict[str, int]) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in found.items()) or "none"

    return t.Column(head, lambda m: m.extra(name, "collectives"), text)


def views(run: Run) -> list[t.View]:
    """Weak scaling by direction, and a vocabulary by direction, with the collectives."""
    used = {1 if name in CONTENDERS else int(name) for m in run.measured for name in m.records}
    used |= {m["devices"] or 1 for m in run.measured}
    notes = ("one device: there is nothing to compare",) if used == {1} else ()
    if run.platform == "cpu":
        notes = (*notes, "simulated devices share the cores of the CPU")
    array = t.Column("array", lambda m: label({**m.case, "devices": 1}).removesuffix(" on 1"))
    weak = (
        array,
        t.Column("devices", lambda m: m.contender),
        t.time("ms"),
        t.Column("efficiency", efficiency, "{:.3f}"),
        _collectives("collectives"),
    )
    strong = (
        array,
        *t.fields("devices"),
        *(t.time(f"{text} ms", name) for name, text in CONTENDERS.items()),
        t.times_faster("x gathered", "gathered", "ours"),
        t.times_faster("x XLA", "xla", "ours"),
        *(_collectives(f"{text} collectives", name) for name, text in CONTENDERS.items()),
    )
    return [
        t.View(
            title=lambda m: f"rows and batches over devices, {DIRECTIONS[m['direction']]}",
            by=lambda m: m["direction"],
            columns=weak,
            contenders=lambda m: m.records,
            select=is_weak,
            notes=(
                "weak scaling: the shape is what each device has, whatever their number",
                "efficiency: the time on 1 device over the time on n",
                *notes,
            ),
        ),
        t.View(
            title=lambda m: f"log_softmax, vocabulary over devices, {DIRECTIONS[m['direction']]}",
            by=lambda m: m["direction"],
            columns=strong,
            select=lambda m: not is_weak(m),
            notes=("strong scaling: one array, whatever the number of devices", *notes),
        ),
    ]


def figure(run: Run) -> plot.Figure:
    """Efficiencies of weak scaling, then gains on a vocabulary that is cut."""
    weak = list(filter(is_weak, run.measured))
    cut = t.group_by((m for m in run.measured if not is_weak(m)), lambda m: m["direction"])
    efficiencies = {
        (label(m.case), m["direction"], plot.PEER if m["group"] == "attention" else plot.OURS): [
            (int(name), efficiency(replace(m, contender=name))) for name in m.records
        ]
        for m in weak
    }
    gains = {
        (f"over {CONTENDERS[peer]}, {direction}", direction, colour): [
            (m["devices"], m.ratio(peer, "ours")) for m in members
        ]
        for peer, colour in (("gathered", plot.OURS), ("xla", plot.PEER))
        for direction, members in cut.items()
    }

    def panel(title: str, found: Mapping[Any, Any], **how: Any) -> list[plot.Panel]:
        curves = []
        for (text, direction, colour), points in found.items():
            known = [point for point in points if point[1] is not None]
            dashes = "-" if direction == "fwd" else "--"
            curves += [plot.Curve(text, known, colour, 1.5, dashes, "o")] if known else []
        ticks = sorted({x for curve in curves for x, _ in curve.points})
        how |= {"labels": (title, "devices", ""), "curves": curves, "ticks": ticks}
        return [partial(plot.lines, **how)] if curves else []

    # What is at stake in efficiency lies between 0.9 and 1; where more is lost, the axis goes on down.
    panels = panel("weak scaling: efficiency", efficiencies, ylim=(0.9, 1.01))
    panels += panel("log_softmax of a vocabulary cut over devices: times faster", gains, log_y=True)
    return plot.Figure("scaling over devices", [panels])


def _option(group: str, of: str) -> dict[str, Any]:
    form, on_cpu = ("x".join(map(str, sizes[group])) for sizes in (GPU_SHAPES, CPU_SHAPES))
    default = f"{of} (default: {form} on a GPU, {on_cpu} on a CPU)"
    rank = len(GPU_SHAPES[group])
    return shapes(f"{rank} positive sizes joined by x", default, rank)


_DEVICES_HELP = "numbers of devices; 1 is always measured (default: 1, 2, 4, ... up to all)"

SUITE = Suite(
    name="scaling",
    summary="arrays sharded over 1, 2, 4, ... devices, in one process: rows, batches, a vocabulary",
    cases=cases,
    contenders=contenders,
    label=label,
    views=views,
    figure=figure,
    axes={"group": tuple(DTYPES), "direction": tuple(DIRECTIONS)},
    options={
        "--devices": {"nargs": "+", "type": _devices, "metavar": "N", "help": _DEVICES_HELP},
        "--softmax-shape": _option("softmax", "rows and columns on each device"),
        "--attention-shape": _option("attention", "batch, heads, queries, keys on each device"),
        "--vocabulary-shape": _option("vocabulary", "rows and columns of all devices together"),
    },
    # The start and the end of a sample on several devices take a millisecond or two.
    defaults={"min_sample_ms": 200.0},
)
