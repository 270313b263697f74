"""How rows lie in an array, how long they are, and which elements masks hide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxkernels.verify import lengths
from jaxkernels.verify.problem import Rng

# The kernels of losses that read rows.
LOSSES = ("cross_entropy_fwd", "cross_entropy_fwd_grad")


class RowLayout:
    """The rows of a shape along its axes: `count` rows of `cols` elements."""

    def __init__(self, options: dict[str, Any]) -> None:
        """Takes the options shape and axis: None, a number, or several."""
        self.shape, axis = options["shape"], options["axis"]
        rank = len(self.shape)
        some = range(rank) if axis is None else axis if isinstance(axis, list) else [axis]
        self.axes = sorted(d % rank for d in some)  # the dimensions that rows are made of
        others = [d for d in range(rank) if d not in self.axes]
        self.row_shape = [self.shape[d] for d in others]
        self.count = math.prod(self.row_shape)
        self.cols = math.prod(self.shape[d] for d in self.axes)
        self._order = [*others, *self.axes]

    def to_rows(self, x: Any, members: int) -> np.ndarray:
        """The rows of all members, (rows, cols), of what broadcasts against their shapes."""
        whole = np.broadcast_to(x, (members, *self.shape))
        moved = whole.transpose([0, *(d + 1 for d in self._order)])
        return moved.reshape(members * self.count, self.cols)

    def to_shape(self, rows: np.ndarray, members: int) -> np.ndarray:
        """The inverse of `to_rows`, (members, *shape)."""
        whole = rows.reshape(members, *(self.shape[d] for d in self._order))
        order = [0, *(int(d) + 1 for d in np.argsort(self._order))]
        return np.ascontiguousarray(whole.transpose(order))

    def per_row(self, members: np.ndarray) -> np.ndarray:
        """A value of each member for each of its rows, (rows, 1)."""
        return np.repeat(members, self.count)[:, None]

    def accumulators(
        self, operations: Sequence[str], members: int, dtype: str, tier: str | None = None
    ) -> int:
        """Partial sums that a row has at least, in calls of one member and of all."""
        return min(
            lengths.accumulators(operation, (count, self.cols), dtype, tier, anywhere=True)
            for operation in operations
            for count in {self.count, self.count * members}
        )


def drawn_sizes(shape: Sequence[int], rng: Rng, ones: float = 0.3) -> list[int]:
    """A shape that broadcasts to the given one: a dimension is 1 with probability `ones`."""
    return [1 if rng.random() < ones else size for size in shape]


def length_of_any_size(fitting: Sequence[int], most: int, rng: Rng) -> int:
    """One of some lengths; every factor of two gets about as often its turn as any other."""
    scale = np.exp2(rng.uniform(0, math.log2(max(most, 2))))
    return fitting[int(np.abs(np.array(fitting) - scale).argmin())]


def divisor(size: int) -> int:
    """A small prime that divides a size, or 1."""
    return next((d for d in (3, 2, 5, 7) if size % d == 0), 1)


def drawn_rows(dtype: str, most: int, rng: Rng) -> tuple[list[int], int]:
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


def drawn_mask(options: dict[str, Any], rng: Rng) -> np.ndarray:
    """A mask by which every row sees its first element at least."""
    mask = rng.random(options["where"]) < rng.choice([0.3, 0.9])
    np.moveaxis(mask, options["axis"], 0)[0] = True
    return mask
