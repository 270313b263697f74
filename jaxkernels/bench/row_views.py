"""What the suites of row operations show: tables, and the options of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from jaxkernels.bench import tables as t
from jaxkernels.bench.records import Measured, Run
from jaxkernels.bench.rows import (
    DTYPES,
    TIERS,
    TRAFFIC,
    is_rows,
    label,
    of_ceiling,
    rate,
    traffic,
)
from jaxkernels.bench.suite import Suite, count, several


def views(run: Run) -> list[t.View]:
    """Every length and contender, and few rows."""
    unit, text = t.rates(run.platform)
    forced = [name for name in TIERS[1:] if any(name in m.records for m in run.measured)]

    def columns(m: Measured) -> list[t.Column]:
        ceiling = traffic(m).ceiling
        names = {ceiling: ceiling, "jax.nn": "xla", "ours": "auto"} | {n: n for n in forced}
        rates = [t.Column(head, partial(rate, name=name), text) for head, name in names.items()]
        of = t.Column(f"of {ceiling}", of_ceiling, "{:.3f}")
        gain = t.times_faster("x jax.nn", "xla", "auto")
        tier = t.fields("tier") if m["tier"] else []
        return [*t.fields("cols", "rows"), *rates[:3], of, gain, *tier, *rates[3:]]

    times = [t.time("jax.nn us", "xla", "us", 1), t.time("ours us", "auto", "us", 1)]
    return [
        t.View(
            "{operation} {direction}, {dtype}" + f" ({unit} of model bytes)",
            columns,
            is_rows,
            by=("dtype", "direction"),
        ),
        t.View(
            "{operation} on few rows",
            [*t.fields("rows", "cols", "dtype"), *times],
            lambda m: not is_rows(m),
        ),
    ]


_TIERS_HELP = "auto and the tiers to force (default: all on a GPU, auto on a CPU)"
_ELEMENTS_HELP = "size of each input, rows = N // cols (default: 2^28 on a GPU, 2^24 on a CPU)"
_OPTIONS: dict[str, dict[str, Any]] = {
    "--cols": several(count, "N", "row lengths, such as 1000 or 2^15"),
    "--tiers": {"nargs": "+", "choices": TIERS, "help": _TIERS_HELP},
    "--elements": {"type": count, "metavar": "N", "help": _ELEMENTS_HELP},
}


def suite(name: str, options: Mapping[str, Any] | None = None, **more: Any) -> Suite:
    """The suite of a row operation of `TRAFFIC`, with options beyond those of all of them."""
    return Suite(
        name=name,
        label=label,
        views=views,
        axes={"dtype": DTYPES, "direction": tuple(TRAFFIC[name])},
        defaults={"dtypes": DTYPES[:2]},
        options={**_OPTIONS, **(options or {})},
        **more,
    )
