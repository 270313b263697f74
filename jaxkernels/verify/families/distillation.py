"""softmax_kl_divergence of logits and target logits, which are unrelated or nearly equal."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jaxkernels as jk
from jaxkernels.verify import row_layout, values
from jaxkernels.verify.problem import Array, Arrays, Choice, Family, Problem, Rng, Traced, Truths
from jaxkernels.verify.row_layout import RowLayout
from jaxkernels.verify.truth.bounded import sum_error
from jaxkernels.verify.truth.compare import compute, storage
from jaxkernels.verify.truth.losses import kl_divergence


class Divergences(Family):
    """Options: shape, axis, where (a shape, or None), target (its dtype), temperature (whether there is one), reduction."""

    operations = ("softmax_kl_divergence",)
    derivatives = ("value", "vjp", "remat")

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        shape, axis = row_layout.drawn_rows(dtype, most, rng)
        where = row_layout.drawn_sizes(shape, rng) if rng.random() < 0.3 else None
        others = [dtype] if dtype == "float64" else [dtype, "float32", "bfloat16", "float16"]
        options = {"shape": shape, "axis": axis, "where": where, "target": str(rng.choice(others))}
        options["temperature"] = bool(rng.random() < 0.5)
        return options | {"reduction": str(rng.choice(["none", "mean", "sum"]))}, None

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        o, layout = problem.options, RowLayout(problem.options)
        rows = layout.count, layout.cols
        kind = str(rng.choice([*values.FINITE, "minus_inf"]))
        x = values.logits(kind, *rows, problem.dtype, rng)
        kind_of_target = str(rng.choice(values.FINITE))
        other = values.logits(kind_of_target, *rows, "float32", rng)
        if rng.random() < 0.5:
            other = x.astype(np.float64) + rng.choice([0, 1e-3]) * rng.standard_normal(rows)
        target = np.where(x == -np.inf, -np.inf, other).astype(storage(o["target"]))
        for logits in (x, target):
            logits[logits[:, 0] == -np.inf, 0] = 1  # no row, masked or not, is -inf throughout
        operands = {"x": layout.to_shape(x, 1)[0], "target": layout.to_shape(target, 1)[0]}
        if o["where"] is not None:
            operands["where"] = row_layout.drawn_mask(o, rng)
        if o["temperature"]:
            wide = compute(problem.dtype)
            operands["temperature"] = rng.uniform(0.5, 4, layout.row_shape).astype(wide)
        return operands, bool({kind, kind_of_target} & values.ALIKE)

    def active(self, problem: Problem) -> tuple[str, ...]:
        return ("x", "target")

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        is_row = problem.options["reduction"] == "none"
        return {"y": RowLayout(problem.options).row_shape if is_row else []}

    def result_dtype(self, problem: Problem) -> np.dtype:
        return compute(problem.dtype)

    def call(self, problem: Problem, operands: Traced) -> jax.Array:
        given: Any = {name: problem.options[name] for name in ("axis", "reduction")}
        given["implementation"] = problem.how
        given |= {name: operands[name] for name in ("where", "temperature") if name in operands}
        return jk.softmax_kl_divergence(operands["x"], operands["target"], **given)

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        layout, members = RowLayout(problem.options), len(alike)
        x, target, seen = (
            layout.to_rows(a, members)
            for a in (operands["x"], operands["target"], operands.get("where", True))
        )
        temperature = operands.get("temperature")
        temperature = None if temperature is None else temperature.reshape(-1, 1)
        reduction = problem.options["reduction"]
        factor = 1 / layout.count if reduction == "mean" else 1
        t = operands.get("t", np.zeros(members)).astype(compute(problem.dtype))
        t = np.repeat(t.reshape(-1), len(x) // t.size)[:, None] * t.dtype.type(factor)
        sums = min(
            layout.accumulators(row_layout.LOSSES, problem.members, dtype, problem.how)
            for dtype in (problem.dtype, problem.options["target"])
        )
        y, dx, dtarget = kl_divergence(x, target, ~seen, temperature, t, sums)
        if reduction != "none":
            y = (y * factor).apply(lambda a: a.reshape(members, -1)).rounded()
            y = y.sum(sum_error(layout.count, 1, alike[:, None]))
        found = {"dx": dx, "dtarget": dtarget}
        return {"y": y} | {
            name: d.apply(lambda a: layout.to_shape(a, members)) for name, d in found.items()
        }
