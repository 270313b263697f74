"""Losses of drawn options, derivatives and layouts, held to the truth: see jaxkernels.verify."""

import dataclasses

import pytest

from jaxkernels.verify import draw, run
from jaxkernels.verify.families.losses import TokenLosses
from jaxkernels.verify.families.optax import OptaxLosses
from jaxkernels.verify.problem import to_spec


@pytest.mark.parametrize("index", [0, 1], ids=["float64", "narrower"])
@pytest.mark.parametrize("operation", TokenLosses.operations + OptaxLosses.operations)
def test_drawn_losses(operation, index):
    """A failure shows the line that `python -m jaxkernels.verify --repeat` takes."""
    problems = draw.bundle(3, index, (operation,))
    problems = [dataclasses.replace(p, draws=min(p.draws, 8)) for p in problems]
    for outcome in run.outcomes(problems, threads=2):
        assert not outcome.failures, to_spec(outcome.problem, outcome.failures[0][0])
