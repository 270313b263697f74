"""The suite ``linear_loss``: the cross entropy of a linear layer and both of its gradients.

Compared in one run: optax's loss of the whole logits under XLA (``xla``), `jaxkernels.cross_entropy` of them
(``logits``), `jaxkernels.linear_cross_entropy` as a user gets it (``ours``), and within a bound of memory
(``bounded``), where a case has one. A call is timed as written down in ``jaxkernels.bench.timing``. Of every
contender the table also has:

* ``temp MB``: memory of the compiled program beyond operands and results.
* ``relF dx``, ``relF dw``: the norm of the difference from optax's gradients in float32, over the norm of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import losses
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import normal, rotations, temp_bytes
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite, several, sizes

DTYPES = ("float32", "bfloat16")
_ROWS_OF_TRUTH = 4096
NAMES = {
    "xla": "optax of the logits",
    "logits": "cross_entropy of the logits",
    "ours": "linear_cross_entropy",
    "bounded": "the same, bounded",
}


def linear_case(
    rows: int, features: int, classes: int, dtype: str, max_bytes: int | None = None
) -> Case:
    """The loss of x (rows, features) times w (features, classes)."""
    sizes = {"rows": rows, "features": features, "classes": classes}
    return {"group": "linear", **sizes, "dtype": dtype, "max_bytes": max_bytes}


GPU_CASES = (
    linear_case(4096, 4096, 128256, "bfloat16"),
    linear_case(32768, 2560, 128256, "bfloat16", 3_200_000_000),
    linear_case(8192, 2048, 50304, "float32", 500_000_000),
)
CPU_CASES = (linear_case(512, 256, 8192, "float32", 12_000_000),)


def cases(options: Options) -> Iterable[Case]:
    """The sizes that were asked for, in every dtype, or the platform's."""
    if options.shapes:
        return [linear_case(m, k, n, dtype) for m, k, n in options.shapes for dtype in DTYPES]
    return CPU_CASES if jax.default_backend() == "cpu" else GPU_CASES


def _loss(name: str, case: Case) -> Function:
    """From (x, w, label) to the mean."""
    if name == "xla":
        return lambda x, w, label: jnp.mean(losses.of_optax(x @ w, label))
    if name == "logits":
        mean = partial(jk.cross_entropy, reduction="mean", implementation="ffi")
        return lambda x, w, label: mean(x @ w, label)
    bound = case["max_bytes"] if name == "bounded" else None
    return partial(jk.linear_cross_entropy, reduction="mean", max_bytes=bound)


def function_of(name: str, case: Case) -> Function:
    """From (x, w, label) to the loss and the gradients of x and w; of float32 in true float32."""
    whole = jax.value_and_grad(_loss(name, case), (0, 1))

    def call(*arguments: jax.Array) -> Any:
        precision = "highest" if arguments[0].dtype == jnp.float32 else "default"
        with jax.default_matmul_precision(precision):
            return whole(*arguments)

    return jax.jit(call)


def _draw(case: Case) -> list[Arguments]:
    """Logits of about a normal distribution, so that rows differ in what they are sure of."""
    rows, features, classes, dtype = (case[n] for n in ("rows", "features", "classes", "dtype"))
    label = jax.random.randint(jax.random.key(0), (rows,), 0, classes)
    turns = rotations((rows + classes) * features * jnp.dtype(dtype).itemsize)
    scale = jnp.asarray(features**-0.5, dtype)
    shapes = ((rows, features), (features, classes))
    pairs = [[normal(2 * i + j, s, dtype) for j, s in enumerate(shapes)] for i in range(turns)]
    return [(x, w * scale, label) for x, w in pairs]


def _truth(arguments: Arguments) -> tuple[jax.Array, jax.Array]:
    """The gradients in float32, by optax, of so many rows at a time that their logits fit a GPU."""
    x, w, label = arguments
    step = function_of("xla", {})
    wide = w.astype(jnp.float32)
    dx, dw = [], jnp.zeros_like(wide)
    for first in range(0, x.shape[0], _ROWS_OF_TRUTH):
        rows = slice(first, first + _ROWS_OF_TRUTH)
        part = x[rows].astype(jnp.float32)
        share = part.shape[0] / x.shape[0]
        dx_of_part, dw_of_part = step(part, wide, label[rows])[1]
        dx.append(share * dx_of_part)
        dw += share * dw_of_part
    return jnp.concatenate(dx), dw


def _errors(function: Function, arguments: Arguments) -> dict[str, float]:
    """RelF of both gradients."""
    gradients, truth = function(*arguments)[1], _truth(arguments)
    return {
        name: float(jnp.linalg.norm((got - want).ravel()) / jnp.linalg.norm(want.ravel()))
        for name, got, want in zip(("dx", "dw"), gradients, truth, strict=True)
    }


def _chunks(name: str, case: Case) -> int:
    """Into how many chunks the rows are cut."""
    if name not in ("ours", "bounded"):
        return 1
    sizes = (case["rows"], case["features"], case["classes"], case["dtype"])
    bound = case["max_bytes"] if name == "bounded" else None
    platform = "cpu" if jax.default_backend() == "cpu" else "cuda"
    return jk.plan_linear_cross_entropy(*sizes, max_bytes=bound, platform=platform).chunks


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """Whole logits by two losses, ours, and ours within a bound."""
    drawn = partial(_draw, case)

    def of(name: str) -> Program:
        look = {
            "temp_bytes": temp_bytes,
            "chunks": lambda *_: _chunks(name, case),
            "errors": _errors,
        }
        return Program(lambda _: function_of(name, case), drawn, inspect=look)

    names = [name for name in NAMES if name != "bounded" or case["max_bytes"]]
    return {name: of(name) for name in names}


def _error(m: Measured, of: str) -> float | None:
    return (m.extra("", "errors") or {}).get(of)


def views(run: Run) -> list[t.View]:
    """A table for each case, a line for each contender."""
    columns = [
        t.Column("loss and gradients", lambda m: NAMES[m.contender]),
        t.time("ms", digits=2),
        t.Column("temp MB", lambda m: m.extra("", "temp_bytes"), lambda b: f"{b / 1e6:.0f}"),
        t.Column("chunks", lambda m: m.extra("", "chunks")),
        t.Column("relF dx", partial(_error, of="dx"), "{:.1e}"),
        t.Column("relF dw", partial(_error, of="dw"), "{:.1e}"),
    ]
    return [
        t.View(
            "{rows} x {features} times {features} x {classes}, {dtype}, max_bytes={max_bytes}",
            columns,
            by=("rows", "features", "classes", "dtype"),
            contenders=lambda m: [name for name in NAMES if name in m.records],
        )
    ]


SUITE = Suite(
    name="linear_loss",
    summary="cross entropy of a linear layer with its gradients, beside losses of the whole logits",
    cases=cases,
    contenders=contenders,
    label=lambda c: f"linear_loss {c['dtype']} {c['rows']}x{c['features']}x{c['classes']}",
    views=views,
    axes={"dtype": DTYPES},
    options={
        "--shapes": several(
            sizes(3), "SHAPE", "as rowsxfeaturesxclasses (default: three on a GPU)"
        ),
    },
)
