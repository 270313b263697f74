"""Command line of the benchmark of matrix products."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from jaxkernels.bench import console, runner
from jaxkernels.bench.sgemm import cases, measure, report


def _product(text: str) -> cases.Product:
    try:
        return cases.parse_product(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected n, mxnxk or batchxmxnxk, got {text!r}"
        ) from error


def add_parser(commands: Any) -> None:
    """Adds ``sgemm`` to the sub-commands of ``python -m jaxkernels.bench``."""
    parser = commands.add_parser(
        "sgemm",
        help="float32 matrix products, every rung of the ladder",
        description="Measure float32 matrix products beside XLA's at the highest precision.",
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--shapes",
        nargs="+",
        type=_product,
        metavar="SHAPE",
        help="products as n, mxnxk or batchxmxnxk (default: squares, other shapes, transposes)",
    )
    what.add_argument(
        "--groups",
        nargs="+",
        choices=("square", "other", "transposed", "ladder"),
        help="only these groups of the default products",
    )
    what.add_argument(
        "--algorithms",
        nargs="+",
        choices=cases.RUNGS,
        help="rungs that every product runs (default: all for the ladder, pipelined for the others)",
    )
    runner.add_measuring_options(parser)
    runner.add_output_options(parser, "draw the ladder and all products (PNG)")
    parser.set_defaults(run=BENCHMARK.run)


def _measure(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], Mapping[str, Sequence[Any]]]:
    on_cpu = jax.default_backend() == "cpu"
    products = options.shapes or (cases.CPU_PRODUCTS if on_cpu else cases.GPU_PRODUCTS)
    if options.groups:
        products = [p for p in products if p.group in options.groups]
    settings = measure.Settings(
        products=tuple(products),
        rungs=options.algorithms and tuple(options.algorithms),
        repeats=options.repeats,
        min_sample_seconds=options.min_sample_ms / 1e3,
    )
    with console.progress("sgemm", len(settings.products)) as announce:
        return asdict(settings), {"measurements": measure.measure(settings, announce)}


def _tables(result: runner.Run, short: bool) -> list[console.Table]:
    del short  # the tables are narrow as they are
    where = result.environment
    return report.tables(result.sections["measurements"], where["platform"], where["device"])


def _draw(result: runner.Run, path: Path) -> None:
    from jaxkernels.bench.sgemm import plot  # matplotlib is an optional dependency

    plot.draw(result.sections["measurements"], result.environment, path)


BENCHMARK = runner.Benchmark(
    name="sgemm",
    schema=1,
    section_types={"measurements": cases.Measurement},
    measure=_measure,
    tables=_tables,
    draw=_draw,
)
