"""The suite ``scaling``: arrays sharded over 1, 2, 4, ... devices, in one process.

* Weak scaling, with the same rows or the same batch on each device: ``jaxkernels.softmax`` of rows
  sharded as P("devices", None), and ``jaxkernels.scaled_masked_softmax`` (scaled, causal) of attention
  scores with a sharded batch. The efficiency is the time on 1 device divided by the time on n. The
  numbers of devices are the contenders of one case, so they are sampled in turn.
* Strong scaling, with one array sharded along its vocabulary as P(None, "devices"): log_softmax, and
  (``loss``) the gradient of the mean cross entropy. ``ours`` is partitioned by XLA. ``gathered`` is ours
  with a replicated array, which is the cost of a custom call that the partitioner cannot split. ``xla`` is
  ``jax.nn.log_softmax``, or optax's loss.

The collectives of every compiled program are counted. The devices of a CPU are simulated and share its
cores. Each call is therefore waited for, and the times say nothing about GPUs.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxkernels as jk
from jaxkernels.bench import losses
from jaxkernels.bench import tables as t
from jaxkernels.bench.options import count, several, sizes
from jaxkernels.bench.programs import SCALE, compiled_text, draw, with_gradient
from jaxkernels.bench.records import Case, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite

CONTENDERS = {"gathered": "gathered", "xla": "XLA", "ours": "ours"}
DIRECTIONS = ("fwd", "both")
OF_VOCABULARY = (*DIRECTIONS, "loss")
# Shapes: (rows, cols) and (batch, heads, q, k) on each device, and the whole (rows, vocabulary). At 4
# TB/s the shortest call of weak scaling takes 1 ms, so the host, which dispatches to one device after
# another, stays ahead.
GPU_SHAPES = {
    "softmax": (65536, 16384),
    "attention": (24, 16, 2048, 2048),
    "vocabulary": (8192, 131072),
}
CPU_SHAPES = {"softmax": (256, 4096), "attention": (1, 4, 512, 512), "vocabulary": (64, 32768)}
# Our functions raise instead of falling back to XLA.
WEAK: dict[str, Function] = {
    "softmax": partial(jk.softmax, implementation="ffi"),
    "attention": partial(jk.scaled_masked_softmax, scale=SCALE, causal=True, implementation="ffi"),
}
# An asynchronous collective is a pair of operations; only its start is counted.
_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def counts(options: Options) -> list[int]:
    """Numbers of devices, in ascending order: 1 and the requested ones, or 1, 2, 4, ... up to all."""
    doublings = (2**power for power in range(len(jax.devices()).bit_length()))
    return sorted({1, *(options.devices or doublings)})


def _cases(options: Options) -> Iterable[Case]:
    default = CPU_SHAPES if jax.default_backend() == "cpu" else GPU_SHAPES
    for group, default_shape in default.items():
        dtypes = ("float32", "bfloat16") if group == "softmax" else ("bfloat16",)
        directions = OF_VOCABULARY if group == "vocabulary" else DIRECTIONS
        devices = [{"devices": n} for n in counts(options)] if group == "vocabulary" else [{}]
        shape = list(getattr(options, f"{group}_shape") or default_shape)
        for dtype, direction, more in product(dtypes, directions, devices):
            yield {"group": group, "dtype": dtype, "direction": direction, "shape": shape, **more}


def cut(devices: int, dimension: int) -> NamedSharding:
    """The sharding of dimension 0 or 1 over the first `devices` devices."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("devices",))
    return NamedSharding(mesh, PartitionSpec(*(None,) * dimension, "devices"))


def _of_vocabulary(name: str, direction: str, sharding: NamedSharding) -> Function:
    """A contender's function of an array with a sharded vocabulary."""
    ours: Function = partial(jk.log_softmax, implementation="ffi")
    function = jax.nn.log_softmax if name == "xla" else ours
    if direction == "loss":
        mean = losses.function_of("xla" if name == "xla" else "ours", "mean")
        # Labels are spread over the vocabulary.
        function = lambda x: mean(jnp.arange(x.shape[0]) * 7919 % x.shape[1], x)[1]  # noqa: E731
    if name != "gathered":
        return function
    replicated = NamedSharding(sharding.mesh, PartitionSpec())
    whole = partial(jax.lax.with_sharding_constraint, shardings=replicated)
    # The result is replicated too, because the gradient would otherwise gather it again.
    return lambda x: whole(function(whole(x)))


