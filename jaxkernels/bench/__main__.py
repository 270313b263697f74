"""Command line of the benchmarks: one sub-command per suite."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxkernels.bench import attention, logsumexp, regress, runner, scaling, sgemm, softmax

OPERATIONS = (softmax.SUITE, logsumexp.SUITE, attention.SUITE, sgemm.SUITE, scaling.SUITE)
# What regress watches is what every operation's suite gives it.
SUITES = (*OPERATIONS, regress.suite_of(OPERATIONS))


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser with a sub-command for each suite."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxkernels.bench",
        description="Measure jaxkernels beside XLA and a plain copy, in one process and one run.",
    )
    commands = parser.add_subparsers(title="operations", dest="benchmark", required=True)
    for suite in SUITES:
        runner.add_parser(commands, suite)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command.

    Args:
        argv: the arguments after the program's name; ``sys.argv[1:]`` when None.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = build_parser().parse_args(arguments)
    options.command_line = arguments
    return runner.run(options)


if __name__ == "__main__":
    sys.exit(main())
