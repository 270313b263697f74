"""A suite: one operation's benchmark as a value, and how every suite is measured.

A suite lists cases and gives the programs of every case. This module draws their data, hands them
to ``timing`` and makes the records. The command line, the file and the tables are ``__main__``'s.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from jaxkernels.bench.records import Case, Measured, Record, Run, key_of
from jaxkernels.bench.tables import View
from jaxkernels.bench.timing import REFUSALS, first_line, measure_together

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Options = argparse.Namespace
Draw = Callable[[], Sequence[Arguments]]


@dataclass(frozen=True)
class Program:
    """What a contender runs in one case."""

    # From the first arguments to the function to time. What it refuses is an empty cell.
    make: Callable[[Arguments], Function]
    # The arguments, one tuple for each rotation; programs with the same `draw` get the same ones.
    draw: Draw
    operations: int = 1  # in one call; times are divided by it
    # What else is to be known of a contender with a time, from the function that was timed and its
    # first arguments.
    inspect: Mapping[str, Callable[[Function, Arguments], Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """One operation's benchmark."""

    name: str  # of the sub-command
    summary: str  # one line for its help
    cases: Callable[[Options], Iterable[Case]]  # everything that the options ask for
    contenders: Callable[[Case, Options], Mapping[str, Program]]
    label: Callable[[Case], str]  # names a case in one line
    views: Callable[[Run], Sequence[View]]
    # Fields of cases and their values, of which the command line chooses: --dtypes float32.
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for add_argument
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of options, where others are meant
    together: Callable[[Case], Hashable] = key_of  # neighbours of one key are sampled in turn
    # What is said of a case as soon as it is measured; nothing if that is empty.
    said: Callable[[Measured], str] = lambda measured: ""
    # What regress measures on a platform: a group, a case, and our program of it.
    watched: Callable[[str], Iterable[tuple[str, Case, Program]]] = lambda platform: ()

    def chosen(self, options: Options) -> list[list[Case]]:
        """The cases that were asked for, in the parts that are sampled in turn.

        An axis that a case does not have leaves it in.
        """
        asked = {name: (None, *getattr(options, f"{name}s")) for name in self.axes}
        cases = self.cases(options)
        chosen = [c for c in cases if all(c.get(name) in some for name, some in asked.items())]
        return [list(part) for _, part in groupby(chosen, self.together)]


def measure(suite: Suite, options: Options, part: Sequence[Case]) -> list[Record]:
    """Measures a part of `Suite.chosen`, all contenders of all of its cases in turn.

    A contender that was refused, or ran out of memory, has a record that says so, and the others
    are measured all the same.
    """
    programs = {
        f"{number} {name}": (case, name, program)
        for number, case in enumerate(part)
        for name, program in suite.contenders(case, options).items()
    }
    drawn: dict[Draw, Sequence[Arguments]] = {}
    arguments: dict[str, Sequence[Arguments]] = {}
    functions: dict[str, Function] = {}
    refused: dict[str, str] = {}
    for key, (_, _, program) in programs.items():
        try:
            if program.draw not in drawn:
                drawn[program.draw] = program.draw()
            arguments[key] = drawn[program.draw]
        except REFUSALS as error:
            refused[key] = first_line(error)

    def make(key: str) -> Function:
        functions[key] = programs[key][2].make(arguments[key][0])
        return functions[key]

    timed, without = measure_together(
        {key: partial(make, key) for key in arguments},
        arguments,
        repeats=options.repeats,
        min_sample_seconds=options.min_sample_ms / 1e3,
    )
    refused |= without
    records = []
    for key, (case, name, program) in programs.items():
        if key in refused:
            records.append(Record(case, name, refused=refused[key]))
            continue
        extra: Case = {"operations": program.operations} if program.operations > 1 else {}
        missing = []
        for what, look in program.inspect.items():
            try:
                extra[what] = look(functions[key], arguments[key][0])
            except REFUSALS as error:
                missing.append(f"{what} not measured: {first_line(error)}")
        samples = [sample / program.operations for sample in timed[key]]
        seconds = statistics.median(samples)
        records.append(Record(case, name, seconds, samples, extra, "; ".join(missing)))
    return records


def count(text: str) -> int:
    """A type of options: a positive integer, written as 268435456 or as 2^28.

    Example:
        >>> count("2^10"), count("1000")
        (1024, 1000)
    """
    base, _, exponent = text.partition("^")
    value = int(base) ** int(exponent or 1)
    if value < 1:
        raise ValueError(text)
    return value


def sizes(*ranks: int) -> Callable[[str], tuple[int, ...]]:
    """A type of options: as many positive sizes as one of the ranks, joined by "x".

    Example:
        >>> sizes(1, 3)("64x4096x8")
        (64, 4096, 8)
    """

    def shape(text: str) -> tuple[int, ...]:
        found = tuple(int(part) for part in text.split("x"))
        if len(found) not in ranks or min(found) < 1:
            raise ValueError(text)
        return found

    return shape


def several(kind: Callable[[str], Any], metavar: str, text: str) -> dict[str, Any]:
    """What ``add_argument`` takes for an option of one value or more."""
    return {"nargs": "+", "type": kind, "metavar": metavar, "help": text}
