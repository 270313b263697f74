"""The suites ``softmax``, ``logsumexp``, ``rms_norm`` and ``map``, and what ``losses`` shares with them.

One run compares a plain pass over memory, XLA's code under jit (``jax.nn``'s, or plain JAX for RMSNorm), our
default (``auto``) and each forced tier, all over the last axis. `TRAFFIC` has the model bytes of the directions:

* ``fwd``: y from x.
* ``grad``: dx from the residuals and dy, without the forward pass. Ours is the function that ``jax.vjp``
  returns. Softmax saves y, logsumexp and RMSNorm save x. (16-bit log_softmax saves x instead; it is given y,
  because softmax(y) = softmax(x).) XLA's softmax is the autodiff of ``jax.nn`` in its most favourable form, from
  y instead of the unnormalised exponentials. XLA's logsumexp saves the exponentials and so computes less here;
  the cost of storing them shows only in ``both``. The gradient of a scale is not measured.
* ``both``: y and dx from x and dy, in one program.

The pass over memory is the ceiling of a case:

* ``copy``: a jitted copy reads and writes x once. A kernel that reads its input twice shows about two thirds of
  its rate.
* ``read``: a reduction reads x once and writes almost nothing. No reduction of XLA is close to the
  ceiling for all shapes, so three are measured, and the fastest one counts: ``row_max``, the maximum of
  each row; ``sum``, the sum of all elements; and ``piece_max``, the maximum of every 4096 consecutive
  elements (a remainder of fewer than 4096 is not read).

The group ``few_rows`` of softmax has inputs so small that only the latency of a call matters; its calls are
chained in one program.

The suite ``map`` has softmax at 40 lengths that a seed draws: 12 up to 128, 12 up to 4096, and 16 up to a
million. The last 16 are 4 known vocabularies, the same for every seed, 6 odd lengths and 6 multiples of 8. Seed
1 is for tuning, and seed 2 measured the rules. Seed 3 is published: nothing is tuned on it. The seed also
shuffles the cells, so that ``--limit`` omits cells of every kind.

Each cell times ours (``auto``), ``jax.nn.softmax`` and a copy of the same bytes:

* ``many_rows``: arrays of 2^28 bytes, one call at a time.
* ``few_rows``: 1 to 132 rows of 8192 columns or more, up to half the bytes of ``many_rows``. These calls
  take microseconds, so they are chained in one program over up to 16 arrays; small arrays may stay in the
  cache. The copy is a negation, because XLA could remove a copy from a chain. ``kernels`` in the file is
  the number of kernels of a program: a multiple of its calls, unless XLA merged some.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels.bench import programs
from jaxkernels.bench import tables as t
from jaxkernels.bench.options import count, seeded, several
from jaxkernels.bench.programs import CHAIN_CALLS, chain, normal, rotations, with_gradient
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite
from jaxkernels.typing import Operation, Tier

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DTYPES = tuple(ITEM_BYTES)
TIERS = ("auto", *get_args(Tier))
CPU_COLS = (64, 1024, 4096, 32768, 50257)
_PIECE = 4096
# Lengths: powers of two, model widths, vocabularies, and odd lengths with their even neighbours.
SOFTMAX_COLS = (
    *(32, 64, 128, 256, 512, 768, 1000, 1001, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384),
    *(24576, 32768, 50256, 50257, 65536, 131072, 151935, 151936, 262144, 524288, 1048576),
)
LOGSUMEXP_COLS = (
    *(8, 17, 33, 128, 197, 512, 1001, 1024, 2048, 4096, 8192, 16384),
    *(24576, 32003, 32768, 50257, 65536, 128256, 131072, 262144, 1048576),
)
RMS_NORM_COLS = (
    *(64, 128, 197, 512, 1024, 1536, 2048, 4096, 5120, 8192, 12288, 16384, 32768, 65536, 131072),
)
# Lengths of every tier, on any GPU.
TIERS_COLS = (32, 1000, 1001, 4096, 16384, 50257, 131072, 2**20)
FEW_ROWS = ((1, 32768), (1, 131072), (8, 131072), (64, 128256), (256, 256), (4096, 128))

# The suite ``map``.
MAP_ROWS = (1, 4, 16, 64, 132)
VOCABULARIES = (32000, 50257, 128256, 151936)
# Smallest length of ``few_rows``. Below it, a call on a few rows takes only the time of its launch.
_MAP_ROWS_FROM = 8192
_LONGEST = 1_000_000
# Number of cells whose programs are compiled together and whose arrays share the memory.
_PART = 24
# Ours counts as slower above this multiple of XLA's time.
TOLERANCE = 1.03
_KERNEL = re.compile(r" (?:fusion|custom-call|copy)\(")


class Traffic(NamedTuple):
    """The minimum of data that an operation moves."""

    reads: int  # arrays of the size of x that are read
    writes: int = 0  # arrays of that size that are written
    scalars: int = 0  # further elements per row

    @property
    def ceiling(self) -> str:
        """The entry of `CEILINGS` that it is compared with."""
        return "copy" if self.writes else "read"

    def size(self, m: Measured) -> int:
        """Bytes moved in a case."""
        row = (self.reads + self.writes) * m["cols"] + self.scalars
        return m["rows"] * row * ITEM_BYTES[m["dtype"]]


_SOFTMAX = {"fwd": Traffic(1, 1), "grad": Traffic(2, 1)}
_LOSSES = {
    "loss": Traffic(1),
    "mean": Traffic(1, 1),
    "none": Traffic(2, 1),
    "log_probs": Traffic(1),
}
TRAFFIC: dict[str, dict[str, Traffic]] = {
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
    "logsumexp": {"fwd": Traffic(1, 0, 1), "grad": Traffic(1, 1, 1), "both": Traffic(2, 1, 2)},
    "rms_norm": _SOFTMAX,
    "losses": _LOSSES,
}


# f(y, dy) -> dx, as XLA compiles the autodiff of jax.nn.
XLA_BACKWARD: dict[str, Function] = {
    "softmax": lambda y, dy: y * (dy - jnp.sum(dy * y, axis=-1, keepdims=True)),
    "log_softmax": lambda y, dy: dy - jnp.exp(y) * jnp.sum(dy, axis=-1, keepdims=True),
}


def _piece_max(x: jax.Array) -> jax.Array:
    piece = min(_PIECE, x.size)
    return jnp.max(x.reshape(-1)[: x.size // piece * piece].reshape(-1, piece), axis=-1)


# Ceilings, and the contenders for each; the fastest one counts.
CEILINGS: dict[str, dict[str, tuple[Function, Traffic]]] = {
    "copy": {"copy": (jnp.copy, Traffic(1, 1))},
    "read": {
        "row_max": (partial(jnp.max, axis=-1), Traffic(1, scalars=1)),
        "sum": (jnp.sum, Traffic(1)),
        "piece_max": (_piece_max, Traffic(1)),
    },
}


def traffic(case: Case | Measured) -> Traffic:
    """The minimum of data that a case moves."""
    return TRAFFIC[case["operation"]][case["direction"]]


def rate(m: Measured, name: str = "auto") -> float | None:
    """The model bytes per second of a contender, or of the fastest contender of a ceiling."""
    passes = CEILINGS.get(name) or {name: (None, traffic(m))}
    rates = (m.rate(moved.size(m), contender) for contender, (_, moved) in passes.items())
    return max((rate for rate in rates if rate is not None), default=None)


def of_ceiling(m: Measured, name: str = "auto") -> float | None:
    """Our rate relative to the ceiling's rate in the same case."""
    ceiling, own = rate(m, traffic(m).ceiling), rate(m, name)
    return None if ceiling is None or own is None else own / ceiling


