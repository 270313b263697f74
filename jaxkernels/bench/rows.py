"""What the suites of row operations share: cases, inputs, ceilings, tiers, gradients.

Two passes over memory are measured anew beside every case, as ceilings:

* ``copy``: a jitted copy of x, read and written once.
* ``read``: x is read once and next to nothing is written. No reduction of XLA's is near the ceiling
  for all shapes, so three are measured, and the fastest one of the case counts: ``row_max``, the
  maximum of each row; ``sum``, that of all elements; ``piece_max``, the maximum of every 4096
  elements as they lie in memory (those left over at the end, fewer than 4096, are not read).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast, get_args

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench.programs import draw_normal, rotations
from jaxkernels.bench.records import Case, Measured
from jaxkernels.bench.suite import Draw, Function, Options, Program
from jaxkernels.typing import Operation, Tier

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DTYPES = tuple(ITEM_BYTES)
TIERS = ("auto", *get_args(Tier))
CPU_COLS = (64, 1024, 4096, 32768, 50257)
_PIECE = 4096


class Traffic(NamedTuple):
    """What a pass over the rows of x cannot but move."""

    reads: int  # arrays of the size of x
    writes: int = 0  # arrays of the same size
    scalars: int = 0  # elements besides, for each row
    ceiling: str = ""  # the pass over memory that it is compared with, of `CEILINGS`

    def size(self, m: Measured) -> int:
        """Bytes in a case."""
        row = (self.reads + self.writes) * m["cols"] + self.scalars
        return m["rows"] * row * ITEM_BYTES[m["dtype"]]


_SOFTMAX = {"fwd": Traffic(1, 1, ceiling="copy"), "grad": Traffic(2, 1, ceiling="copy")}
TRAFFIC: dict[str, dict[str, Traffic]] = {
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
    "logsumexp": {
        "fwd": Traffic(1, scalars=1, ceiling="read"),
        "grad": Traffic(1, 1, scalars=1, ceiling="copy"),
        "both": Traffic(2, 1, scalars=2, ceiling="copy"),
    },
    "losses": {
        "loss": Traffic(1, ceiling="read"),
        "mean": Traffic(1, 1, ceiling="copy"),
        "none": Traffic(2, 1, ceiling="copy"),
        "log_probs": Traffic(1, ceiling="read"),
    },
}


def _piece_max(x: jax.Array) -> jax.Array:
    piece = min(_PIECE, x.size)
    return jnp.max(x.reshape(-1)[: x.size // piece * piece].reshape(-1, piece), axis=-1)


# Passes over memory: the contenders that make them, of which the fastest one counts.
CEILINGS: dict[str, dict[str, tuple[Function, Traffic]]] = {
    "copy": {"copy": (jnp.copy, Traffic(1, 1))},
    "read": {
        "row_max": (partial(jnp.max, axis=-1), Traffic(1, scalars=1)),
        "sum": (jnp.sum, Traffic(1)),
        "piece_max": (_piece_max, Traffic(1)),
    },
}


def traffic(case: Case | Measured) -> Traffic:
    """What a case moves."""
    return TRAFFIC[case["operation"]][case["direction"]]


def rate(m: Measured, name: str = "auto") -> float | None:
    """The model bytes per second of a contender, or of the fastest one of a ceiling."""
    passes = CEILINGS.get(name) or {name: (None, traffic(m))}
    rates = (m.rate(moved.size(m), contender) for contender, (_, moved) in passes.items())
    return max((rate for rate in rates if rate is not None), default=None)


def of_ceiling(m: Measured, name: str = "auto") -> float | None:
    """The rate of ours as a fraction of the ceiling's in this very case."""
    ceiling, own = rate(m, traffic(m).ceiling), rate(m, name)
    return None if ceiling is None or own is None else own / ceiling


def is_rows(m: Measured) -> bool:
    """Whether a case is one of throughput, and not of few rows."""
    return m["group"] == "rows"


