"""Matrix products and contractions in float64, with bounds for float32.

The bound is elementwise: a sum of k products in float32, in any order, with any fused multiply-adds, is wrong by at most
gamma_k * (|A| |B|), gamma_k = k u / (1 - k u), u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 3.5).
Pairs of float16, which serve k of 32 and more, keep it too: a product of pairs errs by 2^-21 of itself at most (8 u), what
repairs leave errs by 2^-21 of the sum, and each of 64 terms that wgmma adds loses 2^-25 of the largest (u / 2). A split of
k costs one more rounding.
"""

import math
from dataclasses import replace

import numpy as np

from jaxkernels.verify.truth import bounded
from jaxkernels.verify.truth.bounded import PRECISION, Bounded, Precision

# Whole numbers are exact where all partial sums are below 2^24, which float32 has.
PRODUCTS = replace(PRECISION["float32"], exact_below=2.0**24)


def known(x: np.ndarray) -> Bounded:
    """An operand, which is exact unless it is flushed."""
    return bounded.known(x, PRODUCTS)


def contraction(labels: str, a: Bounded, b: Bounded, parts: Precision | None = None) -> Bounded:
    """The sum of products over the labels that the result lacks, in any order, rounding by rounding.

    Labels are those of einsum, "mk,kn->mn"; Z counts members, and each may be exact by itself. The
    bound includes the errors of the operands. `parts` is the storage type of sums of parts.
    """
    p, (left, right, out) = a.precision, labels.replace("->", ",").split(",")
    sizes: dict[str, int] = {}
    for names, x in ((left, a), (right, b)):
        sizes |= dict(
            zip(reversed(names.replace("...", "")), reversed(x.value.shape), strict=False)
        )
    terms = math.prod(sizes[x] for x in sizes if x not in out)

    def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.einsum(labels, x, y, optimize=True)

    size_a, size_b = np.abs(a.value) + a.limit, np.abs(b.value) + b.limit
    value, size = dot(a.value, b.value), dot(size_a, size_b)
    limit = (terms * p.u / (1 - terms * p.u) + p.u) * size + 2 * terms * p.flush
    if parts is not None and parts.us > p.u:
        limit = limit + parts.us * size + terms * parts.smallest
    for x, y in ((a.limit, size_b), (size_a, b.limit)):
        limit = limit + (dot(x, y) if x.any() and y.any() else 0)
    whole = _whole(labels, a) & _whole(labels, b)
    exact = whole.reshape(-1, *[1] * (value.ndim - 1)) & (size < p.exact_below)
    return Bounded(value, np.where(exact, 0, limit), p)


def _whole(labels: str, x: Bounded) -> np.ndarray:
    """Whether all elements of a member are whole numbers without an error."""
    each = (x.limit == 0) & (x.value == np.rint(x.value))
    return np.asarray(each.all(tuple(range("Z" in labels, each.ndim))))
