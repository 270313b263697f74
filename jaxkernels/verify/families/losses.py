"""cross_entropy of integer labels, and token_log_probs, with all that they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxkernels as jk
from jaxkernels._core import validate
from jaxkernels.verify import values
from jaxkernels.verify.families import class_rows
from jaxkernels.verify.problem import DERIVATIVES, Arrays, Judged, Problem, differentiated, expect
from jaxkernels.verify.truth.compare import compute, storage, widen
from jaxkernels.verify.truth.reduced_losses import Bounded, Losses, scaled, total
from jaxkernels.verify.truth.rows import DTYPES

LABELS = ("int32", "int32", "uint8", "int8", "int16", "uint32")


class TokenLosses:
    """Options of shapes: shape, axis, where (a shape, or None); of labels: label_dtype, beyond (whether one may be).

    Of the loss: soft_cap, temperature and weights (whether rows have some), smoothing, z_loss, reduction, returns ("lse",
    "entropy").
    """

    operations = ("cross_entropy", "token_log_probs")
    derivatives = DERIVATIVES

    def dtypes(self, operation: str) -> tuple[str, ...]:
        """All that have kernels."""
        return DTYPES

    def choose(
        self, operation: str, dtype: str, derivative: str, most: int, rng: np.random.Generator
    ) -> tuple[dict[str, Any], str | None]:
        """Rows of any length, each option with its own chance."""
        shape, axis = class_rows.rows_of_any_length(dtype, most, rng)
        options: dict[str, Any] = {
            "shape": shape,
            "axis": axis,
            "where": None,
            "label_dtype": str(rng.choice([*LABELS, *(["int64"] if dtype == "float64" else [])])),
            "beyond": bool(derivative != "jvp" and rng.random() < 0.1),
            "soft_cap": None if rng.random() < 0.8 else float(rng.choice([1.5, 30.0])),
            "temperature": bool(rng.random() < 0.2),
            "weights": False,
            "smoothing": 0.0,
            "z_loss": 0.0,
            "reduction": "none",
            "returns": ["entropy"] if rng.random() < 0.4 else [],
        }
        if rng.random() < 0.2:
            options["where"] = [1 if rng.random() < 0.3 else size for size in shape]
        if operation == "cross_entropy":
            options["weights"] = bool(rng.random() < 0.3)
            options["smoothing"] = float(rng.choice([0.0, 0.0, 0.1, 0.4]))
            options["z_loss"] = float(rng.choice([0.0, 0.0, 0.001, 0.5]))
            options["reduction"] = str(rng.choice(validate.REDUCTIONS))
            options["returns"] = [x for x in ("lse", "entropy") if rng.random() < 0.25]
        count, cols = class_rows.rows_and_classes(options)
        return options, class_rows.forced_tier((count, cols), dtype, rng)

    def member(self, problem: Problem, rng: np.random.Generator) -> tuple[Arrays, bool]:
        """x, label, where, weights, temperature, and cotangents of the results or the tangent of x."""
        o = problem.options
        count, cols = class_rows.rows_and_classes(o)
        kind = str(rng.choice(_kinds(problem)))
        wide = compute(problem.dtype)
        x = values.logits(kind, count, cols, problem.dtype, rng)
        x[x[:, 0] == -np.inf, 0] = 1  # no row is of -inf alone, nor of what a mask leaves of it
        label = _labels(problem, rng)
        if kind == "finite_mask":  # a sum of losses of labels that it hides would overflow
            known = np.flatnonzero((label >= 0) & (label < cols) & (x.max(-1) > 0))
            x[known, label[known]] = 1
        operands = {
            "x": class_rows.from_rows(x, o),
            "label": label.reshape(class_rows.row_shape(o)),
        }
        if o["where"] is not None:
            operands["where"] = class_rows.mask_of(o, rng)
        if o["weights"]:
            weights = rng.uniform(0.2, 2, class_rows.row_shape(o)) * (
                rng.random(class_rows.row_shape(o)) < 0.8
            )
            operands["weights"] = weights.astype(wide)
        if o["temperature"]:
            operands["temperature"] = rng.uniform(0.5, 2, class_rows.row_shape(o)).astype(wide)
        if problem.derivative == "jvp":
            t = values.cotangents("normal", count, cols, problem.dtype, rng)
            operands["t_x"] = class_rows.from_rows(t, o)
        elif problem.wants_gradient:
            for name, shape in _result_shapes(problem).items():
                t = rng.standard_normal(shape).astype(wide)
                operands["t" if name == "y" else f"t_{name}"] = np.asarray(t)
        return operands, kind in values.ALIKE

    def core(self, problem: Problem) -> Callable[[dict[str, jax.Array]], dict[str, jax.Array]]:
        """The call; where a label may be beyond the classes, labels are traced."""

        def results(operands: dict[str, jax.Array]) -> dict[str, jax.Array]:
            found = _called(problem, operands)
            some = found if isinstance(found, tuple) else (found,)
            return dict(zip(_result_shapes(problem), some, strict=True))

        def call(operands: dict[str, jax.Array]) -> dict[str, jax.Array]:
            return differentiated(problem, results, operands, _active(problem))

        return jax.jit(call) if problem.options["beyond"] else call

    def judge(
        self, problem: Problem, operands: Arrays, results: Arrays, alike: np.ndarray
    ) -> dict[str, Judged]:
        """Each result, and each derivative, for the operands given."""
        truth, shapes = _truth(problem, operands, alike), _result_shapes(problem)
        loss, measures = truth.loss(), truth.measures()
        found = {"y": Bounded(_sign(problem) * loss.value, loss.limit)}
        shows = _shows_entropy(problem, truth)
        found["lse"] = Bounded(*(a[:, 1:2] for a in measures))
        found["entropy"] = Bounded(*(np.where(shows, a[:, 2:3], 0) for a in measures))
        if problem.derivative == "jvp":
            found |= _tangents(problem, operands, truth)
            shapes |= {f"d{name}": shape for name, shape in shapes.items()}
        elif problem.wants_gradient:
            found |= _gradients(problem, operands, truth)
            shapes |= {f"d{name}": operands[name].shape[1:] for name in _active(problem)}
        judged = {}
        for name, shape in shapes.items():
            dtype = storage(problem.dtype) if name == "dx" else compute(problem.dtype)
            got = expect(results, name, shape, dtype)
            judged[name] = Judged(got, *(a.reshape(got.shape) for a in found[name]))
        return judged


def _kinds(problem: Problem) -> list[str]:
    """Kinds of logits whose results are determined."""
    o, kinds = problem.options, [*values.FINITE]
    if o["soft_cap"] is None and not o["temperature"] and problem.derivative != "jvp":
        kinds += ["minus_inf"]
        kinds += [] if "weights" in _active(problem) else ["nan", "infinities"]
        is_small = o["reduction"] == "none" or o["smoothing"] == 0
        kinds += ["finite_mask"] if is_small and o["z_loss"] == 0 else []
    return kinds


def _labels(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """A label for each row, of which some are left out, and of which one may be too large."""
    o = problem.options
    count, cols = class_rows.rows_and_classes(o)
    limits = np.iinfo(o["label_dtype"])
    label = rng.integers(0, min(cols, limits.max + 1), count)
    if limits.min < 0:
        none = rng.choice([-1, -7, limits.min], count)
        label = np.where(rng.random(count) < rng.choice([0, 0.2, 0.9]), none, label)
    if o["beyond"] and limits.max >= cols:
        label[rng.integers(count)] = rng.choice([cols, min(limits.max, 2**31 + cols)])
    return label.astype(o["label_dtype"])


def _result_shapes(problem: Problem) -> dict[str, list[int]]:
    o = problem.options
    y = class_rows.row_shape(o) if o["reduction"] == "none" else []
    return {"y": y} | {name: class_rows.row_shape(o) for name in o["returns"]}


def _active(problem: Problem) -> tuple[str, ...]:
    """What is differentiated. Weights are where no loss is infinite."""
    o = problem.options
    if not problem.wants_gradient:
        return ("x",)
    weights = o["weights"] and o["where"] is None and not o["beyond"]
    names = [name for name, has in (("weights", weights), ("temperature", o["temperature"])) if has]
    return ("x", *names)


def _called(problem: Problem, operands: dict[str, jax.Array]) -> Any:
    o = problem.options
    given: dict[str, Any] = {"axis": o["axis"], "where": operands.get("where"), "tier": problem.how}
    given["logit_soft_cap"] = o["soft_cap"]
    given["temperature"] = operands.get("temperature", 1.0)
    given["return_entropy"] = "entropy" in o["returns"]
    if problem.operation == "token_log_probs":
        return jk.token_log_probs(operands["x"], operands["label"], **given)
    return jk.cross_entropy(
        operands["x"],
        operands["label"],
        weights=operands.get("weights"),
        label_smoothing=o["smoothing"],
        z_loss=o["z_loss"],
        reduction=o["reduction"],
        return_lse="lse" in o["returns"],
        **given,
    )


def _gradients(problem: Problem, operands: Arrays, truth: Losses) -> dict[str, Bounded]:
    """Of what is active, for the cotangents given."""
    none = np.zeros(truth.members)
    of_loss = truth.to_rows(operands["t"]) * _sign(problem)
    of_lse, of_entropy = (
        truth.to_rows(operands.get(name, none)) for name in ("t_lse", "t_entropy")
    )
    of_entropy = of_entropy * _shows_entropy(problem, truth)
    gradient = truth.gradient(truth.cotangents(of_loss, of_lse, of_entropy), of_loss)
    dx = truth.through_scaling(gradient, problem.dtype)
    where = operands.get("where", np.ones(1, bool))
    found = {
        "dx": Bounded(
            *(np.where(where, class_rows.from_members(a, problem, truth.members), 0) for a in dx)
        )
    }
    if "weights" in _active(problem):
        found["dweights"] = truth.of_weights(of_loss)
    if "temperature" in _active(problem):
        temperature = operands["temperature"].reshape(-1, 1)
        found["dtemperature"] = truth.of_temperature(gradient, temperature)
    return found


def _tangents(problem: Problem, operands: Arrays, truth: Losses) -> dict[str, Bounded]:
    """Of each result, along t_x."""
    t = operands["t_x"]
    t = np.where(operands.get("where", np.ones(1, bool)), t, np.asarray(0, t.dtype))
    moved, logits = widen(class_rows.to_rows(t, problem, truth.members)), truth.logits
    found = {}
    for place, name in enumerate(("y", "lse", "entropy")):
        given = [np.full((len(moved), 1), float(i == place)) for i in range(3)]
        given[2] = given[2] * _shows_entropy(problem, truth)
        cotangents = truth.cotangents(given[0] * _sign(problem), given[1], given[2])
        value, limit = truth.tangent(cotangents, moved * logits.slope)
        if not logits.is_given:
            gradient = np.abs(truth.gradient(cotangents, given[0]).value)
            off = logits.slope_error + 2 * truth.u * np.abs(logits.slope)
            limit = limit + total(gradient * np.abs(moved) * off)
        of_rows = Bounded(value, limit)
        is_summed = name == "y" and problem.options["reduction"] != "none"
        found[f"d{name}"] = truth.summed(of_rows) if is_summed else of_rows
    return found


def _shows_entropy(problem: Problem, truth: Losses) -> np.ndarray:
    """Rows whose entropy is given; for others token_log_probs gives 0."""
    return (truth.label >= 0)[:, None] | (problem.operation != "token_log_probs")


def _sign(problem: Problem) -> int:
    """Of a loss in what the operation gives."""
    return -1 if problem.operation == "token_log_probs" else 1


def _truth(problem: Problem, operands: Arrays, alike: np.ndarray) -> Losses:
    o, members = problem.options, len(alike)
    count, cols = class_rows.rows_and_classes(o)
    wide = compute(problem.dtype)
    x = class_rows.to_rows(operands["x"], problem, members)
    temperature = operands["temperature"].reshape(-1, 1) if o["temperature"] else None
    logits = scaled(x, o["soft_cap"], temperature, wide)
    hidden = ~class_rows.to_rows(operands.get("where", np.ones(1, bool)), problem, members)
    seen = np.where(hidden, np.asarray(-np.inf, logits.x.dtype), logits.x)
    slack = np.where(hidden, 0, logits.slack)
    label = np.clip(operands["label"].reshape(-1).astype(np.int64), -1, cols).astype(np.int32)
    counted = (label >= 0)[:, None]
    given = operands["weights"].reshape(-1, 1) if o["weights"] else np.ones((len(label), 1))
    weight = np.where(counted, given, 0).astype(np.result_type(wide, np.float64))
    in_one_read = o["reduction"] != "none" and not o["returns"]
    return Losses(
        logits=dataclasses.replace(logits, x=seen, slack=slack),
        label=label,
        accumulators=class_rows.sums_of(problem, seen.dtype.name),
        weight=weight if wide != np.float64 else weight.astype(np.longdouble),
        smoothing=o["smoothing"],
        z_loss=o["z_loss"],
        reduction=o["reduction"],
        members=members,
        alike=np.repeat(alike, count)[:, None],
        weighs=o["weights"],
        in_one_read=in_one_read and seen.dtype != np.float16,
    )
