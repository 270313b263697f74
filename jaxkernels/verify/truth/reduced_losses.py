"""Weighted losses of rows, their sum or mean, and their derivatives; and how far a program may be from each.

Rows and their measures are those of `losses`, whose notation holds here. In units of u:

* A loss of a row is q nll + smoothing distance + z lse^2 times its factor: what its measures err by, and `_TERMS` roundings
  of each term. A factor of a mean errs by the sum of the weights, which is exact where it counts rows.
* A sum over rows errs by what they err by, and by its additions; rows that are alike may all round the same way.
* Logits behind a soft cap or a temperature are not exact. By d of each logit the log-sum-exp moves by no more than
  sum p d, the entropy by sum p |log p + entropy| d, and log p by d and sum p d.
* A kernel may compute the gradient of a sum or a mean together with the loss. This gradient is rounded to the storage
  type, and again when the cotangent multiplies it. At the label, the kernel combines all terms into one difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxkernels.verify.truth.compare import Bounded, compute, finite, total, widen
from jaxkernels.verify.truth.losses import Rows
from jaxkernels.verify.truth.tolerance import PRECISION, sum_error

# Counts the roundings of q, smoothing, z, lse^2 and the factor, of their products and their sum.
_TERMS = 8
# In units of u: XLA's tanh is a quotient of two polynomials, and so is a kernel's for half types, which errs by 2^-15.6.
_TANH_ERROR, _HALF_TANH_ERROR = 8, 2.0 ** (24 - 15.5)


class Losses:
    """The losses of the rows of all members, one after the other.

    The logits of `rows` err by up to `slack`. `slope` is their derivative with respect to the logits
    that the program is given, which are the same if `is_given`. `u` is the unit of losses.
    """

    def __init__(
        self,
        x: np.ndarray,
        hidden: np.ndarray,
        label: np.ndarray,
        options: dict[str, Any],
        members: int,
        alike: np.ndarray,
        accumulators: Callable[[str], int],
        weights: np.ndarray | None,
        temperature: np.ndarray | None,
    ) -> None:
        """Scales the logits x (rows, cols), which are finite if a soft cap changes them.

        The kernel does not see those that are `hidden`. A negative label is none. `options` are
        soft_cap, smoothing, z_loss, reduction and returns. `accumulators` maps a dtype to the
        partial sums that a row has at least; `alike`, `weights` and `temperature` are (rows, 1).
        """
        dtype = compute(x.dtype.name)
        logits = self._scaled(x, options["soft_cap"], temperature, dtype)
        self.slack = np.where(hidden, 0, self.slack)
        seen = np.where(hidden, np.asarray(-np.inf, logits.dtype), logits)
        self.rows = Rows(seen, label, accumulators(x.dtype.name), x.dtype.name)
        self.u = self.rows.precision.u
        wide = np.longdouble if dtype == np.float64 else np.float64
        given = np.ones((len(label), 1)) if weights is None else weights
        self._has_label = (label >= 0)[:, None]
        self.weight = np.where(self._has_label, given, 0).astype(wide)
        self._weighs, self.members, self._alike = weights is not None, members, alike
        self._reduction = options["reduction"]
        # A kernel makes the gradient with the loss.
        is_alone = self._reduction != "none" and not options["returns"]
        self._in_one_read = is_alone and x.dtype != np.float16
        smoothing, z = (widen(np.asarray(options[x], dtype)) for x in ("smoothing", "z_loss"))
        self._parts: tuple[Any, Any, Any] = 1 - smoothing, smoothing, z

    def _scaled(
        self, x: np.ndarray, cap: Any, temperature: np.ndarray | None, dtype: np.dtype
    ) -> np.ndarray:
        """The logits behind a soft cap (a number, one per row, or None) and a temperature, in a dtype."""
        result = widen(x)
        self.slope, self.slope_error = np.ones_like(result), np.zeros_like(result)
        self.is_given = cap is None and temperature is None
        if self.is_given:
            self.slack = self.slope_error
            return x
        p, roundings = PRECISION[dtype.name], 1
        if cap is not None:
            limit = widen(np.asarray(cap, dtype))
            capped = np.tanh(result / limit)
            result, self.slope = limit * capped, 1 - capped**2
            tanh_error = _TANH_ERROR if x.dtype.itemsize > 2 else _HALF_TANH_ERROR
            self.slope_error = self.slope_error + 2 * tanh_error + 4
            roundings += tanh_error + 3
        if temperature is not None:
            wide = widen(temperature)
            result, self.slope = result / wide, self.slope / wide
            self.slope_error = self.slope_error / wide
            roundings += 3
        self.slope_error = p.u * (self.slope_error + 4 * np.abs(self.slope))
        self.slack = p.u * roundings * np.abs(result) + 4 * p.flush
        return result.astype(dtype)

    def of_members(self, values: np.ndarray) -> np.ndarray:
        """The sum over the rows of each member, (members, 1)."""
        return total(values.reshape(self.members, -1))

    def to_rows(self, values: np.ndarray) -> np.ndarray:
        """Repeats a value of each member, or of each row, for each row, (rows, 1)."""
        return np.repeat(values.reshape(-1), len(self.weight) // values.size)[:, None]

    def summed(self, of_rows: Bounded) -> Bounded:
        """The sum over the rows of each member."""
        count = len(self.weight) // self.members
        alike = self._alike.reshape(self.members, -1).any(-1, keepdims=True)
        additions = sum_error(count, 1, alike) * self.u * self.of_members(finite(of_rows.value))
        limit = self.of_members(of_rows.limit) + additions
        return Bounded(self.of_members(of_rows.value), limit)

    def total_weight(self) -> np.ndarray:
        """The divisor of a mean, (rows, 1): the sum of the weights, or 1 if that is 0."""
        whole = self.to_rows(self.of_members(self.weight))
        return np.where(whole == 0, 1, whole)

    def factor(self) -> Bounded:
        """The factor of each row's loss: its weight, for a mean divided by the sum of weights."""
        if self._reduction != "mean":
            return Bounded(self.weight, 0 * self.weight)
        value = self.weight / self.total_weight()
        additions = sum_error(len(self.weight) // self.members, 1) if self._weighs else 0
        return Bounded(value, self.u * (additions + 2) * np.abs(value))

    def _moved(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The largest changes of log S, log p and the entropy by the slack of the logits."""
        rows, slack = self.rows, self.slack
        p = np.where(np.isfinite(rows.p), rows.p, 0)
        of_sum = 1.01 * total(p * slack)
        log_p = rows.finite - np.log1p(rows.rest)
        of_entropy = 1.01 * total(p * np.abs(log_p + rows.measures()[:, 2:3]) * slack)
        return of_sum, slack + of_sum, finite(of_entropy)

    def measures(self) -> Bounded:
        """The measures of `Rows`, (rows, 4)."""
        value, limit = self.rows.measures(), self.rows.measure_bounds()
        if self.is_given:
            return Bounded(value, limit)
        of_sum, _, of_entropy = self._moved()
        at_label = total(np.where(self.rows.is_label, self.slack, 0))
        of_all = of_sum + total(self.slack) / self.rows.seen
        moved = np.concatenate([of_sum + at_label, of_sum, of_entropy, of_all], axis=-1)
        return Bounded(value, limit + moved)

    def of_rows(self) -> Bounded:
        """The loss of each row before its factor, (rows, 1)."""
        (q, smoothing, z), (value, limit) = self._parts, self.measures()
        nll, lse, _, distance = np.split(value, 4, axis=-1)
        terms = [k * of for k, of in ((q, nll), (smoothing, distance), (z, lse**2)) if k != 0]
        errors = np.concatenate(
            [q * limit[:, :1], smoothing * limit[:, 3:], z * limit[:, 1:2] * (2 * finite(lse) + 1)],
            axis=-1,
        )
        zero = np.zeros_like(nll)
        size = sum(map(finite, terms), zero)
        return Bounded(sum(terms, zero), total(errors) + _TERMS * self.u * size)

    def losses(self) -> Bounded:
        """The loss of each row, (rows, 1)."""
        (loss, error), (factor, off) = self.of_rows(), self.factor()
        limit = np.abs(factor) * error + (off + 2 * self.u * np.abs(factor)) * finite(loss)
        with np.errstate(all="ignore"):
            value, limit = (np.where(factor == 0, 0, a) for a in (factor * loss, limit))
        return Bounded(value, limit + self.rows.precision.flush)

    def loss(self) -> Bounded:
        """The result of the program: (rows, 1) with reduction "none", else (members, 1)."""
        return self.losses() if self._reduction == "none" else self.summed(self.losses())

    def cotangents(
        self, of_loss: np.ndarray, of_lse: np.ndarray, of_entropy: np.ndarray
    ) -> Bounded:
        """The cotangents of the measures, (rows, 4), from the results' for each row, (rows, 1)."""
        (q, smoothing, z), (value, limit) = self._parts, self.measures()
        factor, off = self.factor()
        c = np.where(factor == 0, 0, of_loss * factor)
        lse = np.where(c * z == 0, 0, value[:, 1:2])
        given = [c * q, 2 * c * z * lse + of_lse, of_entropy + 0 * c, c * smoothing]
        error = _TERMS * self.u * np.abs(c) + finite(of_loss * off)
        of_slope = 2 * (np.abs(c * z) * limit[:, 1:2] + error * z * finite(lse))
        of_slope = of_slope + 2 * self.u * finite(given[1])
        errors = [error * q, finite(of_slope), 0 * c, error * smoothing]
        return Bounded(np.concatenate(given, axis=-1), np.concatenate(errors, axis=-1))

    def gradient(self, cotangents: Bounded, of_loss: np.ndarray) -> Bounded:
        """The gradient by the logits that the kernel reads; `of_loss` multiplies a rounded gradient."""
        rows, p = self.rows, self.rows.precision
        given, off = cotangents
        value, limit = rows.gradient(given), rows.gradient_bound(given, off)
        limit = limit + np.where(rows.is_label, off[:, :1], 0) + off[:, 3:] / rows.seen
        if not self.is_given:
            _, of_log_p, of_entropy = self._moved()
            nll, lse, entropy, distance = np.split(finite(given), 4, axis=-1)
            log_p = rows.finite - np.log1p(rows.rest)
            parts = nll + lse + distance
            parts = parts + entropy * (1 + np.abs(log_p + rows.measures()[:, 2:3]))
            limit = limit + rows.p * (parts * of_log_p + entropy * of_entropy)
        if self._in_one_read:
            nll, lse, _, distance = np.split(finite(given), 4, axis=-1)
            terms = nll + lse + distance
            limit = limit + np.where(rows.is_label, 6 * p.u * terms, 0)
            limit = limit + (p.us + p.u) * finite(value) + p.smallest * (1 + finite(of_loss))
        return Bounded(value, limit)

    def through_scaling(self, gradient: Bounded, dtype: Any) -> Bounded:
        """The gradient by the logits that the program was given, in their storage type."""
        if self.is_given:
            return gradient
        p, (of_x, limit) = PRECISION[np.dtype(dtype).name], gradient
        value = of_x * self.slope
        error = limit * np.abs(self.slope) + np.abs(of_x) * self.slope_error
        return Bounded(value, error + (p.us + 2 * p.u) * finite(value) + p.smallest)

    def of_temperature(self, gradient: Bounded, temperature: np.ndarray) -> Bounded:
        """The gradient by the temperature of each row, (rows, 1)."""
        wide, x = widen(temperature), self.rows.wide
        x = np.where(np.isfinite(x), x, 0)  # hidden logits have no gradient
        value = -total(gradient.value * x) / wide
        size = total(np.abs(gradient.value * x))
        additions = sum_error(x.shape[-1], 1, alike=True) + 6
        moved = total(np.abs(gradient.value) * self.slack)
        error = total(gradient.limit * np.abs(x)) + moved + self.u * additions * size
        return Bounded(value, error / wide)

    def of_weights(self, of_loss: np.ndarray) -> Bounded:
        """With respect to the weight of each row, (rows, 1).

        0 of those without a label, where no weight is left, and of rows of the weight 0 whose loss is not finite.
        """
        loss, error = self.of_rows()
        has_any = self._has_label & ((self.weight != 0) | np.isfinite(loss))
        loss, size = np.where(has_any, loss, 0), finite(loss)
        if self._reduction == "mean":
            whole, mean = self.total_weight(), self.losses()
            of_mean = self.summed(mean)
            additions = sum_error(len(self.weight) // self.members, 1) + 8
            loss = (loss - self.to_rows(of_mean.value)) / whole
            size = (size + self.to_rows(self.of_members(finite(mean.value)))) / whole
            error = (error + self.to_rows(of_mean.limit)) / whole + self.u * additions * size
            has_any = self._has_label & self.to_rows(self.of_members(self.weight) != 0)
        limit = np.abs(of_loss) * (error + 4 * self.u * size) + self.rows.precision.flush
        return Bounded(np.where(has_any, of_loss * loss, 0), np.where(has_any, limit, 0))

    def tangent(self, cotangents: Bounded, t: np.ndarray) -> Bounded:
        """The gradient along a tangent of what the kernel reads, (rows, 1)."""
        value, limit = self.gradient(cotangents, np.ones_like(cotangents.value[:, :1]))
        wide, rows = widen(t), self.rows
        additions = sum_error(t.shape[-1], 1, alike=True) + _TERMS
        size = total(finite(value * wide)) + total(finite(cotangents.value)) * (
            total(rows.p * np.abs(wide)) + total(np.where(rows.is_label, np.abs(wide), 0))
        )
        size = size + finite(cotangents.value[:, 3:]) * total(np.abs(wide)) / rows.seen
        error = total(limit * np.abs(wide)) + self.u * additions * size
        return Bounded(total(value * wide), error)
