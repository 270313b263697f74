"""The suite ``map``: softmax at 40 lengths that a seed draws.

12 lengths are up to 128, 12 up to 4096, and 16 up to a million. The last 16 are 4 known vocabularies, the same for
every seed, 6 odd lengths and 6 multiples of 8. Seed 1 is for tuning, and seed 2 measured the rules. Seed 3 is
published: nothing is tuned on it. The seed also shuffles the cells, so that ``--limit`` omits cells of every kind.

Each cell times ours (``auto``), ``jax.nn.softmax`` and a copy of the same bytes:

* ``many_rows``: arrays of 2^28 bytes, one call at a time.
* ``few_rows``: 1 to 132 rows of 8192 columns or more, up to half the bytes of ``many_rows``. These calls
  take microseconds, so they are chained in one program over up to 16 arrays; small arrays may stay in the
  cache. The copy is a negation, because XLA could remove a copy from a chain.
"""

import math
import random
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels.bench import rows, traffic
from jaxkernels.bench import tables as t
from jaxkernels.bench.options import count, seeded, several
from jaxkernels.bench.programs import chain, normal, rotations
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Options, Program

ROWS = (1, 4, 16, 64, 132)
VOCABULARIES = (32000, 50257, 128256, 151936)
# Smallest length of ``few_rows``. Below it, a call on a few rows takes only the time of its launch.
_FEW_ROWS_FROM = 8192
_LONGEST = 1_000_000
# Number of cells whose programs are compiled together and whose arrays share the memory.
_PART = 24
# Ours counts as slower above this multiple of XLA's time.
TOLERANCE = 1.03


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


def _cases(options: Options) -> Iterable[Case]:
    size = options.bytes or (2**22 if jax.default_backend() == "cpu" else 2**28)
    found = []
    for dtype, direction in product(options.dtypes, options.directions):
        for cols in options.cols or lengths(options.seed):
            case = partial(rows.row_case, "softmax", direction, dtype, cols=cols)
            many = max(1, size // traffic.ITEM_BYTES[dtype] // cols)
            found.append(case(many, group="many_rows"))
            if cols >= _FEW_ROWS_FROM:
                found += [case(n, group="few_rows") for n in ROWS if 2 * n <= many]
    random.Random(options.seed).shuffle(found)
    return [rows.with_tier({**case, "part": i // _PART}) for i, case in enumerate(found)]


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


def program(case: Case, name: str) -> Program:
    """The program of the copy, XLA or ours."""
    function, types = rows.function_of(case, name)
    turns = rotations(2 * case["rows"] * case["cols"] * traffic.ITEM_BYTES[case["dtype"]])
    drawn = partial(_draw_slices, types, rows.is_few(case), turns)
    if not rows.is_few(case):
        return Program(function, drawn, str(types))
    # A program with 16 small arrays makes 128 calls, because its dispatch takes as long as 32 of the
    # shortest calls.
    rounds = max(2, turns // 2)
    chained = chain(jnp.negative if name == "copy" else function, rounds)
    return Program(chained, drawn, str(types), rounds * turns)


def _label(m: Measured) -> str:
    return f"{m['rows']} x {m['cols']}" + (f", {m['tier']}" if m["tier"] else "")


def _views(run: Run) -> list[t.View]:
    sweep = t.Sweep("x jax.nn", lambda m: m.ratio("xla", "auto"), _label, 1 / TOLERANCE, shown=8)
    names = {"copy": "copy", "jax.nn": "xla", "ours": "auto"}
    columns = [
        *t.fields("cols", "rows"),
        *(t.fields("tier") if any(m["tier"] for m in run.measured) else ()),
        *(t.time(f"{head} us", name, "us", 1) for head, name in names.items()),
        t.Column("of copy", traffic.of_ceiling, "{:.2f}"),
        t.times_faster("x jax.nn", "xla", "auto"),
    ]
    return [sweep.view("{operation} {direction}, {dtype}", columns)]


_BYTES_HELP = "size of the arrays of many rows (default: 2^28 on a GPU, 2^22 on a CPU)"
SUITE = rows.suite(
    "map",
    operation="softmax",
    summary="softmax at lengths drawn from a seed, on many rows and on few",
    cases=_cases,
    names=lambda case, options: ("copy", "xla", "auto"),
    program=program,
    views=_views,
    options={
        "--seed": seeded("draws the lengths", tuning=1, published=3),
        "--cols": several(count, "N", "these lengths instead of drawn ones"),
        "--bytes": {"type": count, "metavar": "N", "help": _BYTES_HELP},
    },
    defaults={"dtypes": rows.DTYPES[:2], "min_sample_ms": 5.0},
)
