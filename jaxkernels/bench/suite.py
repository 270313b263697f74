"""A suite: one operation's benchmark as a value, and how every suite is measured.

A suite lists cases and gives the programs of every case. This module draws their data, hands them to
``timing`` and makes the records. The command line, the file and the tables are ``runner``'s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from jaxkernels.bench.plot import Figure
from jaxkernels.bench.records import Case, Record, Run
from jaxkernels.bench.tables import View
from jaxkernels.bench.timing import REFUSALS, Contender, first_line, measure_together

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Options = argparse.Namespace
Draw = Callable[[], Sequence[Arguments]]


@dataclass(frozen=True)
class Program:
    """What a contender runs in one case.

    Attributes:
        make: from the first arguments to the function to time. What it refuses is an empty cell.
        draw: makes the arguments, one tuple for each rotation; programs that have the same `draw` get
            the same arguments.
        operations: how many operations one call does; times are divided by it.
        inspect: what else is to be known of a contender with a time, by name: from the function that
            was timed and its first arguments.
    """

    make: Callable[[Arguments], Function]
    draw: Draw
    operations: int = 1
    inspect: Mapping[str, Callable[[Function, Arguments], Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Axis:
    """A field of cases; the command line chooses from its values, as in ``--dtypes float32``.

    Attributes:
        name: of the field.
        choices: its values.
        default: the values that are measured without being asked for; None for all.
    """

    name: str
    choices: Sequence[str]
    default: Sequence[str] | None = None


@dataclass(frozen=True)
class Watched:
    """A case that ``regress`` measures of ours alone.

    Attributes:
        group: what the case belongs to, such as "rows".
        case: names it.
        program: ours.
    """

    group: str
    case: Case
    program: Program


@dataclass(frozen=True)
class Suite:
    """One operation's benchmark.

    Attributes:
        name: of the sub-command.
        summary: one line for its help.
        cases: everything that the options ask for.
        contenders: the programs of a case, by contender.
        label: names a case in one line.
        views: the tables of a run; True asks for those of a document.
        axes: the fields that options choose from.
        options: further options: what ``add_argument`` takes, by flag.
        defaults: of options that all suites have.
        figure: the picture of a run; None where there is none.
        together: consecutive cases with the same key are sampled in turn; None: each by itself.
        watched: the cases of a platform that ``regress`` measures.
        compares: whether ``--against`` compares two runs.
    """

    name: str
    summary: str
    cases: Callable[[Options], Iterable[Case]]
    contenders: Callable[[Case, Options], Mapping[str, Program]]
    label: Callable[[Case], str]
    views: Callable[[Run, bool], Sequence[View]]
    axes: Sequence[Axis] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    figure: Callable[[Run], Figure] | None = None
    together: Callable[[Case], Hashable] | None = None
    watched: Callable[[str], Iterable[Watched]] = lambda platform: ()
    compares: bool = False

    def chosen(self, options: Options) -> list[list[Case]]:
        """The cases that were asked for, in the parts that are sampled in turn.

        An axis that a case does not have leaves it in.
        """
        cases = [
            case
            for case in self.cases(options)
            if all(case.get(a.name) in (None, *getattr(options, f"{a.name}s")) for a in self.axes)
        ]
        if self.together is None:
            return [[case] for case in cases]
        return [list(part) for _, part in groupby(cases, self.together)]


def measure(suite: Suite, options: Options, part: Sequence[Case]) -> list[Record]:
    """Measures cases, all of their contenders in turn; see ``timing`` for the method.

    Args:
        suite: the benchmark.
        options: as its command line has them.
        part: some cases of `Suite.chosen`.

    Returns:
        A record for each contender of each case. One that was refused, or ran out of memory, says
        so, and the others are measured all the same.
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

    timings, without = measure_together(
        [Contender(key, partial(make, key), each) for key, each in arguments.items()],
        repeats=options.repeats,
        min_sample_seconds=options.min_sample_ms / 1e3,
    )
    refused |= without
    records = []
    for key, (case, name, program) in programs.items():
        if key not in timings:
            records.append(Record(suite.name, case, name, refused=refused[key]))
            continue
        extra, missing = _inspect(program, functions[key], arguments[key][0])
        timing, count = timings[key], program.operations
        samples = [sample / count for sample in timing.samples]
        records.append(
            Record(suite.name, case, name, timing.seconds / count, samples, extra, missing)
        )
    return records


def _inspect(program: Program, function: Function, arguments: Arguments) -> tuple[Case, str]:
    """What else is to be known of a program, and what of it could not be."""
    extra: dict[str, Any] = {} if program.operations == 1 else {"operations": program.operations}
    missing = []
    for name, look in program.inspect.items():
        try:
            extra[name] = look(function, arguments)
        except REFUSALS as error:
            missing.append(f"{name} not measured: {first_line(error)}")
    return extra, "; ".join(missing)
