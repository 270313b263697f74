"""Compiles, runs and judges the programs of a bundle.

They are one compilation, which runs once for each draw, and again for some; a failure is that of one program and one draw.
"""

import concurrent.futures
import dataclasses
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxkernels.verify import delivery, draw
from jaxkernels.verify.families import OPERATIONS, family_of
from jaxkernels.verify.problem import Arrays, Problem, WrongTypeError

_DEVICE = threading.Lock()  # one bundle has the device; only the threads of its second run share it
_EVERY = 4  # every fourth draw runs again


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one program."""

    problem: Problem  # the program
    checks: int  # draws that were compared
    worst: float  # the largest error in units of its bound
    failures: tuple[tuple[int, str], ...] = ()  # draws that are wrong, and what is wrong


@dataclasses.dataclass(frozen=True)
class Ran:
    """All results of one program."""

    problem: Problem  # the program
    draws: Sequence[int]  # their numbers
    operands: Arrays  # of all members of all draws
    alike: np.ndarray  # for each member of each draw: whether its roundings may all have one sign
    results: Arrays  # of the first run
    again: Arrays  # results of the second run, in the layout of `repeated`

    def repeated(self) -> Arrays:
        """The results of the draws that run again, (draws, elements)."""
        count = len(self.draws)
        return {name: x.reshape(count, -1)[::_EVERY] for name, x in self.results.items()}


Change = Callable[[Problem, Arrays, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One way to be wrong."""

    # From a problem, operands and one result to the wrong one, in the same element order.
    change: Change
    needs: Callable[[Problem], bool] = lambda problem: True  # whether a problem has what it spoils
    operations: tuple[str, ...] = OPERATIONS
    result: str = "y"  # spoils the first result whose name begins so: "d" for a derivative
    second_run_only: bool = False  # the first run is right
    keeps_dtype: bool = True  # the wrong result has the dtype of the right one
    least: int | None = None  # the fewest programs that must show it; None: all of them

    def fits(self, problem: Problem) -> bool:
        """Whether the mistake can spoil a problem, which must have results of several elements."""
        is_one = problem.operation in self.operations and problem.has_elements
        return is_one and self.needs(problem)

    def spoil(self, ran: Ran) -> Ran:
        """The results as the mistake would leave them."""
        if self.second_run_only:
            return dataclasses.replace(ran, again=self._spoilt(ran, ran.again))
        ran = dataclasses.replace(ran, results=self._spoilt(ran, ran.results))
        return dataclasses.replace(ran, again=ran.repeated())

    def _spoilt(self, ran: Ran, results: Arrays) -> Arrays:
        name = next(x for x in results if x.startswith(self.result))
        right = results[name]
        with np.errstate(all="ignore"):
            wrong = self.change(ran.problem, ran.operands, right.copy()).reshape(right.shape)
            return results | {name: wrong.astype(right.dtype) if self.keeps_dtype else wrong}


def outcomes(
    problems: Sequence[Problem],
    threads: int,
    mistake: Mistake | None = None,
    draws: Sequence[int] | None = None,
) -> list[Outcome]:
    """Runs and judges the programs of a bundle; if one raises an error, each is tried alone.

    `threads` host threads run them the second time. A mistake is planted into the results.
    `draws` are the numbers of the draws; None means all draws of each problem.
    """
    try:
        ran = run(problems, threads, draws)
    except Exception as error:  # the run exists to find failing programs
        if len(problems) > 1:
            return [x for p in problems for x in outcomes([p], threads, mistake, draws)]
        text = "".join(traceback.format_exception_only(error)).strip().splitlines()[0][:300]
        first = 0 if draws is None else draws[0]
        return [Outcome(problems[0], 1, np.inf, ((first, text),))]
    return [judge(mistake.spoil(x) if mistake and mistake.fits(x.problem) else x) for x in ran]


