"""Compares losses with every pair of options with the truth: see jaxkernels.verify."""

import pytest
from cases import pairwise

from jaxkernels.verify import run
from jaxkernels.verify.families.losses import PLAIN, TokenLosses
from jaxkernels.verify.problem import Problem, to_spec

# Temperatures are of 1e-3 to 1e3, the second cap saturates, and masks hide whole rows and labels.
LEVELS = {
    "dtype": ["float32", "bfloat16", "float16"],
    "derivative": ["vjp", "jvp"],
    "soft_cap": [None, 30.0, 0.01],
    "temperature": [None, "fixed", "active"],
    "where": [None, [1, 40], [12, 40]],
    "returns": [[], ["entropy"]],
}
OF_LOSSES = {
    "returns": [[], ["lse", "entropy"]],
    "smoothing": [0.0, 0.1],
    "z_loss": [0.0, 0.01],
    "weights": [False, True],
    "reduction": ["none", "mean"],
}


@pytest.mark.parametrize("operation", TokenLosses.operations)
def test_pairs_of_options(operation):
    """Values and derivatives, with rows of the lowest finite number if there is a cap."""
    levels = LEVELS | (OF_LOSSES if operation == "cross_entropy" else {})
    problems = []
    for i, chosen in enumerate(pairwise(levels)):
        how = operation, chosen.pop("dtype"), None, chosen.pop("derivative"), "plain", 1, 8, [0, i]
        problems.append(Problem(*how, PLAIN | {"shape": [12, 40]} | chosen))
    for outcome in run.outcomes(problems, threads=2):
        assert not outcome.failures, to_spec(outcome.problem, outcome.failures[0][0])
