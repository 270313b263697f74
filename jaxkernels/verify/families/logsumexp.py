"""logsumexp along any axes, with and without `where` and `keepdims`."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxkernels.verify import lengths, values
from jaxkernels.verify.families.softmax import Softmax, axes_of, rows_and_cols
from jaxkernels.verify.problem import Arrays, Judged, Problem, expect
from jaxkernels.verify.truth import rows, tolerance
from jaxkernels.verify.truth.compare import storage


class LogSumExp(Softmax):
    """Options: shape, axis, where (a shape, or None), keepdims."""

    operations = ("logsumexp",)

    def choose(
        self, operation: str, dtype: str, derivative: str, most: int, rng: np.random.Generator
    ) -> tuple[dict[str, Any], str | None]:
        """Rows as those of softmax."""
        options, how = super().choose(operation, dtype, derivative, most, rng)
        return {**options, "keepdims": bool(rng.random() < 0.3)}, how

    def member(self, problem: Problem, rng: np.random.Generator) -> tuple[Arrays, bool]:
        """x, where, and t, a number for each row, or t_x."""
        operands, alike = super().member(problem, rng)
        if problem.wants_gradient:
            count, _ = rows_and_cols(problem)
            t = values.cotangents(str(rng.choice(["normal", "nan"])), count, 1, problem.dtype, rng)
            operands["t"] = t.reshape(_result_shape(problem))
        return operands, alike

    def keywords(self, problem: Problem) -> dict[str, Any]:
        """Whether the summed axes stay."""
        return {"keepdims": problem.options["keepdims"]}

    def judge(
        self, problem: Problem, operands: Arrays, results: Arrays, alike: np.ndarray
    ) -> dict[str, Judged]:
        """All results for the x given: the derivatives read nothing else."""
        count, cols = rows_and_cols(problem)
        members, dtype = len(alike), storage(problem.dtype)
        shape = tuple(problem.options["shape"])
        axes = [d + 1 for d in axes_of(problem)]
        order = [d for d in range(len(shape) + 1) if d not in axes] + axes

        def to_rows(x: np.ndarray) -> np.ndarray:
            whole = np.broadcast_to(x, (members, *shape))
            return whole.transpose(order).reshape(members, count, cols)

        def per_row(x: np.ndarray) -> np.ndarray:
            return x.reshape(members, count, 1)

        def held(operation: str, got: np.ndarray, *given: np.ndarray) -> Judged:
            sums = min(
                lengths.accumulators(
                    operation, (n, cols), problem.dtype, problem.how, anywhere=True
                )
                for n in {count, count * problem.members}
            )
            limit = tolerance.bound(
                operation, *given, accumulators=sums, alike=alike[:, None, None]
            )
            return Judged(got, rows.truth(operation, *given), limit)

        where = to_rows(operands.get("where", np.ones((members, *[1] * len(shape)), bool)))
        x = np.where(where, to_rows(operands["x"]), np.asarray(-np.inf, dtype))
        y = expect(results, "y", _result_shape(problem), dtype)
        judged = {"y": held("logsumexp_fwd", per_row(y), x)}
        if problem.derivative == "jvp":
            t = np.where(where, to_rows(operands["t_x"]), np.asarray(0, dtype))
            dy = expect(results, "dy", _result_shape(problem), dtype)
            judged["dy"] = held("logsumexp_jvp", per_row(dy), x, t)
        elif problem.wants_gradient:
            dx = to_rows(expect(results, "dx", shape, dtype))
            found = held("logsumexp_grad", dx, x, per_row(operands["t"]))
            judged["dx"] = found._replace(want=np.where(where, found.want, 0))
        return judged


def _result_shape(problem: Problem) -> tuple[int, ...]:
    axes, keepdims = axes_of(problem), problem.options["keepdims"]
    sizes = [(1 if d in axes else n, d in axes) for d, n in enumerate(problem.options["shape"])]
    return tuple(size for size, is_summed in sizes if keepdims or not is_summed)
