"""What the suites of row operations share: cases, inputs, ceilings, tiers, gradients, tables.

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
from typing import Any, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import plot
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import draw_normal, rotations
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Draw, Function, Options, Program, Suite, count, several
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


def views(run: Run) -> list[t.View]:
    """Every length and contender, and few rows."""
    unit, text = t.rates(run.platform)
    forced = [name for name in TIERS[1:] if any(name in m.records for m in run.measured)]

    def columns(m: Measured) -> list[t.Column]:
        ceiling = traffic(m).ceiling
        names = {ceiling: ceiling, "jax.nn": "xla", "ours": "auto"} | {n: n for n in forced}
        rates = [t.Column(head, partial(rate, name=name), text) for head, name in names.items()]
        of = t.Column(f"of {ceiling}", of_ceiling, "{:.3f}")
        gain = t.times_faster("x jax.nn", "xla", "auto")
        tier = t.fields("tier") if m["tier"] else []
        return [*t.fields("cols", "rows"), *rates[:3], of, gain, *tier, *rates[3:]]

    times = [t.time("jax.nn us", "xla", "us", 1), t.time("ours us", "auto", "us", 1)]
    return [
        t.View(
            "{operation} {direction}, {dtype}" + f" ({unit} of model bytes)",
            columns,
            is_rows,
            by=("dtype", "direction"),
        ),
        t.View(
            "{operation} on few rows",
            [*t.fields("rows", "cols", "dtype"), *times],
            lambda m: not is_rows(m),
        ),
    ]


# In drawing order: what matters most is drawn last, on top. Label, colour, width, dashes, marker.
_STYLES = {
    "warp": ("warp, forced", plot.GREEN, 1.2, (0, (1, 1.2)), ""),
    "block": ("block, forced", plot.PURPLE, 1.2, (0, (2, 1.2)), ""),
    "block_smem": ("block_smem, forced", plot.SKY, 1.2, (0, (4, 1.4)), ""),
    "cluster": ("cluster, forced", plot.ORANGE, 1.2, (0, (3, 1.2)), ""),
    "spread": ("spread, forced", plot.GREEN, 1.2, "-", "^"),
    "block_uncached": ("block_uncached, forced", plot.MUTED, 1.2, (0, (5, 1.4, 1, 1.4)), ""),
    "read": ("device read", plot.INK, 1.5, (0, (6, 2)), ""),
    "copy": ("device copy", plot.INK, 1.5, (0, (6, 2)), ""),
    "xla": ("jax.nn (XLA)", plot.PEER, 1.9, "-", "o"),
    "auto": ("ours", plot.OURS, 2.5, "-", "o"),
}


def _curves(members: Sequence[Measured], scale: float) -> list[plot.Curve]:
    """A line for each contender; odd lengths, which would be spikes beside even ones, are hollow."""
    curves = []
    for name, (text, colour, width, dashes, marker) in _STYLES.items():
        points = [(m["cols"], r * scale) for m in members if (r := rate(m, name))]
        even = [point for point in points if point[0] % 2 == 0]
        line = even if len(even) > 1 else points
        is_compared = name in ("xla", "auto")
        if line:
            curves.append(plot.Curve(text, line, colour, width, dashes, marker))
        if is_compared and (odd := [point for point in points if point not in line]):
            curves.append(plot.Curve(f"{text}, odd length", odd, colour, 0, marker="D"))
    return curves


def _spans(members: Sequence[Measured]) -> list[tuple[float, str]]:
    """Where each planned tier begins: (geometrically) midway between two lengths."""
    planned = [(m["cols"], m["tier"]) for m in members if m["tier"]]
    pairs = itertools.pairwise(planned)
    borders = [((a * b) ** 0.5, tier) for (a, before), (b, tier) in pairs if tier != before]
    return [*planned[:1], *borders]


def figure(run: Run) -> plot.Figure:
    """Throughput over row length: a row of panels for each direction, a panel for each dtype."""
    unit, scale = t.rates(run.platform)[0], 1e-9 if run.platform == "cpu" else 1e-12
    measured = list(filter(is_rows, run.measured))
    lengths = [m["cols"] for m in measured]
    powers = [2**e for e in range(32) if min(lengths) <= 2**e <= max(lengths)]
    rates = [r for m in measured for name in _STYLES if (r := rate(m, name))]

    def panel(members: Sequence[Measured]) -> plot.Panel:
        first = members[0]
        title = f"{first['operation']} {first['direction']}, {first['dtype']}"
        return partial(
            plot.lines,
            labels=(title, "row length (columns)", f"throughput ({unit} of model bytes)"),
            curves=_curves(members, scale),
            ticks=powers[:: 2 if len(powers) > 9 else 1],
            top=1.06 * scale * max(rates, default=1 / scale),
            spans=_spans(members),
        )

    rows = [
        [panel(members) for members in t.group_by(across, lambda m: m["dtype"]).values()]
        for across in t.group_by(measured, lambda m: m["direction"]).values()
    ]
    return plot.Figure(f"{measured[0]['operation']}: throughput by row length", rows, (6.4, 3.5))


_TIERS_HELP = "auto and the tiers to force (default: all on a GPU, auto on a CPU)"
_ELEMENTS_HELP = "size of each input, rows = N // cols (default: 2^28 on a GPU, 2^24 on a CPU)"
_OPTIONS: dict[str, dict[str, Any]] = {
    "--cols": several(count, "N", "row lengths, such as 1000 or 2^15"),
    "--tiers": {"nargs": "+", "choices": TIERS, "help": _TIERS_HELP},
    "--elements": {"type": count, "metavar": "N", "help": _ELEMENTS_HELP},
}


def suite(name: str, options: Mapping[str, Any] | None = None, **more: Any) -> Suite:
    """The suite of a row operation of `TRAFFIC`, with options beyond those of all of them."""
    return Suite(
        name=name,
        label=label,
        views=views,
        figure=figure,
        axes={"dtype": DTYPES, "direction": tuple(TRAFFIC[name])},
        defaults={"dtypes": DTYPES[:2]},
        options={**_OPTIONS, **(options or {})},
        **more,
    )
