"""The suite ``float32``: programs of users in float32, forward and as a training step.

Compared in one run, timed as written down in ``jaxkernels.bench.timing``: the same model of Flax with
our products, attention and loss (``ours``), with those whose products all run on the FFMA units
(``pipelined``), and with XLA's own at the highest precision of products (``highest``) and at JAX's
default (``default``), which on an NVIDIA GPU is TF32.

* ``attention``: an attention layer. ``mlp``: two linear layers with a GELU between them.
  ``char_lm``: a decoder-only transformer of characters.
* ``fwd``: the result. ``step``: the loss and the gradients of all parameters.

``temp GB`` is memory of the compiled program beyond arguments and results. ``relF`` is the norm of the
difference from the result of ``highest``, over the norm of that; of a step, of all gradients.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import product
from types import ModuleType

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import rotations, temp_bytes
from jaxkernels.bench.records import Case, Run
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


def _make(case: Case, name: str) -> Function:
    """From the parameters and the inputs to the result, or to the loss and the gradients."""
    models = _models()
    model = models.model_of(case, models.OURS if name in OURS else models.XLA)
    whole = jax.value_and_grad(model.loss) if case["direction"] == "step" else model.apply

    def program(*arguments: jax.Array) -> object:
        """Each setting is for products of one kind: XLA's, and ours."""
        precision = "highest" if name == "highest" else "default"
        rung = "pipelined" if name == "pipelined" else None
        with jax.default_matmul_precision(precision), jk.default_algorithm(rung):
            return whole(*arguments)

    return jax.jit(program)


def _draw(case: Case) -> list[Arguments]:
    """The parameters, and inputs; as many of these as no cache holds."""
    models = _models()
    model = models.model_of(case, models.XLA)
    params = model.init()
    taken = slice(None if case["direction"] == "step" else 1)
    rotated = sum(x.nbytes for x in model.draw(0)[taken])
    return [(params, *model.draw(seed)[taken]) for seed in range(rotations(rotated))]


def _error(
    case: Case, truth: Callable[[], Function], function: Function, arguments: Arguments
) -> float:
    """RelF of the result, or of all gradients."""

    def arrays(function: Function) -> list[jax.Array]:
        found = function(*arguments)
        return jax.tree.leaves(found[1] if case["direction"] == "step" else found)

    def norm(parts: Iterable[jax.Array]) -> float:
        return float(jnp.linalg.norm(jnp.stack([jnp.linalg.norm(x.ravel()) for x in parts])))

    want = arrays(truth())
    off = [x - y for x, y in zip(arrays(function), want, strict=True)]
    return norm(off) / norm(want)


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """Ours, on tensor cores where that pays and without them, and XLA at two precisions."""
    drawn, makes = partial(_draw, case), {name: cache(partial(_make, case, name)) for name in NAMES}

    def of(name: str) -> Program:
        look: dict[str, Function] = {"temp_bytes": temp_bytes}
        if name != "highest":
            look["relF"] = partial(_error, case, makes["highest"])
        return Program(lambda _: makes[name](), drawn, inspect=look)

    return {name: of(name) for name in NAMES}


def _size(case: Case) -> str:
    """The sizes of a model in one line."""
    return ", ".join(f"{name} {n}" for name, n in case.items() if isinstance(n, int))


def views(run: Run) -> list[t.View]:
    """A line for each contender of each program."""
    columns = [
        *t.fields("model", "direction"),
        t.Column("by", lambda m: m.contender),
        t.time("ms"),
        t.times_faster("x highest", "highest", ""),
        t.Column("temp GB", lambda m: m.extra("", "temp_bytes"), lambda b: f"{b / 1e9:.3f}"),
        t.Column("relF", lambda m: m.extra("", "relF"), "{:.1e}"),
    ]
    sizes = t.group_by(run.measured, lambda m: m["model"]).values()
    notes = [f"{first['model']}: {_size(first.case)}" for first, *_ in sizes]
    title = "programs of Flax in float32"
    return [t.View(title, columns, contenders=lambda m: m.records, notes=notes)]


SUITE = Suite(
    name="float32",
    summary="models in float32, forward and training step, beside XLA at two precisions",
    cases=cases,
    contenders=contenders,
    label=lambda case: f"float32 {case['model']} {case['direction']}",
    views=views,
    axes={"model": MODELS, "direction": DIRECTIONS},
)
