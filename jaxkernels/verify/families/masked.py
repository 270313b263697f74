"""scaled_masked_softmax: masks and biases that broadcast, scales, bands, and what becomes of empty rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels._core import validate
from jaxkernels.verify import lengths, values
from jaxkernels.verify.problem import DERIVATIVES, Arrays, Judged, Problem, differentiated, expect
from jaxkernels.verify.truth import masked
from jaxkernels.verify.truth.compare import storage
from jaxkernels.verify.truth.rows import DTYPES


class Masked:
    """Options: shape, mask and bias (shapes of full rank, or None), bias_dtype, scale, keyword arguments.

    A scale of None is an argument of the program, another number in every draw.
    """

    operations = ("scaled_masked_softmax",)
    derivatives = DERIVATIVES

    def dtypes(self, operation: str) -> tuple[str, ...]:
        """All that have kernels."""
        return DTYPES

    def choose(
        self, operation: str, dtype: str, derivative: str, most: int, rng: np.random.Generator
    ) -> tuple[dict[str, Any], str | None]:
        """Any of the options, each with its own chance."""
        k = int(rng.choice([n for n in lengths.row_lengths(dtype) if 0 < n <= max(most // 2, 1)]))
        k = min(k, int(rng.choice([40, 700, k])))
        q = int(min(max(most // k, 1), rng.choice([1, 2, 5, 8, 33, 128, k])))
        heads = int(min(max(most // (k * q), 1), rng.choice([1, 2, 3])))
        shape = [[q, k], [heads, q, k], [1, heads, q, k]][rng.integers(3)]

        def side(chance: float) -> list[int] | None:
            if rng.random() > chance:
                return None
            return [1 if rng.random() < 0.4 else size for size in shape]

        options: dict[str, Any] = {"shape": shape, "mask": side(0.5), "bias": side(0.35)}
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
        how = None
        plain = options["scale"] and options["scale"] > 0 and options["bias"] is None
        if jax.default_backend() == "gpu" and plain:
            how = [None, *validate.TIERS][rng.integers(len(validate.TIERS) + 1)]
            names = ("masked_softmax_fwd", "masked_softmax_grad")
            how = how if lengths.tier_serves(how, shape, dtype, names) else None
        return options, how

    def member(self, problem: Problem, rng: np.random.Generator) -> tuple[Arrays, bool]:
        """scores, mask, bias, scale, t or t_scores."""
        o, shape = problem.options, problem.options["shape"]
        rows, cols = math.prod(shape[:-1]), shape[-1]
        kind, t_kind = str(rng.choice(_kinds(problem))), str(rng.choice(["normal", "constant"]))

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
        if problem.derivative != "value":
            name = "t_scores" if problem.derivative == "jvp" else "t"
            t = values.cotangents(t_kind, rows, cols, problem.dtype, rng)
            operands[name] = t.reshape(shape)
        return operands, bool(values.ALIKE & {kind, t_kind})

    def core(self, problem: Problem) -> Callable[[dict[str, jax.Array]], dict[str, jax.Array]]:
        """The call."""
        o = problem.options
        function = functools.partial(jk.scaled_masked_softmax, tier=problem.how, **_arguments(o))

        def result(operands: dict[str, jax.Array]) -> jax.Array:
            scale = operands["scale"] if o["scale"] is None else o["scale"]
            return function(
                operands["scores"], operands.get("mask"), operands.get("bias"), scale=scale
            )

        return lambda operands: differentiated(problem, result, operands, _active(problem))

    def judge(
        self, problem: Problem, operands: Arrays, results: Arrays, alike: np.ndarray
    ) -> dict[str, Judged]:
        """Everything at once: members are one more dimension."""
        o, shape, count = problem.options, tuple(problem.options["shape"]), len(alike)
        scale = o["scale"]
        if scale is None:
            scale = operands["scale"].reshape(count, *[1] * len(shape))

        def accumulators(operation: str, dtype: str) -> int:
            # A scale that is not fused widens the scores first.
            types = {dtype} if problem.how else {dtype, jnp.promote_types(dtype, jnp.float32).name}
            rows = (shape, (problem.members, *shape))
            return min(
                lengths.accumulators(operation, r, d, problem.how, anywhere=True)
                for r in rows
                for d in types
            )

        t = operands.get("t", operands.get("t_scores"))
        truth = masked.Truth(
            operands["scores"],
            operands.get("mask"),
            operands.get("bias"),
            scale,
            _arguments(o),
            t,
            accumulators,
            alike.reshape(count, *[1] * len(shape)),
        )

        def held(got: np.ndarray, want: np.ndarray, limit: np.ndarray) -> Judged:
            return Judged(got, want, limit, truth.forgiven(got, want))

        y = expect(results, "y", shape, operands["scores"].dtype)
        judged = {"y": held(y, truth.shown, truth.shown_error)}
        if problem.derivative == "value":
            return judged
        gradients = truth.gradients()
        if problem.derivative == "jvp":  # the Jacobian is symmetric
            got = expect(results, "dy", shape, operands["scores"].dtype)
            return judged | {"dy": held(got, *gradients["scores"])}
        for name in _active(problem):
            operand = operands[name]
            got = expect(results, f"d{name}", operand.shape[1:], operand.dtype)
            want, limit = gradients[name]
            judged[f"d{name}"] = held(got, want.reshape(got.shape), limit.reshape(got.shape))
        return judged


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    window = options["arguments"].get("window")
    given = {"window": tuple(window)} if isinstance(window, list) else {}
    return options["arguments"] | given


def _active(problem: Problem) -> tuple[str, ...]:
    bias = problem.options["bias"] is not None and problem.derivative != "jvp"
    traced = problem.options["scale"] is None
    return ("scores", *(["bias"] if bias else []), *(["scale"] if traced else []))


def _kinds(problem: Problem) -> list[str]:
    """Kinds of scores whose result is determined: sums over rows that are NaN in part are not."""
    o, kinds = problem.options, list[str](values.FINITE)
    factor = o["scale"]
    if factor != 1.0 or o["bias"] is not None:
        if factor and problem.derivative == "value":
            kinds += ["minus_inf", "nan", "infinities", "all_minus_inf"]
        return kinds
    return [*kinds, "minus_inf", "nan", "infinities", "all_minus_inf", "huge"]
