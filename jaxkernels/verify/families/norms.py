"""rms_norm along any axis, with and without a scale of another dtype."""

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
from jaxkernels.verify.truth.bounded import PRECISION, Bounded
from jaxkernels.verify.truth.compare import compute, storage

_COTANGENTS = ("normal", "one_hot", "constant")


class RmsNorm(Family):
    """Options: shape, axis, scale (its dtype, or None), scale_offset, epsilon."""

    operations = ("rms_norm",)

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        shape, axis = row_layout.drawn_rows(dtype, most, rng)
        layout = RowLayout({"shape": shape, "axis": axis})
        scale = rng.choice(["", dtype, compute(dtype).name, "bfloat16"], p=[0.2, 0.3, 0.4, 0.1])
        options = {
            "shape": shape,
            "axis": axis,
            "scale": str(scale) or None,
            "scale_offset": float(rng.choice([0.0, 1.0])) if scale else 0.0,
            "epsilon": float(rng.choice([1e-6, 1e-5, 0.5])),
        }
        ours = tuple(filter(rows.is_rms_norm, rows.OPERATIONS))
        return options, lengths.drawn_tier((layout.count, layout.cols), dtype, ours, rng)

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        o, layout = problem.options, RowLayout(problem.options)
        kind, t_kind = str(rng.choice(values.FINITE)), str(rng.choice(_COTANGENTS))
        given = layout.count, layout.cols, problem.dtype, rng
        operands = {"x": layout.to_shape(values.logits(kind, *given), 1)[0]}
        if o["scale"]:
            operands["scale"] = values.factors("normal", (layout.cols,), o["scale"], rng)
        if problem.derivative != "value":
            name = "t_x" if problem.derivative == "jvp" else "t"
            operands[name] = layout.to_shape(values.cotangents(t_kind, *given), 1)[0]
        if problem.derivative == "jvp" and o["scale"]:
            operands["t_scale"] = values.factors("normal", (layout.cols,), o["scale"], rng)
        return operands, bool(values.ALIKE & {kind, t_kind})

    def active(self, problem: Problem) -> tuple[str, ...]:
        return ("x", "scale") if problem.options["scale"] else ("x",)

    def call(self, problem: Problem, operands: Traced) -> jax.Array:
        o = problem.options
        options: dict[str, Any] = {name: o[name] for name in ("axis", "scale_offset", "epsilon")}
        options["tier"] = problem.how
        if not _maps_scale(problem):
            cols = RowLayout(o).cols
            options["implementation"] = lengths.implementation(cols, problem.dtype)
        return jk.rms_norm(operands["x"], operands.get("scale"), **options)

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        return {"y": problem.options["shape"]}

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        layout, members = RowLayout(problem.options), len(alike)
        x = layout.to_rows(operands["x"], members)
        alike_rows, epsilon = layout.per_row(alike), problem.options["epsilon"]

        def column(name: str, offset: float) -> np.ndarray:
            """The factors of all rows, added up in the dtype of computation."""
            dtype = compute(problem.dtype)
            numbers = operands.get(name, np.ones((members, 1), dtype)).astype(dtype)
            return np.repeat(numbers + dtype.type(offset), layout.count, axis=0)

        def bounded(operation: str, *given: np.ndarray) -> Bounded:
            of = [operation], problem.members, problem.dtype, problem.how
            sums = 1 if _maps_scale(problem) else layout.accumulators(*of)
            how = {"accumulators": sums, "alike": alike_rows, "epsilon": epsilon}
            return rows.bounded(operation, *given, **how)

        def to_shape(found: Bounded) -> Bounded:
            return found.apply(lambda a: layout.to_shape(a, members))

        scale = column("scale", problem.options["scale_offset"])
        found = {"y": to_shape(bounded("rms_norm_fwd", x, scale))}
        if problem.derivative == "value":
            return found
        t = layout.to_rows(operands["t_x" if problem.derivative == "jvp" else "t"], members)
        if problem.wants_gradient:
            found["dx"] = to_shape(bounded("rms_norm_grad", x, scale, t))
            if problem.options["scale"]:
                x, t = (a.reshape(members, layout.count, layout.cols) for a in (x, t))
                found["dscale"] = rows.rms_norm_scale_grad(
                    x, t, storage(problem.options["scale"]), epsilon=epsilon, alike=alike
                )
            return found
        dy = bounded("rms_norm_jvp", x, scale, t)
        if problem.options["scale"]:  # two kernels, whose results are rounded and added
            other = bounded("rms_norm_fwd", x, column("t_scale", 0.0))
            dy = (dy + other).stored(PRECISION[problem.dtype])
        return found | {"dy": to_shape(dy)}


def _maps_scale(problem: Problem) -> bool:
    """Whether each member has its own scale under vmap, which no kernel has."""
    is_mapped = problem.delivery in ("vmap", "shared") and not problem.shares("scale")
    return is_mapped and problem.options["scale"] is not None
