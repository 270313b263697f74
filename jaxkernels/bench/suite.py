"""A suite: one operation's benchmark as data, and the engine that measures every suite.

A suite lists its cases, their contenders and their programs. The engine draws the inputs, compiles, calls
``timing`` to sample, and returns the records. ``__main__`` handles the command line, files and tables.
"""

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import jax

from jaxkernels.bench.records import Case, Record, Run, key_of
from jaxkernels.bench.tables import View
from jaxkernels.bench.timing import REFUSALS, first_line, measure_together

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Options = argparse.Namespace


@dataclass(frozen=True)
class Program:
    """The function of a contender in one case, and its inputs."""

    function: Function
    draw: Callable[[], Sequence[Arguments]]  # a tuple of arguments for each rotation
    inputs: str = ""  # programs of a case with the same `inputs` share one draw
    operations: int = 1  # operations in one call; times are divided by it
    # f(timed function, arguments) -> a further value of the contender, by the value's name.
    inspect: Mapping[str, Callable[[Function, Arguments], Any]] = field(default_factory=dict)
    jit: bool = True


@dataclass(frozen=True)
class Suite:
    """One operation's benchmark."""

    name: str  # name of the sub-command
    summary: str  # one line for its help
    cases: Callable[[Options], Iterable[Case]]  # all cases for the options
    names: Callable[[Case, Options], Iterable[str]]  # the contenders of a case
    program: Callable[[Case, str], Program]  # a contender's program; a refusal is an empty cell
    label: Callable[[Case], str]  # the name of a case, in one line
    views: Callable[[Run], Sequence[View]]
    # Fields of cases and their values, from which the command line selects: --dtypes float32.
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for add_argument
    defaults: Mapping[str, Any] = field(default_factory=dict)  # defaults of options, by name
    ours: str = "ours"  # the contender that `regress` measures

    def chosen(self, options: Options) -> list[list[Case]]:
        """The selected cases in parts: consecutive ones with one value of "part", which are sampled in turn, or a single one.

        A selection along an axis keeps the cases without that field.
        """
        asked = {name: (None, *getattr(options, f"{name}s")) for name in self.axes}
        cases = self.cases(options)
        chosen = [c for c in cases if all(c.get(name) in some for name, some in asked.items())]
        return [list(part) for _, part in groupby(chosen, lambda c: c.get("part", key_of(c)))]


def _each(
    calls: Mapping[Any, Function], on_all_cores: bool
) -> tuple[dict[Any, Any], dict[Any, str]]:
    """The results of calls, and the reasons of those that refused."""
    found, refused = {}, {}
    with ThreadPoolExecutor() as pool:
        results = {k: pool.submit(f).result if on_all_cores else f for k, f in calls.items()}
    for key, result in results.items():
        try:
            found[key] = result()
        except REFUSALS as error:
            refused[key] = first_line(error)
    return found, refused


def compiled(function: Any, arguments: Arguments) -> Any:
    """The compiled program of a jitted function; other functions do not change."""
    return function.lower(*arguments).compile() if hasattr(function, "lower") else function


def measure(suite: Suite, options: Options, part: Sequence[Case]) -> list[Record]:
    """Measures a part of `Suite.chosen`, with all contenders of all cases in turn.

    If a contender refuses or runs out of memory, its record contains the reason, and the others are
    measured. If the cases have a field "part", their inputs are drawn, and their programs compiled, on all cores before
    any is sampled.
    """
    cases = {(i, name): case for i, case in enumerate(part) for name in suite.names(case, options)}
    numbered = "part" in part[0]
    programs, refused = _each(
        {key: partial(suite.program, case, key[1]) for key, case in cases.items()}, False
    )
    inputs = {key: (key[0], program.inputs) for key, program in programs.items()}
    drawn, undrawn = _each({inputs[key]: p.draw for key, p in programs.items()}, numbered)
    refused |= {key: undrawn[of] for key, of in inputs.items() if of in undrawn}
    arguments = {key: drawn[of] for key, of in inputs.items() if of in drawn}
    functions = {
        key: jax.jit(programs[key].function) if programs[key].jit else programs[key].function
        for key in arguments
    }
    if numbered:
        calls = {key: partial(compiled, f, arguments[key][0]) for key, f in functions.items()}
        functions, without = _each(calls, True)
        refused |= without
    how = {"repeats": options.repeats, "min_sample_seconds": options.min_sample_ms / 1e3}
    timed, without = measure_together(functions, arguments, **how)
    refused |= without

    def record(key: tuple[int, str], case: Case) -> Record:
        """The record of a contender, with its further values if it was timed."""
        if key in refused:
            return Record(case, key[1], refused=refused[key])
        count, missing = programs[key].operations, []
        extra: Case = {"operations": count} if count > 1 else {}
        for what, look in programs[key].inspect.items():
            try:
                extra[what] = look(functions[key], arguments[key][0])
            except REFUSALS as error:
                missing.append(f"{what} not measured: {first_line(error)}")
        samples = [sample / count for sample in timed[key]]
        return Record(case, key[1], statistics.median(samples), samples, extra, "; ".join(missing))

    return [record(key, case) for key, case in cases.items()]
