"""Numbers that carry a bound on the error of the kernels' arithmetic: a running error analysis.

`Bounded` computes in a wider type than the kernels do, and adds to each number's bound what the kernel's own operation may
err by. Nothing is fitted. u is the unit roundoff of the compute type (float32, or float64 for float64 storage), us that of
the storage type. The rules, elementwise, of every operation:

* A sum, difference or product is rounded to u, a quotient to 2 u (reciprocal, then one correction step), what is stored to
  us.
* ``exp`` and ``log`` are good to one unit in the last place, which is at most 2 u of the value. For half storage the
  GPU's exp2 instruction serves: 2^-22 = 4 u, and its argument t = d log2(e) carries three relative roundings (of the
  difference, of the constant, of the product), which cost 3 |d| u. float32 storage compensates the difference, so that
  only the fused multiply-add's u is left of |d| u. float64 does not: |d| u.
* A sum of n terms is added up by ``accumulators`` independent chains, followed by a tree. With k = n / accumulators +
  log2(accumulators) additions in a row, its error is at most k u sum|terms|; roundings of random sign add up to
  lambda sqrt(k) u with overwhelming probability (Higham and Mary 2019, lambda = 4). The smaller of the two holds, except
  in rows in which many terms are the same, or lie just below the last place of one: there all roundings may have one
  sign, and only k u holds ("alike").
* XLA's CPU threads flush subnormals to zero and the GPU's half exponentials do so too: every operand, product and sum may
  be wrong by the smallest normal number. float16 results keep their subnormals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxkernels.verify.truth.compare import finite, widen

SUM_LAMBDA = 4.0
EXP_ERROR, LOG_ERROR, DIVIDE_ERROR = 2.0, 2.0, 2.0
_HALF = 4.0, 3.0  # of an exponential of half storage, and of its argument


@dataclass(frozen=True)
class Precision:
    """The precision and the error constants of a storage type."""

    u: float  # unit roundoff of the compute type
    us: float  # unit roundoff of the storage type
    smallest: float  # absolute error that the end of the exponent range costs a result
    flush: float  # the smallest normal number of the compute type
    exp_error: float  # error of an exponential, in u, apart from its argument's
    argument_error: float  # what each unit of |x - max| adds to it, in u
    is_plain: bool = False  # of plain JAX, which XLA compiles and JAX differentiates
    exact_below: float = 0.0  # whole numbers below it are exact, if computed from exact ones


PRECISION = {
    "float32": Precision(2.0**-24, 2.0**-24, 2.0**-126, 2.0**-126, EXP_ERROR + 1, 0),
    "bfloat16": Precision(2.0**-24, 2.0**-8, 2.0**-126, 2.0**-126, *_HALF),
    "float16": Precision(2.0**-24, 2.0**-11, 2.0**-25, 2.0**-126, *_HALF),
    "float64": Precision(2.0**-53, 2.0**-53, 2.0**-1022, 2.0**-1022, EXP_ERROR, 1),
}


def precision_of(dtype: str, how: str | None) -> Precision:
    """The precision of a storage type; in plain JAX ("xla") nothing compensates the argument of an exponential."""
    p, plain = PRECISION[dtype], how == "xla"
    return replace(p, argument_error=max(p.argument_error, 1), is_plain=True) if plain else p


def sum_error(cols: int, accumulators: int, alike: Any = False) -> Any:
    """Error of a row's sum in u * sum|terms|; all roundings may have one sign if `alike`."""
    chain = math.ceil(cols / accumulators) + math.ceil(math.log2(max(accumulators, 2)))
    random = min(chain, SUM_LAMBDA * math.sqrt(chain))
    return random if alike is False else np.where(alike, chain, random)