def _names(case: Case, options: Options) -> Iterable[str]:
    """The numbers of devices, or the contenders of the group "vocabulary"."""
    return CONTENDERS if case["group"] == "vocabulary" else map(str, counts(options))


def program(case: Case, name: str) -> Program:
    """A contender's program on the sharded array of a case."""
    group, dtype, shape = case["group"], case["dtype"], tuple(case["shape"])
    is_both = case["direction"] == "both"
    # Each device's shard must exceed the cache.
    touched = (4 if is_both else 2) * math.prod(shape) * jnp.dtype(dtype).itemsize
    if group == "vocabulary":
        touched //= case["devices"]
        sharding, inputs = cut(case["devices"], 1), ""
        function = _of_vocabulary(name, case["direction"], sharding)
    else:
        sharding, inputs = cut(int(name), 0), name
        shape, function = (int(name) * shape[0], *shape[1:]), WEAK[group]
    directed = with_gradient(function) if is_both else function
    jitted = jax.jit(directed, out_shardings=sharding)

    def waited(*arguments: jax.Array) -> Any:
        """Waits for each call: concurrent calls starve each other's collectives of CPU threads."""
        return jax.block_until_ready(jitted(*arguments))

    def collectives(_: Function, arguments: Arguments) -> dict[str, int]:
        return dict(Counter(sorted(_COLLECTIVE.findall(compiled_text(jitted, arguments)))))

    x = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    return Program(
        waited if jax.default_backend() == "cpu" else jitted,
        partial(draw, [x, x] if is_both else [x], touched),
        inputs=inputs,
        inspect={"collectives": collectives},
        jit=False,
    )


def devices(text: str) -> int:
    """An option type: a number of available devices."""
    asked = count(text)
    if asked > len(jax.devices()):
        raise ValueError(text)
    return asked


def _label(case: Case) -> str:
    devices = f" on {case['devices']}" if "devices" in case else ""
    shape = "x".join(map(str, case["shape"]))
    return f"{case['group']} {case['dtype']} {case['direction']} {shape}{devices}"


def _said(found: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in found.items()) or "none"


def _views(run: Run) -> list[t.View]:
    """Tables of weak and strong scaling for each direction, with the collectives."""
    notes = ("simulated devices share the cores of the CPU",) if run.platform == "cpu" else ()
    array = t.Column("array", lambda m: _label(m.case).partition(" on ")[0])
    weak = [
        array,
        t.Column("devices", lambda m: m.contender),
        t.time("ms"),
        # Efficiency: the time on 1 device divided by the time on the line's devices.
        t.Column("efficiency", lambda m: m.ratio("1"), "{:.3f}"),
        t.extra("collectives", "collectives", pattern=_said),
    ]
    heads = CONTENDERS.items()
    strong = [
        array,
        *t.fields("devices"),
        *(t.time(f"{head} ms", name) for name, head in heads),
        *(t.times_faster(f"x {head}", name, "ours") for name, head in heads if name != "ours"),
        *(
            t.extra(f"{head} collectives", "collectives", pattern=_said, contender=name)
            for name, head in heads
        ),
    ]
    of_weak = (
        "weak scaling: the shape is what each device has, whatever their number",
        "efficiency: the time on 1 device over the time on n",
    )
    of_strong = (
        "strong scaling: one array, whatever the number of devices",
        "loss: the gradient of the mean cross entropy; fwd, both: log_softmax",
    )
    titles = (
        "rows and batches over devices, {direction}",
        "a vocabulary cut over devices, {direction}",
    )
    return [
        t.View(titles[0], weak, tuple(WEAK), lambda m: m.records, (*of_weak, *notes)),
        t.View(titles[1], strong, ("vocabulary",), notes=(*of_strong, *notes)),
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
    cases=_cases,
    names=_names,
    program=program,
    label=_label,
    views=_views,
    axes={"group": tuple(GPU_SHAPES), "direction": OF_VOCABULARY},
    options={"--devices": several(devices, "N", _DEVICES_HELP), **_SHAPES},
    # Samples are long, because starting and ending one on several devices takes 1 to 2 ms.
    defaults={"min_sample_ms": 200.0},
)
