"""The suite ``map``: softmax at lengths and numbers of rows that nobody chose.

A seed draws 40 lengths: 12 up to 128, 12 up to 4096, and 16 long ones up to a million, of which 4
are known vocabularies, the same ones for every seed, 6 are odd and 6 are multiples of 8. Seed 1 is
for tuning, and rules were measured at lengths of seed 2. Seed 3 is published: nothing is tuned on it.

Each cell has ours (``auto``), ``jax.nn.softmax`` and a copy of the same bytes, timed as written down
in ``jaxkernels.bench.timing``; ``fwd`` and ``grad`` are those of ``jaxkernels.bench.softmax``.

* ``many_rows``: arrays of 2^28 bytes, a call at a time.
* ``few_rows``: 1 to 132 rows of 8192 columns or more, as far as two such arrays have the bytes of
  one of many rows. Such calls take microseconds, so many are
  chained in one program over several arrays, in the same way for all three. There are 16 arrays at
  most, so small ones may stay in the cache, for all three. In place of the copy, which XLA could
  leave out of a chain, x is negated. ``kernels`` in the file is how many a program runs: no whole
  number of them for each call would mean that XLA made one of several calls.

Cells come in an order drawn from the seed, so that what ``--limit`` leaves out lies anywhere. Those
of a part are compiled by all cores, and none while another is sampled.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels.bench import rows
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import chain, normal, rotations
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite, count, several

TUNING, PUBLISHED = 1, 3
FEW_ROWS = (1, 4, 16, 64, 132)
VOCABULARIES = (32000, 50257, 128256, 151936)
# Shorter rows are few only where a call is nothing but its launch.
_FEW_ROWS_FROM = 8192
_LONGEST = 1_000_000
# Cells whose programs are compiled together, and whose arrays are in memory together.
_PART = 24
# Ours is slower where it takes longer than so many times XLA's time.
TOLERANCE = 1.03
_POOL = ThreadPoolExecutor()
_KERNEL = re.compile(r" (?:fusion|custom-call|copy)\(")


def lengths(seed: int) -> list[int]:
    """The lengths that a seed draws, ascending.

    Example:
        >>> len(lengths(1)), lengths(1) == lengths(2)
        (40, False)
    """
    draw = random.Random(seed)

    def spread(low: int, high: int) -> list[int]:
        """One of each of 12 intervals of equal ratio."""
        return [int(low * (high / low) ** ((i + draw.random()) / 12)) for i in range(12)]

    short, middle = draw.sample(range(1, 129), 12), spread(129, 4097)
    is_odd = draw.sample((True, False) * 6, 12)
    long = [
        n | 1 if odd else n // 8 * 8 for n, odd in zip(spread(4104, _LONGEST), is_odd, strict=True)
    ]
    return sorted({*short, *middle, *long, *VOCABULARIES})


def _elements(dtype: str, options: Options) -> int:
    """The size of the arrays of many rows, the largest ones."""
    size = options.bytes or (2**22 if jax.default_backend() == "cpu" else 2**28)
    return size // rows.ITEM_BYTES[dtype]


def cases(operation: str, options: Options) -> Iterable[Case]:
    """Every dtype, direction, length and number of rows, in an order that the seed draws."""
    found = []
    for dtype, direction in product(options.dtypes, options.directions):
        for cols in options.cols or lengths(options.seed):
            case = partial(rows.row_case, operation, direction, dtype, cols=cols)
            many = max(1, _elements(dtype, options) // cols)
            found.append(case(many, group="many_rows"))
            if cols >= _FEW_ROWS_FROM:
                found += [case(n, group="few_rows") for n in FEW_ROWS if 2 * n <= many]
    random.Random(options.seed).shuffle(found)
    return [rows.with_tier({**case, "part": i // _PART}) for i, case in enumerate(found)]


@cache
def _noise(size: int, dtype: str) -> np.ndarray:
    """Random normal numbers, of which arrays of any shape are views."""
    return np.asarray(normal(0, (size,), dtype))


def _draw(case: Case, turns: int, most: int) -> list[Arguments]:
    """Copies of views that begin at different elements; of few rows all that a chain takes."""
    shape, reads = (case["rows"], case["cols"]), rows.traffic(case).reads
    size = math.prod(shape)
    noise = _noise(max(size, most) + 2**18, case["dtype"])

    def array(number: int) -> jax.Array:
        return jax.device_put(noise[4099 * number :][:size].reshape(shape))

    found = [tuple(array(reads * turn + i) for i in range(reads)) for turn in range(turns)]
    return [tuple(found)] if case["group"] == "few_rows" else found


def kernels(program: Any, arguments: Arguments) -> int:
    """How many kernels a compiled program runs."""
    return len(_KERNEL.findall(program.as_text() or ""))


def contenders(suite: Suite, case: Case, options: Options) -> Mapping[str, Program]:
    """A copy, XLA and ours of one case, as another suite has them; they begin to compile now."""
    few, dtype = case["group"] == "few_rows", case["dtype"]
    turns = rotations(2 * case["rows"] * case["cols"] * rows.ITEM_BYTES[dtype])
    # Small arrays, which are many, 128 times: dispatching a program with all of them takes as long
    # as 32 of the shortest calls.
    rounds = max(2, turns // 2)
    x = jax.ShapeDtypeStruct((case["rows"], case["cols"]), dtype)
    arguments = (x,) * rows.traffic(case).reads
    draw = partial(_draw, case, turns, _elements(dtype, options))
    alone = suite.contenders({**case, "group": "rows"}, argparse.Namespace(tiers=("auto",)))

    def copied(_: Arguments) -> Function:
        copy = jnp.negative if few else jnp.copy
        return jax.jit(lambda *arguments: copy(arguments[-1]))

    def compiled(make: Callable[[Arguments], Function]) -> Function:
        if few:
            return jax.jit(chain(make(()), rounds)).lower(*[arguments] * turns).compile()
        return make(()).lower(*arguments).compile()

    def program(make: Callable[[Arguments], Function]) -> Program:
        future = _POOL.submit(compiled, make)
        operations = rounds * turns if few else 1
        return Program(lambda _: future.result(), draw, operations, {"kernels": kernels})

    makes = {name: found.make for name, found in alone.items()} | {"copy": copied}
    return {name: program(make) for name, make in makes.items()}


def gain(m: Measured) -> float | None:
    """How many times faster than XLA ours is."""
    return m.ratio("xla", "auto")


def height(m: Measured) -> str:
    """The number of rows as a map names it."""
    return str(m["rows"]) if m["group"] == "few_rows" else "many"


def _sorted(run: Run) -> list[Measured]:
    """The cells of a run by dtype, from many rows to one, by direction and length."""

    def key(m: Measured) -> tuple:
        few = m["group"] == "few_rows"
        dtype = rows.DTYPES.index(m["dtype"])
        return dtype, few, -m["rows"] if few else 0, m["direction"], m["cols"]

    return sorted(run.measured, key=key)


def summary(members: Iterable[Measured]) -> str:
    """How many cells are slower than XLA, the geometric mean of all, and which are the worst."""
    gains = sorted(((g, m) for m in members if (g := gain(m))), key=lambda pair: pair[0])
    worst = [
        f"{g:.2f} {height(m)} x {m['cols']}" + (f" ({m['tier']})" if m["tier"] else "")
        for g, m in gains[:8]
        if g * TOLERANCE < 1
    ]
    if not gains:
        return "no cell was measured"
    mean = statistics.geometric_mean(g for g, _ in gains)
    below = sum(g * TOLERANCE < 1 for g, _ in gains)
    said = f"x jax.nn: {below} of {len(gains)} cells below 1 by more than 3 %; geometric mean {mean:.2f}"
    return f"{said}; worst: {', '.join(worst)}" if worst else said


def _text(m: Measured) -> str:
    """The metrics of a cell, for a table."""
    values = (rows.of_ceiling(m), gain(m))
    return " ".join("-" if value is None else f"{value:.2f}" for value in values)


def _view(members: Sequence[Measured]) -> t.View:
    cells = {(m["cols"], height(m)): m for m in members}
    first = [line[0].case for line in t.group_by(members, lambda m: m["cols"]).values()]
    columns = [
        t.Column(name, lambda m, name=name: cells.get((m["cols"], name)), _text)
        for name in dict.fromkeys(map(height, members))
    ]
    return t.View(
        "{operation} {direction}, {dtype}, columns by rows (of copy, x jax.nn)",
        [*t.fields("cols"), *columns],
        lambda m: m.case in first,
        notes=[summary(members)],
        order=lambda m: m["cols"],
    )


def views(run: Run) -> list[t.View]:
    """For each dtype and direction a line for each length, a column for each number of rows."""
    groups = t.group_by(_sorted(run), lambda m: (m["dtype"], m["direction"]))
    return [_view(members) for members in groups.values()]


_SEED_HELP = f"draws the lengths (default: {TUNING}, for tuning; {PUBLISHED} is what is published)"
_BYTES_HELP = "size of the arrays of many rows (default: 2^28 on a GPU, 2^22 on a CPU)"


def suite_of(softmax: Suite) -> Suite:
    """The map of the softmax that another suite measures."""
    return Suite(
        name="map",
        summary="softmax at lengths drawn from a seed, on many rows and on few",
        cases=partial(cases, "softmax"),
        contenders=partial(contenders, softmax),
        label=rows.label,
        views=views,
        axes={"dtype": rows.DTYPES, "direction": tuple(rows.TRAFFIC["softmax"])},
        options={
            "--seed": {"type": int, "default": TUNING, "metavar": "N", "help": _SEED_HELP},
            "--cols": several(count, "N", "these lengths instead of drawn ones"),
            "--bytes": {"type": count, "metavar": "N", "help": _BYTES_HELP},
        },
        defaults={"dtypes": rows.DTYPES[:2], "min_sample_ms": 5.0},
        together=lambda case: case["part"],
    )
