"""The losses of `jaxkernels.optax`: of integer labels that may count from the end, and of probabilities."""

from collections.abc import Sequence

import jax
import numpy as np

import jaxkernels.optax
from jaxkernels.verify import row_layout, values
from jaxkernels.verify.problem import Array, Arrays, Choice, Family, Problem, Rng, Traced, Truths
from jaxkernels.verify.row_layout import RowLayout
from jaxkernels.verify.truth.bounded import Bounded, concatenate, sum_error
from jaxkernels.verify.truth.compare import finite, storage, total, widen
from jaxkernels.verify.truth.losses import Rows

_OF_IDS = "softmax_cross_entropy_with_integer_labels"
# Roundings of XLA's arithmetic on a probability and its distance.
_ROUNDINGS = 6


class OptaxLosses(Family):
    """Options: shape, axis, where (a shape, or None), beyond (whether a label may be out of range)."""

    operations = (_OF_IDS, "softmax_cross_entropy", "safe_softmax_cross_entropy")
    derivatives = ("value", "vjp", "remat")

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        shape, axis = row_layout.drawn_rows(dtype, most, rng)
        is_safe, of_ids = operation.startswith("safe"), operation == _OF_IDS
        if is_safe:
            shape, axis = [n for n in shape if n != shape[axis]] + [shape[axis]], -1
        has_mask = not is_safe and rng.random() < 0.3
        where = row_layout.drawn_sizes(shape, rng) if has_mask else None
        beyond = bool(of_ids and where is None and rng.random() < 0.2)
        return {"shape": shape, "axis": axis, "where": where, "beyond": beyond}, None

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        o, layout, dtype = problem.options, RowLayout(problem.options), storage(problem.dtype)
        count, cols = layout.count, layout.cols
        kind = str(rng.choice([*values.FINITE, "nan"]))
        x = values.logits(kind, count, cols, problem.dtype, rng)
        operands = {"x": layout.to_shape(x, 1)[0]}
        if problem.operation == _OF_IDS:
            label = rng.integers(-cols, cols, count)
            if o["beyond"]:
                label[rng.integers(count)] = rng.choice([cols, -cols - 1])
            operands["label"] = label.astype(np.int32).reshape(layout.row_shape)
        else:
            p = rng.random((count, cols)) ** 4 * (rng.random((count, cols)) < 0.7)
            p /= np.maximum(total(p), 1e-3)
            operands["label"] = layout.to_shape(p.astype(dtype), 1)[0]
        if o["where"] is not None:
            operands["where"] = row_layout.drawn_mask(o, rng)
        return operands, kind in values.ALIKE

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        return {"y": RowLayout(problem.options).row_shape}

    def call(self, problem: Problem, operands: Traced) -> jax.Array:
        given = {"axis": problem.options["axis"], "where": operands.get("where")}
        given = {} if problem.operation.startswith("safe") else given
        loss = getattr(jaxkernels.optax, problem.operation)
        return loss(operands["x"], operands["label"], **given)

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        """Sum_j p_j (lse - x_j), where lse is the log-sum-exp of the visible logits."""
        layout, members = RowLayout(problem.options), len(alike)
        of_ids = problem.operation == _OF_IDS
        x, mask = (layout.to_rows(a, members) for a in (operands["x"], operands.get("where", True)))
        label = np.full(len(x), -1, np.int32)
        if of_ids:
            cols, ids = layout.cols, operands["label"].reshape(-1)
            ids = np.where(ids < 0, ids + cols, ids)
            label = np.where((ids < 0) | (ids >= cols), cols, ids).astype(np.int32)
        sums = layout.accumulators(row_layout.LOSSES, problem.members, problem.dtype)
        rows = Rows(np.where(mask, x, np.asarray(-np.inf, x.dtype)), label, sums)
        (nll, lse, *_), p, x = rows.measures().columns(), rows.precision, widen(x)
        t = widen(operands.get("t", np.zeros(members * layout.count))).reshape(-1, 1)
        given, none = Bounded(t, 0, p), Bounded(0 * t, 0, p)
        if of_ids and problem.options["where"] is None:
            y, dx = nll, rows.gradient(concatenate(given, none, none, none))
        else:  # the gradient is a sum of two that are rounded to the storage type
            weight = rows.is_label
            if not of_ids:
                weight = np.where(mask, widen(layout.to_rows(operands["label"], members)), 0)
            additions = sum_error(layout.cols, 1, alike=True) + _ROUNDINGS
            size = _ROUNDINGS * (np.abs(x) + 2 * finite(rows.largest))
            parts = (lse - x).plus_error(p.u * (size + finite(lse.value - rows.largest))) * weight
            y = parts.where(weight != 0).sum(additions)
            given = (given * total(weight)).rounded(additions)
            of_lse = rows.gradient(concatenate(none, given, none, none)).where(mask)
            of_x = Bounded(t * weight, 0, p).rounded(_ROUNDINGS).stored(p)
            dx = (of_lse.rounded().stored(p) - of_x).stored(p)
        return {"y": y.stored(p), "dx": dx.apply(lambda a: layout.to_shape(a, members))}
