"""softmax, log_softmax and logsumexp along any axes, with and without `where`; rms_norm with and without a scale."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jaxkernels as jk
from jaxkernels._rows.contract import OPERATIONS
from jaxkernels.verify import row_layout, values
from jaxkernels.verify.problem import Array, Arrays, Choice, Family, Problem, Rng, Traced, Truths
from jaxkernels.verify.row_layout import RowLayout
from jaxkernels.verify.truth import rows
from jaxkernels.verify.truth.bounded import Bounded
from jaxkernels.verify.truth.compare import compute, storage


class Rows(Family):
    """Options: shape, axis, where (a shape, or None), and for logsumexp keepdims.

    rms_norm has scale (its dtype, or None), scale_offset and epsilon instead of where.
    """

    operations = ("softmax", "log_softmax", "logsumexp", "rms_norm")
    cotangents = values.COTANGENTS

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        is_norm = operation == "rms_norm"
        shape, axis = row_layout.drawn_rows(dtype, most, rng, any_axes=not is_norm)
        options: dict[str, Any] = {"shape": shape, "axis": axis}
        layout = RowLayout(options)
        if is_norm:
            some = ["", dtype, compute(dtype).name, "bfloat16"]
            options["scale"] = str(rng.choice(some, p=[0.2, 0.3, 0.4, 0.1])) or None
            options["scale_offset"] = float(rng.integers(2)) if options["scale"] else 0.0
            options["epsilon"] = float(rng.choice([1e-6, 1e-5, 0.5]))
        else:
            options["where"] = row_layout.drawn_sizes(shape, rng) if rng.random() < 0.25 else None
        if operation == "logsumexp":
            options["keepdims"] = bool(rng.random() < 0.3)
        ours = [name for name in rows.OPERATIONS if name.startswith(operation)]
        return options, row_layout.drawn_tier((layout.count, layout.cols), dtype, ours, rng)

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        o, layout, is_norm = problem.options, RowLayout(problem.options), "scale" in problem.options
        kind = str(rng.choice(values.FINITE if is_norm else values.KINDS))
        x = values.logits(kind, layout.count, layout.cols, problem.dtype, rng)
        operands = {"x": layout.to_shape(x, 1)[0]}
        if o.get("where") is not None:
            operands["where"] = rng.random(o["where"]) < rng.choice([0.2, 0.8])
        if o.get("scale"):
            operands["scale"] = values.factors("normal", (layout.cols,), o["scale"], rng)
        return operands, kind in values.ALIKE

    def active(self, problem: Problem) -> tuple[str, ...]:
        return ("x", "scale") if problem.options.get("scale") else ("x",)

    def call(self, problem: Problem, operands: Traced) -> jax.Array:
        o = problem.options
        axis = tuple(o["axis"]) if isinstance(o["axis"], list) else o["axis"]
        given = {name: o[name] for name in ("keepdims", "scale_offset", "epsilon") if name in o}
        given |= {name: operands[name] for name in ("where", "scale") if name in operands}
        if not _maps_scale(problem):
            given["implementation"] = row_layout.implementation(RowLayout(o).cols, problem.dtype)
        given |= problem.forced
        return getattr(jk, problem.operation)(operands["x"], axis=axis, **given)

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        layout = RowLayout(problem.options)
        if problem.operation != "logsumexp":
            return {"y": layout.shape}
        kept = [1 if d in layout.axes else n for d, n in enumerate(layout.shape)]
        return {"y": kept if problem.options["keepdims"] else layout.row_shape}

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        """The truth of y is that for x; that of a derivative is for its operand, which is the program's own y, or x."""
        operation, layout, members = problem.operation, RowLayout(problem.options), len(alike)
        seen, is_jvp = operands.get("where", True), problem.derivative == "jvp"
        is_sum, is_norm = operation == "logsumexp", operation == "rms_norm"
        how: dict[str, Any] = {"alike": layout.per_row(alike)}
        if is_norm:
            how["epsilon"] = problem.options["epsilon"]

        def rows_of(x: np.ndarray, hidden: float) -> np.ndarray:
            x = np.where(seen, x, np.asarray(hidden, storage(problem.dtype)))
            return layout.to_rows(x, members)

        def bounded(kernel: str, *given: np.ndarray | Bounded) -> Bounded:
            of = [kernel], problem.members, problem.dtype, problem.how
            sums = 1 if _maps_scale(problem) else layout.accumulators(*of)
            return rows.bounded(kernel, *given, accumulators=sums, **how)

        def shaped(x: Bounded, hidden: float = 0.0) -> Bounded:
            if x.value.shape[-1] == 1 and is_sum:
                return x
            return x.apply(lambda a: layout.to_shape(a, members)).where(seen, hidden)

        def column(name: str, offset: float) -> np.ndarray:
            """The factors of all rows, to which the offset is added in the dtype of computation."""
            dtype = compute(problem.dtype)
            numbers = operands.get(name, np.ones((members, 1), dtype)).astype(dtype)
            return np.repeat(numbers + dtype.type(offset), layout.count, axis=0)

        x = rows_of(operands["x"], -np.inf)
        given = [x, *([column("scale", problem.options["scale_offset"])] if is_norm else [])]
        y = bounded(f"{operation}_fwd", *given)
        found = {"y": shaped(y, -np.inf if operation == "log_softmax" else 0.0)}
        if problem.derivative == "value":
            return found
        kernel: Any = f"{operation}_{'jvp' if is_jvp and operation != 'softmax' else 'grad'}"
        is_of_rows = is_sum and not is_jvp
        t = operands["t_x" if is_jvp else "t"]
        t = t.reshape(-1, 1) if is_of_rows else rows_of(t, 0)
        gradient: Any = f"{operation}_grad"
        if not (is_sum or is_norm or OPERATIONS[gradient].reads_x_for_y(x.dtype)):
            # A checkpointed program may compute y again, from a slice with another alignment.
            is_again = problem.derivative == "remat"
            given = [y if is_again else layout.to_rows(results["y"], members)]
        d = bounded(kernel, *given, t)
        if is_norm and is_jvp and problem.options["scale"]:
            # Two kernels, whose results are rounded and added.
            d = (d + bounded("rms_norm_fwd", x, column("t_scale", 0.0))).stored(d.precision)
        found["dy" if is_jvp else "dx"] = shaped(d)
        if is_norm and not is_jvp and problem.options["scale"]:
            x, t = (a.reshape(members, layout.count, layout.cols) for a in (x, t))
            dtype = storage(problem.options["scale"])
            found["dscale"] = rows.rms_norm_scale_grad(
                x, t, dtype, epsilon=how["epsilon"], alike=alike
            )
        return found


def _maps_scale(problem: Problem) -> bool:
    """Whether each member has its own scale under vmap, which no kernel supports."""
    return any(problem.mapped("scale")) and bool(problem.options.get("scale"))
