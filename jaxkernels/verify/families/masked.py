"""scaled_masked_softmax: masks and biases that broadcast, scales, bands, and empty rows."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels.verify import row_layout, values
from jaxkernels.verify.problem import Array, Arrays, Choice, Family, Problem, Rng, Traced, Truths
from jaxkernels.verify.row_layout import RowLayout, drawn_sizes
from jaxkernels.verify.truth import masked
from jaxkernels.verify.truth.bounded import Bounded
from jaxkernels.verify.truth.compare import storage

_KERNELS = ("masked_softmax_fwd", "masked_softmax_grad")


class Masked(Family):
    """Options: shape, mask and bias (shapes of full rank, or None), bias_dtype, scale, keyword arguments.

    A scale of None is an argument of the program, another number in every draw.
    """

    operations = ("scaled_masked_softmax",)
    cotangents = ("normal", "constant")

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        fitting = [n for n in row_layout.row_lengths(dtype) if 0 < n <= max(most // 2, 1)]
        k = int(rng.choice(fitting))
        k = min(k, int(rng.choice([40, 700, k])))
        q = int(min(max(most // k, 1), rng.choice([1, 2, 5, 8, 33, 128, k])))
        heads = int(min(max(most // (k * q), 1), rng.choice([1, 2, 3])))
        shape = [[q, k], [heads, q, k], [1, heads, q, k]][rng.integers(3)]
        options: dict[str, Any] = {"shape": shape}
        for name, chance in (("mask", 0.5), ("bias", 0.35)):
            options[name] = drawn_sizes(shape, rng, 0.4) if rng.random() <= chance else None
        options["bias_dtype"] = str(rng.choice([dtype, dtype, "float32"]))
        if dtype == "float64":
            options["bias_dtype"] = dtype
        traced = derivative != "jvp" and rng.random() < 0.15
        options["scale"] = None if traced else float(rng.choice([1.0, 0.125, 0.7, 3.0, -0.5, 0.0]))
        given: dict[str, Any] = {}
        if rng.random() < 0.35:
            given["causal"] = True
        if rng.random() < 0.3:
            before, after = (int(x) for x in rng.choice([0, 1, 3, k // 3, 2 * k], 2))
            given["window"] = [[before, after], before][rng.integers(2)]
        if rng.random() < 0.2:
            given["empty_rows"] = "mean"
        options["arguments"] = given
        plain = options["scale"] and options["scale"] > 0 and options["bias"] is None
        return options, row_layout.drawn_tier(shape, dtype, _KERNELS, rng) if plain else None

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        o, shape = problem.options, problem.options["shape"]
        rows, cols = math.prod(shape[:-1]), shape[-1]
        kinds, infinite = [*values.FINITE], ("minus_inf", "nan", "infinities", "all_minus_inf")
        if o["scale"] == 1.0 and o["bias"] is None:
            kinds += [*infinite, "huge"]
        elif o["scale"] and problem.derivative == "value":
            kinds += infinite  # not in derivatives by bias and scale, which sum over rows
        kind = str(rng.choice(kinds))
        scores = values.logits(kind, rows, cols, problem.dtype, rng).reshape(shape)
        operands: Arrays = {"scores": scores}
        if o["mask"] is not None:
            mask = rng.random(o["mask"]) < 0.65
            operands["mask"] = mask & (rng.random((*mask.shape[:-1], 1)) < 0.9)
        if o["bias"] is not None:
            bias = 2 * rng.standard_normal(o["bias"])
            operands["bias"] = bias.astype(storage(o["bias_dtype"]))
        if o["scale"] is None:
            wide = np.float64 if problem.wide else np.float32
            operands["scale"] = np.asarray(rng.choice([0.3, -1.2, 2.5]), wide)
        return operands, kind in values.ALIKE

    def active(self, problem: Problem) -> tuple[str, ...]:
        """The scores, a traced scale, and, except in forward mode, a bias."""
        names = ["scores"]
        if problem.options["bias"] is not None and problem.derivative != "jvp":
            names.append("bias")
        if problem.options["scale"] is None:
            names.append("scale")
        return tuple(names)

    def call(self, problem: Problem, operands: Traced) -> jax.Array:
        given: dict[str, Any] = {"scale": problem.options["scale"]}
        columns = problem.options["shape"][-1]
        given["implementation"] = row_layout.implementation(columns, problem.dtype)
        given |= problem.forced
        given |= {name: x for name, x in operands.items() if name[0] != "t"}
        return jk.scaled_masked_softmax(**given, **problem.arguments)

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        """Computes all members at once, as one more dimension."""
        o = problem.options
        shape = len(alike), *[1] * len(o["shape"])
        rows = RowLayout({"shape": o["shape"], "axis": -1})

        def accumulators(operation: str, dtype: str) -> int:
            # A scale that is not fused widens the scores first.
            types = {dtype} if problem.how else {dtype, jnp.promote_types(dtype, jnp.float32).name}
            return min(
                rows.accumulators([operation], problem.members, x, problem.how) for x in types
            )

        truth = masked.Truth(
            operands["scores"],
            operands.get("mask"),
            operands.get("bias"),
            operands["scale"].reshape(shape) if o["scale"] is None else o["scale"],
            problem.arguments,
            operands.get("t", operands.get("t_scores")),
            accumulators,
            alike.reshape(shape),
            problem.how,
        )
        found = {"y": truth.result}
        if problem.derivative == "jvp":  # the Jacobian is symmetric
            found["dy"] = truth.gradients()["scores"]
        elif problem.wants_gradient:
            found |= {f"d{name}": x for name, x in truth.gradients().items()}
        return {
            name: Bounded(truth.forgiving(results[name], want), limit)
            for name, (want, limit) in found.items()
        }
