"""matmul, dot_general and sgemm: every one a contraction with labels, which is how its truth is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels import _registry, _validate
from jaxkernels.verify import lengths, values
from jaxkernels.verify.problem import (
    DERIVATIVES,
    Arrays,
    Judged,
    Problem,
    differentiated,
    expect,
)
from jaxkernels.verify.truth.compare import storage
from jaxkernels.verify.truth.products import Interval, contraction, known

_SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 257, 1000)


class Products:
    """Options: shapes (of a, b), labels (as for einsum; a dimension that broadcasts has its label in capitals).

    dot_general also has numbers (its dimension numbers), sgemm flags, alpha, beta (None is an argument of the program)
    and has_c.
    """

    operations = ("matmul", "dot_general", "sgemm")
    derivatives = DERIVATIVES

    def dtypes(self, operation: str) -> tuple[str, ...]:
        """16-bit operands may be multiplied in float32."""
        return ("float32",) if operation == "sgemm" else ("float32", "bfloat16", "float16")

    def choose(
        self, operation: str, dtype: str, derivative: str, most: int, rng: np.random.Generator
    ) -> tuple[dict[str, Any], str | None]:
        """Sizes at which plans change, and any; layouts of every kind."""
        m, n, k = _sizes(most, rng)
        batch = _batch(most // max(m * n + n * k + m * k, 1), rng)
        if operation == "dot_general":
            options = _general_layout(m, n, k, rng)
        else:
            flags = [False, False] if operation == "matmul" else [rng.random() < 0.5 for _ in "ab"]
            options = _matrices(m, n, k, batch, [bool(f) for f in flags], rng)
            if operation == "matmul" and rng.random() < 0.15:
                options = _vectors(m, n, k, rng)
        if operation == "sgemm":
            options["has_c"] = bool(rng.random() < 0.6)
            traced = rng.random() < 0.2 and derivative != "jvp"
            options["alpha"] = None if traced else float(rng.choice([1.0, -0.5, 2.0, 0.3]))
            options["beta"] = 0.0
            if options["has_c"]:
                options["beta"] = None if traced else float(rng.choice([0.0, 1.0, -1.0, 0.7]))
        has_kernels = jax.default_backend() == "gpu" and _registry.has_cuda_module()
        how = rng.choice([None, *_validate.ALGORITHMS]) if has_kernels else None
        return options, how

    def member(self, problem: Problem, rng: np.random.Generator) -> tuple[Arrays, bool]:
        """a, b, c, alpha, beta, and t or tangents."""
        o, dtype = problem.options, problem.dtype
        kinds = values.FACTORS if problem.derivative == "value" else values.FACTORS[:5]
        kind = str(rng.choice(kinds))
        shapes = {"a": o["shapes"][0], "b": o["shapes"][1]}
        if o.get("has_c"):
            shapes["c"] = _result_shape(problem)
        operands = {x: values.factors(kind, s, dtype, rng) for x, s in shapes.items()}
        # What a factor of 0 multiplies is not read.
        betas = [0.5, -2.0, 3.0] if problem.wants_gradient else [0.0, 0.5, -2.0, 3.0]
        for name, some in (("alpha", [0.5, -1.0, 0.3]), ("beta", betas)):
            if name in o and o[name] is None:
                operands[name] = np.float32(rng.choice(some))[...]
        if "c" in operands and operands.get("beta", o["beta"]) == 0 and rng.random() < 0.5:
            operands["c"].fill(np.nan)
        if problem.wants_gradient:
            operands["t"] = values.factors(kind, _result_shape(problem), "float32", rng)
        if problem.derivative == "jvp":
            operands |= {f"t_{x}": values.factors(kind, s, dtype, rng) for x, s in shapes.items()}
        return operands, True

    def core(self, problem: Problem) -> Callable[[dict[str, jax.Array]], dict[str, jax.Array]]:
        """The call."""
        o, how = problem.options, problem.how

        def result(x: dict[str, jax.Array]) -> jax.Array:
            if problem.operation == "sgemm":
                alpha, beta = (x.get(name, o[name]) for name in ("alpha", "beta"))
                trans_a, trans_b = o["flags"]
                flags = {"trans_a": trans_a, "trans_b": trans_b, "algorithm": how}
                return jk.sgemm(x["a"], x["b"], x.get("c"), alpha=alpha, beta=beta, **flags)
            wide = None if problem.dtype == "float32" else jnp.float32
            kwargs: dict[str, Any] = {"preferred_element_type": wide, "algorithm": how}
            if problem.operation == "dot_general":
                return jk.dot_general(x["a"], x["b"], o["numbers"], **kwargs)
            return jk.matmul(x["a"], x["b"], **kwargs)

        return lambda operands: differentiated(problem, result, operands, _active(problem))

    def judge(
        self, problem: Problem, operands: Arrays, results: Arrays, alike: np.ndarray
    ) -> dict[str, Judged]:
        """The members are one more label, common to all."""
        terms = _Terms(problem, operands)
        shape = _result_shape(problem)
        with np.errstate(all="ignore"):
            wanted = {"y": terms.result()}
            if problem.wants_gradient:
                wanted |= terms.gradients()
            elif problem.derivative == "jvp":
                wanted["dy"] = terms.tangent()
            judged = {}
            for name, interval in wanted.items():
                like = shape if name in ("y", "dy") else operands[name[1:]].shape[1:]
                dtype = np.float32 if name in ("y", "dy") else operands[name[1:]].dtype
                got = expect(results, name, like, dtype)
                limit = interval.limit.reshape(got.shape)
                want = interval.value.reshape(got.shape)
                if got.dtype != np.float32:  # rounded once more
                    limit = limit + _rounding(got.dtype, want, limit)
                judged[name] = Judged(got, want, limit)
        return judged


class _Terms:
    """The products of one problem, with all members."""

    def __init__(self, problem: Problem, operands: Arrays) -> None:
        left, right, out = problem.options["labels"].replace("->", ",").split(",")
        self.problem, self.operands = problem, operands
        self.given = dict(zip("ab", (left, right), strict=True)) | {
            "c": out,
            "t": out,
            "t_a": left,
            "t_b": right,
            "t_c": out,
        }
        self.left, self.right, self.out = (_kept(labels) for labels in (left, right, out))

    def operand(self, name: str) -> Interval:
        """Without the dimensions that broadcast."""
        x, labels = self.operands[name], self.given[name]
        sizes = [
            len(x),
            *(n for n, label in zip(x.shape[1:], labels, strict=True) if label.islower()),
        ]
        return known(x.reshape(sizes))

    def factor(self, name: str) -> np.ndarray:
        """Alpha or beta, of every member."""
        given = self.operands.get(name, np.float32(self.problem.options.get(name, 1.0)))
        return np.asarray(given).reshape(-1, *[1] * (len(self.out) - 1))

    def product(self, a: Interval, b: Interval) -> Interval:
        return contraction(f"{self.left},{self.right}->{self.out}", a, b)

    def _scaled(self, x: Interval, name: str) -> Interval:
        factor = self.factor(name)
        return x if name not in self.problem.options or (factor == 1).all() else x.scaled(factor)

    def c(self, name: str) -> Interval | None:
        """Beta times c, or times what stands in its place; what 0 multiplies is not read."""
        if not self.problem.options.get("has_c"):
            return None
        x = self.operand(name)
        read = np.broadcast_to(self.factor("beta") != 0, x.value.shape)
        return known(np.where(read, x.value, 0)).scaled(self.factor("beta"))

    def result(self) -> Interval:
        y = self._scaled(self.product(self.operand("a"), self.operand("b")), "alpha")
        c = self.c("c")
        return y if c is None else y.plus(c)

    def tangent(self) -> Interval:
        a, b = self.operand("a"), self.operand("b")
        dy = self._scaled(self.product(self.operand("t_a"), b), "alpha").plus(
            self._scaled(self.product(a, self.operand("t_b")), "alpha")
        )
        c = self.c("t_c")
        return dy if c is None else dy.plus(c)

    def gradients(self) -> dict[str, Interval]:
        a, b, t = self.operand("a"), self.operand("b"), self.operand("t")
        scaled = t if self.problem.operation != "sgemm" else t.scaled(self.factor("alpha"))
        found = {
            "da": contraction(f"{self.out},{self.right}->{self.left}", scaled, b),
            "db": contraction(f"{self.left},{self.out}->{self.right}", a, scaled),
        }
        sums = f"{self.out},{self.out}->Z"
        if "c" in _active(self.problem):
            found["dc"] = t.scaled(self.factor("beta"))
        if "alpha" in _active(self.problem):
            found["dalpha"] = contraction(sums, t, self.product(a, b))
        if "beta" in _active(self.problem):
            found["dbeta"] = contraction(sums, t, self.operand("c"))
        return found


def _kept(labels: str) -> str:
    return "Z" + "".join(label for label in labels if label.islower())


def _active(problem: Problem) -> tuple[str, ...]:
    o = problem.options
    names = ["a", "b"] + (["c"] if o.get("has_c") else [])
    return (*names, *(name for name in ("alpha", "beta") if name in o and o[name] is None))


def _rounding(dtype: np.dtype, want: np.ndarray, limit: np.ndarray) -> np.ndarray:
    u, smallest = (2.0**-8, 2.0**-126) if dtype == storage("bfloat16") else (2.0**-11, 2.0**-25)
    return u * (np.abs(want) + limit) + smallest


def _result_shape(problem: Problem) -> list[int]:
    left, right, out = problem.options["labels"].replace("->", ",").split(",")
    sizes: dict[str, int] = {}
    for labels, shape in zip((left, right), problem.options["shapes"], strict=True):
        sizes |= dict(zip(labels, shape, strict=True))
    return [sizes[label] for label in out]


def _sizes(most: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """No operand nor result of more than `most` elements, and not too many products."""

    def fits(m: int, n: int, k: int) -> bool:
        return max(m * n, n * k, m * k) <= most and m * n * k <= 60 * most

    if rng.random() < 0.4:
        some = [sizes for sizes in lengths.product_boundaries() if fits(*sizes)]
        if some:
            return some[rng.integers(len(some))]
    while True:
        m, n, k = (int(x) for x in rng.choice(_SIZES, 3))
        if rng.random() < 0.02:
            m, n, k = (0 if place == rng.integers(3) else x for place, x in enumerate((m, n, k)))
        if fits(m, n, k):
            return m, n, k


def _batch(room: int, rng: np.random.Generator) -> list[int]:
    """Batch dimensions of at most `room` members."""
    sizes: list[int] = []
    for _ in range(int(rng.choice([0, 0, 1, 2, 3]))):
        size = int(rng.choice([1, 2, 3, 5]))
        if math.prod(sizes) * size <= room:
            sizes.append(size)
    return sizes


def _matrices(
    m: int, n: int, k: int, batch: list[int], flags: list[bool], rng: np.random.Generator
) -> dict[str, Any]:
    """Batches that broadcast by turns, of ranks that may differ; operands as the flags say."""
    names = "defghij"[: len(batch)]
    shapes, labels = [], []
    whole = rng.integers(2) if rng.random() < 0.5 else None
    for place, (matrix, sizes) in enumerate((("mk", [m, k]), ("kn", [k, n]))):
        one = [place != whole and rng.random() < 0.4 for _ in batch]
        lead = [1 if x else size for x, size in zip(one, batch, strict=True)]
        name = [x.upper() if o else x for x, o in zip(names, one, strict=True)]
        while lead and lead[0] == 1 and rng.random() < 0.5:
            lead, name = lead[1:], name[1:]
        turn = slice(None, None, -1) if flags[place] else slice(None)
        shapes.append([*lead, *sizes[turn]])
        labels.append("".join(name) + matrix[turn])
    present = labels[0] + labels[1]
    out = "".join(x if x in present else x.upper() for x in names if x in present.lower())
    return {"shapes": shapes, "labels": f"{labels[0]},{labels[1]}->{out}mn", "flags": flags}


def _vectors(m: int, n: int, k: int, rng: np.random.Generator) -> dict[str, Any]:
    """Products with an operand of one dimension."""
    shapes, labels = (
        ([[k], [k, n]], "k,kn->n"),
        ([[m, k], [k]], "mk,k->m"),
        ([[k], [k]], "k,k->"),
        ([[2, m, k], [k]], "dmk,k->dm"),
        ([[k], [3, k, n]], "k,dkn->dn"),
    )[rng.integers(5)]
    return {"shapes": shapes, "labels": labels}


def _general_layout(m: int, n: int, k: int, rng: np.random.Generator) -> dict[str, Any]:
    """Any order of dimensions, several of a kind."""

    def parts(size: int, names: str) -> dict[str, int]:
        inner = next((d for d in (3, 2, 5) if size % d == 0 and size > d), None)
        if inner is None or rng.random() < 0.5:
            return {names[0]: size}
        return {names[0]: inner, names[1]: size // inner}

    rows, cols, summed = parts(m, "mp"), parts(n, "nq"), parts(k, "kl")
    common = {"d": int(rng.choice([1, 2, 3]))} if rng.random() < 0.5 else {}
    shapes, labels = [], []
    for own in (rows, cols):
        sizes = common | own | summed
        order = [list(sizes)[i] for i in rng.permutation(len(sizes))]
        shapes.append([sizes[x] for x in order])
        labels.append("".join(order))
    pairs = [list(summed)[i] for i in rng.permutation(len(summed))]
    numbers = [[[x.index(name) for name in some] for x in labels] for some in (pairs, list(common))]
    free = [
        "".join(x for x in text if x in own) for text, own in zip(labels, (rows, cols), strict=True)
    ]
    out = "".join(common) + free[0] + free[1]
    return {"shapes": shapes, "labels": f"{labels[0]},{labels[1]}->{out}", "numbers": numbers}
