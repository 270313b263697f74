"""Command line of the softmax benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from jaxkernels.bench import console, runner
from jaxkernels.bench.softmax import cases, measure, report


def add_parser(commands: Any) -> None:
    """Adds ``softmax`` to the sub-commands of ``python -m jaxkernels.bench``."""
    parser = commands.add_parser(
        "softmax",
        help="softmax and log_softmax, forward and backward",
        description="Measure softmax beside jax.nn.softmax and a plain copy.",
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument("--operation", choices=("softmax", "log_softmax"), default="softmax")
    what.add_argument(
        "--log-softmax",
        dest="operation",
        action="store_const",
        const="log_softmax",
        help="same as --operation log_softmax",
    )
    what.add_argument(
        "--cols",
        nargs="+",
        type=runner.count,
        metavar="N",
        help="row lengths, such as 1000 or 2^15",
    )
    what.add_argument("--dtypes", nargs="+", choices=cases.DTYPES, default=("float32", "bfloat16"))
    what.add_argument("--directions", nargs="+", choices=cases.DIRECTIONS, default=cases.DIRECTIONS)
    what.add_argument(
        "--tiers",
        nargs="+",
        choices=cases.TIERS,
        help="auto and the tiers to force (default: all on a GPU, auto on a CPU)",
    )
    what.add_argument(
        "--elements",
        type=runner.count,
        metavar="N",
        help="size of each input, rows = N // cols (default: 2^28 on a GPU, 2^24 on a CPU)",
    )
    what.add_argument(
        "--few-rows",
        action=argparse.BooleanOptionalAction,
        help="also measure the latency on small inputs (default: on a GPU)",
    )
    runner.add_measuring_options(parser)
    runner.add_output_options(parser, "draw throughput over columns (PNG)")
    parser.set_defaults(run=BENCHMARK.run)


def _settings(options: argparse.Namespace) -> measure.Settings:
    """Fills in the defaults that depend on the platform."""
    on_cpu = jax.default_backend() == "cpu"
    cols = options.cols or (cases.CPU_COLS if on_cpu else cases.GPU_COLS)
    tiers = options.tiers or (cases.TIERS[:1] if on_cpu else cases.TIERS)
    elements = options.elements or (cases.CPU_ELEMENTS if on_cpu else cases.GPU_ELEMENTS)
    return measure.Settings(
        operation=options.operation,
        cols=tuple(sorted(set(cols))),
        dtypes=tuple(dict.fromkeys(options.dtypes)),
        directions=tuple(dict.fromkeys(options.directions)),
        tiers=tuple(dict.fromkeys(tiers)),
        elements=elements,
        repeats=options.repeats,
        min_sample_seconds=options.min_sample_ms / 1e3,
        few_rows=not on_cpu if options.few_rows is None else options.few_rows,
    )


def _measure(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], Mapping[str, Sequence[Any]]]:
    settings = _settings(options)
    with console.progress(settings.operation, settings.steps) as announce:
        measurements = measure.measure(settings, announce)
        few_rows = measure.measure_few_rows(settings, announce) if settings.few_rows else []
    return asdict(settings), {"measurements": measurements, "few_rows": few_rows}


def _tables(result: runner.Run, short: bool) -> list[console.Table]:
    operation, platform = result.settings["operation"], result.environment["platform"]
    measurements = result.sections["measurements"]
    make = report.overview_tables if short else report.detail_tables
    tables = make(measurements, operation, platform)
    tables.append(report.summary_table(measurements, platform))
    few_rows = report.few_rows_table(result.sections["few_rows"], operation)
    tables += [t for t in (report.odd_table(measurements), few_rows) if t is not None]
    return tables


def _draw(result: runner.Run, path: Path) -> None:
    from jaxkernels.bench.softmax import plot  # matplotlib is an optional dependency

    operation = result.settings["operation"]
    plot.draw(result.sections["measurements"], operation, result.environment, path)


BENCHMARK = runner.Benchmark(
    name="softmax",
    schema=1,
    section_types={"measurements": cases.Measurement, "few_rows": cases.FewRows},
    measure=_measure,
    tables=_tables,
    draw=_draw,
)
