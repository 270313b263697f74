"""Command line of the benchmarks: one sub-command per operation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxkernels.bench.attention import command as attention_command
from jaxkernels.bench.regress import command as regress_command
from jaxkernels.bench.scaling import command as scaling_command
from jaxkernels.bench.sgemm import command as sgemm_command
from jaxkernels.bench.softmax import command as softmax_command


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser with every sub-command; each one sets ``run`` to its own function."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxkernels.bench",
        description="Measure jaxkernels beside XLA and a plain copy, in one process and one run.",
    )
    commands = parser.add_subparsers(title="operations", dest="benchmark", required=True)
    softmax_command.add_parser(commands)
    sgemm_command.add_parser(commands)
    attention_command.add_parser(commands)
    scaling_command.add_parser(commands)
    regress_command.add_parser(commands)
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
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
