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

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import jax

from jaxkernels.bench import tables as t
from jaxkernels.bench.records import Case, Measured, Record, Run
from jaxkernels.bench.suite import Axis, Options, Program, Suite, Watched

GROUPS = ("rows", "few_rows", "scores", "layers", "products")


def views(run: Run, markdown: bool) -> list[t.View]:
    """One table for each group: the median, the quartiles and the spread of every cell."""
    del run, markdown  # the tables are the same everywhere

    def ours(m: Measured) -> Record:
        return m.records["ours"]

    return [
        t.View(
            title=lambda m: f"ours, {m['group'].replace('_', ' ')}",
            by=lambda m: m["group"],
            labels=(t.field("cell"),),
            columns=(
                t.microseconds("us", "ours", "{:.2f}"),
                t.Column("first quartile", lambda m: ours(m).quartiles[0], "{:.2f}", 1e6),
                t.Column("third", lambda m: ours(m).quartiles[1], "{:.2f}", 1e6),
                t.Column("spread", lambda m: ours(m).spread, "{:.2%}"),
            ),
            lines=lambda members: [[m] for m in members if m.seconds("ours")],
        )
    ]


def suite_of(suites: Sequence[Suite]) -> Suite:
    """The suite of all cells that some suites want to be watched.

    Args:
        suites: of the operations.
    """

    @cache
    def cells(platform: str) -> dict[str, Watched]:
        return {s.label(w.case): w for s in suites for w in s.watched(platform)}

    def cases(options: Options) -> Iterable[Case]:
        return (
            {"group": watched.group, "cell": name}
            for name, watched in cells(jax.default_backend()).items()
        )

    def contenders(case: Case, options: Options) -> Mapping[str, Program]:
        return {"ours": cells(jax.default_backend())[case["cell"]].program}

    def together(case: Case) -> tuple[str, str]:
        # What has one storage type: so many inputs are in memory at once. Products have none.
        watched = cells(jax.default_backend())[case["cell"]]
        return watched.group, watched.case.get("dtype", case["cell"])

    return Suite(
        name="regress",
        summary="ours over all operations in minutes, and what became slower since an earlier run",
        cases=cases,
        contenders=contenders,
        label=lambda case: case["cell"],
        views=views,
        axes=(Axis("group", GROUPS),),
        defaults={"repeats": 9, "min_sample_ms": 10.0},
        together=together,
        compares=True,
    )
