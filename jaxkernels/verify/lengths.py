"""Lengths worth trying: those at which plans change, and those near powers of two."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from numpy.random import Generator

import jaxkernels as jk
from jaxkernels._core import validate
from jaxkernels.verify.truth.compare import compute, storage
from jaxkernels.verify.truth.rows import OPERATIONS

# No columns, one, odd numbers, powers of two and their neighbours.
_ODD = (0, 1, 2, 5, 6, 11, 20, 21, 23, 24, 25, 40, 41, 48, 49, 100, 1000)
PLAIN = {*_ODD, *(2**i + d for i in range(2, 13) for d in (-1, 0, 1))}

# The longest rows that a CPU may sum in one lane each, by the bytes of an element
# (rows/cpu/narrow_rows.h).
_NARROW_COLS = {2: 31, 4: 40, 8: 31}


def accumulators(
    operation: Any, shape: Any, dtype: Any, tier: Any = None, *, anywhere: bool = False
) -> int:
    """The least number of a row's partial sums: a GPU's lanes, or the elements of a CPU's narrowest (16-byte) vector.

    With `anywhere` operands may begin within 16 bytes, as slices that XLA leaves in place do.
    """
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
        edges = _changes(functools.partial(layout, operation, residue), 1, (1 << 20) // pack)
        found |= {packs * pack + residue for packs in edges}
    return sorted(found)


def _changes(layout: Callable[[int], Any], low: int, high: int) -> list[int]:
    if layout(low) == layout(high):
        return []
    if high - low == 1:
        return [high]
    middle = (low + high) // 2
    return _changes(layout, low, middle) + _changes(layout, middle, high)


@functools.cache
def row_lengths(dtype: str) -> tuple[int, ...]:
    """All lengths of rows for one dtype."""
    edges = {edge + d for edge in plan_boundaries(dtype) for d in (-1, 0, 1)}
    return tuple(sorted(edges.union(PLAIN)))


def implementation(cols: int, dtype: Any) -> Any:
    """Returns "ffi" for rows so long that a GPU may leave them to XLA, whose errors the bounds do not describe."""
    return "ffi" if cols * storage(dtype).itemsize > 48 * 1024 else None


def drawn_tier(shape: Any, dtype: Any, operations: Sequence[Any], rng: Generator) -> str | None:
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


@functools.cache
def product_boundaries() -> tuple[tuple[int, int, int], ...]:
    """(m, n, k) at which the plan of a product changes as one of them grows, and their neighbours."""

    def sizes(fixed: tuple[int, int], place: int, size: int) -> tuple[int, int, int]:
        m, n, k = *fixed[:place], size, *fixed[place:]
        return m, n, k

    def layout(fixed: tuple[int, int], place: int, size: int) -> Any:
        p = jk.plan_sgemm(*sizes(fixed, place, size))
        shares = p.cluster_blocks, p.split_k
        return p.algorithm, p.block_m, p.block_n, *shares, p.pad_a > 0, p.pad_b > 0

    found = set()
    pairs = (64, 48), (33, 260), (256, 64), (130, 1000), (512, 512), (5, 700)
    for fixed, place in itertools.product(pairs, range(3)):
        for edge in _changes(functools.partial(layout, fixed, place), 1, 4096):
            found |= {sizes(fixed, place, edge + d) for d in (-1, 0, 1)}
    return tuple(sorted(found))
