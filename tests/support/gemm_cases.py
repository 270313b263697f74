"""Operands for the tests of matrix products, and the comparison with `jaxkernels.verify.truth.products`."""

import functools

import jax
import numpy as np
from oracle import assert_within

import jaxkernels as jk
from jaxkernels.verify import values
from jaxkernels.verify.truth.products import contraction, known

ON_GPU = jax.default_backend() == "gpu"
RUNGS = (
    *("naive", "block_tile", "thread_tile", "warp_tile", "split_tile"),
    *("pipelined", "thin", "tensor"),
)
# All rungs are XLA's product on a CPU (test_matmul.py shows it), so one pass is enough there.
ALGORITHMS = RUNGS if ON_GPU else (None,)
TRANSPOSES = ((False, False), (False, True), (True, False), (True, True))
# (batch, m, n, k) that end within the tiles of the pipelined rung, by (rows, columns and slices of
# a block, engine). They are batches, as single products need about a thousand rows to get larger
# tiles. "tma" lines begin at multiples of 16 bytes, as the tensor memory accelerator needs them;
# "floats" do not. test_sgemm_plan.py checks that they get these tiles, and that no tile is missing.
EDGES_OF_TILES = {
    (128, 128, 1, "tma"): ((6, 508, 516, 36), (6, 516, 644, 28)),
    (128, 128, 1, "floats"): ((6, 511, 513, 17), (6, 513, 645, 15)),
    (32, 32, 1, "tma"): ((4, 260, 228, 108), (4, 252, 260, 100)),
    (32, 32, 1, "floats"): ((4, 257, 255, 99), (4, 225, 257, 127)),
    (64, 64, 4, "tma"): ((6, 252, 260, 516), (8, 260, 324, 260)),
    (64, 64, 4, "floats"): ((6, 255, 257, 161), (8, 257, 325, 261)),
    (32, 32, 4, "tma"): ((4, 252, 260, 516), (4, 260, 228, 452)),  # stages are used again and again
    (32, 32, 4, "floats"): ((4, 255, 257, 161), (4, 257, 225, 261)),
    (32, 16, 4, "tma"): ((4, 100, 108, 388), (4, 108, 76, 324)),
    (32, 16, 4, "floats"): ((4, 101, 103, 161), (4, 97, 75, 261)),
}
EDGE_IDS = tuple(f"{m}x{n}x{slices}-{engine}" for m, n, slices, engine in EDGES_OF_TILES)

# (batch, m, n, k) of each form of the rung `thin`, in all transposes: lines, k and columns that end within
# what a block, a warp, a thread and a pack have; few lines of each number that has a kernel, on both sides;
# shares of k of blocks and of clusters. "lines" are along or across k, as the transposes say.
EDGES_OF_THIN = {
    "lines": (
        *((2, 1, 1, 65), (1, 1, 3, 127), (3, 33, 1, 129), (1, 1, 132, 4096), (2, 2, 130, 514)),
        *((1, 67, 3, 1023), (1, 4, 260, 1028), (2, 3, 33, 97), (1, 4, 4, 65537), (3, 260, 4, 132)),
        *((1, 131, 3, 1031), (1, 1001, 2, 100), (1, 17, 1, 9000), (1, 4, 4100, 80)),
        *((9, 6500, 1, 68), (7, 4, 6511, 79), (1, 1, 66000, 66)),
        # more than four lines:
        *((2, 5, 33, 129), (1, 67, 6, 1023), (1, 7, 260, 1028), (2, 8, 130, 516)),
        *((1, 1001, 8, 131), (1, 5, 5, 65537), (3, 132, 8, 2052), (5, 6511, 7, 143)),
        *((1, 66000, 5, 129), (1, 5, 66000, 129)),
    ),
    "shallow": (
        *((2, 1, 1, 1), (1, 1, 515, 7), (3, 130, 1, 16), (1, 17, 2, 13), (2, 16, 16, 16)),
        *((1, 31, 36, 3), (1, 33, 17, 15), (2, 64, 64, 64), (1, 513, 4, 15), (1, 65, 132, 32)),
        *((3, 127, 129, 31), (1, 2050, 8, 128), (1, 2050, 516, 9), (1, 2053, 515, 6)),
        *((1, 4097, 5, 100), (1, 16, 300, 127), (1, 4100, 516, 5), (1, 4101, 515, 8)),
        *((2, 3, 33, 17), (9, 6500, 1, 20), (7, 4, 6511, 31), (1, 1, 66000, 64), (1, 40000, 8, 5)),
        *((64, 100, 60, 33), (1, 16388, 60, 33), (1, 20001, 29, 9), (1, 8001, 13, 33)),
        *((1, 20001, 6, 70), (1, 2048, 3, 64)),
        # Threads of eight columns. n is a multiple of four:
        *((1, 16388, 64, 33), (1, 16388, 96, 64), (1, 8196, 160, 64), (2, 9000, 60, 20)),
        *((1, 4100, 512, 5), (1, 12300, 32, 63), (1, 9001, 260, 16)),
        # n is not:
        *((1, 16387, 61, 33), (2, 9001, 61, 20), (1, 4101, 161, 64)),
    ),
}

