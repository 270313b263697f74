"""A suite: one operation's benchmark as data, and the engine that measures every suite.

A suite lists its cases, names the contenders of each and gives their programs. The engine draws the
inputs, compiles, has ``timing`` sample, and makes the records. The command line, the file and the
tables are ``__main__``'s.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
    inputs: str = ""  # programs of a case that name the same inputs share one draw
    operations: int = 1  # in one call; times are divided by it
    # Further values of a contender that has a time, from the compiled function and its arguments.
    inspect: Mapping[str, Callable[[Function, Arguments], Any]] = field(default_factory=dict)
    jit: bool = True


@dataclass(frozen=True)
class Suite:
    """One operation's benchmark."""

    name: str  # of the sub-command
    summary: str  # one line for its help
    cases: Callable[[Options], Iterable[Case]]  # everything that the options ask for
    names: Callable[[Case, Options], Iterable[str]]  # the contenders of a case
    program: Callable[[Case, str], Program]  # of a contender; what it refuses is an empty cell
    label: Callable[[Case], str]  # names a case in one line
    views: Callable[[Run], Sequence[View]]
    # Fields of cases and their values; the command line selects from them: --dtypes float32.
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for add_argument
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of options, by name
    # Neighbours of one key are sampled in turn.
    together: Callable[[Case], Hashable] = lambda case: case.get("part", key_of(case))
    ours: str = "ours"  # the contender that regress measures,
    # in these cases of a platform, each with its group.
    watched: Callable[[str], Iterable[tuple[str, Case]]] = lambda platform: ()

    def chosen(self, options: Options) -> list[list[Case]]:
        """The selected cases, in the parts that are sampled in turn.

        An axis that a case does not have leaves it in.
        """
        asked = {name: (None, *getattr(options, f"{name}s")) for name in self.axes}
        cases = self.cases(options)
        chosen = [c for c in cases if all(c.get(name) in some for name, some in asked.items())]
        return [list(part) for _, part in groupby(chosen, self.together)]


def _compiled(
    functions: Mapping[Hashable, Any], arguments: Mapping[Hashable, Sequence[Arguments]]
) -> tuple[dict[Hashable, Function], dict[Hashable, str]]:
    """Compiles jitted functions on all cores, equal programs once; also why some are refused."""
    lowered, ready, refused = {}, {}, {}
    for key, function in functions.items():
        try:
            lowered[key] = function.lower(*arguments[key][0])
        except REFUSALS as error:
            refused[key] = first_line(error)
    texts = {key: program.as_text() for key, program in lowered.items()}
    different = {text: lowered[key] for key, text in texts.items()}
    with ThreadPoolExecutor() as pool:
        futures = {text: pool.submit(program.compile) for text, program in different.items()}
    for key, text in texts.items():
        try:
            ready[key] = futures[text].result()
        except REFUSALS as error:
            refused[key] = first_line(error)
    return ready, refused


def _record(
    case: Case,
    name: str,
    program: Program,
    function: Function,
    arguments: Arguments,
    samples: Sequence[float],
) -> Record:
    """The record of a contender that was timed, with its further values."""
    extra: Case = {"operations": program.operations} if program.operations > 1 else {}
    missing = []
    for what, look in program.inspect.items():
        try:
            extra[what] = look(function, arguments)
        except REFUSALS as error:
            missing.append(f"{what} not measured: {first_line(error)}")
    samples = [sample / program.operations for sample in samples]
    return Record(case, name, statistics.median(samples), samples, extra, "; ".join(missing))


def measure(suite: Suite, options: Options, part: Sequence[Case]) -> list[Record]:
    """Measures a part of `Suite.chosen`, all contenders of all of its cases in turn.

    A contender that refuses, or runs out of memory, has a record that says so; the others are
    measured. The programs of a numbered part are compiled on all cores before any is sampled.
    """
    cases = {(i, name): case for i, case in enumerate(part) for name in suite.names(case, options)}
    programs: dict[Hashable, Program] = {}
    functions: dict[Hashable, Function] = {}
    drawn: dict[Hashable, Sequence[Arguments]] = {}
    arguments: dict[Hashable, Sequence[Arguments]] = {}
    refused: dict[Hashable, str] = {}
    for key, case in cases.items():
        try:
            program = suite.program(case, key[1])
            inputs = (key[0], program.inputs)
            if inputs not in drawn:
                drawn[inputs] = program.draw()
        except REFUSALS as error:
            refused[key] = first_line(error)
            continue
        programs[key], arguments[key] = program, drawn[inputs]
        functions[key] = jax.jit(program.function) if program.jit else program.function
    if "part" in part[0]:
        functions, without = _compiled(functions, arguments)
        refused |= without
    how = {"repeats": options.repeats, "min_sample_seconds": options.min_sample_ms / 1e3}
    timed, without = measure_together(functions, arguments, **how)
    refused |= without
    return [
        Record(case, key[1], refused=refused[key])
        if key in refused
        else _record(case, key[1], programs[key], functions[key], arguments[key][0], timed[key])
        for key, case in cases.items()
    ]
