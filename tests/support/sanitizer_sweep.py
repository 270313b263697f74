"""Runs every tier and every rung on small, odd and large shapes: on a GPU test_sanitizer.py does so under
compute-sanitizer, on a CPU .ci/sanitize with the compiler's sanitizers.

Only our kernels run: inputs come from the host and every program is a few custom calls.
"""

import argparse
import faulthandler
import functools

import attention_cases
import cases
import flash_cases
import gemm_cases
import jax
import masked_cases
import narrow_cases
import oracle
import row_parts_cases
import rows_of_losses
import slice_cases
import tensor_families
from masked_cases import case

from jaxkernels._core import validate


def with_constants(function):
    """The function with its operands as constants of the program.

    The memory of constants ends with their last element. The memory of a program's arguments, and of results that a
    second operation reads, ends later, so that the sanitizer would miss a read just behind them.
    """

    @functools.wraps(function)
    def call(*operands, **options):
        program = jax.jit(lambda: function(*operands, **options)).lower().compile()
        assert "entry_computation_layout={()->" in program.as_text(), "JAX has made them arguments"
        return program()

    return call


def sweep_products():
    """All rungs: rows and columns that end within tiles, all transposes, C, a batch, splits of k."""
    shapes = ((1, 1, 1), (3, 130, 33), (129, 67, 40), (70, 72, 260), (64, 64, 2048))
    for algorithm in gemm_cases.RUNGS:
        problems = []
        for (m, n, k), (trans_a, trans_b) in zip(
            shapes * 4, gemm_cases.TRANSPOSES * 5, strict=True
        ):
            a, b = gemm_cases.operand("normal", (m, k)), gemm_cases.operand("normal", (k, n))
            c = gemm_cases.operand("normal", (m, n))
            options = {"trans_a": trans_a, "trans_b": trans_b, "alpha": 0.5, "beta": -1.0}
            problems.append((a, b, c, options))
        a = gemm_cases.operand("normal", (2, 1, 40, 36))
        b = gemm_cases.operand("normal", (1, 3, 36, 44))
        problems.append((a, b, None, {}))
        gemm_cases.check_all(problems, algorithm)
    # Repairs of values that pairs of float16 cannot hold: of elements, tiles, the whole product; also where k is split.
    problems = []
    repaired = [("spread_permutation", 300, n, n) for n in (200, 201, 202)]
    repaired += [("wide", 130, 140, k) for k in (2000, 2051)]
    for family, m, n, k in repaired:
        a, b = tensor_families.operands(family, m, n, k)
        a[3, 5] = float("nan")
        c = gemm_cases.operand("normal", (m, n))
        problems += [(a, b, None, {}), (a, b, c, {"beta": 2.0, "trans_a": True})]
    many = tensor_families.operands("spread_permutation", 1700, 1400, 1400)
    problems.append((*many, None, {}))  # FFMA recomputes all 154 tiles
    gemm_cases.check_all(problems, "tensor")
    # The tiles of the pipelined rung.
    problems = gemm_cases.edge_products([s[0] for s in gemm_cases.EDGES_OF_TILES.values()])
    gemm_cases.check_all(problems, "pipelined")


def sweep_thin():
    for shapes in gemm_cases.EDGES_OF_THIN.values():
        gemm_cases.check_all(gemm_cases.edge_products(shapes), "thin")


