"""The truth of a product: which contractions its result and its derivatives are."""

from __future__ import annotations

import numpy as np

from jaxkernels.verify.problem import Arrays, Problem
from jaxkernels.verify.truth.products import Interval, contraction, known


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


def active_operands(problem: Problem) -> tuple[str, ...]:
    """The names of the operands and factors by which a product is differentiated."""
    o = problem.options
    names = ["a", "b"] + (["c"] if o.get("has_c") else [])
    return (*names, *(name for name in ("alpha", "beta") if name in o and o[name] is None))


class Terms:
    """The products of one problem, with all members."""

    def __init__(self, problem: Problem, operands: Arrays) -> None:
        left, right, out = labels_of(problem)
        self.problem, self.operands = problem, operands
        self.given = {"a": left, "b": right, "c": out, "t": out}
        self.left, self.right, self.out = (_kept(labels) for labels in (left, right, out))

    def operand(self, name: str) -> Interval:
        """An operand without the dimensions that broadcast."""
        x, labels = self.operands[name], self.given[name.removeprefix("t_")]
        kept = [n for n, label in zip(x.shape[1:], labels, strict=True) if label.islower()]
        return known(x.reshape([len(x), *kept]))

    def factor(self, name: str) -> np.ndarray:
        """Alpha or beta, of every member."""
        given = self.operands.get(name, np.float32(self.problem.options.get(name, 1.0)))
        return np.asarray(given).reshape(-1, *[1] * (len(self.out) - 1))

    def product(self, a: Interval, b: Interval) -> Interval:
        """The product of two operands of these layouts."""
        return contraction(f"{self.left},{self.right}->{self.out}", a, b)

    def alpha_times(self, product: Interval) -> Interval:
        """A factor of 1 costs no rounding."""
        alpha = self.factor("alpha")
        return product if (alpha == 1).all() else product.scaled(alpha)

    def plus_c(self, product: Interval, name: str) -> Interval:
        """Adds beta times c, or beta times its tangent; beta = 0 ignores c."""
        if not self.problem.options.get("has_c"):
            return product
        x, beta = self.operand(name), self.factor("beta")
        read = np.broadcast_to(beta != 0, x.value.shape)
        return product.plus(known(np.where(read, x.value, 0)).scaled(beta))

    def result(self) -> Interval:
        """Alpha a b + beta c."""
        return self.plus_c(
            self.alpha_times(self.product(self.operand("a"), self.operand("b"))), "c"
        )

    def tangent(self) -> Interval:
        """The derivative along t_a, t_b and t_c."""
        of_a = self.product(self.operand("t_a"), self.operand("b"))
        of_b = self.product(self.operand("a"), self.operand("t_b"))
        return self.plus_c(self.alpha_times(of_a).plus(self.alpha_times(of_b)), "t_c")

    def gradients(self) -> dict[str, Interval]:
        """The cotangents of the operands for the cotangent t of the result; keys are "d" and the name."""
        a, b, t = self.operand("a"), self.operand("b"), self.operand("t")
        scaled = t if self.problem.operation != "sgemm" else t.scaled(self.factor("alpha"))
        found = {
            "da": contraction(f"{self.out},{self.right}->{self.left}", scaled, b),
            "db": contraction(f"{self.left},{self.out}->{self.right}", a, scaled),
        }
        sums, active = f"{self.out},{self.out}->Z", active_operands(self.problem)
        if "c" in active:
            found["dc"] = t.scaled(self.factor("beta"))
        if "alpha" in active:
            found["dalpha"] = contraction(sums, t, self.product(a, b))
        if "beta" in active:
            found["dbeta"] = contraction(sums, t, self.operand("c"))
        return found


def _kept(labels: str) -> str:
    return "Z" + "".join(label for label in labels if label.islower())
