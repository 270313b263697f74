"""The suite ``softmax``: forward and backward over a range of column counts.

Compared in one run: a plain device copy, ``jax.nn.softmax`` (or ``jax.nn.log_softmax``) under
jit, ours as a user gets it (``auto``) and each tier by force. How a call is timed is written down
in ``jaxkernels.bench.timing``; what is timed:

* ``fwd``: y from x. Model bytes: read x, write y.
* ``grad``: dx from y and dy alone; the forward is never run inside. Ours is the function that
  ``jax.vjp`` of our softmax returns, whose only residual is y, jitted as a function of (y, dy).
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import softmax_report
from jaxkernels.bench.options import count, several
from jaxkernels.bench.programs import CHAIN_CALLS, chain, draw_normal, rotations
from jaxkernels.bench.records import Case
from jaxkernels.bench.softmax_report import STREAMS
from jaxkernels.bench.suite import Arguments, Axis, Function, Options, Program, Suite, Watched
from jaxkernels.typing import Operation, Tier

DTYPES = ("float32", "bfloat16", "float16")
TIERS = ("auto", *get_args(Tier))
# Powers of two, model widths, vocabularies, and odd lengths beside their even neighbours.
GPU_COLS = (
    *(32, 64, 128, 256, 512, 768, 1000, 1001, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384),
    *(24576, 32768, 50256, 50257, 65536, 131072, 151935, 151936, 262144, 524288, 1048576),
)
CPU_COLS = (64, 1024, 4096, 32768, 50257)
GPU_ELEMENTS, CPU_ELEMENTS = 2**28, 2**24
FEW_ROWS = ((1, 32768), (1, 131072), (8, 131072), (64, 128256), (256, 256), (4096, 128))

_OURS = {"softmax": jk.softmax, "log_softmax": jk.log_softmax}
_XLA = {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}
# From (y, dy) to dx, as XLA compiles the autodiff of jax.nn.
_XLA_BACKWARD: dict[str, Function] = {
    "softmax": lambda y, dy: y * (dy - jnp.sum(dy * y, axis=-1, keepdims=True)),
    "log_softmax": lambda y, dy: dy - jnp.exp(y) * jnp.sum(dy, axis=-1, keepdims=True),
}


def rows_case(
    operation: str, direction: str, dtype: str, rows: int, cols: int, group: str = "rows"
) -> Case:
    """A case of the suite, without the tier that is planned for it."""
    names = ("group", "operation", "direction", "dtype", "rows", "cols")
    return dict(zip(names, (group, operation, direction, dtype, rows, cols), strict=True))


def _with_tier(case: Case) -> Case:
    """The case with the tier that would be chosen on this GPU; as it is on other platforms."""
    if jax.default_backend() != "gpu":
        return case
    operation = cast(Operation, f"{case['operation']}_{case['direction']}")
    shape, dtype = (case["rows"], case["cols"]), jnp.dtype(case["dtype"])
    return {**case, "tier": str(jk.plan_softmax(shape, dtype, operation=operation).tier)}


def cases(options: Options) -> Iterable[Case]:
    """Every dtype, direction and length, then the small inputs."""
    on_cpu = jax.default_backend() == "cpu"
    elements = options.elements or (CPU_ELEMENTS if on_cpu else GPU_ELEMENTS)
    of = options.operation
    lengths = sorted(set(options.cols or (CPU_COLS if on_cpu else GPU_COLS)))
    for dtype, direction, cols in product(DTYPES, STREAMS, lengths):
        yield _with_tier(rows_case(of, direction, dtype, max(1, elements // cols), cols))
    if options.few_rows or (options.few_rows is None and not on_cpu):
        for dtype, shape in product(DTYPES, FEW_ROWS):
            yield rows_case(of, "fwd", dtype, *shape, group="few_rows")


def ours(case: Case, tier: Any = "auto") -> Function:
    """Our function, from x or from (y, dy); it refuses instead of falling back to XLA."""
    forced = None if tier == "auto" else tier
    function = partial(_OURS[case["operation"]], tier=forced, implementation="ffi")
    return function if case["direction"] == "fwd" else backward(function, case)


def backward(function: Callable[[jax.Array], jax.Array], case: Case) -> Function:
    """Returns (y, dy) -> dx: the vjp of a function of x as a function of its only residual, y.

    ``jax.vjp`` returns a pytree whose leaves are the residuals. Its structure comes from an
    abstract evaluation, and y takes the place of the leaf, so the forward runs nowhere.

    Raises:
        RuntimeError: if the backward pass keeps anything besides y.
    """
    x = jax.ShapeDtypeStruct((case["rows"], case["cols"]), case["dtype"])
    pullback = jax.eval_shape(lambda primal: jax.vjp(function, primal)[1], x)
    residuals, structure = jax.tree.flatten(pullback)
    kept = [(leaf.shape, leaf.dtype) for leaf in residuals]
    if kept != [(x.shape, x.dtype)]:
        raise RuntimeError(f"the backward pass must keep y alone, it keeps {kept}")
    return jax.jit(lambda y, dy: jax.tree.unflatten(structure, [y])(dy)[0])


def _draw(case: Case, arrays: int, touched: int = 2) -> list[Arguments]:
    """Matrices for each rotation: as many rotations as a call needs that touches so many of them.

    Where a copy is compared, it decides, for it touches least.
    """
    shape = (case["rows"], case["cols"])
    size = case["rows"] * case["cols"] * jnp.dtype(case["dtype"]).itemsize
    turns = 1 if case["group"] == "few_rows" else rotations(touched * size)
    return draw_normal(shape, case["dtype"], arrays, turns)


def _draw_results(case: Case) -> list[Arguments]:
    """(y, dy) for each rotation, where y is a result of XLA's."""
    forward = jax.jit(_XLA[case["operation"]])
    return [(forward(x), dy) for x, dy in _draw(case, 2)]


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """Copy, XLA and ours of one case; of few rows XLA and ours."""
    draw = partial(_draw, case, 1)
    if case["group"] == "few_rows":
        return {
            "xla": _chained(lambda: _XLA[case["operation"]], draw),
            "auto": _chained(partial(ours, case), draw),
        }
    xla = _XLA if case["direction"] == "fwd" else _XLA_BACKWARD
    drawn = draw if case["direction"] == "fwd" else partial(_draw_results, case)
    on_cpu = jax.default_backend() == "cpu"
    programs = {
        "copy": Program(lambda _: jax.jit(jnp.copy), draw),
        "xla": Program(lambda _: jax.jit(xla[case["operation"]]), drawn),
    }
    for tier in options.tiers or (TIERS[:1] if on_cpu else TIERS):
        programs[tier] = Program(lambda _, tier=tier: jax.jit(ours(case, tier)), drawn)
    return programs


