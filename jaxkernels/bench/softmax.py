"""The suite ``softmax``: forward and backward over a range of column counts.

Compared in one run: a plain device copy, ``jax.nn.softmax`` (or ``jax.nn.log_softmax``) under
jit, ours as a user gets it (``auto``) and each tier by force. How a call is timed is written down
in ``jaxkernels.bench.timing``; what is timed:

* ``fwd``: y from x. Model bytes: read x, write y.
* ``grad``: dx from y and dy alone; the forward is never run inside. Ours is the function that
  ``jax.vjp`` of our softmax returns, whose only residual is y, jitted as a function of (y, dy).
  (16-bit log_softmax keeps x, in whose place y gives the same: softmax(y) = softmax(x).)
  For XLA it is the expression to which the autodiff of ``jax.nn`` comes down, in its most
  favourable form (y, not the unnormalised exponentials, as the residual): y * (dy - sum(dy * y))
  for softmax and dy - exp(y) * sum(dy) for log_softmax. Model bytes: read y and dy, write dx.
* ``copy``: a jitted copy of x, read and written once; measured anew beside every case.

The group ``rows`` has inputs of one size and rows of many lengths. The group ``few_rows`` has inputs
so small that the latency of a call is what counts; its calls are chained in one program.

Throughput is model bytes over the median time, so a kernel that reads its input twice shows about
two thirds of the copy's rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import row_views, rows
from jaxkernels.bench.programs import CHAIN_CALLS, chain
from jaxkernels.bench.records import Case
from jaxkernels.bench.rows import DTYPES, draw, row_case
from jaxkernels.bench.suite import Arguments, Draw, Function, Options, Program

# Powers of two, model widths, vocabularies, and odd lengths beside their even neighbours.
GPU_COLS = (
    *(32, 64, 128, 256, 512, 768, 1000, 1001, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384),
    *(24576, 32768, 50256, 50257, 65536, 131072, 151935, 151936, 262144, 524288, 1048576),
)
FEW_ROWS = ((1, 32768), (1, 131072), (8, 131072), (64, 128256), (256, 256), (4096, 128))
_OURS = {"softmax": jk.softmax, "log_softmax": jk.log_softmax}
_XLA = {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}
# From (y, dy) to dx, as XLA compiles the autodiff of jax.nn.
_XLA_BACKWARD: dict[str, Function] = {
    "softmax": lambda y, dy: y * (dy - jnp.sum(dy * y, axis=-1, keepdims=True)),
    "log_softmax": lambda y, dy: dy - jnp.exp(y) * jnp.sum(dy, axis=-1, keepdims=True),
}


def cases(options: Options) -> Iterable[Case]:
    """Every dtype, direction and length, then the small inputs."""
    yield from rows.row_cases(options.operation, GPU_COLS, options)
    few_rows = options.few_rows
    if few_rows or (few_rows is None and jax.default_backend() != "cpu"):
        for dtype, shape in product(DTYPES, FEW_ROWS):
            yield row_case(options.operation, "fwd", dtype, *shape, group="few_rows")


def ours(case: Case, tier: str = "auto") -> Function:
    """Our function, from x or from (y, dy): a backward pass that keeps one array, y or its like."""
    function = rows.forced(_OURS[case["operation"]], tier)
    if case["direction"] == "fwd":
        return function
    residuals, backward = rows.pullback(function, case)
    kept = [(leaf.shape, leaf.dtype) for leaf in residuals]
    if kept != [((case["rows"], case["cols"]), case["dtype"])]:
        raise RuntimeError(f"the backward pass must keep one array, it keeps {kept}")
    return backward


def _draw_results(case: Case) -> list[Arguments]:
    """(y, dy) for each rotation, where y is a result of XLA's."""
    forward = jax.jit(_XLA[case["operation"]])
    return [(forward(x), dy) for x, dy in draw(case, 2, touched=2)]


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """Copy, XLA and ours of one case; of few rows XLA and ours."""
    operation, of_x = case["operation"], partial(draw, case, 1, touched=2)
    if case["group"] == "few_rows":
        xla = Program(lambda _: jax.jit(chain(_XLA[operation])), of_x, CHAIN_CALLS)
        return {"xla": xla, "auto": _program(case, of_x)}
    is_forward = case["direction"] == "fwd"
    drawn = of_x if is_forward else partial(_draw_results, case)
    xla = (_XLA if is_forward else _XLA_BACKWARD)[operation]
    return rows.compared(
        case,
        options,
        of_x,
        xla=rows.jitted(lambda: xla, drawn),
        ours=lambda tier: _program(case, drawn, tier),
    )


def _program(case: Case, drawn: Draw, tier: str = "auto") -> Program:
    if case["group"] == "few_rows":
        return Program(lambda _: jax.jit(chain(ours(case))), drawn, CHAIN_CALLS)
    return rows.jitted(partial(ours, case, tier), drawn)


def _draw_any(case: Case) -> list[Arguments]:
    """What ours reads; what its y holds does not matter for its time: the forward need not run."""
    moved = rows.traffic(case)
    return draw(case, moved.reads, touched=moved.reads + moved.writes)


def watched(platform: str) -> Iterable[tuple[str, Case, Program]]:
    """Of every tier a length or two, on any GPU, and few rows."""
    float32_bfloat16 = DTYPES[:2]
    elements, shapes = 2**26, {"fwd": FEW_ROWS, "grad": FEW_ROWS[2:5]}
    kinds = (
        ("softmax", (32, 1000, 1001, 4096, 16384, 50257, 131072, 2**20), float32_bfloat16),
        ("log_softmax", (257, 8192, 50257, 131072), float32_bfloat16),
        ("softmax", (1000, 50257), ("float16",)),
    )
    if platform == "cpu":
        elements, shapes = 2**20, {"fwd": ((4, 512),), "grad": ((4, 512),)}
        kinds = (
            ("softmax", (64, 1001, 4096), float32_bfloat16),
            ("log_softmax", (1001,), float32_bfloat16),
            ("softmax", (1001,), ("float16",)),
        )
    cases = [
        row_case(operation, direction, dtype, max(1, elements // cols), cols)
        for operation, lengths, dtypes in kinds
        for dtype, direction, cols in product(dtypes, ("fwd", "grad"), lengths)
    ]
    cases += [
        row_case("softmax", direction, dtype, *shape, group="few_rows")
        for dtype, (direction, each) in product(float32_bfloat16, shapes.items())
        for shape in each
    ]
    return ((case["group"], case, _program(case, partial(_draw_any, case))) for case in cases)


_FEW_ROWS_HELP = "also measure the latency on small inputs (default: on a GPU)"

SUITE = row_views.suite(
    "softmax",
    summary="softmax and log_softmax, forward and backward, beside jax.nn's and a plain copy",
    cases=cases,
    contenders=contenders,
    options={
        "--operation": {"choices": tuple(_OURS), "default": "softmax"},
        "--few-rows": {"action": argparse.BooleanOptionalAction, "help": _FEW_ROWS_HELP},
    },
    watched=watched,
)
