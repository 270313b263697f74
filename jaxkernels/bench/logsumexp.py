"""The suite ``logsumexp``: forward and backward over a range of column counts.

Compared in one run: a plain pass over memory, ``jax.nn.logsumexp`` under jit, ours as a user gets
it (``auto``) and each tier by force, all over the last axis:

* ``fwd``: y, a scalar for each row, from x. Model bytes: read x, write y. Its ceiling is ``read``.
* ``grad``: dx from the residuals and dy; the forward is never run inside. Each has the function
  that ``jax.vjp`` returns and its own residuals. Ours keeps x. XLA keeps the exponentials, so that
  less is left to do; the cost of storing them shows in ``both`` alone. Model bytes: read x and dy,
  a scalar for each row, and write dx. Its ceiling is ``copy``.
* ``both``: y and dx from x and dy, in one program. Model bytes: those of ``fwd`` and ``grad``
  together. It is compared with ``copy``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import product

from jaxkernels.bench import rows
from jaxkernels.bench.records import Case
from jaxkernels.bench.rows import DTYPES, row_case

# Lengths of every tier: powers of two, odd ones, vocabularies.
GPU_COLS = (
    *(8, 17, 33, 128, 197, 512, 1001, 1024, 2048, 4096, 8192, 16384),
    *(24576, 32003, 32768, 50257, 65536, 128256, 131072, 262144, 1048576),
)


def watched(platform: str) -> Iterable[tuple[str, Case]]:
    """Rows of a warp and of a cluster, on any GPU."""
    elements, lengths = (2**20, (1001,)) if platform == "cpu" else (2**26, (197, 50257))
    for dtype, direction, cols in product(DTYPES[:2], ("fwd", "grad"), lengths):
        yield "rows", row_case("logsumexp", direction, dtype, max(1, elements // cols), cols)


SUITE = rows.suite(
    "logsumexp",
    summary="logsumexp, forward, backward and both, compared with jax.nn, a read and a copy",
    cases=partial(rows.row_cases, "logsumexp", GPU_COLS),
    watched=watched,
)
