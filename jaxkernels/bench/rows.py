"""What the suites of row operations share: cases, inputs, ceilings, tiers, gradients.

Two passes over memory are measured anew beside every case, as ceilings:

* ``copy``: a jitted copy of x, read and written once.
* ``read``: x is read once and next to nothing is written. No reduction of XLA's is near the ceiling
  for all shapes, so three are measured, and the fastest one of the case counts: ``row_max``, the
  maximum of each row; ``sum``, that of all elements; ``piece_max``, the maximum of every 4096
  elements as they lie in memory (those left over at the end, fewer than 4096, are not read).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench.options import count, several
from jaxkernels.bench.programs import draw_normal, rotations
from jaxkernels.bench.records import Case
from jaxkernels.bench.rows_model import CEILINGS, DTYPES
from jaxkernels.bench.suite import Arguments, Axis, Draw, Function, Options, Program
from jaxkernels.typing import Operation, Tier

TIERS = ("auto", *get_args(Tier))
CPU_COLS = (64, 1024, 4096, 32768, 50257)
GPU_ELEMENTS, CPU_ELEMENTS = 2**28, 2**24
_PIECE = 4096


def _piece_max(x: jax.Array) -> jax.Array:
    piece = min(_PIECE, x.size)
    return jnp.max(x.reshape(-1)[: x.size // piece * piece].reshape(-1, piece), axis=-1)


_CEILINGS: dict[str, Function] = {
    "copy": jnp.copy,
    "row_max": partial(jnp.max, axis=-1),
    "sum": jnp.sum,
    "piece_max": _piece_max,
}

_TIERS_HELP = "auto and the tiers to force (default: all on a GPU, auto on a CPU)"
_ELEMENTS_HELP = "size of each input, rows = N // cols (default: 2^28 on a GPU, 2^24 on a CPU)"
OPTIONS: dict[str, dict[str, Any]] = {
    "--cols": several(count, "N", "row lengths, such as 1000 or 2^15"),
    "--tiers": {"nargs": "+", "choices": TIERS, "help": _TIERS_HELP},
    "--elements": {"type": count, "metavar": "N", "help": _ELEMENTS_HELP},
}


def axes(directions: Iterable[str]) -> tuple[Axis, Axis]:
    """The fields that the command line chooses from."""
    return Axis("dtype", DTYPES, ("float32", "bfloat16")), Axis("direction", tuple(directions))


def row_case(
    operation: str, direction: str, dtype: str, rows: int, cols: int, group: str = "rows"
) -> Case:
    """A case of (rows, cols), without the tier that is planned for it."""
    names = ("group", "operation", "direction", "dtype", "rows", "cols")
    return dict(zip(names, (group, operation, direction, dtype, rows, cols), strict=True))


def _with_tier(case: Case) -> Case:
    """The case with the tier that would be chosen on this GPU, where it is one kernel that runs."""
    if jax.default_backend() != "gpu" or case["direction"] == "both":
        return case
    operation = cast(Operation, f"{case['operation']}_{case['direction']}")
    shape, dtype = (case["rows"], case["cols"]), jnp.dtype(case["dtype"])
    return {**case, "tier": str(jk.plan_softmax(shape, dtype, operation=operation).tier)}


def row_cases(
    operation: str, directions: Iterable[str], gpu_cols: Sequence[int], options: Options
) -> Iterable[Case]:
    """Every dtype, direction and length, on inputs of one size; the lengths may be asked for."""
    on_cpu = jax.default_backend() == "cpu"
    elements = options.elements or (CPU_ELEMENTS if on_cpu else GPU_ELEMENTS)
    lengths = sorted(set(options.cols or (CPU_COLS if on_cpu else gpu_cols)))
    for dtype, direction, cols in product(DTYPES, directions, lengths):
        rows = max(1, elements // cols)
        yield _with_tier(row_case(operation, direction, dtype, rows, cols))


def label(case: Case) -> str:
    """The case in one line."""
    shape = f"{case['rows']}x{case['cols']}"
    return f"{case['operation']} {case['direction']} {case['dtype']} {shape}"


def draw(case: Case, arrays: int, touched: int) -> list[Arguments]:
    """Some arrays (rows, cols) for each rotation.

    The contender that touches least, `touched` such arrays, decides how many rotations there are.
    """
    shape = (case["rows"], case["cols"])
    size = case["rows"] * case["cols"] * jnp.dtype(case["dtype"]).itemsize
    turns = 1 if case["group"] == "few_rows" else rotations(touched * size)
    return draw_normal(shape, case["dtype"], arrays, turns)


def forced(function: Function, tier: str = "auto") -> Function:
    """Our function by a tier, or as a user gets it; it refuses instead of falling back to XLA."""
    return partial(function, tier=None if tier == "auto" else tier, implementation="ffi")


def jitted(make: Callable[[], Function], drawn: Draw) -> Program:
    """The program of a function that is made, or refused, where it is compiled."""
    return Program(lambda _: jax.jit(make()), drawn)


def compared(
    options: Options, ceiling: str, drawn: Draw, xla: Program, ours: Callable[[str], Program]
) -> Mapping[str, Program]:
    """The contenders of a case: those of a ceiling on (x,) as drawn, XLA, and ours by each tier."""
    tiers = options.tiers or (TIERS[:1] if jax.default_backend() == "cpu" else TIERS)
    passes = {name: jitted(lambda name=name: _CEILINGS[name], drawn) for name in CEILINGS[ceiling]}
    return {**passes, "xla": xla, **{tier: ours(tier) for tier in tiers}}


def pullback(
    function: Callable[[jax.Array], jax.Array], case: Case
) -> tuple[list[jax.ShapeDtypeStruct], Function]:
    """The backward pass of a function of x, alone: the forward runs nowhere inside.

    ``jax.vjp`` returns a pytree whose leaves are the residuals. Its structure comes from an
    abstract evaluation.

    Returns:
        What the residuals are, and the jitted (*residuals, cotangent) -> dx.
    """
    x = jax.ShapeDtypeStruct((case["rows"], case["cols"]), case["dtype"])
    abstract = jax.eval_shape(lambda primal: jax.vjp(function, primal)[1], x)
    kept, structure = jax.tree.flatten(abstract)

    def backward(*arguments: jax.Array) -> jax.Array:
        *residuals, cotangent = arguments
        return jax.tree.unflatten(structure, residuals)(cotangent)[0]

    return kept, jax.jit(backward)
