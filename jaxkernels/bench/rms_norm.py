"""The suite ``rms_norm``: forward and backward over a range of column counts.

One run compares a plain copy, the same function in plain JAX, our default (``auto``) and each forced tier,
all over the last axis, with a float32 scale (``rows.TRAFFIC`` has the model bytes):

* ``fwd``: y from x.
* ``grad``: dx from the residuals and dy, without the forward pass and without the gradient of the scale.
  Ours saves x. Plain JAX saves what XLA needs of the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from jaxkernels.bench import rows
from jaxkernels.bench.records import Case
from jaxkernels.bench.rows import row_case

# Lengths for every tier: widths of models, odd lengths, long rows.
GPU_COLS = (
    64,
    128,
    197,
    512,
    1024,
    1536,
    2048,
    4096,
    5120,
    8192,
    12288,
    16384,
    32768,
    65536,
    131072,
)


def watched(platform: str) -> Iterable[tuple[str, Case]]:
    """One width of a model."""
    elements = 2**20 if platform == "cpu" else 2**26
    yield "rows", row_case("rms_norm", "grad", "bfloat16", elements // 4096, 4096)


SUITE = rows.suite(
    "rms_norm",
    summary="RMSNorm, forward and backward, compared with plain JAX and a copy",
    cases=partial(rows.row_cases, "rms_norm", GPU_COLS),
    watched=watched,
)
