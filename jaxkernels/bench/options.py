"""The command line of suites: types of options, their keywords for ``add_argument``, and the parser."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jaxkernels.bench.suite import Suite


def count(text: str) -> int:
    """An option type: a positive integer, written as 268435456 or as 2^28.

    Example:
        >>> count("2^10"), count("1000")
        (1024, 1000)
    """
    base, _, exponent = text.partition("^")
    value = int(base) ** int(exponent or 1)
    if value < 1:
        raise ValueError(text)
    return value


def sizes(*ranks: int) -> Callable[[str], tuple[int, ...]]:
    """Makes an option type: positive sizes joined by "x"; their number must be one of `ranks`.

    Example:
        >>> sizes(1, 3)("64x4096x8")
        (64, 4096, 8)
    """

    def shape(text: str) -> tuple[int, ...]:
        found = tuple(int(part) for part in text.split("x"))
        if len(found) not in ranks or min(found) < 1:
            raise ValueError(text)
        return found

    return shape


def several(kind: Callable[[str], Any], metavar: str, text: str) -> dict[str, Any]:
    """The keywords of ``add_argument`` for an option with one or more values."""
    return {"nargs": "+", "type": kind, "metavar": metavar, "help": text}


def seeded(of: str, tuning: int, published: int, metavar: str = "N") -> dict[str, Any]:
    """The keywords of ``add_argument`` for a seed; the published seed is never used for tuning."""
    text = f"{of} (default: {tuning}, for tuning; {published} is what is published)"
    return {"type": int, "default": tuning, "metavar": metavar, "help": text}


def _add_parser(commands: Any, suite: Suite) -> None:
    parser = commands.add_parser(suite.name, help=suite.summary, description=suite.summary)
    what = parser.add_argument_group("what to measure")
    for name, choices in suite.axes.items():
        what.add_argument(f"--{name}s", nargs="+", choices=choices, default=choices)
    for flag, keywords in suite.options.items():
        what.add_argument(flag, **keywords)
    how = parser.add_argument_group("how to measure")
    how.add_argument("--repeats", type=count, default=5, metavar="N", help="samples per median")
    how.add_argument(
        "--min-sample-ms", type=float, default=20.0, metavar="MS", help="least length of a sample"
    )
    how.add_argument("--limit", type=float, metavar="S", help="begin nothing after S seconds")
    out = parser.add_argument_group("what to write")
    files = {"--json": "keep every number", "--from-json": "show an earlier run, measure nothing"}
    for flag, text in files.items():
        out.add_argument(flag, type=Path, metavar="FILE", help=text)
    out.add_argument("--markdown", action="store_true", help="print Markdown, ready for a README")
    parser.set_defaults(suite=suite, **suite.defaults)


def build_parser(suites: Iterable[Suite]) -> argparse.ArgumentParser:
    """The parser, with a sub-command for each suite."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxkernels.bench",
        description="Measure jaxkernels, XLA and a plain copy, in one process and one run.",
    )
    parser.set_defaults(against=None)
    commands = parser.add_subparsers(title="operations", dest="benchmark", required=True)
    for suite in suites:
        _add_parser(commands, suite)
    return parser
