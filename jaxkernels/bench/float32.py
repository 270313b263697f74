"""The suite ``float32``: programs of users in float32, forward and as a training step.

Compared in one run: the same model of Flax with our products, attention and loss (``ours``), with
those whose products all run on the FFMA units (``pipelined``), and with XLA's own at the highest
precision of products (``highest``) and at JAX's default (``default``), which on an NVIDIA GPU is
TF32.

* ``attention``: an attention layer. ``mlp``: two linear layers with a GELU between them.
  ``char_lm``: a decoder-only transformer of characters.
* ``fwd``: the result. ``step``: the loss and the gradients of all parameters.

``temp GB`` is memory of the compiled program beyond arguments and results. ``relF`` is the norm of
the difference from the result, or the gradients, of ``highest``, over the norm of those.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from itertools import product
from types import ModuleType

import jax

import jaxkernels as jk
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import relative_error, rotations, temp_bytes
from jaxkernels.bench.records import Case, Run, key_of
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite

DIRECTIONS = ("fwd", "step")
OURS = ("ours", "pipelined")
NAMES = (*OURS, "highest", "default")
GPU_SIZES: Mapping[str, Mapping[str, int]] = {
    "attention": {"batch": 4, "length": 2048, "heads": 16, "depth": 64},
    "mlp": {"rows": 8192, "features": 1024, "hidden": 4096},
    "char_lm": {"batch": 32, "length": 512, "layers": 6, "heads": 6, "features": 384},
}
CPU_SIZES: Mapping[str, Mapping[str, int]] = {
    "attention": {"batch": 2, "length": 64, "heads": 4, "depth": 16},
    "mlp": {"rows": 64, "features": 32, "hidden": 128},
    "char_lm": {"batch": 2, "length": 32, "layers": 1, "heads": 4, "features": 64},
}
MODELS = tuple(GPU_SIZES)


def cases(options: Options) -> Iterable[Case]:
    """Every model of the platform's size, in both directions."""
    sizes = CPU_SIZES if jax.default_backend() == "cpu" else GPU_SIZES
    for model, direction in product(MODELS, DIRECTIONS):
        yield {"model": model, "direction": direction, **sizes[model]}


def _models() -> ModuleType:
    """The models; refused where Flax is not installed."""
    if importlib.util.find_spec("flax") is None:
        raise NotImplementedError("Flax is not installed")
    from jaxkernels.bench import float32_models

    return float32_models


@lru_cache(len(NAMES))
def _jitted(key: str, name: str) -> Function:
    """From the parameters and the inputs to the result, or to the loss and the gradients.

    A program is compiled once, for its time and as the one that others are compared with.

    Args:
        key: the `key_of` a case.
        name: of the contender.
    """
    case, models = json.loads(key), _models()
    model = models.model_of(case, models.OURS if name in OURS else models.XLA)
    whole = jax.value_and_grad(model.loss) if case["direction"] == "step" else model.apply

    @jax.jit
    def call(*arguments: jax.Array) -> object:
        """Each setting is for products of one kind: XLA's, and ours."""
        precision = "highest" if name == "highest" else "default"
        rung = "pipelined" if name == "pipelined" else None
        with jax.default_matmul_precision(precision), jk.default_algorithm(rung):
            return whole(*arguments)

    return call


def _draw(case: Case) -> list[Arguments]:
    """The parameters, and inputs, more of them than a cache holds."""
    models = _models()
    model = models.model_of(case, models.XLA)
    params = model.init()
    taken = slice(None if case["direction"] == "step" else 1)
    turns = rotations(sum(x.nbytes for x in model.draw(0)[taken]))
    return [(params, *model.draw(seed)[taken]) for seed in range(turns)]


def _error(case: Case, function: Function, arguments: Arguments) -> float:
    """RelF of the result, or of all gradients."""

    def arrays(function: Function) -> list[jax.Array]:
        found = function(*arguments)
        return jax.tree.leaves(found[1] if case["direction"] == "step" else found)

    return relative_error(arrays(function), arrays(_jitted(key_of(case), "highest")))


def program(case: Case, name: str) -> Program:
    """Ours, on tensor cores where that pays and without them, and XLA at two precisions."""
    look: dict[str, Function] = {"temp_bytes": temp_bytes}
    if name != "highest":
        look["relF"] = partial(_error, case)
    function = _jitted(key_of(case), name)
    return Program(function, partial(_draw, case), inspect=look, jit=False)


def views(run: Run) -> list[t.View]:
    """A line for each contender of each program."""
    columns = [
        *t.fields("model", "direction"),
        t.Column("by", lambda m: m.contender),
        t.time("ms"),
        t.times_faster("x highest", "highest", ""),
        t.memory("temp GB", 1e9, 3),
        t.extra("relF", "relF", pattern="{:.1e}"),
    ]
    notes = {
        m["model"]: ", ".join(f"{name} {n}" for name, n in m.case.items() if isinstance(n, int))
        for m in run.measured
    }
    said = [f"{model}: {sizes}" for model, sizes in notes.items()]
    title = "programs of Flax in float32"
    return [t.View(title, columns, contenders=lambda m: m.records, notes=said)]


SUITE = Suite(
    name="float32",
    summary="models in float32, forward and training step, compared with XLA at two precisions",
    cases=cases,
    names=lambda case, options: NAMES,
    program=program,
    label=lambda case: f"float32 {case['model']} {case['direction']}",
    views=views,
    axes={"model": MODELS, "direction": DIRECTIONS},
)