class Bounded:
    """A value, and the largest error of its computation; infinite and NaN values have none."""

    __array_ufunc__ = None  # so that an array leaves its operators to this class

    def __init__(
        self, value: Any, limit: Any = 0.0, precision: Precision = PRECISION["float32"]
    ) -> None:
        self.value, self.precision = np.asarray(value), precision
        self.limit: np.ndarray = np.where(np.isfinite(self.value), limit, 0)

    def __iter__(self) -> Iterator[np.ndarray]:
        """The value, then the error."""
        return iter((self.value, self.limit))

    def _with(self, other: Any) -> Bounded:
        return other if isinstance(other, Bounded) else Bounded(other, 0.0, self.precision)

    def rounded(self, roundings: Any = 1.0) -> Bounded:
        """The same, rounded that many times."""
        p, size = self.precision, np.abs(self.value) + self.limit
        limit = self.limit + p.u * roundings * size + p.flush
        if p.exact_below:
            whole = (self.limit == 0) & (self.value == np.rint(self.value))
            limit = np.where(whole & (size < p.exact_below), 0, limit)
        return Bounded(self.value, limit, p)

    def __add__(self, other: Any) -> Bounded:
        other = self._with(other)
        both = self.value + other.value, self.limit + other.limit
        return Bounded(*both, self.precision).rounded()

    def __neg__(self) -> Bounded:
        return Bounded(-self.value, self.limit, self.precision)

    def __sub__(self, other: Any) -> Bounded:
        return self + -self._with(other)

    def __rsub__(self, other: Any) -> Bounded:
        return self._with(other) - self

    def __mul__(self, other: Any) -> Bounded:
        other = self._with(other)
        size = np.abs(other.value) + other.limit
        limit = _product(np.abs(self.value), other.limit) + _product(self.limit, size)
        return Bounded(self.value * other.value, limit, self.precision).rounded()

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> Bounded:
        other = self._with(other)
        value, size = self.value / other.value, np.abs(other.value)
        limit = self.limit / size + _product(finite(value), other.limit / size)
        return Bounded(value, limit, self.precision).rounded(DIVIDE_ERROR)

    def __rtruediv__(self, other: Any) -> Bounded:
        return self._with(other) / self

    def apply(self, move: Callable[[np.ndarray], np.ndarray]) -> Bounded:
        """Moves, repeats or leaves out elements."""
        return Bounded(move(self.value), move(self.limit), self.precision)

    def columns(self) -> list[Bounded]:
        """All columns, (rows, 1) each."""
        parts = (np.split(a, a.shape[1], axis=1) for a in self)
        return [Bounded(x, limit, self.precision) for x, limit in zip(*parts, strict=True)]

    def where(self, condition: Any, other: Any = 0.0) -> Bounded:
        """Another value where the condition does not hold."""
        other = self._with(other)
        limit = np.where(condition, self.limit, other.limit)
        return Bounded(np.where(condition, self.value, other.value), limit, self.precision)

    def plus_error(self, error: Any) -> Bounded:
        """The same value, which may err by more."""
        return Bounded(self.value, self.limit + error, self.precision)

    def sum(self, additions: Any, axis: int = -1) -> Bounded:
        """Sums along an axis, which is kept; `additions` are as of `sum_error`."""
        p, count = self.precision, self.value.shape[axis]
        value, size, limit = (
            np.sum(a, axis=axis, keepdims=True)
            for a in (self.value, np.abs(self.value) + self.limit, self.limit)
        )
        return Bounded(value, limit + p.u * additions * size + count * p.flush, p)

    def exp(self, fast: bool = False, more: float = 0.0) -> Bounded:
        """The exponential of a difference; the bound includes the rounding of that difference.

        `fast` takes the exponential of half types, also for float32, whose kernels use it for terms that are no results.
        `more` are further errors in u.
        """
        p, value = self.precision, np.exp(self.value)
        is_half = fast and p.u > PRECISION["float64"].u
        error, of_argument = _HALF if is_half else (p.exp_error, p.argument_error)
        relative = p.u * (error + of_argument * finite(self.value) + more)
        moved = np.where(value > 0, value * np.expm1(self.limit), 0)
        return Bounded(value, moved + value * relative + p.flush, p)

    def tanh(self, error: float) -> Bounded:
        """The hyperbolic tangent, good to `error` u."""
        value = np.tanh(self.value)
        return Bounded(value, self.limit * (1 - value**2), self.precision).rounded(error)

    def log(self) -> Bounded:
        """The logarithm of positive numbers."""
        return self._log(np.log(self.value), self.value)

    def log1p(self) -> Bounded:
        """The logarithm of 1 + the number."""
        return self._log(np.log1p(self.value), 1 + self.value)

    def _log(self, value: np.ndarray, of: np.ndarray) -> Bounded:
        relative = self.limit / np.where(of > 0, of, 1)
        limit = relative + self.precision.u * LOG_ERROR * finite(value)
        return Bounded(value, limit, self.precision)

    def sqrt(self) -> Bounded:
        """The root; a relative error is halved."""
        value = np.sqrt(self.value)
        return Bounded(value, self.limit / (2 * value), self.precision).rounded()

    def stored(self, to: Precision) -> Bounded:
        """Rounded to a storage type, if that is narrower."""
        limit = self.limit + to.smallest
        if to.us > self.precision.u:
            limit = limit + to.us * (np.abs(self.value) + self.limit)
        return Bounded(self.value, limit, self.precision)


def concatenate(*parts: Bounded) -> Bounded:
    """Arrays one after the other along the last axis."""
    value, limit = (np.concatenate(some, axis=-1) for some in zip(*parts, strict=True))
    return Bounded(value, limit, parts[0].precision)


def _product(a: np.ndarray | np.floating, b: np.ndarray | np.floating) -> np.ndarray:
    """0 where a factor is 0, also where the other is infinite."""
    return np.where((a == 0) | (b == 0), 0, a * b)


def known(x: Any, precision: Precision) -> Bounded:
    """An operand, which is exact unless it is flushed."""
    wide = widen(x)
    return Bounded(wide, np.where(np.abs(wide) < precision.flush, np.abs(wide), 0), precision)
