"""matmul, dot_general, einsum, tensordot and sgemm: every one a contraction with labels, which is how its truth is computed."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels._core import registry, validate
from jaxkernels.verify import values
from jaxkernels.verify.families import layouts
from jaxkernels.verify.problem import Array, Arrays, Choice, Family, Problem, Rng, Traced, Truths
from jaxkernels.verify.truth.bounded import PRECISION, Bounded
from jaxkernels.verify.truth.products import contraction, known


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
        finite = problem.derivative != "value" or bool(problem.maps)
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
            operands["t"] = values.factors(kind, result_shape(problem), dtype, rng)
        elif problem.derivative == "jvp":
            operands |= {f"t_{x}": values.factors(kind, s, dtype, rng) for x, s in shapes.items()}
        return operands, True

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        return {"y": result_shape(problem)}

    def result_dtype(self, problem: Problem) -> np.dtype:
        return np.dtype(np.float32)

    def active(self, problem: Problem) -> tuple[str, ...]:
        o = problem.options
        names = ["a", "b"] + (["c"] if o.get("has_c") else [])
        return (*names, *(name for name in ("alpha", "beta") if name in o and o[name] is None))

    def call(self, problem: Problem, operands: Traced) -> jax.Array:
        o, operation, (a, b) = problem.options, problem.operation, (operands["a"], operands["b"])
        is_xlas = problem.how == "xla"
        rung: Any = {"implementation" if is_xlas else "algorithm": problem.how}
        if operation == "sgemm":
            factors = {n: operands[n] if o[n] is None else o[n] for n in ("alpha", "beta")}
            flags = dict(zip(("trans_a", "trans_b"), o["flags"], strict=True))
            return jk.sgemm(a, b, operands.get("c"), **factors, **flags, **rung)
        given = rung if operation in ("dot_general", "matmul") else {}
        wide = None if problem.dtype == "float32" else jnp.float32
        after = [o[name] for name in ("axes", "numbers") if name in o]
        first = [o["subscripts"]] if operation == "einsum" else []
        return getattr(jk, operation)(*first, a, b, *after, preferred_element_type=wide, **given)

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        """Computes all members at once, as one more batch label."""
        o, texts = problem.options, labels_of(problem)
        given = dict(zip("abct", (*texts, texts[-1]), strict=True))
        left, right, out = ("Z" + "".join(filter(str.islower, labels)) for labels in texts)

        def operand(name: str) -> Bounded:
            """An operand without the dimensions that broadcast."""
            x, labels = operands[name], given[name.removeprefix("t_")]
            kept = [n for n, label in zip(x.shape[1:], labels, strict=True) if label.islower()]
            return known(x.reshape([len(x), *kept]))

        def factor(name: str) -> np.ndarray:
            """Alpha or beta, of every member."""
            x = np.asarray(operands.get(name, np.float32(o.get(name, 1.0))), np.float64)
            return x.reshape(-1, *[1] * (len(out) - 1))

        def times(name: str, x: Bounded) -> Bounded:
            """The product with alpha or beta; a factor of 1 costs no rounding."""
            return x if (factor(name) == 1).all() else x * factor(name)

        def product(a: str, b: str) -> Bounded:
            return contraction(f"{left},{right}->{out}", operand(a), operand(b))

        def plus_c(x: Bounded, name: str) -> Bounded:
            """Adds beta times c, or beta times its tangent; beta = 0 ignores c."""
            if not o.get("has_c"):
                return x
            return x + times("beta", operand(name).where(factor("beta") != 0))

        wanted = {"y": plus_c(times("alpha", product("a", "b")), "c")}
        if problem.wants_gradient:
            t, sums = operand("t"), f"{out},{out}->Z"
            scaled = times("alpha", t)
            gradients = {
                "a": lambda: contraction(f"{out},{right}->{left}", scaled, operand("b")),
                "b": lambda: contraction(f"{left},{out}->{right}", operand("a"), scaled),
                "c": lambda: times("beta", t),
                "alpha": lambda: contraction(sums, t, product("a", "b")),
                "beta": lambda: contraction(sums, t, operand("c")),
            }
            wanted |= {f"d{name}": gradients[name]() for name in self.active(problem)}
        elif problem.derivative == "jvp":
            of_a, of_b = (times("alpha", product(*x)) for x in (("t_a", "b"), ("a", "t_b")))
            wanted["dy"] = plus_c(of_a + of_b, "t_c")
        return {name: x.stored(PRECISION[results[name].dtype.name]) for name, x in wanted.items()}


def labels_of(problem: Problem) -> list[str]:
    """The labels of a, of b and of the result."""
    return problem.options["labels"].replace("->", ",").split(",")


def result_shape(problem: Problem) -> tuple[int, ...]:
    """The shape of the result."""
    left, right, out = labels_of(problem)
    sizes: dict[str, int] = {}
    for labels, shape in zip((left, right), problem.options["shapes"], strict=True):
        sizes |= dict(zip(labels, shape, strict=True))
    return tuple(sizes[label] for label in out)