# (batch, m, n, k) whose operands get padding behind their rows: one by slices, one whose k is split.
PADDED = ((1, 1501, 1502, 1503), (3, 1301, 1301, 1301))

KINDS = ("normal", "wide", "outliers", "integers")


def operand(kind, shape, seed=0):
    """A float32 array of one of `values.FACTORS`."""
    rng = np.random.default_rng([seed, *shape, KINDS.index(kind)])
    return values.factors(kind, shape, "float32", rng)


def stored(x, transposed):
    """A matrix, or its transpose, in memory of its own."""
    return np.ascontiguousarray(np.swapaxes(x, -1, -2)) if transposed else x


@np.errstate(all="ignore")
def bounded(a, b, c=None, alpha=1.0, beta=0.0):
    """Alpha a b + beta c and its bound; beta = 0 ignores c."""
    product = contraction("...mk,...kn->...mn", known(a), known(b)) * np.float32(alpha)
    return product if c is None or beta == 0 else product + known(c) * np.float32(beta)


def check(got, a, b, c=None, alpha=1.0, beta=0.0, what=""):
    got = np.asarray(got)
    want_shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    assert got.dtype == np.float32
    assert got.shape == want_shape, f"{what} {got.shape}, not {want_shape}"
    assert_within(got, *bounded(a, b, c, alpha, beta), f"{what} {a.shape} x {b.shape}")


def edge_products(shapes, kind="normal"):
    """Batches of `shapes` in all transposes, alternately with and without C, for `check_all`."""
    problems = []
    for index, (batch, m, n, k) in enumerate(shapes):
        a, b = operand(kind, (batch, m, k), index), operand(kind, (batch, k, n), index + 1)
        c = operand(kind, (batch, m, n), index + 2)
        for trans_a, trans_b in TRANSPOSES:
            flags = {"trans_a": trans_a, "trans_b": trans_b}
            if (index + trans_a + trans_b) % 2:
                problems.append((a, b, c, {**flags, "alpha": -0.5, "beta": 3.0}))
            else:
                problems.append((a, b, None, flags))
    return problems


@functools.partial(jax.jit, static_argnames=("settings",))
def sgemm_all(operands, settings):
    """Many products in one program, so that many shapes cost one compilation; settings are sorted keyword arguments."""
    return [jk.sgemm(*x, **dict(s)) for x, s in zip(operands, settings, strict=True)]


def check_all(problems, algorithm=None):
    """Runs products in one program and holds each against the truth.

    Problems are (a, b, c or None, keyword arguments of sgemm); a and b get stored as the flags say.
    """
    operands, settings = [], []
    for a, b, c, options in problems:
        stored_a = stored(a, options.get("trans_a", False))
        stored_b = stored(b, options.get("trans_b", False))
        operands.append((stored_a, stored_b) if c is None else (stored_a, stored_b, c))
        settings.append(tuple(sorted({**options, "algorithm": algorithm}.items())))
    results = jax.device_get(sgemm_all(operands, tuple(settings)))
    for (a, b, c, options), got in zip(problems, results, strict=True):
        alpha, beta = options.get("alpha", 1.0), options.get("beta", 0.0)
        check(got, a, b, c, alpha, beta, what=f"{algorithm} {options}")
