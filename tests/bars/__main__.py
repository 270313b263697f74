"""Holds the JSON files of benchmarks against this project's bars."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxkernels.bench import records, tables

from .suites import judge


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table for each file; 1 if a bar is not reached, 2 if a file cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m tests.bars", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of --json")
    passed = True
    for path in parser.parse_args(argv).files:
        try:
            run = records.read(path)
            verdicts = judge(run.suite, run.measured, run.platform)
        except (OSError, ValueError) as error:
            print(f"cannot judge {path}: {error}", file=sys.stderr)
            return 2
        rows = tuple((v.what, v.reached, v.bar, "pass" if v.passed else "FAIL") for v in verdicts)
        tables.print_table(tables.Table(str(path), ("what", "reached", "bar", "verdict"), rows))
        passed = passed and all(v.passed for v in verdicts)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