def _chained(make: Callable[[], Function], draw: Callable[[], Sequence[Arguments]]) -> Program:
    return Program(lambda _: jax.jit(chain(make())), draw, CHAIN_CALLS)


def watched(platform: str) -> Iterable[Watched]:
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
    for operation, lengths, dtypes in kinds:
        for dtype, direction, cols in product(dtypes, STREAMS, lengths):
            case = rows_case(operation, direction, dtype, max(1, elements // cols), cols)
            # What its y holds does not matter for its time: the forward need not run.
            draw = partial(_draw, case, STREAMS[direction] - 1, STREAMS[direction])
            yield Watched("rows", case, Program(lambda _, case=case: jax.jit(ours(case)), draw))
    for dtype in float32_bfloat16:
        for direction, each in shapes.items():
            for shape in each:
                case = rows_case("softmax", direction, dtype, *shape, group="few_rows")
                draw = partial(_draw, case, STREAMS[direction] - 1)
                yield Watched("few_rows", case, _chained(partial(ours, case), draw))


def label(case: Case) -> str:
    """The case in one line."""
    shape = f"{case['rows']}x{case['cols']}"
    return f"{case['operation']} {case['direction']} {case['dtype']} {shape}"


_TIERS_HELP = "auto and the tiers to force (default: all on a GPU, auto on a CPU)"
_ELEMENTS_HELP = "size of each input, rows = N // cols (default: 2^28 on a GPU, 2^24 on a CPU)"
_FEW_ROWS_HELP = "also measure the latency on small inputs (default: on a GPU)"

SUITE = Suite(
    name="softmax",
    summary="softmax and log_softmax, forward and backward, beside jax.nn's and a plain copy",
    cases=cases,
    contenders=contenders,
    label=label,
    views=softmax_report.views,
    figure=softmax_report.figure,
    axes=(Axis("dtype", DTYPES, ("float32", "bfloat16")), Axis("direction", tuple(STREAMS))),
    options={
        "--operation": {"choices": tuple(_OURS), "default": "softmax"},
        "--cols": several(count, "N", "row lengths, such as 1000 or 2^15"),
        "--tiers": {"nargs": "+", "choices": TIERS, "help": _TIERS_HELP},
        "--elements": {"type": count, "metavar": "N", "help": _ELEMENTS_HELP},
        "--few-rows": {"action": argparse.BooleanOptionalAction, "help": _FEW_ROWS_HELP},
    },
    watched=watched,
)
