"""matmul, dot_general, einsum, tensordot and sgemm: every one a contraction with labels, which is how its truth is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels._core import registry, validate
from jaxkernels.verify import values
from jaxkernels.verify.families import layouts
from jaxkernels.verify.families.terms import Terms, active_operands, result_shape
from jaxkernels.verify.problem import Array, Arrays, Choice, Family, Problem, Rng, Traced, Truths
from jaxkernels.verify.truth.compare import Bounded
from jaxkernels.verify.truth.tolerance import PRECISION


class Products(Family):
    """Options: shapes (of a, b), labels (as for einsum; a dimension that broadcasts has its label in capitals).

    dot_general also has numbers (its dimension numbers), einsum subscripts, tensordot axes, sgemm flags, alpha, beta
    (None is an argument of the program) and has_c.
    """

    operations = ("matmul", "dot_general", "einsum", "tensordot", "sgemm")

    def dtypes(self, operation: str) -> tuple[str, ...]:
        """16-bit operands may be multiplied in float32."""
        return ("float32",) if operation == "sgemm" else ("float32", "bfloat16", "float16")

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        """Draws sizes, often those at which plans change, and layouts of every kind."""
        m, n, k = layouts.sizes(most, rng)
        batch = layouts.batch_of(most // max(m * n + n * k + m * k, 1), rng)
        if operation == "dot_general":
            options = layouts.general(m, n, k, rng)
        elif operation == "einsum":
            # A sum before a product has the operands' type; its cotangent is no contraction.
            sums_lone = dtype == "float32" and derivative in ("value", "jvp")
            return layouts.einsum(m, n, k, sums_lone, rng), None
        elif operation == "tensordot":
            return layouts.tensordot(m, n, k, rng), None
        else:
            flags = [False, False] if operation == "matmul" else [rng.random() < 0.5 for _ in "ab"]
            options = layouts.matrices(m, n, k, batch, [bool(f) for f in flags], rng)
            if operation == "matmul" and rng.random() < 0.15:
                options = layouts.vectors(m, n, k, rng)
        if operation == "sgemm":
            options["has_c"] = bool(rng.random() < 0.6)
            traced = rng.random() < 0.35 and derivative != "jvp"
            options["alpha"] = None if traced else float(rng.choice([1.0, -0.5, 2.0, 0.3]))
            options["beta"] = 0.0
            if options["has_c"]:
                options["beta"] = None if traced else float(rng.choice([0.0, 1.0, -1.0, 0.7]))
        has_kernels = jax.default_backend() == "gpu" and registry.has_kernels("cuda")
        rungs = (None, *validate.ALGORITHMS) if has_kernels else (None,)
        return options, rungs[rng.integers(len(rungs))]

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        o, dtype = problem.options, problem.dtype
        # Infinity times a number that may be flushed to zero is NaN or not. Operands are finite in
        # problems in which the two could meet, for instance if members share an operand.
        finite = problem.derivative != "value" or problem.delivery in ("vmap", "shared")
        kind = str(rng.choice(values.FACTORS[:5] if finite else values.FACTORS))
        shapes = {"a": o["shapes"][0], "b": o["shapes"][1]}
        if o.get("has_c"):
            shapes["c"] = result_shape(problem)
        operands = {x: values.factors(kind, s, dtype, rng) for x, s in shapes.items()}
        for name, some in (("alpha", [0.5, -1.0, 0.3]), ("beta", [0.0, 0.5, -1.0, 3.0])):
            if name in o and o[name] is None:
                operands[name] = np.asarray(rng.choice(some), np.float32)
        # beta = 0 means that c is not read, unless the derivative by beta is wanted.
        hidden = "c" in operands and operands.get("beta", o["beta"]) == 0
        by_factor = problem.wants_gradient and "beta" in operands
        if hidden and not by_factor and rng.random() < 0.5:
            operands["c"].fill(np.nan)
        if problem.wants_gradient:
            operands["t"] = values.factors(kind, result_shape(problem), "float32", rng)
        if problem.derivative == "jvp":
            operands |= {f"t_{x}": values.factors(kind, s, dtype, rng) for x, s in shapes.items()}
        return operands, True

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        return {"y": result_shape(problem)}

    def result_dtype(self, problem: Problem) -> np.dtype:
        return np.dtype(np.float32)

    def active(self, problem: Problem) -> tuple[str, ...]:
        return active_operands(problem)

    def call(self, problem: Problem, operands: Traced) -> jax.Array:
        o, rung, (a, b) = problem.options, problem.how, (operands["a"], operands["b"])
        if problem.operation == "sgemm":
            factors = {n: operands[n] if o[n] is None else o[n] for n in ("alpha", "beta")}
            trans_a, trans_b = o["flags"]
            flags = {"trans_a": trans_a, "trans_b": trans_b, "algorithm": rung}
            return jk.sgemm(a, b, operands.get("c"), **factors, **flags)
        wide: Any = None if problem.dtype == "float32" else jnp.float32
        if problem.operation == "einsum":
            return jk.einsum(o["subscripts"], a, b, preferred_element_type=wide)
        if problem.operation == "tensordot":
            return jk.tensordot(a, b, o["axes"], preferred_element_type=wide)
        given: Any = {"algorithm": rung, "preferred_element_type": wide}
        if problem.operation == "dot_general":
            return jk.dot_general(a, b, o["numbers"], **given)
        return jk.matmul(a, b, **given)

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        """Computes all members at once, as one more batch label."""
        terms = Terms(problem, operands)
        wanted = {"y": terms.result()}
        if problem.wants_gradient:
            wanted |= terms.gradients()
        elif problem.derivative == "jvp":
            wanted["dy"] = terms.tangent()
        found = {}
        for name, interval in wanted.items():
            value, limit = interval.value, interval.limit
            p = PRECISION[results[name].dtype.name]
            if p.us > p.u:  # rounded once more
                limit = limit + p.us * (np.abs(value) + limit) + p.smallest
            found[name] = Bounded(value, limit)
        return found
