"""The truth of a product: which contractions its result and its derivatives are."""

from __future__ import annotations

import numpy as np

from jaxkernels.verify.problem import Arrays, Problem
from jaxkernels.verify.truth.products import Interval, contraction, known


def result_shape(problem: Problem) -> tuple[int, ...]:
    """The shape of the result."""
    left, right, out = problem.options["labels"].replace("->", ",").split(",")
    sizes: dict[str, int] = {}
    for labels, shape in zip((left, right), problem.options["shapes"], strict=True):
        sizes |= dict(zip(labels, shape, strict=True))
    return tuple(sizes[label] for label in out)


def active_operands(problem: Problem) -> tuple[str, ...]:
    """What a product is differentiated by."""
    o = problem.options
    names = ["a", "b"] + (["c"] if o.get("has_c") else [])
    return (*names, *(name for name in ("alpha", "beta") if name in o and o[name] is None))


class Terms:
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
        """The product of two operands of these layouts."""
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
        """Alpha a b + beta c."""
        y = self._scaled(self.product(self.operand("a"), self.operand("b")), "alpha")
        c = self.c("c")
        return y if c is None else y.plus(c)

    def tangent(self) -> Interval:
        """The derivative along t_a, t_b and t_c."""
        a, b = self.operand("a"), self.operand("b")
        dy = self._scaled(self.product(self.operand("t_a"), b), "alpha").plus(
            self._scaled(self.product(a, self.operand("t_b")), "alpha")
        )
        c = self.c("t_c")
        return dy if c is None else dy.plus(c)

    def gradients(self) -> dict[str, Interval]:
        """By "d" and the name of an operand, its cotangent for the cotangent t of the result."""
        a, b, t = self.operand("a"), self.operand("b"), self.operand("t")
        scaled = t if self.problem.operation != "sgemm" else t.scaled(self.factor("alpha"))
        found = {
            "da": contraction(f"{self.out},{self.right}->{self.left}", scaled, b),
            "db": contraction(f"{self.left},{self.out}->{self.right}", a, scaled),
        }
        sums = f"{self.out},{self.out}->Z"
        if "c" in active_operands(self.problem):
            found["dc"] = t.scaled(self.factor("beta"))
        if "alpha" in active_operands(self.problem):
            found["dalpha"] = contraction(sums, t, self.product(a, b))
        if "beta" in active_operands(self.problem):
            found["dbeta"] = contraction(sums, t, self.operand("c"))
        return found


def _kept(labels: str) -> str:
    return "Z" + "".join(label for label in labels if label.islower())