@np.errstate(all="ignore")
def run(problems: Sequence[Problem], threads: int, draws: Sequence[int] | None = None) -> list[Ran]:
    """Runs every draw once, and a quarter of them again."""
    with jax.enable_x64(problems[0].wide):
        wanted = [range(p.draws) if draws is None else draws for p in problems]
        numbers, given = [], []
        for p, some in zip(problems, wanted, strict=True):
            drawn = [draw.numbers(p, i) for i in some]
            laid = [(x, p.generator(i, 1000)) for i, (x, _) in enumerate(drawn)]
            given.append([delivery.arguments(p, x, rng) for x, rng in laid])
            numbers.append(drawn)
        call = _program(problems, [some[0][0] for some in numbers], [x[0] for x in given])
        count = max(map(len, numbers))

        def once(i: int) -> list[Any]:
            # Programs with fewer draws run their last one again.
            with jax.enable_x64(problems[0].wide):
                return jax.device_get(call([x[min(i, len(x) - 1)] for x in given]))

        with _DEVICE:
            first = [once(i) for i in range(count)]
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                second = list(pool.map(once, range(0, count, _EVERY)))
    found = []
    for p, (problem, drawn) in enumerate(zip(problems, numbers, strict=True)):
        operands, alike = _joined([x for x, _ in drawn]), np.concatenate([x for _, x in drawn])
        results = _joined([x[p] for x in first[: len(drawn)]])
        some = second[: len(wanted[p][::_EVERY])]
        again = {name: np.stack([x[p][name].reshape(-1) for x in some]) for name in results}
        found.append(Ran(problem, wanted[p], operands, alike, results, again))
    return found


def _program(
    problems: Sequence[Problem], operands: Sequence[Arrays], example: list[Any]
) -> Callable[[list[Any]], list[Any]]:
    """One compiled function of the arguments of all programs."""
    functions = [
        delivery.program(
            p, family_of(p.operation).core(p), {name: a.shape[1:] for name, a in x.items()}
        )
        for p, x in zip(problems, operands, strict=True)
    ]

    def all_of(donated: list[Any], kept: list[Any]) -> list[Any]:
        return [f(x | y) for f, x, y in zip(functions, donated, kept, strict=True)]

    def split(given: list[Any]) -> tuple[list[Any], list[Any]]:
        donated, kept = [], []
        for p, x in zip(problems, given, strict=True):
            names = delivery.DONATED if p.delivery == "donated" else ()
            # A donated array must not alias NumPy's memory, which is compared with the result.
            donated.append({n: jax.device_put(x[n], may_alias=False) for n in names if n in x})
            kept.append({n: a for n, a in x.items() if n not in names})
        return donated, kept

    if problems[0].delivery in delivery.EAGER:
        return lambda given: all_of([{}] * len(given), jax.device_put(given))
    compiled = jax.jit(all_of, donate_argnums=0).lower(*split(example)).compile()
    return lambda given: compiled(*split(given))


def _joined(some: list[Arrays]) -> Arrays:
    return {name: np.concatenate([x[name] for x in some]) for name in some[0]}


@np.errstate(all="ignore")
def judge(ran: Ran) -> Outcome:
    """Holds the results to the truth, and the second run to the first, bit by bit."""
    problem, members = ran.problem, ran.problem.members
    try:
        judged = family_of(problem.operation).judge(problem, ran.operands, ran.results, ran.alike)
    except WrongTypeError as error:
        return Outcome(problem, len(ran.draws), np.inf, ((ran.draws[0], str(error)),))
    failures, worst = [], 0.0
    for name, of_members in judged.items():
        of_draws = of_members.reshape(len(ran.draws), members).max(-1)
        worst = max(worst, float(of_draws.max()))
        failures += [
            (number, f"{name}: {ratio:.3g} times the bound")
            for number, ratio in zip(ran.draws, of_draws, strict=True)
            if not ratio <= 1
        ]
    for name, first in ran.repeated().items():
        for number, x, y in zip(ran.draws[::_EVERY], first, ran.again[name], strict=True):
            # cuDNN adds the parts of dq in no fixed order.
            repeats = (name, problem.how) != ("dq", "cudnn")
            if repeats and x.tobytes() != y.tobytes():
                failures.append((number, f"{name}: other bits the second time"))
                worst = np.inf
    return Outcome(problem, len(ran.draws), worst, tuple(failures))
