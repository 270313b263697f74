"""Command line of the benchmark of attention."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from jaxkernels.bench import console, runner
from jaxkernels.bench.attention import cases, measure, report


def _shape(text: str) -> cases.Shape:
    try:
        return cases.parse_shape(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected batchxheadsxlength or batchxheadsxlengthxdepth, got {text!r}"
        ) from error


def add_parser(commands: Any) -> None:
    """Adds ``attention`` to the sub-commands of ``python -m jaxkernels.bench``."""
    parser = commands.add_parser(
        "attention",
        help="scale, mask and softmax of scores, and whole attention layers",
        description="Measure attention beside XLA, cuDNN and a plain copy.",
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--groups", nargs="+", choices=cases.GROUPS, default=cases.GROUPS, help="(default: both)"
    )
    for option, of in (("--shapes", "scores"), ("--layer-shapes", "layers")):
        what.add_argument(
            option,
            nargs="+",
            type=_shape,
            metavar="SHAPE",
            help=f"{of} as batchxheadsxlength[xdepth]; a CPU's default has 1/{cases.CPU_PART}"
            " of a GPU's batch x heads",
        )
    what.add_argument("--dtypes", nargs="+", choices=cases.DTYPES, default=cases.DTYPES)
    what.add_argument("--variants", nargs="+", choices=cases.VARIANTS, default=cases.VARIANTS)
    what.add_argument("--directions", nargs="+", choices=cases.DIRECTIONS, default=cases.DIRECTIONS)
    runner.add_measuring_options(parser)
    runner.add_output_options(parser, "draw the model bytes and the gains over XLA (PNG)")
    parser.set_defaults(run=BENCHMARK.run)


def _settings(options: argparse.Namespace) -> measure.Settings:
    """Fills in the defaults that depend on the platform."""
    on_cpu = jax.default_backend() == "cpu"
    scores = options.shapes or (cases.CPU_SCORES if on_cpu else cases.GPU_SCORES)
    layers = options.layer_shapes or (cases.CPU_LAYERS if on_cpu else cases.GPU_LAYERS)
    return measure.Settings(
        scores=tuple(scores) if "scores" in options.groups else (),
        layers=tuple(layers) if "layers" in options.groups else (),
        dtypes=tuple(dict.fromkeys(options.dtypes)),
        variants=tuple(dict.fromkeys(options.variants)),
        directions=tuple(dict.fromkeys(options.directions)),
        repeats=options.repeats,
        min_sample_seconds=options.min_sample_ms / 1e3,
    )


def _measure(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], Mapping[str, Sequence[Any]]]:
    settings = _settings(options)
    with console.progress("attention", settings.steps) as announce:
        scores = measure.measure_scores(settings, announce)
        layers = measure.measure_layers(settings, announce)
    return asdict(settings), {"scores": scores, "layers": layers}


def _tables(result: runner.Run, short: bool) -> list[console.Table]:
    del short  # the tables are narrow as they are
    sections = result.sections
    return report.tables(sections["scores"], sections["layers"], result.environment["platform"])


def _draw(result: runner.Run, path: Path) -> None:
    from jaxkernels.bench.attention import plot  # matplotlib is an optional dependency

    plot.draw(result.sections["scores"], result.sections["layers"], result.environment, path)


BENCHMARK = runner.Benchmark(
    name="attention",
    schema=1,
    section_types={"scores": cases.Scores, "layers": cases.Layer},
    measure=_measure,
    tables=_tables,
    draw=_draw,
)