def row_case(
    operation: str, direction: str, dtype: str, rows: int, cols: int, group: str = "rows"
) -> Case:
    """A case of (rows, cols), without the tier that is planned for it."""
    kind = {"group": group, "operation": operation, "direction": direction, "dtype": dtype}
    return {**kind, "rows": rows, "cols": cols}


def with_tier(case: Case) -> Case:
    """The case with the tier that would be chosen on this GPU, where it is one kernel that runs."""
    if jax.default_backend() != "gpu" or case["direction"] == "both":
        return case
    operation = cast(Operation, f"{case['operation']}_{case['direction']}")
    shape, dtype = (case["rows"], case["cols"]), jnp.dtype(case["dtype"])
    return {**case, "tier": str(jk.plan_softmax(shape, dtype, operation=operation).tier)}


def row_cases(operation: str, gpu_cols: Sequence[int], options: Options) -> Iterable[Case]:
    """Every dtype, direction and length, on inputs of one size; the lengths may be asked for."""
    on_cpu = jax.default_backend() == "cpu"
    elements = options.elements or (2**24 if on_cpu else 2**28)
    lengths = sorted(set(options.cols or (CPU_COLS if on_cpu else gpu_cols)))
    for dtype, direction, cols in itertools.product(DTYPES, TRAFFIC[operation], lengths):
        rows = max(1, elements // cols)
        yield with_tier(row_case(operation, direction, dtype, rows, cols))


def label(case: Case) -> str:
    """The case in one line."""
    shape = f"{case['rows']}x{case['cols']}"
    return f"{case['operation']} {case['direction']} {case['dtype']} {shape}"


def draw(case: Case, arrays: int, touched: int) -> list[tuple]:
    """Some arrays (rows, cols) for each rotation; of few rows all that a chain takes.

    The contender that touches least, `touched` such arrays, decides how many rotations there are.
    """
    shape = (case["rows"], case["cols"])
    size = case["rows"] * case["cols"] * ITEM_BYTES[case["dtype"]]
    if case["group"] == "few_rows":
        return [tuple(draw_normal(shape, case["dtype"], arrays, 1))]
    return draw_normal(shape, case["dtype"], arrays, rotations(touched * size))


def forced(function: Function, tier: str = "auto") -> Function:
    """Our function by a tier, or as a user gets it; it refuses instead of falling back to XLA."""
    return partial(function, tier=None if tier == "auto" else tier, implementation="ffi")


def jitted(make: Callable[[], Function], drawn: Draw) -> Program:
    """The program of a function that is made, or refused, where it is compiled."""
    return Program(lambda _: jax.jit(make()), drawn)


def compared(
    case: Case, options: Options, drawn: Draw, xla: Program, ours: Callable[[str], Program]
) -> Mapping[str, Program]:
    """The contenders of a case: those of a ceiling on (x,) as drawn, XLA, and ours by each tier."""
    tiers = options.tiers or (TIERS[:1] if jax.default_backend() == "cpu" else TIERS)
    passes = CEILINGS[traffic(case).ceiling].items()
    ceiling = {name: jitted(lambda f=f: f, drawn) for name, (f, _) in passes}
    return {**ceiling, "xla": xla, **{tier: ours(tier) for tier in tiers}}


def pullback(
    function: Callable[[jax.Array], jax.Array], case: Case
) -> tuple[list[jax.ShapeDtypeStruct], Function]:
    """What the residuals of a function of x are, and its jitted (*residuals, cotangent) -> dx.

    The forward runs nowhere inside: ``jax.vjp`` returns a pytree whose leaves are the residuals, and
    its structure comes from an abstract evaluation.
    """
    x = jax.ShapeDtypeStruct((case["rows"], case["cols"]), case["dtype"])
    abstract = jax.eval_shape(lambda primal: jax.vjp(function, primal)[1], x)
    kept, structure = jax.tree.flatten(abstract)

    def backward(*arguments: jax.Array) -> jax.Array:
        *residuals, cotangent = arguments
        return jax.tree.unflatten(structure, residuals)(cotangent)[0]

    return kept, jax.jit(backward)
