"""How rows lie in an array, their lengths (those at which plans change, and near powers of two), and their masks."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import jaxkernels as jk
from jaxkernels._core import validate
from jaxkernels.verify.truth.compare import compute, storage
from jaxkernels.verify.truth.rows import OPERATIONS, TANGENTS

Rng = np.random.Generator

# No columns, one, other unusual lengths, powers of two and their neighbours.
_ODD = (0, 1, 2, 5, 6, 11, 20, 21, 23, 24, 25, 40, 41, 48, 49, 100, 1000)
PLAIN = {*_ODD, *(2**i + d for i in range(2, 13) for d in (-1, 0, 1))}

# The longest rows that a CPU sums in one lane each, by the bytes of an element (ffi/rows/cpu/narrow_rows.h). Losses have
# longer ones there, which are summed in double; sums of float64 are compensated.
_NARROW_COLS = {2: 31, 4: 40, 8: 31}


def accumulators(
    operation: Any, shape: Any, dtype: Any, tier: Any = None, *, anywhere: bool = False
) -> int:
    """The least number of a row's partial sums: a GPU's lanes, or the elements of a CPU's narrowest (16-byte) vector.

    With `anywhere`, operands may begin at any element of 16 bytes, as slices that XLA leaves in place do.
    """
    if operation in TANGENTS or tier == "xla":
        return 1
    # None, a device, or a platform's name
    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    platform = getattr(device, "platform", device) or jax.default_backend()
    if platform == "gpu" and shape[-1] > 0:  # rows of no columns have no plan
        plan = functools.partial(jk.plan_softmax, shape, dtype, operation=operation, tier=tier)
        offsets = range(16 // storage(dtype).itemsize if anywhere else 1)
        places = [(offset, shifted) for offset in offsets for shifted in (False, anywhere)]
        return min(plan(offset=offset, shifted=shifted).lanes for offset, shifted in places)
    narrow = shape[-1] <= _NARROW_COLS[storage(dtype).itemsize]
    return 1 if narrow else 16 // compute(dtype).itemsize


@functools.cache
def plan_boundaries(dtype: Any, device: Any = None) -> list[int]:
    """Column counts at which the plan of any operation changes, found by asking the plans themselves.

    Within one residue of cols modulo the pack, what a plan holds grows with cols, so that changes can be bisected.
    The residues 0 and 1 stand for aligned and misaligned rows.
    """
    pack = 16 // storage(dtype).itemsize

    def layout(operation: Any, residue: int, packs: int) -> Any:
        cols = packs * pack + residue
        p = jk.plan_softmax((4, cols), dtype, operation=operation, device=device)
        # The thread count matters only in steps: BlockReducer combines up to 4, 8 or 32 warps.
        in_registers = p.tier in ("warp", "block")
        meet = p.lanes if in_registers else (p.block_threads > 128, p.block_threads > 256)
        return p.tier, p.packs_per_lane, p.elements_per_lane, p.cluster_blocks, meet

    found = set()
    for operation, residue in itertools.product(OPERATIONS, (0, 1)):
        edges = changes(functools.partial(layout, operation, residue), 1, (1 << 20) // pack)
        found |= {packs * pack + residue for packs in edges}
    return sorted(found)


def changes(layout: Callable[[int], Any], low: int, high: int) -> list[int]:
    """Bisects for the numbers above low at which a layout differs from that of the number before."""
    if layout(low) == layout(high):
        return []
    if high - low == 1:
        return [high]
    middle = (low + high) // 2
    return changes(layout, low, middle) + changes(layout, middle, high)


@functools.cache
def row_lengths(dtype: str) -> tuple[int, ...]:
    """All lengths of rows for one dtype."""
    edges = {edge + d for edge in plan_boundaries(dtype) for d in (-1, 0, 1)}
    return tuple(sorted(edges.union(PLAIN)))


def implementation(cols: int, dtype: Any) -> Any:
    """Returns "ffi" for rows so long that a GPU may leave them to XLA, whose errors the bounds do not describe."""
    return "ffi" if cols * storage(dtype).itemsize > 48 * 1024 else None


def drawn_tier(shape: Any, dtype: Any, operations: Sequence[Any], rng: Rng) -> str | None:
    """Draws a tier that can run all given operations on a GPU; None lets the plan choose."""
    if jax.default_backend() != "gpu":
        return None
    tier = [None, *validate.TIERS][rng.integers(len(validate.TIERS) + 1)]
    if tier is None or shape[-1] == 0:
        return None
    try:
        for operation in operations:
            jk.plan_softmax(shape, dtype, operation=operation, tier=tier)
    except ValueError:
        return None
    return tier


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
        self.row_shape = [n for d, n in enumerate(self.shape) if d not in self.axes]
        self.count = math.prod(self.row_shape)
        self.cols = math.prod(self.shape[d] for d in self.axes)
        self._places, self._last = [d + 1 for d in self.axes], [*range(-len(self.axes), 0)]

    def to_rows(self, x: Any, members: int) -> np.ndarray:
        """The rows of all members, (rows, cols), of what broadcasts against their shapes."""
        whole = np.broadcast_to(x, (members, *self.shape))
        moved = np.moveaxis(whole, self._places, self._last)
        return moved.reshape(members * self.count, self.cols)

    def to_shape(self, rows: np.ndarray, members: int) -> np.ndarray:
        """The inverse of `to_rows`, (members, *shape)."""
        moved = rows.reshape(members, *self.row_shape, *(self.shape[d] for d in self.axes))
        return np.ascontiguousarray(np.moveaxis(moved, self._last, self._places))

    def per_row(self, members: np.ndarray) -> np.ndarray:
        """A value of each member for each of its rows, (rows, 1)."""
        return np.repeat(members, self.count)[:, None]

    def accumulators(
        self, operations: Sequence[str], members: int, dtype: str, tier: str | None = None
    ) -> int:
        """The least number of a row's partial sums, over calls of every number of members that divides `members`."""
        return min(
            accumulators(operation, (count, self.cols), dtype, tier, anywhere=True)
            for operation in operations
            for count in {self.count * n for n in range(1, members + 1) if members % n == 0}
        )


def drawn_sizes(shape: Sequence[int], rng: Rng, ones: float = 0.3) -> list[int]:
    """A shape that broadcasts to the given one: a dimension is 1 with probability `ones`."""
    return [1 if rng.random() < ones else size for size in shape]


def _divisor(size: int) -> int:
    """A small prime that divides a size, or 1."""
    return next((d for d in (3, 2, 5, 7) if size % d == 0), 1)


def drawn_rows(dtype: str, most: int, rng: Rng, any_axes: bool = False) -> tuple[list[int], Any]:
    """A shape and the axis of its rows; with `any_axes` also several axes, None for all, and rows of no columns.

    Half of the lengths are drawn so that every factor of two is as likely as any other.
    """
    fitting = [n for n in row_lengths(dtype) if (n or any_axes) and n <= most]
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
    """A mask that shows every row at least its first element."""
    mask = rng.random(options["where"]) < rng.choice([0.3, 0.9])
    np.moveaxis(mask, options["axis"], 0)[0] = True
    return mask
