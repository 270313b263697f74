"""The suite ``float32``: programs of users in float32, forward and as a training step.

Compared in one run, timed as written down in ``jaxkernels.bench.timing``: the same model of Flax with
our products, attention and loss (``ours``), and with XLA's own at the highest precision of products
(``highest``) and at JAX's default (``default``), which on an NVIDIA GPU is TF32.

* ``attention``: an attention layer. ``mlp``: two linear layers with a GELU between them.
  ``char_lm``: the character-level transformer of ``examples/train_char_lm.py``.
* ``fwd``: the result. ``step``: the loss and the gradients of all parameters.

``temp GB`` is memory of the compiled program beyond arguments and results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from types import ModuleType

import jax

from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import rotations, temp_bytes
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite

DIRECTIONS = ("fwd", "step")
# What each contender's products of XLA are made at; ours has none.
_PRECISIONS = {"ours": "default", "highest": "highest", "default": "default"}
NAMES = tuple(_PRECISIONS)
GPU_SIZES: Mapping[str, Mapping[str, int]] = {
    "attention": {"batch": 4, "length": 2048, "heads": 16, "depth": 64},
    "mlp": {"rows": 8192, "features": 1024, "hidden": 4096},
    "char_lm": {"batch": 32, "length": 512, "layers": 6, "heads": 6, "features": 384},
}
CPU_SIZES: Mapping[str, Mapping[str, int]] = {
    "attention": {"batch": 2, "length": 64, "heads": 4, "depth": 16},
    "mlp": {"rows": 64, "features": 32, "hidden": 128},
    "char_lm": {"batch": 2, "length": 32, "layers": 2, "heads": 4, "features": 64},
}
MODELS = tuple(GPU_SIZES)


def cases(options: Options) -> Iterable[Case]:
    """Every model of the platform's size, in both directions."""
    sizes = CPU_SIZES if jax.default_backend() == "cpu" else GPU_SIZES
    for model, direction in product(MODELS, DIRECTIONS):
        yield {"model": model, "direction": direction, **sizes[model]}


def _models() -> ModuleType:
    """The models; refused where Flax is not installed."""
    try:
        from jaxkernels.bench import float32_models
    except ImportError as error:
        raise NotImplementedError("Flax is not installed") from error
    return float32_models


def _make(case: Case, name: str) -> Function:
    """From the parameters and the inputs to the result, or to the loss and the gradients."""
    models = _models()
    model = models.model_of(case, models.OURS if name == "ours" else models.XLA)
    whole = jax.value_and_grad(model.loss) if case["direction"] == "step" else model.apply

    def program(*arguments: jax.Array) -> object:
        with jax.default_matmul_precision(_PRECISIONS[name]):
            return whole(*arguments)

    return jax.jit(program)


def _draw(case: Case) -> list[Arguments]:
    """The parameters, and inputs; as many of these as no cache holds."""
    models = _models()
    model = models.model_of(case, models.XLA)
    params = model.init()
    taken = slice(None if case["direction"] == "step" else 1)
    touched = sum(x.nbytes for x in jax.tree.leaves((params, model.draw(0)[taken])))
    return [(params, *model.draw(seed)[taken]) for seed in range(rotations(touched))]


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """Ours, and XLA at two precisions."""
    drawn, look = partial(_draw, case), {"temp_bytes": temp_bytes}

    def of(name: str) -> Program:
        return Program(lambda _: _make(case, name), drawn, inspect=look)

    return {name: of(name) for name in NAMES}


def _size(case: Case) -> str:
    """The sizes of a model in one line."""
    return ", ".join(f"{name} {n}" for name, n in case.items() if isinstance(n, int))


def views(run: Run) -> list[t.View]:
    """A line for each program."""

    def memory(m: Measured, name: str) -> float | None:
        return m.extra(name, "temp_bytes")

    columns = [*t.fields("model", "direction"), *(t.time(f"{name} ms", name) for name in NAMES)]
    columns += [t.times_faster(f"x {name}", name, "ours") for name in NAMES[1:]]
    columns += [
        t.Column(f"{name} temp GB", partial(memory, name=name), lambda b: f"{b / 1e9:.3f}")
        for name in NAMES
    ]
    sizes = t.group_by(run.measured, lambda m: m["model"]).values()
    notes = [f"{first['model']}: {_size(first.case)}" for first, *_ in sizes]
    return [t.View("programs of Flax in float32", columns, notes=notes)]


SUITE = Suite(
    name="float32",
    summary="models in float32, forward and training step, beside XLA at two precisions",
    cases=cases,
    contenders=contenders,
    label=lambda case: f"float32 {case['model']} {case['direction']}",
    views=views,
    axes={"model": MODELS, "direction": DIRECTIONS},
)
