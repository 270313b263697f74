"""cross_entropy of integer labels, and token_log_probs, with all options."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import jaxkernels as jk
from jaxkernels._core import validate
from jaxkernels.verify import row_layout, values
from jaxkernels.verify.problem import Array, Arrays, Choice, Family, Problem, Rng, Traced, Truths
from jaxkernels.verify.row_layout import RowLayout
from jaxkernels.verify.truth.bounded import known, precision_of
from jaxkernels.verify.truth.compare import compute
from jaxkernels.verify.truth.losses import Losses

LABELS = ("int32", "int32", "uint8", "int8", "int16", "uint32")
PLAIN: dict[str, Any] = {"axis": -1, "where": None, "label_dtype": "int32", "beyond": False}
PLAIN |= {"soft_cap": None, "temperature": None, "weights": False, "smoothing": 0.0, "z_loss": 0.0}
PLAIN |= {"reduction": "none", "returns": []}


class TokenLosses(Family):
    """Cross entropy and log probabilities of labels.

    The options are shape, axis, where (a shape, or None), label_dtype, beyond (whether a label may be out of range),
    soft_cap, temperature (None, "fixed", or "active" if gradients by it are wanted), weights (whether there are
    some), smoothing, z_loss, reduction and returns ("lse", "entropy").
    """

    operations = ("cross_entropy", "token_log_probs")

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        shape, axis = row_layout.drawn_rows(dtype, most, rng)
        options = PLAIN | {"shape": shape, "axis": axis}
        options["label_dtype"] = str(rng.choice([*LABELS, *["int64"] * (dtype == "float64")]))
        options["beyond"] = bool(derivative != "jvp" and rng.random() < 0.1)
        if rng.random() < 0.2:
            options["soft_cap"] = float(rng.choice([1e-2, 1.5, 30.0]))
        if rng.random() < 0.3:
            options["temperature"] = str(rng.choice(["fixed", "active"]))
        if rng.random() < 0.4:
            options["returns"] = ["entropy"]
        if rng.random() < 0.2:
            options["where"] = row_layout.drawn_sizes(shape, rng)
        if operation == "cross_entropy":
            options["weights"] = bool(rng.random() < 0.3)
            options["smoothing"] = float(rng.choice([0.0, 0.0, 0.1, 0.4]))
            options["z_loss"] = float(rng.choice([0.0, 0.0, 0.001, 0.5]))
            options["reduction"] = str(rng.choice(validate.REDUCTIONS))
            options["returns"] = [x for x in ("lse", "entropy") if rng.random() < 0.25]
        layout = RowLayout(options)
        rows = (layout.count, layout.cols)
        return options, row_layout.drawn_tier(rows, dtype, row_layout.LOSSES, rng)

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        o, layout, wide = problem.options, RowLayout(problem.options), compute(problem.dtype)
        count, cols, row_shape = layout.count, layout.cols, layout.row_shape
        kinds = [*values.FINITE]  # and others whose results are determined
        if o["soft_cap"] is not None:
            kinds += ["finite_mask"]
        elif not o["temperature"] and problem.derivative != "jvp":
            kinds += ["minus_inf"]
            # In a row that is left out, the other results have the gradient 0 in plain JAX, not NaN.
            is_lost = problem.how == "xla" and problem.wants_gradient and o["returns"]
            kinds += [] if is_lost or "weights" in self.active(problem) else ["nan", "infinities"]
            is_small = o["reduction"] == "none" or o["smoothing"] == 0
            # Below, the class of a label gets a usual logit; in the logits of another member it would not.
            is_small &= problem.mapped("x") == problem.mapped("label")
            kinds += ["finite_mask"] if is_small and o["z_loss"] == 0 else []
        kind = str(rng.choice(kinds))
        x = values.logits(kind, count, cols, problem.dtype, rng)
        x[x[:, 0] == -np.inf, 0] = 1  # no row, masked or not, is -inf throughout
        label = _drawn_labels(o, layout, rng)
        # Else the sum of the losses of hidden labels would overflow. The masks of all dtypes are below -1e4.
        if kind == "finite_mask":
            known = np.flatnonzero((label >= 0) & (label < cols) & (x.max(-1) > -1e4))
            x[known, label[known]] = 1
        operands = {"x": layout.to_shape(x, 1)[0], "label": label.reshape(row_shape)}
        if o["where"] is not None:
            mask = row_layout.drawn_mask(o, rng)
            is_seen = rng.random(np.take(mask, [0], o["axis"]).shape) < 0.9
            operands["where"] = mask & is_seen
        if o["weights"]:
            weights = rng.uniform(0.2, 2, row_shape) * (rng.random(row_shape) < 0.8)
            operands["weights"] = weights.astype(wide)
        if o["temperature"]:
            scale = rng.choice([1e-3, 1, 1, 1e3], row_shape)
            operands["temperature"] = (scale * rng.uniform(0.5, 2, row_shape)).astype(wide)
        return operands, kind in values.ALIKE

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        o, shape = problem.options, RowLayout(problem.options).row_shape
        found: dict[str, Sequence[int]] = {"y": shape if o["reduction"] == "none" else []}
        return found | dict.fromkeys(o["returns"], shape)

    def result_dtype(self, problem: Problem) -> np.dtype:
        return compute(problem.dtype)

    def active(self, problem: Problem) -> tuple[str, ...]:
        """The logits, an active temperature, and weights where no loss is infinite."""
        o, names = problem.options, ["x"]
        if problem.wants_gradient and o["weights"] and o["where"] is None and not o["beyond"]:
            names.append("weights")
        if problem.wants_gradient and o["temperature"] == "active":
            names.append("temperature")
        return tuple(names)

    def call(self, problem: Problem, operands: Traced) -> Any:
        o = problem.options
        given: Any = {"axis": o["axis"], "where": operands.get("where"), **problem.forced}
        given |= {"logit_soft_cap": o["soft_cap"], "temperature": operands.get("temperature", 1.0)}
        given["return_entropy"] = "entropy" in o["returns"]
        if problem.operation == "cross_entropy":
            given |= {"weights": operands.get("weights"), "label_smoothing": o["smoothing"]}
            given |= {"z_loss": o["z_loss"], "reduction": o["reduction"]}
            given["return_lse"] = "lse" in o["returns"]
        return getattr(jk, problem.operation)(operands["x"], operands["label"], **given)

    def core(self, problem: Problem) -> Callable[[Traced], Traced]:
        """Adds jit if a label may be beyond the classes: only traced labels may."""
        core = super().core(problem)
        return jax.jit(core) if problem.options["beyond"] else core

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        layout, members = RowLayout(problem.options), len(alike)
        where = operands.get("where", True)
        x, shown = (layout.to_rows(a, members) for a in (operands["x"], where))
        label = np.clip(operands["label"].reshape(-1).astype(np.int64), -1, layout.cols)
        weights, temperature = (
            operands[name].reshape(-1, 1) if name in operands else None
            for name in ("weights", "temperature")
        )
        sums = layout.accumulators(row_layout.LOSSES, problem.members, problem.dtype, problem.how)
        x = known(x, precision_of(problem.dtype, problem.how))
        given = x, ~shown, label.astype(np.int32), problem.options, members
        truth = Losses(*given, layout.per_row(alike), sums, weights, temperature)
        # token_log_probs is minus a loss, and has no entropy for a negative label.
        is_loss = problem.operation == "cross_entropy"
        sign = 1 if is_loss else -1
        shows = (truth.rows.label >= 0)[:, None] | is_loss
        loss, (_, lse, entropy, _) = truth.loss(), truth.rows.measures().columns()
        found = {"y": loss if is_loss else -loss, "lse": lse, "entropy": entropy.where(shows)}
        if problem.derivative == "jvp":
            t = layout.to_rows(np.where(where, operands["t_x"], 0), truth.members)
            for place, name in enumerate(("y", "lse", "entropy")):
                given = [np.full((len(t), 1), float(i == place)) for i in range(3)]
                cotangents = truth.cotangents(given[0] * sign, given[1], given[2] * shows)
                of_rows = truth.tangent(cotangents, t.astype(operands["x"].dtype))
                is_summed = name == "y" and problem.options["reduction"] != "none"
                found[f"d{name}"] = truth.summed(of_rows) if is_summed else of_rows
        elif problem.wants_gradient:
            none = np.zeros(truth.members)
            of_loss, of_lse, of_entropy = (
                truth.to_rows(operands.get(name, none)) for name in ("t", "t_lse", "t_entropy")
            )
            of_loss = of_loss * sign
            cotangents = truth.cotangents(of_loss, of_lse, of_entropy * shows)
            gradient = truth.gradient(cotangents, of_loss)
            dx = truth.through_scaling(gradient, problem.dtype)
            found["dx"] = dx.apply(lambda a: layout.to_shape(a, truth.members)).where(where)
            found["dweights"] = truth.of_weights(of_loss)
            if temperature is not None:
                found["dtemperature"] = truth.of_temperature(gradient, temperature)
        return found


def _drawn_labels(options: dict[str, Any], layout: RowLayout, rng: Rng) -> np.ndarray:
    """A label for each row; some are negative, and one may be too large."""
    count, cols, limits = layout.count, layout.cols, np.iinfo(options["label_dtype"])
    label = rng.integers(0, min(cols, limits.max + 1), count)
    if limits.min < 0:
        none = rng.choice([-1, -7, limits.min], count)
        label = np.where(rng.random(count) < rng.choice([0, 0.2, 0.9]), none, label)
    if options["beyond"] and limits.max >= cols:
        label[rng.integers(count)] = rng.choice([cols, min(limits.max, 2**31 + cols)])
    return label.astype(options["label_dtype"])
