"""Command line: `python -m jaxkernels.verify --help`."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jaxkernels.bench import environment
from jaxkernels.bench.tables import print_table
from jaxkernels.verify import draw, selftest
from jaxkernels.verify.families import OPERATIONS
from jaxkernels.verify.mistakes import MISTAKES
from jaxkernels.verify.problem import from_spec
from jaxkernels.verify.report import Summary, line_of
from jaxkernels.verify.run import Outcome, outcomes

_SHOWN = 20  # programs whose first failure is printed; the JSON file has all
_DEFAULT_SECONDS = 60.0
_REPEATS = 8
_WORKERS = 4  # more would wait for the device and for Python


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxkernels.verify",
        description="Draw random problems, run them, and compare every element with float64 under derived bounds. "
        "Ends after --seconds, --programs or --checks, whichever comes first.",
    )
    parser.add_argument(
        "--seconds", type=float, help=f"default {_DEFAULT_SECONDS:g}, unless another limit is given"
    )
    parser.add_argument(
        "--programs",
        type=_at_least(1),
        help="stop after this number of programs; a seed always draws the same ones",
    )
    parser.add_argument(
        "--checks",
        type=_at_least(1),
        help="stop after this number of checks (one program, one set of numbers)",
    )
    parser.add_argument("--seed", type=_at_least(0), default=0)
    parser.add_argument(
        "--first", type=_at_least(0), default=0, metavar="BUNDLE", help="start with this bundle"
    )
    parser.add_argument(
        "--only",
        type=_operations,
        default=OPERATIONS,
        metavar="A,B",
        help=f"check only some of {', '.join(OPERATIONS)}",
    )
    parser.add_argument(
        "--threads",
        type=_at_least(1),
        default=4,
        help="number of host threads of the second, concurrent run; 1: no second run",
    )
    parser.add_argument(
        "--workers",
        type=_at_least(1),
        default=min(_WORKERS, os.cpu_count() or 1),
        help="number of bundles processed at once",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a summary")
    parser.add_argument(
        "--repeat", metavar="SPEC", help="repeat one problem, from the line of its failure"
    )
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="plant mistakes into results, and fail unless each is detected",
    )
    parser.add_argument(
        "--plant",
        choices=MISTAKES,
        metavar="MISTAKE",
        help="spoil results on purpose: " + "; ".join(MISTAKES),
    )
    return parser  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool.

    Args:
        argv: the arguments after the program's name; ``sys.argv[1:]`` when None.

    Returns:
        The exit code: 1 if anything is wrong.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.self_test:
        return _self_test(options.seed)
    if options.repeat is not None:
        try:
            problem, number = from_spec(options.repeat)
        except ValueError as error:
            parser.error(str(error))
        mistake = MISTAKES.get(options.plant)
        # Several times, in case that it does not always fail.
        draws = [number] * _REPEATS
        found = iter([outcomes([problem], options.threads, mistake, draws)])
    else:
        found = _bundles(options)
    return _report(found, options, arguments)


def _operations(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(OPERATIONS):
        raise argparse.ArgumentTypeError(f"operations are {', '.join(OPERATIONS)}; got {text!r}")
    return names


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}; got {text}")
        return int(text)

    return number


def _bundles(options: argparse.Namespace) -> Iterator[list[Outcome]]:
    """The outcomes of bundles in their order, until an end is reached."""
    ends = options.seconds, options.programs, options.checks
    seconds = _DEFAULT_SECONDS if ends == (None, None, None) else options.seconds
    deadline = None if seconds is None else time.monotonic() + seconds
    mistake = MISTAKES.get(options.plant)
    submitted = programs = checks = 0
    waiting: collections.deque[concurrent.futures.Future[list[Outcome]]] = collections.deque()
    bundles = (draw.bundle(options.seed, i, options.only) for i in itertools.count(options.first))
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        while True:
            while len(waiting) <= options.workers and _lacks(submitted, options.programs):
                some = next(bundles)[
                    : None if options.programs is None else options.programs - submitted
                ]
                submitted += len(some)
                waiting.append(pool.submit(outcomes, some, options.threads, mistake))
            found = waiting.popleft().result()
            yield found
            programs += len(found)
            checks += sum(x.checks for x in found)
            late = deadline is not None and time.monotonic() >= deadline
            if late or not _lacks(programs, options.programs) or not _lacks(checks, options.checks):
                for future in waiting:
                    future.cancel()
                return


def _lacks(count: int, wanted: int | None) -> bool:
    return wanted is None or count < wanted


def _report(
    found: Iterator[list[Outcome]], options: argparse.Namespace, arguments: list[str]
) -> int:
    summary, began = Summary(), time.monotonic()
    for some in found:
        summary.add(some)
        _tell(summary, time.monotonic() - began)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    took = time.monotonic() - began
    about = environment.describe("python -m jaxkernels.verify " + shlex.join(arguments))
    for table in summary.tables():
        print_table(table)
    # One of each program.
    first = {tuple(f.problem.seed): f for f in reversed(summary.failures)}
    lines = [line_of(failure) for failure in reversed(first.values())]
    print("\n".join(lines[:_SHOWN]))
    if len(lines) > _SHOWN:
        print(f"and {len(lines) - _SHOWN} more programs")
    print(f"{environment.summarise(about)}; {took:.0f} s")
    if options.json is not None:
        record = {"environment": about, "seconds": took, "seed": options.seed, **summary.as_json()}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if summary.failures else 0


def _tell(summary: Summary, seconds: float) -> None:
    """How far it is, on a terminal."""
    if sys.stderr.isatty():
        total = summary.total
        text = f"{total.programs} programs, {total.checks} checks, {total.failed} failed"
        print(f"\r{seconds:6.0f} s  {text}", end="", file=sys.stderr, flush=True)


def _self_test(seed: int) -> int:
    table = selftest.check(seed, lambda text: print(text, file=sys.stderr, flush=True))
    print_table(table)
    return 1 if any(row[-1] != "pass" for row in table.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
