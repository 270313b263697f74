"""Rows of classes: their shapes along any axis, their masks, and the kernels of losses that read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxkernels.verify import lengths
from jaxkernels.verify.families.row_layout import RowLayout, divisor, length_of_any_size
from jaxkernels.verify.problem import Problem

KERNELS = ("cross_entropy_fwd", "cross_entropy_fwd_grad")


def drawn_rows(dtype: str, most: int, rng: np.random.Generator) -> tuple[list[int], int]:
    """A shape of some rows of classes, and their axis."""
    fitting = [n for n in lengths.row_lengths(dtype) if 0 < n <= most]
    cols = length_of_any_size(fitting, most, rng)
    count = int(min(max(most // cols, 1), rng.choice([1, 2, 3, 5, 8, 31, 33, 64, 257, 1000])))
    outer = divisor(count)
    return [
        ([count, cols], -1),
        ([outer, 1, count // outer, cols], -1),
        ([outer, cols, count // outer], 1),
        ([cols, count], 0),
        ([cols] if count == 1 else [count, cols], -1),
    ][rng.choice(5, p=[0.4, 0.2, 0.1, 0.1, 0.2])]


def drawn_mask(options: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """A mask by which every row sees its first class at least."""
    mask = rng.random(options["where"]) < rng.choice([0.3, 0.9])
    np.moveaxis(mask, options["axis"], 0)[0] = True
    return mask


def accumulators(problem: Problem, dtype: str) -> int:
    """Partial sums that a row of the kernels has at least."""
    return RowLayout(problem.options).accumulators(KERNELS, problem.members, dtype, problem.how)
