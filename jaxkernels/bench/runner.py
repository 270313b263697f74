"""What all sub-commands share: their options, the JSON file of a run, and what becomes of it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxkernels.bench import console, environment


def parse_count(text: str) -> int:
    """Parses a positive integer written as 268435456 or as 2^28.

    Raises:
        ValueError: if the text is neither, or the number is not positive.

    Example:
        >>> parse_count("2^10"), parse_count("1000")
        (1024, 1000)
    """
    base, _, exponent = text.replace("**", "^").partition("^")
    value = int(base) ** int(exponent) if exponent else int(base)
    if value < 1:
        raise ValueError(f"expected a positive count, got {text!r}")
    return value


def count(text: str) -> int:
    """`parse_count` for argparse, whose errors then name the argument."""
    try:
        return parse_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected a positive count such as 4096 or 2^12, got {text!r}"
        ) from error


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    """Adds how to measure."""
    how = parser.add_argument_group("how to measure")
    how.add_argument("--repeats", type=count, default=5, metavar="N", help="samples per median")
    how.add_argument(
        "--min-sample-ms", type=float, default=20.0, metavar="MS", help="least length of a sample"
    )


def add_output_options(parser: argparse.ArgumentParser, plot_help: str | None) -> None:
    """Adds what to write; `plot_help` is None where there is no picture."""
    out = parser.add_argument_group("what to write")
    out.add_argument("--json", type=Path, metavar="FILE", help="keep every number")
    if plot_help is None:
        parser.set_defaults(plot=None)
    else:
        out.add_argument("--plot", type=Path, metavar="FILE", help=plot_help)
    out.add_argument("--markdown", action="store_true", help="print Markdown, ready for a README")
    out.add_argument(
        "--from-json", type=Path, metavar="FILE", help="show an earlier run, measure nothing"
    )


@dataclass(frozen=True)
class Run:
    """One run: where, how, and what came out.

    Attributes:
        environment: as `environment.describe_environment` gives it.
        settings: how it was measured.
        sections: results by name, dataclasses all.
    """

    environment: dict[str, str]
    settings: dict[str, Any]
    sections: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Benchmark:
    """A sub-command.

    Attributes:
        name: of the sub-command.
        schema: version of the JSON file.
        section_types: the dataclass of each section of a run.
        measure: returns the settings and the sections of a run.
        tables: returns the tables of a run; the second argument asks for the short form.
        draw: draws a run into a file; None where there is no picture.
        conclude: called when all is written; returns the exit code.
    """

    name: str
    schema: int
    section_types: Mapping[str, type]
    measure: Callable[[argparse.Namespace], tuple[dict[str, Any], Mapping[str, Sequence[Any]]]]
    tables: Callable[[Run, bool], list[console.Table]]
    draw: Callable[[Run, Path], None] | None = None
    conclude: Callable[[Run, argparse.Namespace], int] = lambda result, options: 0

    def to_json(self, run: Run) -> str:
        """Returns the run as a JSON document."""
        content = {
            "schema": self.schema,
            "benchmark": self.name,
            "environment": run.environment,
            "settings": run.settings,
            **{name: [asdict(item) for item in items] for name, items in run.sections.items()},
        }
        return json.dumps(content, indent=1) + "\n"

    def from_json(self, text: str) -> Run:
        """Reads what ``to_json`` wrote.

        Raises:
            ValueError: if the text is no JSON file of this benchmark.
        """
        content = json.loads(text)
        kind = (content.get("benchmark"), content.get("schema")) if type(content) is dict else None
        if kind != (self.name, self.schema):
            raise ValueError(
                f"expected a {self.name} benchmark of schema {self.schema}, got {kind}"
            )
        sections = {
            name: tuple(kind(**item) for item in content[name])
            for name, kind in self.section_types.items()
        }
        return Run(content["environment"], content["settings"], sections)

    def run(self, options: argparse.Namespace) -> int:
        """Measures, or reads an earlier run, and writes what was asked for.

        Returns:
            The exit code: that of ``conclude``; 2 if the file of ``--from-json`` cannot be read or
            matplotlib is missing.
        """
        if options.plot and importlib.util.find_spec("matplotlib") is None:
            # Said before minutes of measuring, not after.
            print("--plot needs matplotlib: pip install 'jaxkernels[bench]'", file=sys.stderr)
            return 2
        if options.from_json:
            try:
                result = self.from_json(options.from_json.read_text())
            except (OSError, ValueError) as error:
                print(f"cannot read {options.from_json}: {error}", file=sys.stderr)
                return 2
        else:
            settings, sections = self.measure(options)
            where = environment.describe_environment(self.name, options.command_line)
            result = Run(where, settings, sections)
        if options.json:
            options.json.write_text(self.to_json(result))
        if options.plot and self.draw is not None:
            self.draw(result, options.plot)
        self._show(result, options.markdown)
        return self.conclude(result, options)

    def _show(self, result: Run, markdown: bool) -> None:
        """Prints the tables of a run on stdout."""
        tables = self.tables(result, markdown)
        line = environment.summarise_environment(result.environment)
        if markdown:
            made_by = f"{line}; made by `{result.environment['command']}`"
            print("\n\n".join([made_by, *(console.to_markdown(table) for table in tables)]))
            return
        print(line)
        print(result.environment["command"] + "\n")
        for table in tables:
            console.print_table(table)
