"""The suite ``logsumexp``: forward and backward over a range of column counts.

Compared in one run: a plain pass over memory, ``jax.nn.logsumexp`` under jit, ours as a user gets it
(``auto``) and each tier by force, all over the last axis. How a call is timed is written down in
``jaxkernels.bench.timing``, the passes over memory in ``jaxkernels.bench.rows``; what is timed:

* ``fwd``: y, a scalar for each row, from x. Model bytes: read x, write y. Its ceiling is ``read``.
* ``grad``: dx from what the forward kept and dy; the forward is never run inside. Ours and XLA's are
  the functions that ``jax.vjp`` returns, each a function of its own residuals. Ours keeps x. XLA keeps
  the exponentials, so that less is left to do; what it takes to store them shows in ``both`` alone.
  Model bytes: read x and dy, a scalar for each row, and write dx. Its ceiling is ``copy``.
* ``both``: y and dx from x and dy, in one program. Model bytes: those of ``fwd`` and ``grad``
  together. It is compared with ``copy``.

Throughput is model bytes over the median time, so a forward that reads its input twice shows about
half of the read's rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product

import jax

import jaxkernels as jk
from jaxkernels.bench import row_views, rows
from jaxkernels.bench.programs import normal, with_gradient
from jaxkernels.bench.records import Case
from jaxkernels.bench.rows import DTYPES, draw, row_case
from jaxkernels.bench.suite import Arguments, Draw, Function, Options, Program

# Lengths of every tier: powers of two, odd ones, vocabularies.
GPU_COLS = (
    *(8, 17, 33, 128, 197, 512, 1001, 1024, 2048, 4096, 8192, 16384),
    *(24576, 32003, 32768, 50257, 65536, 128256, 131072, 262144, 1048576),
)
_ours: Function = partial(jk.logsumexp, axis=-1)
_xla: Function = partial(jax.nn.logsumexp, axis=-1)


def cases(options: Options) -> Iterable[Case]:
    """Every dtype, direction and length."""
    return rows.row_cases("logsumexp", GPU_COLS, options)


def _draw_x(case: Case) -> Draw:
    return partial(draw, case, 1, touched=1 if case["direction"] == "fwd" else 2)


def _draw_with_cotangent(case: Case) -> list[Arguments]:
    """(dy, x) for each rotation, of shapes (rows,) and (rows, cols)."""
    drawn = _draw_x(case)()
    shape, dtype = (case["rows"],), case["dtype"]
    return [(normal(len(drawn) + i, shape, dtype), x) for i, (x,) in enumerate(drawn)]


def _draw_kept(function: Function, case: Case) -> list[Arguments]:
    """(*residuals, dy) for each rotation: what the vjp of a function of x keeps."""
    keep = jax.jit(lambda x: jax.tree.leaves(jax.vjp(function, x)[1]))
    return [(*keep(x), dy) for dy, x in _draw_with_cotangent(case)]


def _program(function: Function, case: Case, of_x: Draw) -> Program:
    if case["direction"] == "fwd":
        return rows.jitted(lambda: function, of_x)
    if case["direction"] == "both":
        return rows.jitted(lambda: with_gradient(function), partial(_draw_with_cotangent, case))
    drawn = partial(_draw_kept, function, case)
    return rows.jitted(lambda: rows.pullback(function, case)[1], drawn)


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """A ceiling, XLA and ours of one case."""
    of_x = _draw_x(case)
    return rows.compared(
        case,
        options,
        of_x,
        xla=_program(_xla, case, of_x),
        ours=lambda tier: _program(rows.forced(_ours, tier), case, of_x),
    )


def watched(platform: str) -> Iterable[tuple[str, Case, Program]]:
    """Rows of a warp and of a cluster, on any GPU."""
    elements, lengths = (2**20, (1001,)) if platform == "cpu" else (2**26, (197, 50257))
    for dtype, direction, cols in product(DTYPES[:2], ("fwd", "grad"), lengths):
        case = row_case("logsumexp", direction, dtype, max(1, elements // cols), cols)
        yield "rows", case, _program(rows.forced(_ours), case, _draw_x(case))


SUITE = row_views.suite(
    "logsumexp",
    summary="logsumexp, forward, backward and both, beside jax.nn's, a plain read and a plain copy",
    cases=cases,
    contenders=contenders,
    watched=watched,
)
