"""The losses of `jaxkernels.optax`: of integer labels that may count from the end, and of probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxkernels.optax
from jaxkernels.verify import values
from jaxkernels.verify.families import class_rows
from jaxkernels.verify.problem import Arrays, Judged, Problem, differentiated, expect
from jaxkernels.verify.truth.compare import storage, widen
from jaxkernels.verify.truth.losses import Rows
from jaxkernels.verify.truth.reduced_losses import Bounded, finite, total
from jaxkernels.verify.truth.rows import DTYPES
from jaxkernels.verify.truth.tolerance import sum_error

_OF_IDS = "softmax_cross_entropy_with_integer_labels"
# XLA's own arithmetic on a probability and its distance.
_ROUNDINGS = 6


class OptaxLosses:
    """Options: shape, axis, where (a shape, or None), beyond (whether a label may be)."""

    operations = (_OF_IDS, "softmax_cross_entropy", "safe_softmax_cross_entropy")
    derivatives = ("value", "vjp", "remat")

    def dtypes(self, operation: str) -> tuple[str, ...]:
        """All that have kernels."""
        return DTYPES

    def choose(
        self, operation: str, dtype: str, derivative: str, most: int, rng: np.random.Generator
    ) -> tuple[dict[str, Any], str | None]:
        """Rows of any length; no tier can be forced."""
        shape, axis = class_rows.rows_of_any_length(dtype, most, rng)
        is_safe, of_ids = operation.startswith("safe"), operation == _OF_IDS
        if is_safe:
            shape, axis = [n for n in shape if n != shape[axis]] + [shape[axis]], -1
        where = None
        if not is_safe and rng.random() < 0.3:
            where = [1 if rng.random() < 0.3 else size for size in shape]
        beyond = bool(of_ids and where is None and rng.random() < 0.2)
        return {"shape": shape, "axis": axis, "where": where, "beyond": beyond}, None

    def member(self, problem: Problem, rng: np.random.Generator) -> tuple[Arrays, bool]:
        """x, label (ids or probabilities), where, and t."""
        o = problem.options
        count, cols = class_rows.rows_and_classes(o)
        kind = str(rng.choice([*values.FINITE, "nan"]))
        operands = {
            "x": class_rows.from_rows(values.logits(kind, count, cols, problem.dtype, rng), o)
        }
        if problem.operation == _OF_IDS:
            label = rng.integers(-cols, cols, count)
            if o["beyond"]:
                label[rng.integers(count)] = rng.choice([cols, -cols - 1])
            operands["label"] = label.astype(np.int32).reshape(class_rows.row_shape(o))
        else:
            p = rng.random((count, cols)) ** 4 * (rng.random((count, cols)) < 0.7)
            p /= np.maximum(total(p), 1e-3)
            operands["label"] = class_rows.from_rows(p.astype(storage(problem.dtype)), o)
        if o["where"] is not None:
            operands["where"] = class_rows.mask_of(o, rng)
        if problem.wants_gradient:
            t = rng.standard_normal(class_rows.row_shape(o))
            operands["t"] = np.asarray(t).astype(storage(problem.dtype))
        return operands, kind in values.ALIKE

    def core(self, problem: Problem) -> Callable[[dict[str, jax.Array]], dict[str, jax.Array]]:
        """The call."""
        o, function = problem.options, getattr(jaxkernels.optax, problem.operation)

        def loss(operands: dict[str, jax.Array]) -> jax.Array:
            if problem.operation.startswith("safe"):
                return function(operands["x"], operands["label"])
            where = operands.get("where")
            return function(operands["x"], operands["label"], axis=o["axis"], where=where)

        return lambda operands: differentiated(problem, loss, operands, ("x",))

    def judge(
        self, problem: Problem, operands: Arrays, results: Arrays, alike: np.ndarray
    ) -> dict[str, Judged]:
        """The loss in the type of the logits, and its gradient."""
        members, dtype = len(alike), storage(problem.dtype)
        truth = (_of_ids if problem.operation == _OF_IDS else _of_probabilities)(problem, operands)
        t = operands["t"].reshape(-1, 1) if "t" in operands else np.zeros((len(truth.x), 1))
        found = {"y": truth.loss(), "dx": truth.gradient(widen(t))}
        shapes = {"y": class_rows.row_shape(problem.options), "dx": problem.options["shape"]}

        def held(name: str) -> Judged:
            got = expect(results, name, shapes[name], dtype)
            value, limit = found[name]
            if name == "dx":
                return Judged(
                    got, *(class_rows.from_members(a, problem, members) for a in (value, limit))
                )
            return Judged(got, value.reshape(got.shape), limit.reshape(got.shape))

        return {name: held(name) for name in (["y", "dx"] if problem.wants_gradient else ["y"])}


class _Truth:
    """Sum_j p_j (lse - x_j), where lse is of what is seen.

    Attributes:
        x: the logits as they are, wide, (rows, classes).
        rows: as they are seen, with their labels.
        p: of each class; of integer labels 1 at the label.
        mask: which logits are seen.
        merges: whether the gradient is a sum of two that are rounded to the storage type.
    """

    def __init__(
        self, x: np.ndarray, rows: Rows, p: np.ndarray, mask: np.ndarray, merges: bool
    ) -> None:
        self.x, self.rows, self.p, self.mask, self.merges = widen(x), rows, p, mask, merges
        self.precision = rows.precision

    def loss(self) -> Bounded:
        """Of each row, (rows, 1)."""
        p, (measures, bounds) = self.precision, (self.rows.measures(), self.rows.measure_bounds())
        if not self.merges:
            value, limit = measures[:, :1], bounds[:, :1]
        else:
            lse = measures[:, 1:2]
            largest = np.max(self.rows.wide, axis=-1, keepdims=True)
            parts = np.where(self.p == 0, 0, self.p * (lse - self.x))
            size = np.where(self.p == 0, 0, self.p * (np.abs(self.x) + 2 * finite(largest)))
            additions = sum_error(self.x.shape[-1], 1, alike=True) + _ROUNDINGS
            value = total(parts)
            limit = total(self.p) * (bounds[:, 1:2] + p.u * finite(lse - largest))
            limit = limit + p.u * (additions * total(finite(parts)) + _ROUNDINGS * total(size))
        narrow = p.us if p.us > p.u else 0
        return Bounded(value, limit + narrow * finite(value) + p.smallest)

    def gradient(self, t: np.ndarray) -> Bounded:
        """With respect to the logits, (rows, classes)."""
        rows, p = self.rows, self.precision
        given = np.zeros((len(t), 4), t.dtype)
        if not self.merges:
            given[:, :1] = t
            return Bounded(rows.gradient(given), rows.gradient_bound(given))
        given[:, 1:2] = t * total(self.p)
        off = np.zeros_like(given)
        additions = sum_error(self.x.shape[-1], 1, alike=True) + _ROUNDINGS
        off[:, 1:2] = p.u * additions * np.abs(given[:, 1:2])
        of_lse, of_x = np.where(self.mask, rows.gradient(given), 0), t * self.p
        value = of_lse - of_x
        limit = rows.gradient_bound(given, off)
        stored = 2 * (p.us + p.u) * (finite(of_lse) + finite(of_x)) + 3 * p.smallest
        return Bounded(value, limit + stored + p.u * _ROUNDINGS * finite(of_x))


def _seen(problem: Problem, operands: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The logits of all members as they are, which are seen, and those as they are seen."""
    members = len(operands["x"])
    x = class_rows.to_rows(operands["x"], problem, members)
    mask = class_rows.to_rows(operands.get("where", np.ones(1, bool)), problem, members)
    return x, mask, np.where(mask, x, np.asarray(-np.inf, x.dtype))


def _of_ids(problem: Problem, operands: Arrays) -> _Truth:
    x, mask, seen = _seen(problem, operands)
    cols = x.shape[-1]
    ids = operands["label"].reshape(-1)
    ids = np.where(ids < 0, ids + cols, ids)
    label = np.where((ids < 0) | (ids >= cols), cols, ids).astype(np.int32)
    has_mask = problem.options["where"] is not None
    rows = Rows(seen, label, class_rows.sums_of(problem, problem.dtype))
    return _Truth(x, rows, rows.is_label, mask, merges=has_mask)


def _of_probabilities(problem: Problem, operands: Arrays) -> _Truth:
    x, mask, seen = _seen(problem, operands)
    label = np.full(len(x), -1, np.int32)
    p = widen(class_rows.to_rows(operands["label"], problem, len(operands["x"])))
    rows = Rows(seen, label, class_rows.sums_of(problem, problem.dtype))
    return _Truth(x, rows, np.where(mask, p, 0), mask, merges=True)
