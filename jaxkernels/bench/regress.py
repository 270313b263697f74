"""The suite ``regress``: is any of our kernels slower than it was?

A cell is a case of another suite. The command lines in `WATCHED` select the cells: lengths of every tier, including odd
ones. Only our kernels are timed. Consecutive cells of one group and dtype are sampled in turn, products one by one.

``--json FILE`` writes a run. ``--against FILE`` compares it with an earlier run of the same machine, and
lists the cells that are lost, or slower by more than 2 % beyond the spread of their samples; the exit code
is then 1. With ``--from-json`` it compares two files without measuring.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import jax

from jaxkernels.bench import environment
from jaxkernels.bench import tables as t
from jaxkernels.bench.options import build_parser
from jaxkernels.bench.records import Case, Record, Run
from jaxkernels.bench.suite import Options, Program, Suite

GROUPS = ("rows", "few_rows", "scores", "layers", "products")
# Command lines by platform.
WATCHED = {
    "gpu": (
        "softmax --elements 2^26 --cols 32 1000 1001 4096 16384 50257 131072 2^20",
        "softmax --elements 2^26 --cols 1000 50257 --dtypes float16 --no-few-rows",
        "softmax --elements 2^26 --cols 8192 50257 --operation log_softmax --no-few-rows",
        "logsumexp --elements 2^26 --cols 197 50257 --directions fwd grad",
        "rms_norm --elements 2^26 --cols 4096 --dtypes bfloat16 --directions grad",
        "losses --elements 2^26 --cols 50257 --directions loss mean none",
        "attention --shapes 4x16x1024 --layer-shapes 4x16x1024",
        "sgemm --groups square other transposed",
    ),
    "cpu": (
        "softmax --elements 2^20 --cols 64 1001 4096",
        "softmax --elements 2^20 --cols 1001 --dtypes float16",
        "softmax --elements 2^20 --cols 1001 --operation log_softmax",
        "logsumexp --elements 2^20 --cols 1001 --directions fwd grad",
        "rms_norm --elements 2^20 --cols 4096 --dtypes bfloat16 --directions grad",
        "losses --elements 2^18 --cols 1001 --directions loss mean none",
        "attention --shapes 1x4x256 --layer-shapes 1x4x128x32",
        "sgemm --groups square other",
    ),
}
# Relative difference of medians, beyond the spread, from which a cell is slower or faster.
TOLERANCE = 0.02


def _views(run: Run) -> list[t.View]:
    spread = t.Column("spread", lambda m: m.records["ours"].spread, "{:.2%}")
    columns = [*t.fields("cell"), t.time("us", "ours", "us", 2), spread]
    return [t.View("ours, {group}", columns)]


def suite_of(suites: Sequence[Suite]) -> Suite:
    """The suite of all watched cells of the given suites."""
    parser = build_parser(suites)

    @cache
    def cells() -> dict[str, tuple[str, Suite, Case]]:
        found = {}
        for line in WATCHED["cpu" if jax.default_backend() == "cpu" else "gpu"]:
            options = parser.parse_args(line.split())
            suite: Suite = options.suite
            for case in chain.from_iterable(suite.chosen(options)):
                group = case["group"] if case["group"] in GROUPS else "products"
                found[suite.label(case)] = group, suite, case
        return found

    def cases(options: Options) -> Iterable[Case]:
        for name, (group, _, case) in cells().items():
            # One dtype at a time bounds the memory of the inputs. Products have no dtype.
            yield {"group": group, "cell": name, "part": f"{group} {case.get('dtype', name)}"}

    def program(case: Case, name: str) -> Program:
        _, suite, watched = cells()[case["cell"]]
        return replace(suite.program(watched, suite.ours), inspect={})

    text = "an earlier run of this machine (--json); the exit code is 1 if a cell is slower"
    return Suite(
        name="regress",
        summary="rows, losses, attention and products in minutes, and what became slower since an earlier run",
        cases=cases,
        names=lambda case, options: ("ours",),
        program=program,
        label=lambda case: case["cell"],
        views=_views,
        axes={"group": GROUPS},
        options={"--against": {"type": Path, "metavar": "FILE", "help": text}},
        defaults={"repeats": 9, "min_sample_ms": 10.0},
    )


def change(old: Record, new: Record) -> str:
    """The change of a cell between two runs: "lost" (no longer timed), "slower", "faster", or empty for none."""
    if not old.seconds or not new.seconds:
        return "lost" if old.seconds else ""
    limit, ratio = 1 + TOLERANCE + max(old.spread, new.spread), new.seconds / old.seconds
    return "slower" if ratio > limit else "faster" if 1 / ratio > limit else ""


def compare(before: Run, after: Run, markdown: bool = False) -> int:
    """Prints the changed cells. Returns 1 if one is slower or lost, 2 if nothing can be compared."""
    machines = [(run.environment["device"], run.platform) for run in (before, after)]
    if machines[0] != machines[1]:
        print(f"cannot compare runs of different machines: {machines}", file=sys.stderr)
        return 2
    cells, later = ({r.case["cell"]: r for r in run.records} for run in (before, after))
    compared = [(old, later[name]) for name, old in cells.items() if old.seconds and name in later]
    if not compared:
        print("cannot compare: the two runs have no cell in common", file=sys.stderr)
        return 2
    changed = t.group_by(compared, lambda pair: change(*pair))
    slower, faster, lost = (changed.get(name, []) for name in ("slower", "faster", "lost"))
    notes = [
        f"{len(slower) or 'no'} cell{'s' if slower[1:] else ''} slower, of "
        f"{len(compared) - len(lost)}: by more than {TOLERANCE:.0%} beyond the spread, the larger "
        "distance of quartiles of the two runs"
    ]
    notes += [f"lost: {new.case['cell']}: {new.refused}" for _, new in lost]
    if unmatched := sorted(cells.keys() ^ later.keys()):
        notes.append(f"in one of the runs only: {unmatched[0]} and {len(unmatched) - 1} more")
    rows = []
    for old, new in (*slower, *faster):
        times = (f"{r.seconds * 1e6:.2f}" for r in (old, new))
        ratio, spread = new.seconds / old.seconds, max(old.spread, new.spread)
        rows.append([old.case["cell"], *times, f"{ratio:.3f}", f"{spread:.2%}", change(old, new)])
    heads = ("cell", "us before", "us", "ratio", "spread", "")
    title = f"against {environment.summarise(before.environment)}"
    t.print_table(t.Table(title, heads, rows, notes), markdown)
    return 1 if slower or lost else 0
