"""The tables of suites, from made-up times."""

import math

from bench_cases import measured, run_of

from jaxkernels.bench.__main__ import SUITES, refusals
from jaxkernels.bench.attention import heads_case
from jaxkernels.bench.rows import row_case
from jaxkernels.bench.sgemm_products import product

MIB = 2**20


def timed(case, ms, *more):
    return measured(case, {name: s / 1e3 for name, s in ms.items()}, *more)


def of_rows(operation, direction, cols, ms, group="rows", dtype="float32", rows=1024, **tier):
    return timed(row_case(operation, direction, dtype, rows, cols, group) | tier, ms)


def of_attention(group, variant, direction, shape, ms, **extra):
    return timed(heads_case(group, "float32", variant, direction, shape), ms, {"ours": extra})


def of_rungs(n, us, rung, **refused):
    case = product("few_lines" if n < 17 else "many_lines", 1, 1024, n, 64)
    times = {name: number / 1e6 for name, number in us.items()}
    return measured(case, times, {"auto": {"rung": rung}}, refused)


# By suite and platform: cases with their milliseconds, and the tables.
TABLES = [
    # A gradient, which reads two arrays, takes 1.5 times as long as a copy. Times may be unknown.
    ("softmax", "gpu", [
        of_rows("softmax", "grad", MIB, {"copy": 2, "xla": 6, "auto": 3, "block": 6}, tier="warp"),
        of_rows("softmax", "grad", 8, {"copy": math.inf, "xla": math.nan, "auto": 0}, tier="warp"),
        of_rows("softmax", "fwd", 64, {"xla": 3e-3, "auto": 1e-3}, "few_rows", rows=4),
    ]),
    # The sum is the fastest read. It moves 1 GiB, and ours another MiB.
    ("logsumexp", "gpu", [
        of_rows("logsumexp", "fwd", 1024, {"row_max": 2, "sum": 1, "piece_max": 3, "auto": 1},
                rows=2**18),
        of_rows("logsumexp", "both", MIB, {"copy": 2, "auto": 3}),
    ]),
    # The worst case is the first. 1.0275 times XLA's time is not slower.
    ("map", "gpu", [
        of_rows("softmax", "fwd", 50257, {"copy": 2e-3, "xla": 4e-3, "auto": us / 1e3}, "few_rows",
                rows=rows, tier=tier)
        for us, rows, tier in ((4.11, 4, "block"), (8, 1, "cluster"))
    ]),
    # Scores of 384 bytes: a copy moves 768, and model bytes are five streams. A causal row is read
    # up to its diagonal, 240 bytes. A mask has 32 bytes.
    ("attention", "gpu", [
        of_attention("scores", "plain", "both", (2, 3, 4),
                     {"copy": 0.768, "xla": 1.92 * 4, "ours": 1.92 * 2}, temp_bytes=3 * MIB),
        of_attention("scores", "causal", "both", (2, 3, 4),
                     {"copy": 0.768, "ours": 0.24 * 3 + 0.384 * 2}),
        of_attention("scores", "mask", "both", (2, 3, 4), {"copy": 0.768, "ours": 1.92 + 0.032}),
        of_attention("scores", "causal", "fwd", (1, 16, 4096), {"copy": 1, "ours": 1}),
        of_attention("layers", "causal", "fwd", (1, 2, 8, 4), {"xla": 4, "ours": 2, "cudnn": 1, "torch": 3},
                     path="ffi"),
    ]),
    # The worst choice is shown first. A rung that refused is not the best.
    ("rungs", "gpu", [
        of_rungs(99, {"xla": 8, "auto": 10, "pipelined": 10}, "pipelined", tensor="no scratch"),
        of_rungs(100, {"xla": 60, "auto": 50, "pipelined": 40, "tensor": 50}, "tensor"),
        of_rungs(101, {"xla": 60}, "tensor", auto="no"),
        of_rungs(16, {"xla": 6, "auto": 4, "thin": 4, "pipelined": 8}, "thin"),
    ]),
]  # fmt: skip
SHOWN = """
softmax: softmax grad, float32 (TB/s of model bytes)
cols rows copy jax.nn ours of copy x jax.nn tier block
1048576 1024 4.29 2.15 4.29 1.000 2.00 warp 2.15
8 1024 - - - - - warp -
softmax: softmax on few rows
direction rows cols dtype jax.nn us ours us
fwd 4 64 float32 3.0 1.0
logsumexp: logsumexp fwd, float32 (TB/s of model bytes)
cols rows read jax.nn ours of read x jax.nn
1024 262144 1.07 - 1.07 1.001 -
logsumexp: logsumexp both, float32 (TB/s of model bytes)
cols rows copy jax.nn ours of copy x jax.nn
1048576 1024 4.29 - 4.29 1.000 -
map: softmax fwd, float32
cols rows tier copy us jax.nn us ours us of copy x jax.nn
50257 1 cluster 2.0 4.0 8.0 0.25 0.50
50257 4 block 2.0 4.0 4.1 0.49 0.97
x jax.nn of 2 cases: geometric mean 0.698, worst 0.500 (1 x 50257, cluster), 0.973 (4 x 50257, \
block), 1 below 0.971
attention: scale, mask and softmax, both, float32
length batch heads variant copy TB/s XLA ms ours ms x XLA ours of model XLA of model ours temp \
MiB XLA temp MiB
4 2 3 plain 0.00 7.680 3.840 2.00 2.00 4.00 3.0 -
4 2 3 causal 0.00 - 1.488 - 1.00 - - -
4 2 3 mask 0.00 - 1.952 - 1.00 - - -
of model: time over that of the model bytes at the rate of the copy
attention: scale, mask and softmax, fwd, float32
length batch heads variant copy TB/s XLA ms ours ms x XLA ours of model XLA of model
4096 1 16 causal 2.15 - 1.000 - 1.33 -
of model: time over that of the model bytes at the rate of the copy
attention: attention layers
dtype direction variant batch length heads depth XLA ms cuDNN ms torch ms ours ms x XLA x cuDNN \
x torch path of ours
float32 fwd causal 1 8 2 4 4.000 1.000 3.000 2.000 2.00 0.50 1.50 ffi
XLA's float32 at the highest precision; cuDNN has no float32
rungs: products of more rows and columns
product planned best planned us best us cuBLAS us regret auto of cuBLAS best of cuBLAS
(1024, 100, 64) tensor pipelined 50.0 40.0 60.0 1.250 1.200 1.500
(1024, 99, 64) pipelined pipelined 10.0 10.0 8.0 1.000 0.800 0.800
(1024, 101, 64) tensor - - - 60.0 - - -
regret of 2 cases: geometric mean 1.118, worst 1.250 ((1024, 100, 64)), 1 above 1.2
auto over cuBLAS below 30 us of 1 cases: geometric mean 0.800, worst 0.800 ((1024, 99, 64)), 1 \
below 1
best over cuBLAS below 30 us of 1 cases: geometric mean 0.800, worst 0.800 ((1024, 99, 64)), 1 \
below 1
auto over cuBLAS from 30 us of 1 cases: geometric mean 1.200, worst 1.200 ((1024, 100, 64)), 0 \
below 1
best over cuBLAS from 30 us of 1 cases: geometric mean 1.500, worst 1.500 ((1024, 100, 64)), 0 \
below 1
rungs: products of at most 16 rows or columns
product planned best planned us best us cuBLAS us regret auto of cuBLAS best of cuBLAS
(1024, 16, 64) thin thin 4.0 4.0 6.0 1.000 1.500 1.500
regret of 1 cases: geometric mean 1.000, worst 1.000 ((1024, 16, 64)), 0 above 1.2
auto over cuBLAS below 30 us of 1 cases: geometric mean 1.500, worst 1.500 ((1024, 16, 64)), 0 \
below 1
best over cuBLAS below 30 us of 1 cases: geometric mean 1.500, worst 1.500 ((1024, 16, 64)), 0 \
below 1
tensor: no scratch (product (1024, 99, 64))
auto: no (product (1024, 101, 64))
"""


def test_tables():
    found = []
    for name, platform, cases in TABLES:
        (suite,) = (suite for suite in SUITES if suite.name == name)
        run = run_of(cases, platform)
        for table in (table for view in suite.views(run) for table in view.tables(run.measured)):
            lines = map(" ".join, (table.headers, *table.rows))
            found += [f"{name}: {table.title}", *lines, *table.notes]
        found += refusals(run, suite)
    assert found == SHOWN.split("\n")[1:-1]
