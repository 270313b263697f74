"""Command line of the benchmarks, with one sub-command per suite."""

import argparse
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jaxkernels.bench import (
    attention,
    environment,
    float32,
    linear_loss,
    losses,
    records,
    regress,
    row_map,
    rows,
    rungs,
    scaling,
    sgemm,
)
from jaxkernels.bench.options import build_parser
from jaxkernels.bench.suite import Suite, measure
from jaxkernels.bench.tables import group_by, print_table

OPERATIONS: tuple[Suite, ...] = (
    *rows.SUITES,
    *(module.SUITE for module in (losses, linear_loss, attention, sgemm, float32, scaling)),
)
# `regress` selects its cells from the cases of OPERATIONS.
SUITES = (*OPERATIONS, row_map.SUITE, rungs.SUITE, regress.suite_of(OPERATIONS))

# Options that do not affect the measurement, and so are not recorded.
_OUTPUTS = {"benchmark", "json", "markdown", "from_json", "against", "suite", "command"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command: measures, or reads an earlier run, and prints or writes it.

    Returns 1 if a cell of the run of ``--against`` became slower or is lost, and 2 if a file cannot be
    read or compared. Exits with 2 if the arguments are wrong, or select nothing to measure.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser(SUITES)
    options = parser.parse_args(arguments)
    options.command = "python -m jaxkernels.bench " + shlex.join(arguments)
    suite: Suite = options.suite
    earlier: dict[Path, records.Run] = {}
    for path in filter(None, (options.against, options.from_json)):
        try:
            earlier[path] = records.read(path, suite.name)
        except (OSError, ValueError) as error:
            print(f"cannot read {path}: {error}", file=sys.stderr)
            return 2
    if options.from_json:
        run = earlier[options.from_json]
    elif parts := suite.chosen(options):
        run = _measure(options, parts)
    else:
        parser.error(f"nothing to measure: the options of {suite.name} leave out all cases")
    if options.json:
        records.write(run, options.json)
    print(f"{environment.summarise(run.environment)}; made by `{run.environment['command']}`\n")
    for view in suite.views(run):
        for table in view.tables(run.measured):
            print_table(table, options.markdown)
    print("\n\n".join(refusals(run, suite)))
    if options.against is None:
        return 0
    return regress.compare(earlier[options.against], run, options.markdown)


def _measure(options: argparse.Namespace, parts: Sequence[Sequence[records.Case]]) -> records.Run:
    suite: Suite = options.suite
    found: list[records.Record] = []
    start = time.monotonic()
    for number, part in enumerate(parts, 1):
        if options.limit is not None and time.monotonic() - start > options.limit:
            left = sum(map(len, parts[number - 1 :]))
            print(f"{suite.name}: {left} cases left out for --limit", file=sys.stderr)
            break
        more = f" and {len(part) - 1} more" if part[1:] else ""
        progress = f"{suite.name} [{number}/{len(parts)}] {suite.label(part[0])}{more}"
        print(progress, file=sys.stderr, flush=True)
        found += measure(suite, options, part)
    settings = {name: value for name, value in vars(options).items() if name not in _OUTPUTS}
    about = environment.describe(options.command)
    return records.Run(suite.name, about, settings, tuple(found))


def refusals(run: records.Run, suite: Suite) -> list[str]:
    """One line for each refusal of a contender, with its first case and the number of others.

    Refusals that differ only in numbers count as the same.
    """
    refused = group_by(
        (r for r in run.records if r.refused),
        lambda r: (r.contender, re.sub(r"\d+", "", r.refused)),
    )
    return [
        f"{name}: {first.refused} ({suite.label(first.case)}"
        + (f" and {len(more)} more)" if more else ")")
        for (name, _), (first, *more) in refused.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
