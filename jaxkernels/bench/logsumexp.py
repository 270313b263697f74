"""The suite ``logsumexp``: forward and backward over a range of column counts.

One run compares a plain pass over memory, ``jax.nn.logsumexp`` under jit, our default (``auto``) and each
forced tier, all over the last axis (``rows.TRAFFIC`` has the model bytes and the ceilings):

* ``fwd``: y, one number per row, from x.
* ``grad``: dx from the residuals and dy, without the forward pass. Each contender runs the function that
  ``jax.vjp`` returns, with its own residuals. Ours saves x. XLA saves the exponentials and so computes
  less here; the cost of storing them shows only in ``both``.
* ``both``: y and dx from x and dy, in one program.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import product

from jaxkernels.bench import rows
from jaxkernels.bench.records import Case
from jaxkernels.bench.rows import DTYPES, row_case

# Lengths for every tier: powers of two, odd lengths, vocabularies.
GPU_COLS = (
    *(8, 17, 33, 128, 197, 512, 1001, 1024, 2048, 4096, 8192, 16384),
    *(24576, 32003, 32768, 50257, 65536, 128256, 131072, 262144, 1048576),
)


def watched(platform: str) -> Iterable[tuple[str, Case]]:
    """Lengths of the tiers "warp" and "cluster", on any GPU."""
    elements, lengths = (2**20, (1001,)) if platform == "cpu" else (2**26, (197, 50257))
    for dtype, direction, cols in product(DTYPES[:2], ("fwd", "grad"), lengths):
        yield "rows", row_case("logsumexp", direction, dtype, max(1, elements // cols), cols)


SUITE = rows.suite(
    "logsumexp",
    summary="logsumexp, forward, backward and both, compared with jax.nn, a read and a copy",
    cases=partial(rows.row_cases, "logsumexp", GPU_COLS),
    watched=watched,
)
