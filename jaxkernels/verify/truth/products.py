"""Matrix products and contractions in float64, with bounds for float32.

The bound is elementwise: a sum of k products in float32, in any order, with any fused multiply-adds, is wrong by at most
gamma_k * (|A| |B|), gamma_k = k u / (1 - k u), u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 3.5).
Pairs of float16 keep it too, from 32 of k on, where they begin: a product of pairs errs by 2^-21 of itself at most (8 u),
what repairs leave is as much of the sum, and 64 terms that wgmma adds lose 2^-25 of the largest each (u / 2).
Results and operands below the smallest normal number may be flushed to zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

U = 2.0**-24
TINY = float(np.finfo(np.float32).tiny)


def gamma(k: float) -> float:
    """The relative error of a sum of k products."""
    return k * U / (1 - k * U)


def truth(a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 0.0) -> np.ndarray:
    """Alpha a b + beta c in float64; beta = 0 ignores c."""
    product = alpha * (a.astype(np.float64) @ b.astype(np.float64))
    return product if c is None or beta == 0 else product + beta * c.astype(np.float64)


def bound(a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 0.0) -> np.ndarray:
    """The largest error that correct arithmetic can make of `truth`, elementwise.

    alpha and beta cost a rounding each, their sum another, and a sum over splits of k is one more sum of k terms at most.
    """
    size = abs(alpha) * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    error = (gamma(a.shape[-1]) + 3 * U) * size
    if c is not None and beta != 0:
        error = error + 2 * U * np.abs(beta * c.astype(np.float64))
    return error + TINY


@dataclass(frozen=True)
class Interval:
    """A number known but for an error, elementwise: the truth, and the bound of what float32 makes of it."""

    value: np.ndarray  # the truth, in float64
    error: np.ndarray  # the bound
    # Elements whose partial sums and result are all whole numbers below 2^24, or zero:
    # float32 makes no error.
    exact: np.ndarray

    def scaled(self, factor: Any) -> Interval:
        """The product with a float32 array or number, which adds one rounding."""
        factor = np.asarray(factor, np.float64)
        value = factor * self.value
        error = np.abs(factor) * self.error + U * (np.abs(value) + np.abs(factor) * self.error)
        exact = self.exact & (factor == np.rint(factor)) & (np.abs(value) < 2**24)
        return Interval(value, error + 2 * TINY, np.broadcast_to(exact, value.shape))

    def plus(self, other: Interval) -> Interval:
        """The sum, which adds one rounding."""
        value, error = self.value + other.value, self.error + other.error
        exact = self.exact & other.exact & (np.abs(value) < 2**24)
        return Interval(value, error + U * (np.abs(value) + error) + TINY, exact)

    @property
    def limit(self) -> np.ndarray:
        """The bound, 0 where no error is allowed."""
        return np.where(self.exact, 0, self.error)


def known(x: Any) -> Interval:
    """An operand, which is exact."""
    wide = np.asarray(x).astype(np.float64)
    return Interval(wide, np.zeros_like(wide), (wide == np.rint(wide)) & (np.abs(wide) < 2**24))


def contraction(labels: str, a: Interval, b: Interval) -> Interval:
    """The sum of products over the labels that the result lacks, in any order, rounding by rounding.

    Labels are those of einsum, "mk,kn->mn". The errors of the operands go into the bound.
    """
    left, right, out = labels.replace("->", ",").split(",")
    sizes = dict(zip(left + right, a.value.shape + b.value.shape, strict=True))
    terms = math.prod(sizes[x] for x in sizes if x not in out)

    def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return _contract(left, right, out, sizes, x, y)

    size_a, size_b = np.abs(a.value) + a.error, np.abs(b.value) + b.error
    value, size = dot(a.value, b.value), dot(size_a, size_b)
    error = (gamma(terms) + U) * size
    for x, y in ((a.error, size_b), (size_a, b.error)):
        error = error + (dot(x, y) if x.any() and y.any() else 0)
    # An operand that is flushed costs its partner's size, a product or a sum the smallest normal number.
    ones = np.ones_like(a.value), np.ones_like(b.value)
    error = error + TINY * (dot(size_a, ones[1]) + dot(ones[0], size_b) + 2 * terms)
    whole = dot((~a.exact).astype(float), ones[1]) + dot(ones[0], (~b.exact).astype(float)) == 0
    return Interval(value, error, whole & (size < 2**24))


def _contract(
    left: str, right: str, out: str, sizes: dict[str, int], a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """Einsum as one batched product of matrices; labels of one operand alone that the result lacks are summed first."""
    (left, a), (right, b) = _sum_lone(left, right + out, a), _sum_lone(right, left + out, b)
    batch = [x for x in left if x in right and x in out]
    summed = [x for x in left if x in right and x not in out]
    rows, cols = [x for x in left if x not in right], [x for x in right if x not in left]

    def matrices(x: np.ndarray, labels: str, order: list[list[str]]) -> np.ndarray:
        moved = x.transpose([labels.index(name) for group in order for name in group])
        return moved.reshape(
            *(sizes[name] for name in order[0]),
            *(math.prod(sizes[name] for name in group) for group in order[1:]),
        )

    product = matrices(a, left, [batch, rows, summed]) @ matrices(b, right, [batch, summed, cols])
    order = [*batch, *rows, *cols]
    return product.reshape([sizes[x] for x in order]).transpose([order.index(x) for x in out])


def _sum_lone(labels: str, others: str, x: np.ndarray) -> tuple[str, np.ndarray]:
    """Sums over the labels that occur nowhere else, and drops them."""
    lone = [name for name in labels if name not in others]
    kept = "".join(name for name in labels if name not in lone)
    return kept, x.sum(tuple(labels.index(name) for name in lone)) if lone else x
