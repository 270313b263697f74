"""Command line of the softmax benchmark, and the form of its JSON file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from jaxkernels.bench import console, environment
from jaxkernels.bench.softmax import cases, measure, report

_SCHEMA = 1


@dataclass(frozen=True)
class Run:
    """One run: where, how, and what came out; the content of the JSON file."""

    environment: dict[str, str]
    settings: dict[str, Any]
    measurements: tuple[cases.Measurement, ...]
    few_rows: tuple[cases.FewRows, ...]

    def to_json(self) -> str:
        """Returns the run as a JSON document."""
        content = {"schema": _SCHEMA, "benchmark": "softmax", **asdict(self)}
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Reads what ``to_json`` wrote.

        Raises:
            ValueError: if the text is no JSON file of this benchmark.
        """
        content = json.loads(text)
        kind = (content.get("benchmark"), content.get("schema")) if type(content) is dict else None
        if kind != ("softmax", _SCHEMA):
            raise ValueError(f"expected a softmax benchmark of schema {_SCHEMA}, got {kind}")
        return cls(
            environment=content["environment"],
            settings=content["settings"],
            measurements=tuple(cases.Measurement(**m) for m in content["measurements"]),
            few_rows=tuple(cases.FewRows(**f) for f in content["few_rows"]),
        )


def _count(text: str) -> int:
    try:
        return cases.parse_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected a positive count such as 4096 or 2^12, got {text!r}"
        ) from error


def add_parser(commands: Any) -> None:
    """Adds ``softmax`` to the sub-commands of ``python -m jaxkernels.bench``."""
    parser = commands.add_parser(
        "softmax",
        help="softmax and log_softmax, forward and backward",
        description="Measure softmax beside jax.nn.softmax and a plain copy.",
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument("--operation", choices=("softmax", "log_softmax"), default="softmax")
    what.add_argument(
        "--log-softmax",
        dest="operation",
        action="store_const",
        const="log_softmax",
        help="same as --operation log_softmax",
    )
    what.add_argument(
        "--cols", nargs="+", type=_count, metavar="N", help="row lengths, such as 1000 or 2^15"
    )
    what.add_argument("--dtypes", nargs="+", choices=cases.DTYPES, default=("float32", "bfloat16"))
    what.add_argument("--directions", nargs="+", choices=cases.DIRECTIONS, default=cases.DIRECTIONS)
    what.add_argument(
        "--tiers",
        nargs="+",
        choices=cases.TIERS,
        help="auto and the tiers to force (default: all on a GPU, auto on a CPU)",
    )
    what.add_argument(
        "--elements",
        type=_count,
        metavar="N",
        help="size of each input, rows = N // cols (default: 2^28 on a GPU, 2^24 on a CPU)",
    )
    what.add_argument(
        "--few-rows",
        action=argparse.BooleanOptionalAction,
        help="also measure the latency on small inputs (default: on a GPU)",
    )
    how = parser.add_argument_group("how to measure")
    how.add_argument("--repeats", type=_count, default=5, metavar="N", help="samples per median")
    how.add_argument(
        "--min-sample-ms", type=float, default=20.0, metavar="MS", help="least length of a sample"
    )
    out = parser.add_argument_group("what to write")
    out.add_argument("--json", type=Path, metavar="FILE", help="keep every number")
    out.add_argument("--plot", type=Path, metavar="FILE", help="draw throughput over columns (PNG)")
    out.add_argument("--markdown", action="store_true", help="print Markdown, ready for a README")
    out.add_argument(
        "--from-json", type=Path, metavar="FILE", help="show an earlier run, measure nothing"
    )
    parser.set_defaults(run=run)


def _settings(options: argparse.Namespace) -> measure.Settings:
    """Fills in the defaults that depend on the platform."""
    on_cpu = jax.default_backend() == "cpu"
    cols = options.cols or (cases.CPU_COLS if on_cpu else cases.GPU_COLS)
    tiers = options.tiers or (cases.TIERS[:1] if on_cpu else cases.TIERS)
    elements = options.elements or (cases.CPU_ELEMENTS if on_cpu else cases.GPU_ELEMENTS)
    return measure.Settings(
        operation=options.operation,
        cols=tuple(sorted(set(cols))),
        dtypes=tuple(dict.fromkeys(options.dtypes)),
        directions=tuple(dict.fromkeys(options.directions)),
        tiers=tuple(dict.fromkeys(tiers)),
        elements=elements,
        repeats=options.repeats,
        min_sample_seconds=options.min_sample_ms / 1e3,
        few_rows=not on_cpu if options.few_rows is None else options.few_rows,
    )


def _measure(options: argparse.Namespace) -> Run:
    settings = _settings(options)
    with console.progress(settings.operation, settings.steps) as announce:
        measurements = measure.measure(settings, announce)
        few_rows = measure.measure_few_rows(settings, announce) if settings.few_rows else []
    return Run(
        environment=environment.describe_environment("softmax", options.command_line),
        settings=asdict(settings),
        measurements=tuple(measurements),
        few_rows=tuple(few_rows),
    )


def _show(result: Run, *, markdown: bool) -> None:
    """Prints the tables of a run on stdout."""
    operation, platform = result.settings["operation"], result.environment["platform"]
    measurements = result.measurements
    make = report.overview_tables if markdown else report.detail_tables
    tables = make(measurements, operation, platform)
    tables.append(report.summary_table(measurements, platform))
    extra = (report.odd_table(measurements), report.few_rows_table(result.few_rows, operation))
    tables += [table for table in extra if table is not None]
    line = environment.summarise_environment(result.environment)
    if markdown:
        made_by = f"{line}; made by `{result.environment['command']}`"
        print("\n\n".join([made_by, *(console.to_markdown(table) for table in tables)]))
        return
    print(line)
    print(result.environment["command"] + "\n")
    for table in tables:
        console.print_table(table)


def run(options: argparse.Namespace) -> int:
    """Measures, or reads an earlier run, and writes what was asked for.

    Returns:
        The exit code: 0; 2 if the file of ``--from-json`` cannot be read or matplotlib is missing.
    """
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        # Said before minutes of measuring, not after.
        print("--plot needs matplotlib: pip install 'jaxkernels[bench]'", file=sys.stderr)
        return 2
    if options.from_json:
        try:
            result = Run.from_json(options.from_json.read_text())
        except (OSError, ValueError) as error:
            print(f"cannot read {options.from_json}: {error}", file=sys.stderr)
            return 2
    else:
        result = _measure(options)
    if options.json:
        options.json.write_text(result.to_json())
    if options.plot:
        from jaxkernels.bench.softmax import plot  # matplotlib is an optional dependency

        operation = result.settings["operation"]
        plot.draw(result.measurements, operation, result.environment, options.plot)
    _show(result, markdown=options.markdown)
    return 0
