"""Command line of the benchmark of scaling over devices."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxkernels.bench import console, runner
from jaxkernels.bench.scaling import cases, measure, report

# The options of shapes: what a device, or for a vocabulary all of them, have.
_SHAPES = {
    "softmax": "rows and columns on each device, as 65536x16384",
    "attention": "batch, heads, queries and keys on each device, as 24x16x2048x2048",
    "vocabulary": "rows and columns of all devices together, as 8192x131072",
}


def _devices(text: str) -> int:
    """A number of devices, of those that are there."""
    count = runner.count(text)
    visible = len(jax.devices())
    if count > visible:
        raise argparse.ArgumentTypeError(f"{count} devices were asked for, {visible} are visible")
    return count


def _shape(rank: int, text: str) -> tuple[int, ...]:
    try:
        return cases.parse_shape(text, rank)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected {rank} positive sizes joined by x, got {text!r}"
        ) from error


def add_parser(commands: Any) -> None:
    """Adds ``scaling`` to the sub-commands of ``python -m jaxkernels.bench``."""
    parser = commands.add_parser(
        "scaling",
        help="arrays sharded over devices: rows, batches and a vocabulary",
        description="Measure arrays sharded over 1, 2, 4, ... devices, in one process.",
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--devices",
        nargs="+",
        type=_devices,
        metavar="N",
        help="numbers of devices; 1 is always measured (default: 1, 2, 4, ... up to all)",
    )
    what.add_argument(
        "--groups", nargs="+", choices=cases.GROUPS, default=cases.GROUPS, help="(default: all)"
    )
    for group, text in _SHAPES.items():
        what.add_argument(
            f"--{group}-shape",
            type=partial(_shape, len(cases.GPU_SHAPES[group])),
            metavar="SHAPE",
            help=f"{text}, which is a GPU's default; a CPU's is {cases.size(cases.CPU_SHAPES[group])}",
        )
    what.add_argument("--directions", nargs="+", choices=cases.DIRECTIONS, default=cases.DIRECTIONS)
    runner.add_measuring_options(parser)
    runner.add_output_options(parser, "draw efficiencies and gains (PNG)")
    # The start and the end of a sample on several devices take a millisecond or two.
    parser.set_defaults(run=BENCHMARK.run, min_sample_ms=200.0)


def _settings(options: argparse.Namespace) -> measure.Settings:
    """Fills in the defaults that depend on the platform and its devices."""
    default = cases.CPU_SHAPES if jax.default_backend() == "cpu" else cases.GPU_SHAPES
    counts = options.devices or cases.doublings(len(jax.devices()))
    return measure.Settings(
        devices=tuple(sorted({1, *counts})),
        shapes={
            group: getattr(options, f"{group}_shape") or default[group]
            for group in cases.GROUPS
            if group in options.groups
        },
        directions=tuple(dict.fromkeys(options.directions)),
        repeats=options.repeats,
        min_sample_seconds=options.min_sample_ms / 1e3,
    )


def _measure(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], Mapping[str, Sequence[Any]]]:
    settings = _settings(options)
    with console.progress("scaling", settings.steps) as announce:
        weak = measure.measure_weak(settings, announce)
        vocabulary = measure.measure_vocabulary(settings, announce)
    return asdict(settings), {"weak": weak, "vocabulary": vocabulary}


def _tables(result: runner.Run, short: bool) -> list[console.Table]:
    del short  # the tables are narrow as they are
    sections = result.sections
    return report.tables(sections["weak"], sections["vocabulary"], result.environment["platform"])


def _draw(result: runner.Run, path: Path) -> None:
    from jaxkernels.bench.scaling import plot  # matplotlib is an optional dependency

    plot.draw(result.sections["weak"], result.sections["vocabulary"], result.environment, path)


BENCHMARK = runner.Benchmark(
    name="scaling",
    schema=1,
    section_types={"weak": cases.Weak, "vocabulary": cases.Vocabulary},
    measure=_measure,
    tables=_tables,
    draw=_draw,
)