def is_few(case: Case | Measured) -> bool:
    """Whether a case measures latency, with calls chained in one program."""
    return case["group"] == "few_rows"


def is_rows(m: Measured) -> bool:
    """Whether a case measures throughput."""
    return m["group"] == "rows"


def row_case(
    operation: str, direction: str, dtype: str, rows: int, cols: int, group: str = "rows"
) -> Case:
    """A case of (rows, cols), without the planned tier."""
    kind = {"group": group, "operation": operation, "direction": direction, "dtype": dtype}
    return {**kind, "rows": rows, "cols": cols}


def with_tier(case: Case) -> Case:
    """Adds the tier that this GPU's plan chooses, if one kernel runs."""
    if jax.default_backend() != "gpu" or case["direction"] == "both":
        return case
    operation = cast(Operation, f"{case['operation']}_{case['direction']}")
    shape, dtype = (case["rows"], case["cols"]), jnp.dtype(case["dtype"])
    return {**case, "tier": str(jk.plan_softmax(shape, dtype, operation=operation).tier)}


def row_cases(operation: str, gpu_cols: Sequence[int], options: Options) -> Iterable[Case]:
    """Every dtype, direction and length (or the requested lengths), on inputs of one size."""
    on_cpu = jax.default_backend() == "cpu"
    elements = options.elements or (2**24 if on_cpu else 2**28)
    lengths = sorted(set(options.cols or (CPU_COLS if on_cpu else gpu_cols)))
    for dtype, direction, cols in product(DTYPES, TRAFFIC[operation], lengths):
        rows = max(1, elements // cols)
        yield with_tier(row_case(operation, direction, dtype, rows, cols))


def names(case: Case, options: Options) -> list[str]:
    """The ceiling's contenders, XLA, and ours with each tier; for few rows only XLA and ours."""
    if is_few(case):
        return ["xla", "auto"]
    tiers = options.tiers or (TIERS[:1] if jax.default_backend() == "cpu" else TIERS)
    return [*CEILINGS[traffic(case).ceiling], "xla", *tiers]


def label(case: Case) -> str:
    """The case in one line."""
    shape = f"{case['rows']}x{case['cols']}"
    return f"{case['operation']} {case['direction']} {case['dtype']} {shape}"


def draw(types: Sequence[jax.ShapeDtypeStruct], case: Case) -> list[Arguments]:
    """Random arrays for each rotation; for few rows one tuple for a chain.

    The ceiling touches the least data, so it determines the number of rotations.
    """
    touched = 2 if traffic(case).ceiling == "copy" else 1
    size = touched * case["rows"] * case["cols"] * ITEM_BYTES[case["dtype"]]
    drawn = programs.draw(types, size, turns=1 if is_few(case) else 0)
    return [tuple(drawn)] if is_few(case) else drawn


def ceiling(case: Case, name: str) -> Function | None:
    """The ceiling's function of that name, on the last argument; None if there is none."""
    found = CEILINGS[traffic(case).ceiling].get(name)
    return found and (lambda *arguments: found[0](arguments[-1]))


def type_of_x(case: Case) -> jax.ShapeDtypeStruct:
    """The shape and dtype of the input of a case."""
    return jax.ShapeDtypeStruct((case["rows"], case["cols"]), case["dtype"])


def function_of(case: Case, name: str) -> tuple[Function, list[jax.ShapeDtypeStruct]]:
    """A contender's function in the direction of a case, and the types of its arguments.

    ``grad`` takes residuals, then the cotangent, and does not run the forward pass. ``jax.vjp`` returns a
    pytree whose leaves are the residuals; an abstract evaluation gives its structure. Times do not depend
    on the values of residuals, so they are random.
    """
    x, direction, operation = type_of_x(case), case["direction"], case["operation"]
    if passing := ceiling(case, name):
        return passing, [x]
    if name == "xla":
        if direction == "grad" and operation in XLA_BACKWARD:
            return XLA_BACKWARD[operation], [x, x]
        peer = getattr(jax.nn, operation, None) or partial(jk.rms_norm, implementation="xla")
        function = partial(peer, axis=-1)
    else:  # a forced tier, or the default; it raises instead of falling back to XLA
        tier = None if name == "auto" else name
        ours = getattr(jk, operation)
        function = partial(ours, axis=-1, tier=tier, implementation="ffi")
    if operation == "rms_norm":
        function = partial(function, scale=np.linspace(0.5, 1.5, case["cols"], dtype=np.float32))
    if direction == "fwd":
        return function, [x]
    dy = jax.eval_shape(function, x)
    if direction == "both":
        return with_gradient(function), [dy, x]
    abstract = jax.eval_shape(lambda primal: jax.vjp(function, primal)[1], x)
    residuals, structure = jax.tree.flatten(abstract)

    def backward(*arguments: jax.Array) -> jax.Array:
        *residuals, cotangent = arguments
        return jax.tree.unflatten(structure, residuals)(cotangent)[0]

    return backward, [*residuals, dy]


def program(case: Case, name: str) -> Program:
    """A contender's program; a chain for few rows."""
    function, types = function_of(case, name)
    drawn = partial(draw, types, case)
    if is_few(case):
        return Program(chain(function), drawn, str(types), CHAIN_CALLS)
    return Program(function, drawn, str(types))


def views(run: Run) -> list[t.View]:
    """Tables of rates for each dtype and direction, then one of few rows."""
    unit, text = t.rates(run.platform)
    tiers = [name for name in TIERS[1:] if any(name in m.records for m in run.measured)]

    def rate_of(head: str, name: str) -> t.Column:
        return t.Column(head, partial(rate, name=name), text)

    def columns(m: Measured) -> list[t.Column]:
        ceiling = traffic(m).ceiling
        peer = "jax.nn" if hasattr(jax.nn, m["operation"]) else "plain JAX"
        return [
            *t.fields("cols", "rows"),
            rate_of(ceiling, ceiling),
            rate_of(peer, "xla"),
            rate_of("ours", "auto"),
            t.Column(f"of {ceiling}", of_ceiling, "{:.3f}"),
            t.times_faster(f"x {peer}", "xla", "auto"),
            *(t.fields("tier") if m["tier"] else ()),
            *(rate_of(tier, tier) for tier in tiers),
        ]

    times = [t.time("jax.nn us", "xla", "us", 1), t.time("ours us", "auto", "us", 1)]
    of_rows = "{operation} {direction}, {dtype}" + f" ({unit} of model bytes)"
    of_few = [*t.fields("rows", "cols", "dtype"), *times]
    return [
        t.View(of_rows, columns, is_rows),
        t.View("{operation} on few rows", of_few, is_few),
    ]


_TIERS_HELP = "auto and the tiers to force (default: all on a GPU, auto on a CPU)"
_ELEMENTS_HELP = "size of each input, rows = N // cols (default: 2^28 on a GPU, 2^24 on a CPU)"
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--cols": several(count, "N", "row lengths, such as 1000 or 2^15"),
    "--tiers": {"nargs": "+", "choices": TIERS, "help": _TIERS_HELP},
    "--elements": {"type": count, "metavar": "N", "help": _ELEMENTS_HELP},
}


