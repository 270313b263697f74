"""softmax, log_softmax and logsumexp along any axes, with and without `where`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jaxkernels as jk
from jaxkernels.verify import lengths, values
from jaxkernels.verify.families import row_layout
from jaxkernels.verify.families.row_layout import RowLayout
from jaxkernels.verify.problem import Array, Arrays, Choice, Family, Problem, Rng, Traced, Truths
from jaxkernels.verify.truth import rows
from jaxkernels.verify.truth.bounded import Bounded
from jaxkernels.verify.truth.compare import storage


class Softmax(Family):
    """Options: shape, axis, where (a shape, or None)."""

    operations = ("softmax", "log_softmax")

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        """Rows of a length at which plans change, or near a power of two."""
        fitting = [n for n in lengths.row_lengths(dtype) if n <= most]
        cols = int(
            rng.choice([row_layout.length_of_any_size(fitting, most, rng), rng.choice(fitting)])
        )
        count = most // max(cols, 1)
        count = int(min(count, rng.choice([1, 2, 3, 5, 8, 31, 33, 64, 257, 1000, count])))
        shape, axis = _drawn_layout(max(count, 1), cols, rng)
        where = row_layout.drawn_sizes(shape, rng) if rng.random() < 0.25 else None
        ours = tuple(name for name in rows.OPERATIONS if name.startswith(operation))
        tier = lengths.drawn_tier((max(count, 1), cols), dtype, ours, rng)
        return {"shape": shape, "axis": axis, "where": where}, tier

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        layout = RowLayout(problem.options)
        kind, t_kind = str(rng.choice(values.KINDS)), str(rng.choice(values.COTANGENTS))
        given = layout.count, layout.cols, problem.dtype, rng
        operands = {"x": layout.to_shape(values.logits(kind, *given), 1)[0]}
        if problem.options["where"] is not None:
            operands["where"] = rng.random(problem.options["where"]) < rng.choice([0.2, 0.8])
        if problem.derivative != "value":
            name = "t_x" if problem.derivative == "jvp" else "t"
            operands[name] = layout.to_shape(values.cotangents(t_kind, *given), 1)[0]
        return operands, bool(values.ALIKE & {kind, t_kind})

    def call(self, problem: Problem, operands: Traced) -> jax.Array:
        o = problem.options
        axis = tuple(o["axis"]) if isinstance(o["axis"], list) else o["axis"]
        given = {"keepdims": o["keepdims"]} if "keepdims" in o else {}
        given |= {"axis": axis, "where": operands.get("where"), "tier": problem.how}
        given["implementation"] = lengths.implementation(RowLayout(o).cols, problem.dtype)
        return getattr(jk, problem.operation)(operands["x"], **given)

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        return {"y": problem.options["shape"]}

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        """Y for the x given, derivatives for their operand: the y that the program gave, or x."""
        operation, of = problem.operation, _Rows(problem, operands, alike)
        hidden = 0.0 if operation == "softmax" else -np.inf
        found = {"y": of.elements(hidden, f"{operation}_fwd", of.x)}
        if problem.derivative == "value":
            return found
        jvp = problem.derivative == "jvp"
        t = of.seen(operands["t_x" if jvp else "t"], 0)
        linear = "log_softmax_jvp" if jvp and hidden else f"{operation}_grad"
        reads_x = rows.reads_x_for_y(linear, of.x.dtype)
        kept = of.x if reads_x else of.layout.to_rows(results["y"], len(alike))
        return found | {"dy" if jvp else "dx": of.elements(0.0, linear, kept, t)}


class LogSumExp(Softmax):
    """Options: shape, axis, where (a shape, or None), keepdims."""

    operations = ("logsumexp",)

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        options, tier = super().choose(operation, dtype, derivative, most, rng)
        return {**options, "keepdims": bool(rng.random() < 0.3)}, tier

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        operands, alike = super().member(problem, rng)
        if problem.wants_gradient:
            kind, count = str(rng.choice(["normal", "nan"])), RowLayout(problem.options).count
            t = values.cotangents(kind, count, 1, problem.dtype, rng)
            operands["t"] = t.reshape(self.result_shapes(problem)["y"])
        return operands, alike

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        layout = RowLayout(problem.options)
        kept = [1 if d in layout.axes else n for d, n in enumerate(layout.shape)]
        return {"y": kept if problem.options["keepdims"] else layout.row_shape}

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        """All results for the x given: the derivatives read nothing else."""
        of = _Rows(problem, operands, alike)
        found = {"y": of.bounded("logsumexp_fwd", of.x)}
        if problem.derivative == "jvp":
            found["dy"] = of.bounded("logsumexp_jvp", of.x, of.seen(operands["t_x"], 0))
        elif problem.wants_gradient:
            t = operands["t"].reshape(-1, 1)
            found["dx"] = of.elements(0.0, "logsumexp_grad", of.x, t)
        return found


class _Rows:
    """The rows x of all members, -inf where they are hidden, and what operations make of them."""

    def __init__(self, problem: Problem, operands: Arrays, alike: np.ndarray) -> None:
        self.problem, self.alike, self.layout = problem, alike, RowLayout(problem.options)
        self._where = self.layout.to_rows(operands.get("where", True), len(alike))
        self.x = self.seen(operands["x"], -np.inf)

    def seen(self, x: np.ndarray, hidden: float) -> np.ndarray:
        """The rows of an array, with one value where they are hidden."""
        value = np.asarray(hidden, storage(self.problem.dtype))
        return np.where(self._where, self.layout.to_rows(x, len(self.alike)), value)

    def bounded(self, operation: str, *given: np.ndarray) -> Bounded:
        """The result of an operation of rows."""
        p, alike = self.problem, self.layout.per_row(self.alike)
        sums = self.layout.accumulators([operation], p.members, p.dtype, p.how)
        return rows.bounded(operation, *given, accumulators=sums, alike=alike)

    def elements(self, hidden: float, operation: str, *given: np.ndarray) -> Bounded:
        """As `bounded`, for results of the shape of x; hidden elements have one value."""
        found = self.bounded(operation, *given)
        found.value = np.where(self._where, found.value, hidden)
        return found.apply(lambda a: self.layout.to_shape(a, len(self.alike)))


def _drawn_layout(count: int, cols: int, rng: Rng) -> tuple[list[int], Any]:
    """A shape and axes whose rows are `count` times `cols`."""
    kind = rng.choice(["last", "deep", "first", "middle", "two", "around", "all"])
    outer, inner = row_layout.divisor(count), row_layout.divisor(cols)
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
