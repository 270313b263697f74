"""The suite ``scaling``: arrays sharded over 1, 2, 4, ... devices.

All in one process, over devices of the default backend, timed as written down in
``jaxkernels.bench.timing``:

* Weak scaling, the same rows or the same batch on each device: ``jaxkernels.softmax`` of rows cut
  as P("devices", None), and ``jaxkernels.scaled_masked_softmax`` (scaled, causal) of attention
  scores whose batch is cut. The efficiency is the time on 1 device over the time on n. The numbers
  of devices are the contenders of one case: they are sampled in turn.
* Strong scaling, one array cut along its vocabulary as P(None, "devices"), log_softmax of it, and the
  gradient of a loss:

  - ``ours``: ``jaxkernels.log_softmax`` or ``cross_entropy``, left to XLA's partitioner.
  - ``gathered``: the same behind a constraint that every device has the whole array, which is what
    a custom call costs of which the partitioner knows nothing.
  - ``xla``: ``jax.nn.log_softmax``, or optax's loss.

``fwd`` is y from x; ``both`` is y and the gradient, from x and a given cotangent; ``loss`` is the
gradient of the mean cross entropy. The collectives of every compiled program are counted, so that it
shows what was gathered.

The devices of a CPU are simulated and share its cores: each call is waited for, and their
times tell nothing of a GPU.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxkernels as jk
from jaxkernels.bench import losses
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import SCALE, rotations, with_gradient
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Function, Options, Program, Suite, count, several, sizes

CONTENDERS = {"gathered": "gathered", "xla": "XLA", "ours": "ours"}
_PEERS = ("gathered", "xla")
DIRECTIONS = ("fwd", "both")
OF_VOCABULARY = (*DIRECTIONS, "loss")
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
CPU_SHAPES = {"softmax": (256, 4096), "attention": (1, 4, 512, 512), "vocabulary": (64, 32768)}
# Ours refuse instead of falling back to XLA.
WEAK: dict[str, Function] = {
    "softmax": partial(jk.softmax, implementation="ffi"),
    "attention": partial(jk.scaled_masked_softmax, scale=SCALE, causal=True, implementation="ffi"),
}
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
        directions = OF_VOCABULARY if group == "vocabulary" else DIRECTIONS
        shape = getattr(options, f"{group}_shape") or default[group]
        for dtype, direction in product(dtypes, directions):
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


def _loss_gradient(contender: str) -> Function:
    """From logits to the gradient of the mean of their losses, for labels all over the vocabulary."""
    loss_and_gradient = losses.function_of(contender, "mean")

    def gradient(x: jax.Array) -> jax.Array:
        rows, cols = x.shape
        return loss_and_gradient(x, jnp.arange(rows) * 7919 % cols)[1]

    return gradient


def of_vocabulary(sharding: NamedSharding, direction: str) -> dict[str, Function]:
    """The contenders on an array of a sharding."""
    whole = partial(
        jax.lax.with_sharding_constraint, shardings=NamedSharding(sharding.mesh, PartitionSpec())
    )
    ours: Function = partial(jk.log_softmax, implementation="ffi")
    xla: Function = jax.nn.log_softmax
    if direction == "loss":
        ours, xla = _loss_gradient("ours"), _loss_gradient("xla")

    def gathered(x: jax.Array) -> jax.Array:
        # The result is held whole as well, or the gradient would gather it once more.
        return whole(ours(whole(x)))

    return {"gathered": gathered, "xla": xla, "ours": ours}


@cache
def _drawing(shape: tuple[int, ...], dtype: str, sharding: NamedSharding) -> Function:
    """From a seed to random normal numbers, drawn in float32; each device draws its own."""

    def draw(seed: int) -> jax.Array:
        return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)

    return jax.jit(draw, out_shardings=sharding)


def draw(
    shape: tuple[int, ...], dtype: str, sharding: NamedSharding, direction: str, turns: int
) -> list[tuple]:
    """(x,) or (cotangent, x), as often as calls rotate."""
    drawing, each = _drawing(shape, dtype, sharding), 2 if direction == "both" else 1
    return [tuple(drawing(each * turn + i) for i in range(each)) for turn in range(turns)]


def _waited(program: Any, *arguments: jax.Array) -> Any:
    """A call that is waited for: several in flight starve each other's collectives of a CPU's threads."""
    return jax.block_until_ready(program(*arguments))


def compiled(function: Function, arguments: tuple) -> Any:
    """The program whose results are sharded as the first argument is."""
    sharding = arguments[0].sharding
    program = jax.jit(function, out_shardings=sharding).lower(*arguments).compile()
    return partial(_waited, program) if jax.default_backend() == "cpu" else program


def collectives(program: Any, arguments: tuple) -> dict[str, int]:
    """Counts the collectives of a compiled program."""
    program = program.args[0] if isinstance(program, partial) else program
    if (text := program.as_text()) is None:
        raise NotImplementedError("this backend does not show the compiled program")
    return dict(sorted(Counter(_COLLECTIVE.findall(text)).items()))


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """Numbers of devices, or, of a vocabulary that is cut, functions."""
    group, dtype, direction, shape = (case[n] for n in ("group", "dtype", "direction", "shape"))
    # What one device touches has to leave the cache.
    touched = (4 if direction == "both" else 2) * math.prod(shape) * jnp.dtype(dtype).itemsize

    def program(function: Function, drawn: partial) -> Program:
        directed = with_gradient(function) if direction == "both" else function
        return Program(partial(compiled, directed), drawn, inspect={"collectives": collectives})

    if group == "vocabulary":
        sharding = cut(case["devices"], 1)
        turns = rotations(touched // case["devices"])
        drawn = partial(draw, tuple(shape), dtype, sharding, direction, turns)
        return {name: program(f, drawn) for name, f in of_vocabulary(sharding, direction).items()}
    programs = {}
    for devices in counts(options):
        whole = (devices * shape[0], *shape[1:])
        drawn = partial(draw, whole, dtype, cut(devices, 0), direction, rotations(touched))
        programs[str(devices)] = program(WEAK[group], drawn)
    return programs


def devices(text: str) -> int:
    """A type of options: a number of devices, of those that are there."""
    asked = count(text)
    if asked > len(jax.devices()):
        raise ValueError(text)
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
    notes = ("simulated devices share the cores of the CPU",) if run.platform == "cpu" else ()
    array = t.Column("array", lambda m: label(m.case).partition(" on ")[0])
    weak = [array, t.Column("devices", lambda m: m.contender), t.time("ms")]
    weak += [t.Column("efficiency", efficiency, "{:.3f}"), _collectives("collectives")]
    strong = [array, *t.fields("devices")]
    strong += [t.time(f"{head} ms", name) for name, head in CONTENDERS.items()]
    strong += [t.times_faster(f"x {CONTENDERS[n]}", n, "ours") for n in _PEERS]
    strong += [_collectives(f"{head} collectives", name) for name, head in CONTENDERS.items()]
    return [
        t.View(
            "rows and batches over devices, {direction}",
            weak,
            is_weak,
            by=("direction",),
            contenders=lambda m: m.records,
            notes=(
                "weak scaling: the shape is what each device has, whatever their number",
                "efficiency: the time on 1 device over the time on n",
                *notes,
            ),
        ),
        t.View(
            "a vocabulary cut over devices, {direction}",
            strong,
            lambda m: not is_weak(m),
            by=("direction",),
            notes=(
                "strong scaling: one array, whatever the number of devices",
                "loss: the gradient of the mean cross entropy; fwd, both: log_softmax",
                *notes,
            ),
        ),
    ]


_DEVICES_HELP = "numbers of devices; 1 is always measured (default: 1, 2, 4, ... up to all)"
_SHAPES = {
    f"--{group}-shape": {
        "type": sizes(len(shape)),
        "metavar": "SHAPE",
        "help": f"{'of all' if group == 'vocabulary' else 'on each'} (default: {shape} on a GPU)",
    }
    for group, shape in GPU_SHAPES.items()
}

SUITE = Suite(
    name="scaling",
    summary="arrays sharded over 1, 2, 4, ... devices, in one process: rows, batches, a vocabulary",
    cases=cases,
    contenders=contenders,
    label=label,
    views=views,
    axes={"group": tuple(DTYPES), "direction": OF_VOCABULARY},
    options={"--devices": several(devices, "N", _DEVICES_HELP), **_SHAPES},
    # The start and the end of a sample on several devices take a millisecond or two.
    defaults={"min_sample_ms": 200.0},
)
