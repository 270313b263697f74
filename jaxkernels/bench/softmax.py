"""The suite ``softmax``: forward and backward over a range of column counts.

One run compares a plain device copy, ``jax.nn.softmax`` (or ``jax.nn.log_softmax``) under jit, our
default (``auto``) and each forced tier:

* ``fwd``: y from x. Model bytes: read x, write y.
* ``grad``: dx from y and dy, without the forward pass. Ours is the function that ``jax.vjp`` returns,
  whose only residual is y. (16-bit log_softmax saves x instead; it is given y, because softmax(y) =
  softmax(x).) XLA's is the autodiff of ``jax.nn`` in its most favourable form, from y instead of the
  unnormalised exponentials. Model bytes: read y and dy, write dx.

The group ``few_rows`` has inputs so small that only the latency of a call matters; its calls are chained
in one program. A kernel that reads its input twice shows about two thirds of the copy's rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import product

import jax

from jaxkernels.bench import rows
from jaxkernels.bench.records import Case
from jaxkernels.bench.rows import DTYPES, row_case
from jaxkernels.bench.suite import Options

# Lengths: powers of two, model widths, vocabularies, and odd lengths with their even neighbours.
GPU_COLS = (
    *(32, 64, 128, 256, 512, 768, 1000, 1001, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384),
    *(24576, 32768, 50256, 50257, 65536, 131072, 151935, 151936, 262144, 524288, 1048576),
)
TIERS_COLS = (32, 1000, 1001, 4096, 16384, 50257, 131072, 2**20)
FEW_ROWS = ((1, 32768), (1, 131072), (8, 131072), (64, 128256), (256, 256), (4096, 128))


def cases(options: Options) -> Iterable[Case]:
    """Every dtype, direction and length, then the cases of few rows."""
    yield from rows.row_cases(options.operation, GPU_COLS, options)
    few_rows = options.few_rows
    if few_rows or (few_rows is None and jax.default_backend() != "cpu"):
        for dtype, shape in product(DTYPES, FEW_ROWS):
            yield row_case(options.operation, "fwd", dtype, *shape, group="few_rows")


def watched(platform: str) -> Iterable[tuple[str, Case]]:
    """One or two lengths of every tier, on any GPU, and few rows."""
    on_cpu, wide = platform == "cpu", DTYPES[:2]
    elements, of_tiers = (2**20, (64, 1001, 4096)) if on_cpu else (2**26, TIERS_COLS)
    kinds = (
        ("softmax", of_tiers, wide),
        ("log_softmax", (1001,) if on_cpu else (257, 8192, 50257, 131072), wide),
        ("softmax", (1001,) if on_cpu else (1000, 50257), ("float16",)),
    )
    for operation, lengths, dtypes in kinds:
        for dtype, direction, cols in product(dtypes, ("fwd", "grad"), lengths):
            yield "rows", row_case(operation, direction, dtype, max(1, elements // cols), cols)
    shapes = {"fwd": FEW_ROWS, "grad": FEW_ROWS[2:5]}
    for dtype, direction in product(wide, shapes):
        for shape in ((4, 512),) if on_cpu else shapes[direction]:
            yield "few_rows", row_case("softmax", direction, dtype, *shape, group="few_rows")


_FEW_ROWS_HELP = "also measure the latency on small inputs (default: on a GPU)"
SUITE = rows.suite(
    "softmax",
    summary="softmax and log_softmax, forward and backward, compared with jax.nn and a copy",
    cases=cases,
    options={
        **rows.OPTIONS,
        "--operation": {"choices": ("softmax", "log_softmax"), "default": "softmax"},
        "--few-rows": {"action": argparse.BooleanOptionalAction, "help": _FEW_ROWS_HELP},
    },
    watched=watched,
)
