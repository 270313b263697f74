"""How rows lie in an array, how long they are, and which elements masks hide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxkernels.verify import lengths

Rng = np.random.Generator

# The kernels of losses that read rows.
LOSSES = ("cross_entropy_fwd", "cross_entropy_fwd_grad")


class RowLayout:
    """The rows of a shape along its axes: `count` rows of `cols` elements."""

    def __init__(self, options: dict[str, Any]) -> None:
        """Takes the options shape and axis: None, a number, or several."""
        self.shape, axis = options["shape"], options.get("axis", -1)
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


def _divisor(size: int) -> int:
    """A small prime that divides a size, or 1."""
    return next((d for d in (3, 2, 5, 7) if size % d == 0), 1)


def drawn_rows(dtype: str, most: int, rng: Rng, any_axes: bool = False) -> tuple[list[int], Any]:
    """A shape of some rows, and their axis; with `any_axes` also several, or None, and rows of no columns.

    Half of the lengths are drawn so that every factor of two is as likely as any other.
    """
    fitting = [n for n in lengths.row_lengths(dtype) if (n or any_axes) and n <= most]
    scale = np.exp2(rng.uniform(0, math.log2(max(most, 2))))
    near = fitting[int(np.abs(np.array(fitting) - scale).argmin())]
    cols = int(rng.choice([near, rng.choice(fitting)]))
    room = max(most // max(cols, 1), 1)
    count = int(min(room, rng.choice([1, 2, 3, 5, 8, 31, 33, 64, 257, 1000, room])))
    outer, inner = _divisor(count), _divisor(cols)
    layouts: list[tuple[list[int], Any]] = [
        ([count, cols], -1),
        ([outer, 1, count // outer, cols], -1),
        ([outer, cols, count // outer], 1),
        ([cols, count], 0),
        ([cols] if count == 1 else [count, cols], -1),
    ]
    if any_axes:
        layouts += [([count, inner, cols // inner], [-1, 1])]
        layouts += [([inner, count, cols // inner], [0, 2])]
        layouts += [([inner, cols // inner], None)] if count == 1 else []
    return layouts[rng.integers(len(layouts))]


def drawn_mask(options: dict[str, Any], rng: Rng) -> np.ndarray:
    """A mask by which every row sees its first element at least."""
    mask = rng.random(options["where"]) < rng.choice([0.3, 0.9])
    np.moveaxis(mask, options["axis"], 0)[0] = True
    return mask
