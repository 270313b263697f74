"""The suite ``float32``: whole models in float32, forward and as a training step.

One run compares the same Flax model with six implementations: ``ours`` (our products, attention and loss), ``scores``
(ours, with attention that keeps its scores), ``pipelined`` (ours, with all products on the FFMA units), ``matmuls``
(``default`` under `float32_matmuls`), ``highest`` (XLA's, at the highest precision of products) and ``default`` (XLA's, at
JAX's default precision, which on an NVIDIA GPU is TF32).

The models are ``attention``, an attention layer; ``triangle``, AlphaFold's triangle attention with a pair
bias and a key mask; ``mlp``, two linear layers with a GELU between them; and ``char_lm``, a decoder-only
transformer of characters. ``fwd`` is the result, and ``step`` the loss and
the gradients of all parameters. ``temp GB`` is the memory of the compiled program beyond arguments and
results. ``relF`` is the norm of the difference of the result (or the gradients) from that of ``highest``,
relative to its norm. ``trace ms`` is the processor time of tracing the program. For ``matmuls``, the time
by which it exceeds that of ``default`` is the cost of `float32_matmuls`.
"""

import json
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from itertools import product

import jax

import jaxkernels as jk
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import relative_error, rotations, temp_bytes
from jaxkernels.bench.records import Case, Run, key_of
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite

DIRECTIONS = ("fwd", "step")
OURS = ("ours", "scores", "pipelined")
NAMES = (*OURS, "matmuls", "highest", "default")
_TRACES = 3  # the least time counts
GPU_SIZES: Mapping[str, Mapping[str, int]] = {
    "attention": {"batch": 4, "length": 2048, "heads": 16, "depth": 64},
    "triangle": {"length": 384, "heads": 4, "depth": 32, "features": 128},
    "mlp": {"rows": 8192, "features": 1024, "hidden": 4096},
    "char_lm": {"batch": 32, "length": 512, "layers": 6, "heads": 6, "features": 384},
}
CPU_SIZES: Mapping[str, Mapping[str, int]] = {
    "attention": {"batch": 2, "length": 64, "heads": 4, "depth": 16},
    "triangle": {"length": 24, "heads": 2, "depth": 8, "features": 16},
    "mlp": {"rows": 64, "features": 32, "hidden": 128},
    "char_lm": {"batch": 2, "length": 32, "layers": 1, "heads": 4, "features": 64},
}
MODELS = tuple(GPU_SIZES)


def _cases(options: Options) -> Iterable[Case]:
    sizes = CPU_SIZES if jax.default_backend() == "cpu" else GPU_SIZES
    for model, direction in product(MODELS, DIRECTIONS):
        yield {"model": model, "direction": direction, **sizes[model]}


@lru_cache(len(NAMES))
def _jitted(key: str, name: str) -> Function:
    """f(parameters, *inputs) -> the result, or loss and gradients; the key is `key_of` a case.

    The cache lets one compilation serve both the timing and the comparison of errors.
    """
    from jaxkernels.bench import float32_models as models

    case = json.loads(key)
    ours = models.SCORES if name == "scores" else models.OURS
    parts = ours if name in OURS else models.XLA
    whole = models.layer_of(case, parts).apply
    if case["direction"] == "step":
        whole = jax.value_and_grad(models.loss_of(case, parts))
    if name == "matmuls":
        whole = jk.float32_matmuls(whole)

    @jax.jit
    def call(*arguments: jax.Array) -> object:
        """`precision` applies to XLA's products, and `rung` to ours."""
        precision = "highest" if name == "highest" else "default"
        rung = "pipelined" if name == "pipelined" else None
        with jax.default_matmul_precision(precision), jk.default_algorithm(rung):
            return whole(*arguments)

    return call


def _draw(case: Case) -> list[Arguments]:
    """The parameters, and enough different inputs to exceed the cache."""
    from jaxkernels.bench import float32_models as models

    first = models.inputs_of(case, 0)
    params = jax.jit(models.layer_of(case, models.XLA).init)(jax.random.key(0), first[0])
    taken = slice(None if case["direction"] == "step" else 1)
    turns = rotations(sum(x.nbytes for x in first[taken]))
    return [(params, *models.inputs_of(case, seed)[taken]) for seed in range(turns)]


def _error(case: Case, function: Function, arguments: Arguments) -> float:
    """RelF of the result or of all gradients, against ``highest``."""

    def arrays(function: Function) -> list[jax.Array]:
        found = function(*arguments)
        return jax.tree.leaves(found[1] if case["direction"] == "step" else found)

    return relative_error(arrays(function), arrays(_jitted(key_of(case), "highest")))


def _trace_ms(case: Case, name: str, timed: Function, arguments: Arguments) -> float:
    """The least processor time, in milliseconds, of some traces, each of a new function."""
    found = []
    for _ in range(_TRACES):
        function = _jitted.__wrapped__(key_of(case), name)
        start = time.thread_time()
        function.trace(*arguments)
        found.append(time.thread_time() - start)
    return 1e3 * min(found)


def program(case: Case, name: str) -> Program:
    """A contender's program."""
    look: dict[str, Function] = {
        "temp_bytes": temp_bytes,
        "trace_ms": partial(_trace_ms, case, name),
    }
    if name != "highest":
        look["relF"] = partial(_error, case)
    function = _jitted(key_of(case), name)
    return Program(function, partial(_draw, case), inspect=look, jit=False)


def _views(run: Run) -> list[t.View]:
    columns = [
        *t.fields("model", "direction"),
        t.Column("by", lambda m: m.contender),
        t.time("ms"),
        t.times_faster("x highest", "highest", ""),
        t.memory("temp GB", 1e9, 3),
        t.extra("trace ms", "trace_ms", pattern="{:.1f}"),
        t.extra("relF", "relF", pattern="{:.1e}"),
    ]
    sizes = {
        m["model"]: [f"{k} {n}" for k, n in m.case.items() if isinstance(n, int)]
        for m in run.measured
    }
    notes = [f"{model}: {', '.join(found)}" for model, found in sizes.items()]
    title = "programs of Flax in float32"
    return [t.View(title, columns, contenders=lambda m: m.records, notes=notes)]


SUITE = Suite(
    name="float32",
    summary="models in float32, forward and training step, compared with XLA at two precisions",
    cases=_cases,
    names=lambda case, options: [n for n in NAMES if n != "scores" or case["model"] != "mlp"],
    program=program,
    label=lambda case: f"float32 {case['model']} {case['direction']}",
    views=_views,
    axes={"model": MODELS, "direction": DIRECTIONS},
)
