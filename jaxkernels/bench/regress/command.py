"""Command line of the comparison of two runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxkernels.bench import console, environment, runner
from jaxkernels.bench.regress import cases, compare, measure, report

# What has to be the same for times to be compared.
_MACHINE = ("device", "platform")


def add_parser(commands: Any) -> None:
    """Adds ``regress`` to the sub-commands of ``python -m jaxkernels.bench``."""
    parser = commands.add_parser(
        "regress",
        help="all operations in minutes, and what became slower since an earlier run",
        description="Measure ours over all operations, and compare with an earlier run.",
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--groups", nargs="+", choices=cases.GROUPS, default=cases.GROUPS, help="(default: all)"
    )
    what.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="an earlier run of this machine (--json); the exit code is 1 if a cell is slower",
    )
    runner.add_measuring_options(parser)
    runner.add_output_options(parser, None)
    parser.set_defaults(run=run, repeats=9, min_sample_ms=10.0)


def _measure(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], Mapping[str, Sequence[Any]]]:
    settings = measure.Settings(
        groups=tuple(group for group in cases.GROUPS if group in options.groups),
        repeats=options.repeats,
        min_sample_seconds=options.min_sample_ms / 1e3,
    )
    with console.progress("regress", measure.count_parts(settings)) as announce:
        return asdict(settings), {"cells": measure.measure(settings, announce)}


def _compare(result: runner.Run, options: argparse.Namespace) -> int:
    """Compares with the run of ``--against``: 1 if a cell is slower or lost, 2 if nothing can be said."""
    if options.against is None:
        return 0
    before = _read(options.against)
    if before is None:
        return 2
    differing = [n for n in _MACHINE if before.environment[n] != result.environment[n]]
    if differing:
        pairs = ", ".join(f"{before.environment[n]} and {result.environment[n]}" for n in differing)
        print(f"cannot compare runs of different machines: {pairs}", file=sys.stderr)
        return 2
    comparison = compare.compare(before.sections["cells"], result.sections["cells"])
    earlier = environment.summarise_environment(before.environment)
    table = report.comparison_table(comparison, earlier)
    if options.markdown:
        print("\n" + console.to_markdown(table))
    else:
        console.print_table(table)
    if not comparison.changes and not comparison.lost:
        print("cannot compare: the two runs have no cell in common", file=sys.stderr)
        return 2
    return 0 if comparison.passed else 1


def _read(path: Path) -> runner.Run | None:
    try:
        return BENCHMARK.from_json(path.read_text())
    except (OSError, ValueError) as error:
        print(f"cannot read {path}: {error}", file=sys.stderr)
        return None


def run(options: argparse.Namespace) -> int:
    """Measures or reads a run, and compares it; an earlier run that cannot be read is said first."""
    if options.against is not None and _read(options.against) is None:
        return 2
    return BENCHMARK.run(options)


BENCHMARK = runner.Benchmark(
    name="regress",
    schema=1,
    section_types={"cells": cases.Measurement},
    measure=_measure,
    tables=lambda result, short: report.tables(result.sections["cells"]),
    conclude=_compare,
)
