"""Defines a planted mistake: a change of one result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jaxkernels.verify.problem import Arrays, Problem

if TYPE_CHECKING:
    from jaxkernels.verify.run import Ran

Change = Callable[[Problem, Arrays, np.ndarray], np.ndarray]
Needs = Callable[[Problem], bool]


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One way to be wrong.

    Attributes:
        name: in a few words.
        change: from a problem, operands and one result to the wrong one.
        needs: whether a problem has what it spoils.
        result: which result is spoilt, "y" or that of the derivative, "d" and more.
        second_run_only: the first run is right.
        keeps_dtype: the wrong result has the dtype of the right one.
    """

    name: str
    change: Change
    needs: Needs = lambda problem: True
    result: str = "y"
    second_run_only: bool = False
    keeps_dtype: bool = True

    def fits(self, problem: Problem) -> bool:
        """Whether the mistake can spoil a problem, which must have results of several elements."""
        return problem.has_elements and self.needs(problem)

    def spoil(self, ran: Ran) -> Ran:
        """The results as the mistake would leave them."""
        if self.second_run_only:
            again = {i: self._spoilt(ran, x) for i, x in ran.again.items()}
            return dataclasses.replace(ran, again=again)
        results = self._spoilt(ran, ran.results)
        members = ran.problem.members
        again = {
            i: {name: x[i * members : (i + 1) * members] for name, x in results.items()}
            for i in ran.again
        }
        return dataclasses.replace(ran, results=results, again=again)

    def _spoilt(self, ran: Ran, results: Arrays) -> Arrays:
        name = next(x for x in results if x.startswith(self.result))
        right = results[name]
        with np.errstate(all="ignore"):
            wrong = np.asarray(self.change(ran.problem, ran.operands, right.copy()))
            return results | {name: wrong.astype(right.dtype) if self.keeps_dtype else wrong}