def suite(name: str, operation: str = "", **fields: Any) -> Suite:
    """The suite of a row operation of `TRAFFIC`; `fields` override the common fields."""
    common: dict[str, Any] = {
        "names": names,
        "program": program,
        "label": label,
        "views": views,
        "ours": "auto",
        "axes": {"dtype": DTYPES, "direction": tuple(TRAFFIC[operation or name])},
        "options": OPTIONS,
        "defaults": {"dtypes": DTYPES[:2]},
    }
    return Suite(name=name, **(common | fields))


def _softmax_cases(options: Options) -> Iterable[Case]:
    """Every dtype, direction and length, then the cases of few rows."""
    yield from row_cases(options.operation, SOFTMAX_COLS, options)
    few_rows = options.few_rows
    if few_rows or (few_rows is None and jax.default_backend() != "cpu"):
        for dtype, shape in product(DTYPES, FEW_ROWS):
            yield row_case(options.operation, "fwd", dtype, *shape, group="few_rows")


def watched_rows(
    operation: str, platform: str, lengths: Iterable[int], dtypes: Iterable[str], *directions: str
) -> Iterable[tuple[str, Case]]:
    """The cases that `regress` measures for some lengths."""
    elements = 2**20 if platform == "cpu" else 2**26
    for dtype, direction, cols in product(dtypes, directions, lengths):
        yield "rows", row_case(operation, direction, dtype, elements // cols, cols)


def _watched_softmax(platform: str) -> Iterable[tuple[str, Case]]:
    """One or two lengths of every tier, and few rows."""
    on_cpu, wide, directions = platform == "cpu", DTYPES[:2], ("fwd", "grad")
    for operation, of_cpu, of_gpu, dtypes in (
        ("softmax", (64, 1001, 4096), TIERS_COLS, wide),
        ("log_softmax", (1001,), (257, 8192, 50257, 131072), wide),
        ("softmax", (1001,), (1000, 50257), ("float16",)),
    ):
        lengths = of_cpu if on_cpu else of_gpu
        yield from watched_rows(operation, platform, lengths, dtypes, *directions)
    shapes = {"fwd": FEW_ROWS, "grad": FEW_ROWS[2:5]}
    for dtype, direction in product(wide, shapes):
        for shape in ((4, 512),) if on_cpu else shapes[direction]:
            yield "few_rows", row_case("softmax", direction, dtype, *shape, group="few_rows")


def _watched_logsumexp(platform: str) -> Iterable[tuple[str, Case]]:
    """Lengths of the tiers "warp" and "cluster"."""
    lengths = (1001,) if platform == "cpu" else (197, 50257)
    return watched_rows("logsumexp", platform, lengths, DTYPES[:2], "fwd", "grad")


_FEW_ROWS_HELP = "also measure the latency on small inputs (default: on a GPU)"
SUITES = (
    suite(
        "softmax",
        summary="softmax and log_softmax, forward and backward, compared with jax.nn and a copy",
        cases=_softmax_cases,
        options={
            **OPTIONS,
            "--operation": {"choices": ("softmax", "log_softmax"), "default": "softmax"},
            "--few-rows": {"action": argparse.BooleanOptionalAction, "help": _FEW_ROWS_HELP},
        },
        watched=_watched_softmax,
    ),
    suite(
        "logsumexp",
        summary="logsumexp, forward, backward and both, compared with jax.nn, a read and a copy",
        cases=partial(row_cases, "logsumexp", LOGSUMEXP_COLS),
        watched=_watched_logsumexp,
    ),
    suite(
        "rms_norm",
        summary="RMSNorm, forward and backward, compared with plain JAX and a copy",
        cases=partial(row_cases, "rms_norm", RMS_NORM_COLS),
        watched=lambda platform: watched_rows("rms_norm", platform, (4096,), ("bfloat16",), "grad"),
    ),
)


def lengths(seed: int) -> list[int]:
    """The lengths that a seed draws, in ascending order."""
    draw = random.Random(seed)

    def spread(low: int, high: int) -> list[int]:
        """One length from each of 12 intervals of equal ratio."""
        return [int(low * (high / low) ** ((i + draw.random()) / 12)) for i in range(12)]

    short, middle = draw.sample(range(1, 129), 12), spread(129, 4097)
    is_odd = draw.sample((True, False) * 6, 12)
    long = [
        n | 1 if odd else n // 8 * 8 for n, odd in zip(spread(4104, _LONGEST), is_odd, strict=True)
    ]
    return sorted({*short, *middle, *long, *VOCABULARIES})


def _map_cases(options: Options) -> Iterable[Case]:
    """Every dtype, direction, length and number of rows, shuffled by the seed."""
    size = options.bytes or (2**22 if jax.default_backend() == "cpu" else 2**28)
    found = []
    for dtype, direction in product(options.dtypes, options.directions):
        for cols in options.cols or lengths(options.seed):
            case = partial(row_case, "softmax", direction, dtype, cols=cols)
            many = max(1, size // ITEM_BYTES[dtype] // cols)
            found.append(case(many, group="many_rows"))
            if cols >= _MAP_ROWS_FROM:
                found += [case(n, group="few_rows") for n in MAP_ROWS if 2 * n <= many]
    random.Random(options.seed).shuffle(found)
    return [with_tier({**case, "part": i // _PART}) for i, case in enumerate(found)]


@cache
def _noise(log2: int, dtype: str) -> np.ndarray:
    """Random normal numbers on the host, from which `_draw_slices` copies its arrays."""
    return np.asarray(normal(0, (2**log2 + 2**18,), dtype))


def _draw_slices(
    types: Sequence[jax.ShapeDtypeStruct], is_few: bool, turns: int
) -> list[Arguments]:
    """Slices of `_noise` at different offsets, per rotation; for few rows one tuple for a chain."""

    def array(like: jax.ShapeDtypeStruct, number: int) -> jax.Array:
        size = math.prod(like.shape)
        noise = _noise((size - 1).bit_length(), like.dtype.name)
        return jax.device_put(noise[4099 * number :][:size].reshape(like.shape))

    each = range(0, turns * len(types), len(types))
    found = [tuple(array(x, first + i) for i, x in enumerate(types)) for first in each]
    return [tuple(found)] if is_few else found


def kernels(program: Any, arguments: Arguments) -> int:
    """The number of kernels in a compiled program."""
    return len(_KERNEL.findall(program.as_text() or ""))


def map_program(case: Case, name: str) -> Program:
    """The program of the copy, XLA or ours."""
    function, types = function_of(case, name)
    few, look = is_few(case), {"kernels": kernels}
    turns = rotations(2 * case["rows"] * case["cols"] * ITEM_BYTES[case["dtype"]])
    drawn = partial(_draw_slices, types, few, turns)
    if not few:
        return Program(function, drawn, str(types), inspect=look)
    # A program with 16 small arrays makes 128 calls, because its dispatch takes as long as 32 of the
    # shortest calls.
    rounds = max(2, turns // 2)
    chained = chain(jnp.negative if name == "copy" else function, rounds)
    return Program(chained, drawn, str(types), rounds * turns, look)


def _where(m: Measured) -> str:
    """The size of a cell, and its tier if known."""
    return f"{m['rows']} x {m['cols']}" + (f", {m['tier']}" if m["tier"] else "")


SWEEP = t.Sweep("x jax.nn", lambda m: m.ratio("xla", "auto"), _where, 1 / TOLERANCE, shown=8)


def _map_views(run: Run) -> list[t.View]:
    """A table for each dtype and direction."""
    names = {"copy": "copy", "jax.nn": "xla", "ours": "auto"}
    columns = [
        *t.fields("cols", "rows"),
        *(t.fields("tier") if any(m["tier"] for m in run.measured) else ()),
        *(t.time(f"{head} us", name, "us", 1) for head, name in names.items()),
        t.Column("of copy", of_ceiling, "{:.2f}"),
        t.times_faster("x jax.nn", "xla", "auto"),
    ]
    return [SWEEP.view("{operation} {direction}, {dtype}", columns)]


_BYTES_HELP = "size of the arrays of many rows (default: 2^28 on a GPU, 2^22 on a CPU)"
MAP = suite(
    "map",
    operation="softmax",
    summary="softmax at lengths drawn from a seed, on many rows and on few",
    cases=_map_cases,
    names=lambda case, options: ("copy", "xla", "auto"),
    program=map_program,
    views=_map_views,
    options={
        "--seed": seeded("draws the lengths", tuning=1, published=3),
        "--cols": several(count, "N", "these lengths instead of drawn ones"),
        "--bytes": {"type": count, "metavar": "N", "help": _BYTES_HELP},
    },
    defaults={"dtypes": DTYPES[:2], "min_sample_ms": 5.0},
)
