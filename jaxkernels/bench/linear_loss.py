"""The suite ``linear_loss``: the cross entropy of a linear layer with the gradients of x and w.

One run compares:

* ``xla``: optax's loss of the whole logits, under XLA.
* ``logits``: `jaxkernels.cross_entropy` of the whole logits.
* ``ours``: `jaxkernels.linear_cross_entropy` with default options.
* ``bounded``: the same with `max_bytes`, if the case has such a bound.
* ``tokens``: minus the mean of `jaxkernels.linear_token_log_probs`. The gradient of any other function of the
  log-probabilities costs the same.
* ``forward``: the same without gradients.

``temp MB`` is the memory of the compiled program beyond operands and results. ``relF`` of dx and dw is
the norm of the difference from optax's gradients in float32, relative to their norm.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import losses
from jaxkernels.bench import tables as t
from jaxkernels.bench.options import several, sizes
from jaxkernels.bench.programs import draw, relative_error, temp_bytes
from jaxkernels.bench.records import Case, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite

DTYPES = ("float32", "bfloat16")
_ROWS_OF_ORACLE = 4096
NAMES = {
    "xla": "optax of the logits",
    "logits": "cross_entropy of the logits",
    "ours": "linear_cross_entropy",
    "bounded": "the same, bounded",
    "tokens": "linear_token_log_probs",
    "forward": "the same, no gradients",
}


def linear_case(
    rows: int, features: int, classes: int, dtype: str, max_bytes: int | None = None
) -> Case:
    """The case of x (rows, features) and w (features, classes)."""
    sizes = {"group": "linear", "rows": rows, "features": features, "classes": classes}
    return {**sizes, "dtype": dtype, "max_bytes": max_bytes}


GPU_CASES = (
    linear_case(4096, 4096, 128256, "bfloat16"),
    linear_case(32768, 2560, 128256, "bfloat16", 3_200_000_000),
    linear_case(8192, 2048, 50304, "float32", 500_000_000),
)
CPU_CASES = (linear_case(512, 256, 8192, "float32", 12_000_000),)


def _cases(options: Options) -> Iterable[Case]:
    if options.shapes:
        return [linear_case(m, k, n, dtype) for m, k, n in options.shapes for dtype in DTYPES]
    return CPU_CASES if jax.default_backend() == "cpu" else GPU_CASES


def _loss(name: str, bound: int | None) -> Function:
    """f(x, w, label) -> the mean loss."""
    if name == "xla":
        return lambda x, w, label: jnp.mean(losses.of_optax(label, x @ w))
    if name == "logits":
        mean = partial(jk.cross_entropy, reduction="mean", implementation="ffi")
        return lambda x, w, label: mean(x @ w, label)
    if name in ("tokens", "forward"):
        return lambda x, w, label: -jnp.mean(jk.linear_token_log_probs(x, w, label))
    return partial(jk.linear_cross_entropy, reduction="mean", max_bytes=bound)


def function_of(name: str, bound: int | None = None) -> Function:
    """f(x, w, label) -> the loss and the gradients of x and w; float32 runs in true float32."""
    loss = _loss(name, bound)
    whole = loss if name == "forward" else jax.value_and_grad(loss, (0, 1))

    def call(*arguments: jax.Array) -> Any:
        precision = "highest" if arguments[0].dtype == jnp.float32 else "default"
        with jax.default_matmul_precision(precision):
            return whole(*arguments)

    return call


def _draw(case: Case) -> list[Arguments]:
    """Operands whose logits are about normal, so that the rows' distributions differ."""
    rows, features, classes, dtype = (case[n] for n in ("rows", "features", "classes", "dtype"))
    label = jax.random.randint(jax.random.key(0), (rows,), 0, classes)
    scale = jnp.asarray(features**-0.5, dtype)
    types = [jax.ShapeDtypeStruct(x, dtype) for x in ((rows, features), (features, classes))]
    return [(x, w * scale, label) for x, w in draw(types)]


def _oracle(arguments: Arguments) -> tuple[jax.Array, jax.Array]:
    """The float32 gradients of optax's loss, in chunks of rows whose logits fit a GPU."""
    x, w, label = arguments
    step = jax.jit(function_of("xla"))
    wide = w.astype(jnp.float32)
    dx, dw = [], jnp.zeros_like(wide)
    for first in range(0, x.shape[0], _ROWS_OF_ORACLE):
        rows = slice(first, first + _ROWS_OF_ORACLE)
        part = x[rows].astype(jnp.float32)
        share = part.shape[0] / x.shape[0]
        dx_of_part, dw_of_part = step(part, wide, label[rows])[1]
        dx.append(share * dx_of_part)
        dw += share * dw_of_part
    return jnp.concatenate(dx), dw


def _errors(function: Function, arguments: Arguments) -> dict[str, float]:
    (dx, dw), (want_dx, want_dw) = function(*arguments)[1], _oracle(arguments)
    return {"dx": relative_error([dx], [want_dx]), "dw": relative_error([dw], [want_dw])}


def program(case: Case, name: str) -> Program:
    """A contender's program: the loss and, except for ``forward``, the gradients."""
    bound = case["max_bytes"] if name == "bounded" else None

    def chunks(*_: Any) -> int:
        if name in ("xla", "logits"):
            return 1
        sizes = (case["rows"], case["features"], case["classes"], case["dtype"])
        platform = "cpu" if jax.default_backend() == "cpu" else "cuda"
        about = {"platform": platform, "w_is_constant": name == "forward"}
        return jk.plan_linear_cross_entropy(*sizes, max_bytes=bound, **about).chunks

    look = {"temp_bytes": temp_bytes, "chunks": chunks}
    look |= {} if name == "forward" else {"errors": _errors}
    return Program(function_of(name, bound), partial(_draw, case), inspect=look)


def _views(run: Run) -> list[t.View]:
    columns = [
        t.Column("loss and gradients", lambda m: NAMES[m.contender]),
        t.time("ms", digits=2),
        t.memory("temp MB", 1e6, 0),
        t.extra("chunks", "chunks"),
        t.extra("relF dx", "errors", "dx", pattern="{:.1e}"),
        t.extra("relF dw", "errors", "dw", pattern="{:.1e}"),
    ]
    title = "{rows} x {features} times {features} x {classes}, {dtype}, max_bytes={max_bytes}"
    return [t.View(title, columns, contenders=lambda m: [x for x in NAMES if x in m.records])]


SUITE = Suite(
    name="linear_loss",
    summary="cross entropy of a linear layer, compared with losses of the whole logits",
    cases=_cases,
    names=lambda case, options: [n for n in NAMES if n != "bounded" or case["max_bytes"]],
    program=program,
    label=lambda c: f"linear_loss {c['dtype']} {c['rows']}x{c['features']}x{c['classes']}",
    views=_views,
    axes={"dtype": DTYPES},
    options={
        "--shapes": several(sizes(3), "SHAPE", "as rowsxfeaturesxclasses (default: three on a GPU)")
    },
)
