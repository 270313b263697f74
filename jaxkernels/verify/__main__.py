"""Command line: `python -m jaxkernels.verify --help`."""

import argparse
import collections
import concurrent.futures
import contextlib
import itertools
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxkernels.bench import environment
from jaxkernels.bench.tables import Table, group_by, print_table
from jaxkernels.verify import draw, mistakes
from jaxkernels.verify.families import OPERATIONS
from jaxkernels.verify.mistakes import MISTAKES
from jaxkernels.verify.problem import Problem, from_spec, to_spec
from jaxkernels.verify.run import Outcome, outcomes

_SHOWN = 20  # programs whose first failure is printed; the JSON file has all
_SECONDS = 60.0
_REPEATS = 8  # runs of the draw of --repeat, which may not always fail
_WORKERS = 4  # more would wait for the device and for Python
Key = Callable[[Outcome], tuple[str, ...]]


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxkernels.verify",
        description="Draw random problems, run them, and compare every element with float64 under derived bounds. "
        "Ends after --seconds, --programs or --checks, whichever comes first.",
    )
    add, positive, natural = parser.add_argument, _at_least(1), _at_least(0)
    add("--seconds", type=float, help=f"default {_SECONDS:g}, unless another limit is given")
    end = "stop after this number of"
    add("--programs", type=positive, help=f"{end} programs; a seed always draws the same ones")
    add("--checks", type=positive, help=f"{end} checks (one program, one set of numbers)")
    add("--seed", type=natural, default=0)
    add("--first", type=natural, default=0, metavar="BUNDLE", help="start with this bundle")
    text = f"check only some of {', '.join(OPERATIONS)}"
    add("--only", type=_operations, default=OPERATIONS, metavar="A,B", help=text)
    text = "number of host threads of the second, concurrent run; 1: no second run"
    add("--threads", type=positive, default=4, help=text)
    workers = min(_WORKERS, os.cpu_count() or 1)
    add("--workers", type=positive, default=workers, help="number of bundles processed at once")
    add("--json", type=Path, metavar="FILE", help="write a summary")
    add("--repeat", metavar="SPEC", help="repeat one problem, from the line of its failure")
    text = "plant mistakes into results, and fail unless each is detected"
    add("--self-test", action="store_true", help=text)
    text = "spoil results on purpose: " + "; ".join(MISTAKES)
    add("--plant", choices=MISTAKES, metavar="MISTAKE", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool; the exit code is 1 if anything is wrong."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.self_test:
        table = mistakes.check(options.seed, partial(print, file=sys.stderr, flush=True))
        print_table(table)
        return 1 if any(row[-1] != "pass" for row in table.rows) else 0
    bundles, draws = _drawn(options), None
    if options.repeat is not None:
        try:
            problem, number = from_spec(options.repeat)
        except ValueError as error:
            parser.error(str(error))
        bundles, draws = [[problem]], [number] * _REPEATS
    command = "python -m jaxkernels.verify " + shlex.join(arguments)
    return _report(_outcomes(bundles, options, draws), options, command)


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


def _drawn(options: argparse.Namespace) -> Iterator[list[Problem]]:
    left = options.programs or sys.maxsize
    for number in itertools.count(options.first):
        yield (some := draw.bundle(options.seed, number, options.only)[:left])
        left -= len(some)
        if not left:
            return


def _outcomes(
    bundles: Iterable[list[Problem]], options: argparse.Namespace, draws: Sequence[int] | None
) -> Generator[list[Outcome]]:
    """The outcomes of bundles in their order."""
    given = options.threads, MISTAKES.get(options.plant), draws
    waiting: collections.deque[concurrent.futures.Future[list[Outcome]]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(options.workers)
    try:
        for some in bundles:
            waiting.append(pool.submit(outcomes, some, *given))
            if len(waiting) > options.workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _report(bundles: Generator[list[Outcome]], options: argparse.Namespace, command: str) -> int:
    ends = options.seconds, options.programs, options.checks
    seconds = _SECONDS if ends == (None, None, None) else options.seconds
    found: list[Outcome] = []
    began, took, shows = time.monotonic(), 0.0, sys.stderr.isatty()
    so_far = "{checks} checks of {programs} programs, {failed} failed"
    with contextlib.closing(bundles):
        for some in bundles:
            found += some
            took, total = time.monotonic() - began, _tally(found)
            if shows:
                text = f"\r{took:6.0f} s  {so_far.format(**total)}"
                print(text, end="", file=sys.stderr, flush=True)
            if took >= (seconds or math.inf) or total["checks"] >= (options.checks or math.inf):
                break
    if shows:
        print(file=sys.stderr)
    about, total = environment.describe(command), _tally(found)
    kernels = _tallies(found, _kernel_of)
    calls = _tallies(found, lambda x: (x.problem.delivery, x.problem.derivative))
    print_table(_table("Error over bound", kernels, "operation", "dtype", "tier or rung"))
    print_table(_table("The same by call", calls, "operands", "result"))
    failed = [outcome for outcome in found if outcome.failures]
    print("\n".join(_line_of(outcome) for outcome in failed[:_SHOWN]))
    if len(failed) > _SHOWN:
        print(f"and {len(failed) - _SHOWN} more programs")
    print(f"{so_far.format(**total)}\n{environment.summarise(about)}; {took:.0f} s")
    if options.json is not None:
        failures = [
            {"what": what, "spec": to_spec(x.problem, number)}
            for x in failed
            for number, what in x.failures
        ]
        record = {"environment": about, "seconds": took, "seed": options.seed, **total}
        record |= {"kernels": kernels, "calls": calls, "failures": failures}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if failed else 0


def _tally(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts programs, their checks and failed checks; the largest error over its bound, None if it is infinite."""
    worst = max((x.worst for x in outcomes), default=0.0)
    return {
        "programs": len(outcomes),
        "checks": sum(x.checks for x in outcomes),
        "failed": sum(len({draw for draw, _ in x.failures}) for x in outcomes),
        "worst": worst if math.isfinite(worst) else None,
    }


def _kernel_of(outcome: Outcome) -> tuple[str, ...]:
    p = outcome.problem
    return p.operation, p.dtype, p.how or "auto"


def _tallies(outcomes: Sequence[Outcome], key: Key) -> list[dict[str, Any]]:
    groups = sorted(group_by(outcomes, key).items())
    return [{"of": name, **_tally(some)} for name, some in groups]


def _table(title: str, tallies: list[dict[str, Any]], *labels: str) -> Table:
    rows = []
    for x in tallies:
        worst = "inf" if x["worst"] is None else f"{x['worst']:.3f}"
        counts = str(x["programs"]), str(x["checks"]), worst, str(x["failed"])
        rows.append((*x["of"], *counts, "FAIL" if x["failed"] else "pass"))
    return Table(title, (*labels, "programs", "checks", "worst", "failed", ""), rows)


def _line_of(outcome: Outcome) -> str:
    """The first failure of a program, and the command that repeats it."""
    (draw, what), p = outcome.failures[0], outcome.problem
    shape = next(str(p.options[x]) for x in ("shape", "shapes", "sizes") if x in p.options)
    words = " ".join([*_kernel_of(outcome), p.derivative, p.delivery, shape])
    again = f"python -m jaxkernels.verify --repeat {shlex.quote(to_spec(p, draw))}"
    return f"FAIL {words}, draw {draw}: {what}\n     {again}"


if __name__ == "__main__":
    sys.exit(main())
