"""Rows of classes: their shapes, how they lie along any axis, and what the kernels of losses make of them."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from jaxkernels._core import validate
from jaxkernels.verify import lengths
from jaxkernels.verify.problem import Problem

_KERNELS: tuple[Any, ...] = ("cross_entropy_fwd", "cross_entropy_fwd_grad", "cross_entropy_grad")


def rows_of_any_length(dtype: str, most: int, rng: np.random.Generator) -> tuple[list[int], int]:
    """A shape of some rows of classes, and their axis."""
    fitting = [n for n in lengths.row_lengths(dtype) if 0 < n <= most]
    scale = np.exp2(rng.uniform(0, math.log2(max(most, 2))))
    cols = fitting[int(np.abs(np.array(fitting) - scale).argmin())]
    count = int(min(max(most // cols, 1), rng.choice([1, 2, 3, 5, 8, 31, 33, 64, 257, 1000])))
    outer = next((d for d in (3, 2, 5, 7) if count % d == 0), 1)
    return [
        ([count, cols], -1),
        ([outer, 1, count // outer, cols], -1),
        ([outer, cols, count // outer], 1),
        ([cols, count], 0),
        ([cols] if count == 1 else [count, cols], -1),
    ][rng.choice(5, p=[0.4, 0.2, 0.1, 0.1, 0.2])]


def forced_tier(shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> str | None:
    """A tier that all kernels have, on a GPU."""
    if jax.default_backend() != "gpu":
        return None
    tier = [None, *validate.TIERS][rng.integers(len(validate.TIERS) + 1)]
    return tier if lengths.tier_serves(tier, shape, dtype, _KERNELS[:2]) else None


def row_shape(options: dict[str, Any]) -> list[int]:
    """The shape without the axis of the classes."""
    axis = options["axis"] % len(options["shape"])
    return [n for d, n in enumerate(options["shape"]) if d != axis]


def rows_and_classes(options: dict[str, Any]) -> tuple[int, int]:
    """How many rows there are, and how many classes."""
    return math.prod(row_shape(options)), options["shape"][options["axis"]]


def from_rows(x: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """Rows of shape (rows, classes) in the shape of the options."""
    whole = x.reshape(*row_shape(options), x.shape[-1])
    axis = options["axis"] % len(options["shape"])
    return np.ascontiguousarray(np.moveaxis(whole, -1, axis))


def to_rows(x: np.ndarray, problem: Problem, members: int) -> np.ndarray:
    """The rows of all members, (rows, classes), of what broadcasts against their shapes."""
    shape = problem.options["shape"]
    whole = np.broadcast_to(x, (members, *shape))
    axis = problem.options["axis"] % len(shape) + 1
    return np.moveaxis(whole, axis, -1).reshape(-1, shape[axis - 1])


def from_members(rows: np.ndarray, problem: Problem, members: int) -> np.ndarray:
    """The inverse of `to_rows`."""
    axis = problem.options["axis"] % len(problem.options["shape"]) + 1
    whole = rows.reshape(members, *row_shape(problem.options), rows.shape[-1])
    return np.moveaxis(whole, -1, axis)


def mask_of(options: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """A mask by which every row sees its first class at least."""
    mask = rng.random(options["where"]) < rng.choice([0.3, 0.9])
    np.moveaxis(mask, options["axis"], 0)[0] = True
    return mask


def sums_of(problem: Problem, dtype: Any) -> int:
    """Partial sums that a row of the kernels has at least."""
    count, cols = rows_and_classes(problem.options)
    return min(
        lengths.accumulators(operation, (n, cols), dtype, problem.how, anywhere=True)
        for operation in _KERNELS[:2]
        for n in {count, count * problem.members}
    )
