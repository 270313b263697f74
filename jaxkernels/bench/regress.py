"""The suite ``regress``: is any of our kernels slower than it was?

At most 120 cells over all operations, which their suites give: softmax and log_softmax, forward and
backward, on many rows and on few; attention scores, plain, masked and causal; whole attention layers;
matrix products. Lengths are of every tier, odd ones too. Ours alone is timed, as written down in
``jaxkernels.bench.timing``, the cells of a group and a storage type in turn, products one after the
other; calls of microseconds are chained in one program.

``--json FILE`` keeps a run; ``--against FILE`` compares with an earlier one of the same machine and
lists the cells that are slower by more than 2 % beyond the spread of their samples; the exit code
is then 1. ``--from-json`` compares two files without measuring.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax

from jaxkernels.bench import environment
from jaxkernels.bench import tables as t
from jaxkernels.bench.records import Case, Record, Run, key_of
from jaxkernels.bench.suite import Options, Program, Suite

GROUPS = ("rows", "few_rows", "scores", "layers", "products")
# A time is slower, or faster, if its median differs by more than this beyond the spread.
TOLERANCE = 0.02


def views(run: Run) -> list[t.View]:
    """One table for each group: the median and the spread of every cell."""
    spread = t.Column("spread", lambda m: m.records["ours"].spread, "{:.2%}")
    return [
        t.View(
            title=lambda m: f"ours, {m['group'].replace('_', ' ')}",
            by=lambda m: m["group"],
            columns=[*t.fields("cell"), t.time("us", "ours", "us", 2), spread],
            select=lambda m: m.seconds("ours") is not None,
        )
    ]


def suite_of(suites: Sequence[Suite]) -> Suite:
    """The suite of all cells that some suites want to be watched.

    Args:
        suites: of the operations.
    """

    @cache
    def cells(platform: str) -> dict[str, tuple[str, Case, Suite]]:
        return {
            suite.label(case): (group, case, suite)
            for suite in suites
            for group, case in suite.watched(platform)
        }

    def cases(options: Options) -> Iterable[Case]:
        found = cells(jax.default_backend()).items()
        return ({"group": group, "cell": name} for name, (group, _, _) in found)

    def contenders(case: Case, options: Options) -> Mapping[str, Program]:
        _, watched, suite = cells(jax.default_backend())[case["cell"]]
        assert suite.ours is not None
        return {"ours": replace(suite.ours(watched), inspect={})}

    def together(case: Case) -> tuple[str, str]:
        # What has one storage type: so many inputs are in memory at once. Products have none.
        group, watched, _ = cells(jax.default_backend())[case["cell"]]
        return group, watched.get("dtype", case["cell"])

    text = "an earlier run of this machine (--json); the exit code is 1 if a cell is slower"
    return Suite(
        name="regress",
        summary="ours over all operations in minutes, and what became slower since an earlier run",
        cases=cases,
        contenders=contenders,
        label=lambda case: case["cell"],
        views=views,
        axes={"group": GROUPS},
        options={"--against": {"type": Path, "metavar": "FILE", "help": text}},
        defaults={"repeats": 9, "min_sample_ms": 10.0},
        together=together,
    )


def change(old: Record, new: Record) -> str:
    """What a cell with two times became: "slower", "faster" or neither, which is empty."""
    if old.seconds is None or new.seconds is None:
        return ""
    limit = 1 + TOLERANCE + max(old.spread, new.spread)
    ratio = new.seconds / old.seconds
    return "slower" if ratio > limit else "faster" if 1 / ratio > limit else ""


def compare_runs(
    before: Run, after: Run, label: Callable[[Case], str], markdown: bool = False
) -> int:
    """Prints what became slower or faster.

    Returns:
        1 if a cell is slower, or had a time and has none; 2 if the runs cannot be compared.
    """
    for name in ("device", "platform"):
        if before.environment[name] != after.environment[name]:
            pair = f"{before.environment[name]} and {after.environment[name]}"
            print(f"cannot compare runs of different machines: {pair}", file=sys.stderr)
            return 2
    earlier, later = ({key_of(r.case): r for r in run.records} for run in (before, after))
    shared = [(label(old.case), old, later[key]) for key, old in earlier.items() if key in later]
    lost = [(name, new.refused) for name, old, new in shared if old.seconds and not new.seconds]
    timed = [cell for cell in shared if cell[1].seconds and cell[2].seconds]
    slower, faster = (
        [cell for cell in timed if change(*cell[1:]) == what] for what in ("slower", "faster")
    )
    unmatched = sorted(label((earlier | later)[key].case) for key in earlier.keys() ^ later.keys())
    notes = [
        f"{len(slower) or 'no'} cell{'s' if slower[1:] else ''} slower, of {len(timed)}: by more "
        f"than {TOLERANCE:.0%} beyond the spread, the larger distance of quartiles of the two runs"
    ]
    notes += [f"lost: {name}: {why}" for name, why in lost]
    if unmatched:
        more = f" and {len(unmatched) - 1} more" if unmatched[1:] else ""
        notes.append(f"in one of the runs only: {unmatched[0]}{more}")
    rows = [
        (
            name,
            f"{old.seconds * 1e6:.2f}",
            f"{new.seconds * 1e6:.2f}",
            f"{new.seconds / old.seconds:.3f}",
            f"{max(old.spread, new.spread):.2%}",
            change(old, new),
        )
        for name, old, new in (*slower, *faster)
    ]
    heads = ("cell", "us before", "us", "ratio", "spread", "")
    title = f"against {environment.summarise(before.environment)}"
    t.print_table(t.Table(title, heads, rows, notes), markdown)
    if not timed and not lost:
        print("cannot compare: the two runs have no cell in common", file=sys.stderr)
        return 2
    return 1 if slower or lost else 0
