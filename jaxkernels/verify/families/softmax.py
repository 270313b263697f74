"""softmax and log_softmax along any axes, with and without `where`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxkernels as jk
from jaxkernels._core import validate
from jaxkernels.verify import lengths, values
from jaxkernels.verify.problem import DERIVATIVES, Arrays, Judged, Problem, differentiated, expect
from jaxkernels.verify.truth import rows, tolerance
from jaxkernels.verify.truth.compare import storage
from jaxkernels.verify.truth.rows import DTYPES


class Softmax:
    """Options: shape, axis, where (a shape, or None)."""

    operations = ("softmax", "log_softmax")
    derivatives = DERIVATIVES

    def dtypes(self, operation: str) -> tuple[str, ...]:
        """All that have kernels."""
        return DTYPES

    def choose(
        self, operation: str, dtype: str, derivative: str, most: int, rng: np.random.Generator
    ) -> tuple[dict[str, Any], str | None]:
        """Rows of a length at which plans change, or near a power of two."""
        fitting = [n for n in lengths.row_lengths(dtype) if n <= most]
        # Every factor of two gets about as many rows as any other.
        scale = np.exp2(rng.uniform(0, math.log2(max(most, 2))))
        cols = fitting[int(np.abs(np.array(fitting) - scale).argmin())]
        cols = int(rng.choice([cols, rng.choice(fitting)]))
        count = most // max(cols, 1)
        count = int(min(count, rng.choice([1, 2, 3, 5, 8, 31, 33, 64, 257, 1000, count])))
        shape, axis = _layout(max(count, 1), cols, rng)
        where = None
        if rng.random() < 0.25:
            where = [1 if rng.random() < 0.3 else size for size in shape]
        how = None
        if jax.default_backend() == "gpu":
            how = [None, *validate.TIERS][rng.integers(len(validate.TIERS) + 1)]
            ours = tuple(name for name in rows.OPERATIONS if name.startswith(operation))
            how = how if lengths.tier_serves(how, (max(count, 1), cols), dtype, ours) else None
        return {"shape": shape, "axis": axis, "where": where}, how

    def member(self, problem: Problem, rng: np.random.Generator) -> tuple[Arrays, bool]:
        """x, where, and t or t_x."""
        shape, axes = problem.options["shape"], axes_of(problem)
        count, cols = rows_and_cols(problem)
        kind, t_kind = str(rng.choice(values.KINDS)), str(rng.choice(values.COTANGENTS))

        def from_rows(x: np.ndarray) -> np.ndarray:
            order = [d for d in range(len(shape)) if d not in axes] + axes
            moved = x.reshape([shape[d] for d in order])
            return np.ascontiguousarray(moved.transpose(np.argsort(order)))

        operands = {"x": from_rows(values.logits(kind, count, cols, problem.dtype, rng))}
        if problem.options["where"] is not None:
            operands["where"] = rng.random(problem.options["where"]) < rng.choice([0.2, 0.8])
        if problem.derivative != "value":
            name = "t_x" if problem.derivative == "jvp" else "t"
            operands[name] = from_rows(values.cotangents(t_kind, count, cols, problem.dtype, rng))
        return operands, bool(values.ALIKE & {kind, t_kind})

    def keywords(self, problem: Problem) -> dict[str, Any]:
        """What the call gets besides its axis and tier."""
        del problem
        return {}

    def core(self, problem: Problem) -> Callable[[dict[str, jax.Array]], dict[str, jax.Array]]:
        """The call."""
        axis = problem.options["axis"]
        function = functools.partial(
            getattr(jk, problem.operation),
            axis=tuple(axis) if isinstance(axis, list) else axis,
            tier=problem.how,
            **self.keywords(problem),
        )

        def call(operands: dict[str, jax.Array]) -> dict[str, jax.Array]:
            return differentiated(
                problem, lambda o: function(o["x"], where=o.get("where")), operands, ("x",)
            )

        return call

    def judge(
        self, problem: Problem, operands: Arrays, results: Arrays, alike: np.ndarray
    ) -> dict[str, Judged]:
        """Y for the x given, derivatives for their operand: the y that the program gave, or x."""
        count, cols = rows_and_cols(problem)
        dtype = storage(problem.dtype)
        shape = tuple(problem.options["shape"])
        axes = [d + 1 for d in axes_of(problem)]
        order = [d for d in range(len(shape) + 1) if d not in axes] + axes

        def to_rows(x: np.ndarray) -> np.ndarray:
            whole = np.broadcast_to(x, (len(alike), *shape))
            return whole.transpose(order).reshape(len(alike), count, cols)

        masked = 0.0 if problem.operation == "softmax" else -np.inf
        where = to_rows(operands.get("where", np.ones((len(alike), *[1] * len(shape)), bool)))

        def held(
            name: str, operation: str, got: np.ndarray, hidden: float, *given: np.ndarray
        ) -> Judged:
            tier = problem.how
            sums = min(
                lengths.accumulators(operation, (n, cols), problem.dtype, tier, anywhere=True)
                for n in {count, count * problem.members}
            )
            limit = tolerance.bound(
                operation, *given, accumulators=sums, alike=alike[:, None, None]
            )
            want = np.where(where, rows.truth(operation, *given), hidden)
            return Judged(to_rows(got), want, limit)

        y = expect(results, "y", shape, dtype)
        x = np.where(where, to_rows(operands["x"]), np.asarray(-np.inf, dtype))
        judged = {"y": held("y", f"{problem.operation}_fwd", y, masked, x)}
        if problem.derivative == "value":
            return judged
        jvp = problem.derivative == "jvp"
        name, given = ("dy", operands["t_x"]) if jvp else ("dx", operands["t"])
        operation = "log_softmax_jvp" if jvp and masked else f"{problem.operation}_grad"
        t = np.where(where, to_rows(given), np.asarray(0, dtype))
        got = expect(results, name, shape, dtype)
        kept = x if rows.reads_x_for_y(operation, dtype) else to_rows(y)
        judged[name] = held(name, operation, got, 0.0, kept, t)
        return judged


def _layout(count: int, cols: int, rng: np.random.Generator) -> tuple[list[int], Any]:
    """A shape and axes whose rows are `count` times `cols`."""
    kind = rng.choice(["last", "deep", "first", "middle", "two", "around", "all"])
    outer = next((d for d in (3, 2, 5, 7) if count % d == 0), 1)
    inner = next((d for d in (3, 2, 5, 7) if cols % d == 0), 1)
    if kind == "deep":
        return [outer, 1, count // outer, cols], -1
    if kind == "first":
        return [cols, count], 0
    if kind == "middle":
        return [outer, cols, count // outer], int(rng.choice([1, -2]))
    if kind == "two":
        return [count, inner, cols // inner], [-1, 1]
    if kind == "around":
        return [inner, count, cols // inner], [0, 2]
    if kind == "all" and count == 1:
        return [inner, cols // inner], None
    return ([count, cols] if count > 1 or rng.random() < 0.5 else [cols]), -1


def axes_of(problem: Problem) -> list[int]:
    """The dimensions that rows are made of, ascending."""
    axis, rank = problem.options["axis"], len(problem.options["shape"])
    if axis is None:
        return list(range(rank))
    return sorted(d % rank for d in (axis if isinstance(axis, list) else [axis]))


def rows_and_cols(problem: Problem) -> tuple[int, int]:
    """How many rows there are, and how long they are."""
    shape, axes = problem.options["shape"], axes_of(problem)
    cols = math.prod(shape[d] for d in axes)
    return math.prod(size for d, size in enumerate(shape) if d not in axes), cols
