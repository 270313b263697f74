"""The sub-command of a suite, derived from it: options, the file of a run, tables, the picture."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxkernels.bench import console, environment, plot, records
from jaxkernels.bench.compare import compare, comparison_table
from jaxkernels.bench.options import count
from jaxkernels.bench.suite import Suite, measure

# What has to be the same for times to be compared.
_MACHINE = ("device", "platform")
# Options that say nothing of how a run was measured.
_OUTPUTS = (
    "benchmark",
    "json",
    "plot",
    "markdown",
    "from_json",
    "against",
    "suite",
    "command_line",
)


def add_parser(commands: Any, suite: Suite) -> None:
    """Adds the sub-command of a suite to those of ``python -m jaxkernels.bench``."""
    parser = commands.add_parser(suite.name, help=suite.summary, description=suite.summary)
    what = parser.add_argument_group("what to measure")
    for axis in suite.axes:
        default = axis.choices if axis.default is None else axis.default
        what.add_argument(
            f"--{axis.name}s",
            nargs="+",
            choices=axis.choices,
            default=default,
            help=f"(default: {', '.join(default) if axis.default else 'all'})",
        )
    for flag, keywords in suite.options.items():
        what.add_argument(flag, **keywords)
    how = parser.add_argument_group("how to measure")
    how.add_argument("--repeats", type=count, default=5, metavar="N", help="samples per median")
    how.add_argument(
        "--min-sample-ms", type=float, default=20.0, metavar="MS", help="least length of a sample"
    )
    out = parser.add_argument_group("what to write")
    out.add_argument("--json", type=Path, metavar="FILE", help="keep every number, a record a line")
    if suite.figure is not None:
        out.add_argument("--plot", type=Path, metavar="FILE", help="draw the run (PNG, SVG, PDF)")
    out.add_argument("--markdown", action="store_true", help="print Markdown, ready for a README")
    out.add_argument(
        "--from-json", type=Path, metavar="FILE", help="show an earlier run, measure nothing"
    )
    if suite.compares:
        out.add_argument(
            "--against",
            type=Path,
            metavar="FILE",
            help="an earlier run of this machine (--json); the exit code is 1 if a cell is slower",
        )
    parser.set_defaults(plot=None, against=None, suite=suite)
    parser.set_defaults(**suite.defaults)


def run(options: argparse.Namespace) -> int:
    """Measures, or reads an earlier run, and writes what was asked for.

    Args:
        options: as the parser of a suite has them, and ``command_line``.

    Returns:
        The exit code: 1 if something is slower than in the run of ``--against``; 2 if a file cannot
        be read or compared, or matplotlib is missing.
    """
    suite: Suite = options.suite
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        # Said before minutes of measuring, not after.
        print("--plot needs matplotlib: pip install 'jaxkernels[bench]'", file=sys.stderr)
        return 2
    earlier: dict[Path, records.Run] = {}
    for path in filter(None, (options.against, options.from_json)):
        try:
            earlier[path] = records.read(path, suite.name)
        except (OSError, ValueError) as error:
            print(f"cannot read {path}: {error}", file=sys.stderr)
            return 2
    result = earlier[options.from_json] if options.from_json else _measure(options)
    if options.json:
        records.write(result, options.json)
    if options.plot and suite.figure is not None:
        where = environment.summarise_environment(result.environment)
        plot.draw(suite.figure(result), where, options.plot)
    _show(suite, result, options.markdown)
    if options.against is None:
        return 0
    return _compare(suite, earlier[options.against], result, options.markdown)


def _measure(options: argparse.Namespace) -> records.Run:
    suite: Suite = options.suite
    parts = suite.chosen(options)
    found: list[records.Record] = []
    with console.progress(suite.name, len(parts)) as announce:
        for part in parts:
            more = f" and {len(part) - 1} more" if part[1:] else ""
            announce(f"{suite.label(part[0])}{more}")
            found += measure(suite, options, part)
    where = environment.describe_environment(suite.name, options.command_line)
    settings = {name: value for name, value in vars(options).items() if name not in _OUTPUTS}
    return records.Run(suite.name, where, settings, tuple(found))


def _print(tables: Sequence[console.Table], markdown: bool) -> None:
    if markdown:
        print("\n\n".join(console.to_markdown(table) for table in tables))
        return
    for table in tables:
        console.print_table(table)


def _show(suite: Suite, result: records.Run, markdown: bool) -> None:
    """Prints where a run was made, and its tables."""
    line, command = (
        environment.summarise_environment(result.environment),
        result.environment["command"],
    )
    print(f"{line}; made by `{command}`\n" if markdown else f"{line}\n{command}\n")
    measured, views = result.measured, suite.views(result, markdown)
    _print([table for view in views for table in view.tables(measured, suite.label)], markdown)


def _compare(suite: Suite, before: records.Run, after: records.Run, markdown: bool) -> int:
    """Prints what became slower: 1 if anything did or was lost, 2 if nothing can be said."""
    differing = [n for n in _MACHINE if before.environment[n] != after.environment[n]]
    if differing:
        pairs = ", ".join(f"{before.environment[n]} and {after.environment[n]}" for n in differing)
        print(f"cannot compare runs of different machines: {pairs}", file=sys.stderr)
        return 2
    comparison = compare(before.records, after.records, suite.label)
    if markdown:
        print()
    summary = environment.summarise_environment(before.environment)
    _print([comparison_table(comparison, summary)], markdown)
    if comparison.is_empty:
        print("cannot compare: the two runs have no cell in common", file=sys.stderr)
        return 2
    return 1 if comparison.is_slower else 0