def attention_scores(dtype):
    """Masks and biases of rows, of all rows and of shared ones, bands; rows of every alignment."""
    some = []
    for q, k in ((35, 3), (7, 37), (5, 128), (3, 513), (3, 1030), (2, 4099), (1, 40001)):
        full = (2, 2, q, k)
        some += [
            case(full, dtype, mask=(2, 1, q, k), scale=0.5),
            case(full, dtype, mask=(1, 1, 1, k), bias=(1, 2, q, k), causal=True),
            case(full, dtype, bias=(2, 1, 1, k), window=(k // 3, 2)),
            case(full, dtype, mask=full, causal=True),
        ]
    return some


def sweep_parts(dtype):
    """Statistics and results of every operation, apart, for rows of some lanes, of a warp and of a block."""
    pairs = [
        (cases.logits("normal", *shape, dtype), cases.cotangents(*shape, dtype))
        for shape in ((35, 37), (5, 1030), (2, 20001))
    ]
    row_parts_cases.check_all(pairs, dtype)
    some = [c for c in attention_scores(dtype) if not c.options][::3]
    row_parts_cases.check_attention(some, dtype)


SHAPES = ((70, 3), (35, 37), (9, 128), (5, 513), (3, 1030), (2, 4099), (2, 70001))


def sweep_rows(dtype, tiers):
    """With and without masks, biases and bands."""
    for tier in tiers:
        pairs = [
            (cases.logits("normal", *shape, dtype), cases.cotangents(*shape, dtype))
            for shape in (*SHAPES, (1, 70003))  # the last one is shared by threads of a CPU
            if cases.serves(tier, shape, dtype)
        ]
        cases.check_all(pairs, dtype, tier, oracle.OPERATIONS)
        # The gradient of a bias has a sum of XLA's own.
        masked_cases.check_all(attention_scores(dtype), dtype, tier, wrt=("scores",))


def sweep_narrow():
    """Weights of half the scores' width, of all tiers, aligned and not."""
    for cols in (1, 7, 64, 197, 1030, 4096, 4099, 20001, 70001):
        narrow_cases.check(cols, "bfloat16", causal=cols % 2 == 0)


def sweep_losses(dtype, tiers):
    """Rows, some without a label: the loss, loss and gradient at once, and the gradient from residuals."""
    for tier in tiers:
        served = [shape for shape in SHAPES if rows_of_losses.serves(tier, shape, dtype)]
        xs = [cases.logits("normal", *shape, dtype) for shape in served]
        rows_of_losses.check_kernels(xs, dtype, tier)
        rows_of_losses.check_kernels(xs, dtype, tier, scales=2)
        rows_of_losses.check_kernels(xs, dtype, tier, masked=True)


def sweep_attention():
    """Our flash kernels: depths of every layout, and lengths that end within tiles."""
    name, shapes = flash_cases.kernels(), ((130, 200, 2, 64), (40, 130, 1, 17), (129, 129, 1, 128))
    for t, keys, heads, depth in shapes if name else ():
        sizes = attention_cases.Sizes(1, t, keys, heads, 1, depth)
        operands, dy = attention_cases.operands(sizes), attention_cases.operands(sizes, seed=1)[0]
        sets = attention_cases.arguments(sizes)
        for options in (sets["plain"], sets["everything"]):
            results = flash_cases.pulled(*operands, dy, implementation=name, **options)
            flash_cases.check_pulled(results, operands, dy, str(sizes), **options)


def sweep_slices(dtype):
    """Operands that begin anywhere within 16 bytes: rows that are staged, gathered, and in parts."""
    for shape in ((35, 3), (35, 8), (33, 64), (5, 1024), (2, 20001)):
        slice_cases.check_at_every_offset(dtype, shape)


# A process may run a selection of these parts; each takes a tool minutes.
PARTS = ("products", "thin", "attention", "rows", "losses")
OF_DTYPES = ("rows", "losses")


def main(backend, dtypes, parts, as_arguments):
    # No part takes that many seconds. A hang ends then, and shows where.
    faulthandler.dump_traceback_later(400, exit=True)
    assert jax.default_backend() == backend
    if not as_arguments:
        cases.all_operations = with_constants(cases.all_operations)
        masked_cases.results_of = with_constants(masked_cases.results_of)
        narrow_cases.results_of = with_constants(narrow_cases.results_of)
        flash_cases.pulled = with_constants(flash_cases.pulled)
        gemm_cases.sgemm_all = with_constants(gemm_cases.sgemm_all)
        row_parts_cases.results_of = with_constants(row_parts_cases.results_of)
        rows_of_losses.kernels_of = with_constants(rows_of_losses.kernels_of)
    of_gpus = {"products": sweep_products, "thin": sweep_thin, "attention": sweep_attention}
    for part, sweep in of_gpus.items():
        if backend == "gpu" and part in parts:
            sweep()
    tiers = validate.TIERS if backend == "gpu" else (None,)  # a CPU has no tiers
    for dtype in dtypes:
        if "rows" in parts:
            sweep_parts(dtype)
            sweep_slices(dtype)
            sweep_rows(dtype, tiers)
            if dtype == "float32":
                sweep_narrow()
        if "losses" in parts:
            sweep_losses(dtype, tiers)
    print("all shapes right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backend", choices=("cpu", "gpu"), help="what JAX has to run on")
    parser.add_argument("dtypes", nargs="+", help="of rows")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="(default: all)")
    parser.add_argument(
        "--as-arguments", action="store_true", help="operands are no constants of the programs"
    )
    arguments = parser.parse_args()
    main(arguments.backend, arguments.dtypes, arguments.parts, arguments.as_arguments)
