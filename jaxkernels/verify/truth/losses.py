"""Cross entropy with its options and derivatives, and how far a kernel may be from each.

A row x with a label l has four measures: lse - x_l, lse, the entropy, and the mean of lse - x over all x that are not -inf.
Losses are made of them, and gradients follow from their cotangents. The rules of `bounded` hold, and:

* The kernels keep the sum of the terms without the maxima. Each term errs by its exponential (the hardware's also for
  float32), and by one more if parts of a row are combined. Then both sums, of exp(d) d and of d, are shifted to another
  maximum, which costs each two more roundings.
* A gradient is p (a + b d) - c, without c where x is -inf. At the label it is expm1(-loss).
* The loss of a row is q nll + smoothing distance + z lse^2, times its factor. It errs by its measures, and by `_TERMS`
  roundings of each term. A factor of a mean errs by the sum of the weights, which is exact where it counts rows.
* A kernel may compute the gradient of a sum or a mean together with the loss. This gradient is rounded to the storage
  type, and again when the cotangent multiplies it. At the label, the kernel combines all terms into one difference, as the
  derivative of plain JAX does: p c - c.
"""

import math
from typing import Any

import numpy as np

from jaxkernels.verify.truth.bounded import PRECISION, Bounded, concatenate, known, sum_error
from jaxkernels.verify.truth.compare import finite, total, widen
from jaxkernels.verify.truth.rows import log1p_of_rest

MEASURES = ("nll", "lse", "entropy", "distance")
# Counts the roundings of q, smoothing, z, lse^2 and the factor, of their products and their sum.
_TERMS = 8
# In units of u: XLA's tanh is a quotient of two polynomials; the kernels' for half types errs by 2^-15.1 at 0.0092.
_TANH_ERROR, _HALF_TANH_ERROR = 8, 2.0 ** (24 - 15)


class Rows:
    """Rows of logits with a label each: d = x - max, log S and the softmax p."""

    @np.errstate(all="ignore")
    def __init__(self, x: np.ndarray | Bounded, label: np.ndarray, accumulators: int) -> None:
        """Takes x (rows, cols) in the storage type, or with errors, and labels (rows,); a negative label means none.

        A row has `accumulators` partial sums at least.
        """
        x = x if isinstance(x, Bounded) else known(x, PRECISION[x.dtype.name])
        self.wide, self.label, p = x.value, label, x.precision
        self.precision, cols = p, x.value.shape[-1]
        self.is_seen = self.wide != -np.inf  # elements that count in a mean
        has_any = self.is_seen.any(-1, keepdims=True)
        largest = np.max(self.wide, axis=-1, keepdims=True, initial=-np.inf)
        self.largest, self._has_any = np.where(has_any, largest, 0), has_any
        self._slack, d = x.limit, Bounded(self.wide - self.largest, 0, p)
        e = d.exp(fast=True, more=p.exp_error + 1)
        sigma = sum_error(cols, accumulators, alike=True)
        self.log_sum = log1p_of_rest(d, e, sigma)
        s = Bounded(np.exp(self.log_sum.value), 0, p)
        s.limit = s.value * finite(self.log_sum.limit)
        self.softmax = d.exp(more=6) / s
        self.p = self.softmax.value
        self.is_label = np.arange(cols) == label[:, None]
        self.seen = np.maximum(total(self.is_seen), 1)  # their number
        self._is_beyond = (label >= cols)[:, None]
        self._at_label = d.rounded().where(self.is_label).sum(0)
        self.d = d.where(np.isfinite(d.value)).rounded()
        self.mean = ((e * self.d).sum(sigma + 4) / s).where(has_any)  # of p d
        self.sum = self.d.sum(sigma + 4)
        # Errors of the logits change log S and the entropy.
        # Log p + entropy, in which log S is not subtracted from itself.
        self._excess = self.d - self.mean
        self.of_sum, self._of_entropy = (
            1.01 * total(finite(self.p * weight) * self._slack)
            for weight in (1, np.abs(self._excess.value))
        )
        # At equal logits only the second order is left of the entropy's error.
        second = self.p * (1 + np.abs(self._excess.value)) * self._slack
        self._of_entropy += total(finite(second) * self._slack)

    @np.errstate(all="ignore")
    def measures(self) -> Bounded:
        """The measures, (rows, 4)."""
        log_sum = self.log_sum
        nll = (log_sum - self._at_label).where(self._has_any, np.inf)
        entropy = log_sum - self.mean
        distance = (log_sum - self.sum / self.seen).where(self._has_any)
        entropy = entropy.plus_error(2 * self.precision.u * log_sum.value + self._of_entropy)
        at_label = total(np.where(self.is_label, self._slack, 0))
        nan = 0 * total(np.where(self.is_seen, self.wide, 0))  # in rows with NaN or inf
        return concatenate(
            nll.where(~self._is_beyond, np.nan).plus_error(self.of_sum + at_label),
            (log_sum + self.largest).plus_error(self.of_sum),
            entropy + nan,
            (distance + nan).plus_error(self.of_sum + total(self._slack) / self.seen),
        )

    @np.errstate(all="ignore")
    def gradient(self, cotangent: np.ndarray | Bounded) -> Bounded:
        """The gradient, given the cotangents of the measures, (rows, 4)."""
        p, d, mean = self.precision, self.d, self.mean
        given = cotangent if isinstance(cotangent, Bounded) else Bounded(widen(cotangent), 0, p)
        of_nll, of_lse, of_entropy, of_distance = given.columns()
        of_log_p = self._slack + self.of_sum
        softmax = self.softmax.plus_error(finite(self.p) * of_log_p)
        rounding = 4 * p.u * (np.abs(d.value) + np.abs(mean.value))
        # JAX differentiates log S - (sum e d) / S term by term: 1, d + 1 and the mean, with 4 roundings each, cancel.
        rounding = 2 * rounding + 8 * p.u if p.is_plain else rounding
        excess = self._excess.plus_error(rounding + of_log_p + self._of_entropy)
        others = of_lse + of_distance - (of_entropy * excess).where(of_entropy.value != 0)
        size = finite(of_lse.value) + finite(of_distance.value) + finite(of_nll.value)
        others = others.plus_error(4 * p.u * size)
        nll, *_ = self.measures().columns()
        nll = nll.where(~np.isnan(nll.value))
        # The kernel's p at a label is exp(-loss), or an exponential as elsewhere.
        at_label = softmax.plus_error(self.p * (nll.limit + 4 * p.u))
        lost = Bounded(np.expm1(-nll.value), np.exp(-nll.value) * nll.limit, p).rounded(3)
        dx = (softmax * (others + of_nll)).where(~self.is_label, at_label * others + of_nll * lost)
        dx = dx - (of_distance / self.seen).where(self.is_seen)
        dx = dx.where(~((of_nll.value != 0) & self._is_beyond), np.nan)
        return dx.where((given.value != 0).any(-1, keepdims=True)).stored(p)


class Losses:
    """The losses of the rows of all members, one after the other.

    `slope` is the derivative of the logits of `rows` with respect to those that the program is
    given, or None if they are the same. `u` is the unit of losses.
    """

    @np.errstate(all="ignore")
    def __init__(
        self,
        x: np.ndarray | Bounded,
        hidden: Any,
        label: np.ndarray,
        options: dict[str, Any],
        members: int,
        alike: np.ndarray,
        accumulators: int,
        weights: np.ndarray | None,
        temperature: np.ndarray | None,
    ) -> None:
        """Scales the logits x (rows, cols), which may have errors; they are finite if a soft cap changes them.

        The kernel does not see those that are `hidden`. A negative label is none. `options` are
        soft_cap (a number, one per row, or None), smoothing, z_loss, reduction and returns. A row
        has `accumulators` partial sums at least; `alike`, `weights` and `temperature` are (rows, 1).
        """
        logits = x if isinstance(x, Bounded) else known(x, PRECISION[x.dtype.name])
        p = logits.precision
        dtype = np.float64 if p.u == PRECISION["float64"].u else np.float32
        self.slope = Bounded(np.ones_like(logits.value), 0, p)
        if (cap := options["soft_cap"]) is not None:
            cap = widen(np.asarray(cap, dtype))
            capped = (logits / cap).tanh(_TANH_ERROR if p.us == p.u else _HALF_TANH_ERROR)
            logits, self.slope = (capped * cap).rounded(), 1 - capped * capped
        if temperature is not None:
            wide = widen(temperature)
            logits, self.slope = (logits / wide).rounded(), self.slope / wide
        if cap is not None and p.us != p.u:  # as the kernels' CappedTerms err
            reach = np.abs(cap / (1 if temperature is None else widen(temperature)))
            logits = logits.plus_error(np.where(reach <= 128, reach, 0) * 2.0**-20)
        self.is_given = cap is None and temperature is None
        self.logits = logits.where(~np.asarray(hidden) & np.isfinite(logits.value))
        self.rows = Rows(logits.where(~np.asarray(hidden), -np.inf), label, accumulators)
        self.u, self.members, self._alike = p.u, members, alike
        self._has_label = (label >= 0)[:, None]
        given = np.ones((len(label), 1)) if weights is None else weights
        self.weight = np.where(self._has_label, given, 0).astype(logits.value.dtype)
        self._weighs, self._reduction = weights is not None, options["reduction"]
        # A kernel makes the gradient with the loss.
        is_alone = self._reduction != "none" and not options["returns"]
        self._in_one_read = is_alone and p != PRECISION["float16"] and not p.is_plain
        smoothing, z = (widen(np.asarray(options[x], dtype)) for x in ("smoothing", "z_loss"))
        self._parts: tuple[Any, Any, Any] = 1 - smoothing, smoothing, z

    def of_members(self, values: np.ndarray) -> np.ndarray:
        """The sum over the rows of each member, (members, 1)."""
        return total(values.reshape(self.members, -1))

    def to_rows(self, values: np.ndarray) -> np.ndarray:
        """Repeats a value of each member, or of each row, for each row, (rows, 1)."""
        return np.repeat(values.reshape(-1), len(self.weight) // values.size)[:, None]

    def summed(self, of_rows: Bounded) -> Bounded:
        """The sum over the rows of each member."""
        by_member = of_rows.apply(lambda a: a.reshape(self.members, -1))
        alike = self._alike.reshape(self.members, -1).any(-1, keepdims=True)
        return by_member.sum(sum_error(by_member.value.shape[-1], 1, alike))

    def _total_weight(self) -> Bounded:
        """The divisor of a mean, (rows, 1): the sum of the weights, or 1 if that is 0."""
        whole = self.to_rows(self.of_members(self.weight))
        whole = np.where(whole == 0, 1, whole)
        additions = sum_error(len(self.weight) // self.members, 1) if self._weighs else 0
        return Bounded(whole, self.u * additions * whole, self.rows.precision)

    def factor(self) -> Bounded:
        """The factor of each row's loss: its weight, for a mean divided by the sum of weights."""
        weight = Bounded(self.weight, 0, self.rows.precision)
        return weight / self._total_weight() if self._reduction == "mean" else weight

    def of_rows(self) -> Bounded:
        """The loss of each row before its factor, (rows, 1)."""
        nll, lse, _, distance = self.rows.measures().columns()
        loss = Bounded(np.zeros_like(nll.value), 0, nll.precision)
        for factor, term in zip(self._parts, (nll, distance, lse * lse), strict=True):
            if factor != 0:
                term *= factor
                loss = (loss + term).plus_error(_TERMS * self.u * finite(term.value))
        return loss

    def losses(self) -> Bounded:
        """The loss of each row, (rows, 1)."""
        factor = self.factor()
        return (factor * self.of_rows()).rounded().where(factor.value != 0)

    def loss(self) -> Bounded:
        """The result of the program: (rows, 1) with reduction "none", else (members, 1)."""
        return self.losses() if self._reduction == "none" else self.summed(self.losses())

    def cotangents(
        self, of_loss: np.ndarray, of_lse: np.ndarray, of_entropy: np.ndarray
    ) -> Bounded:
        """The cotangents of the measures, (rows, 4), from the results' for each row, (rows, 1)."""
        (q, smoothing, z), factor = self._parts, self.factor()
        c = (factor * of_loss).where(factor.value != 0).rounded(_TERMS)
        slope = (c * (2 * z) * self.rows.measures().columns()[1]).where(c.value * z != 0)
        return concatenate(c * q, slope + of_lse, c * 0 + of_entropy, c * smoothing)

    def gradient(self, cotangents: Bounded, of_loss: np.ndarray) -> Bounded:
        """The gradient by the logits that the kernel reads; `of_loss` multiplies a rounded gradient."""
        rows, p = self.rows, self.rows.precision
        found = rows.gradient(cotangents)
        if self._in_one_read or p.is_plain:
            terms = total(finite(cotangents.value) * [1, 1, 0, 1])
            found = found.plus_error(np.where(rows.is_label, 6 * p.u * terms, 0)).rounded()
        if self._in_one_read:
            found = found.stored(p).plus_error(p.smallest * finite(of_loss))
        return found

    def through_scaling(self, gradient: Bounded, dtype: Any) -> Bounded:
        """The gradient by the logits that the program was given, in their storage type."""
        if self.is_given:
            return gradient
        return (gradient * self.slope).rounded().stored(PRECISION[np.dtype(dtype).name])

    def of_temperature(self, gradient: Bounded, temperature: np.ndarray) -> Bounded:
        """The gradient by the temperature of each row, (rows, 1); hidden logits have none."""
        additions = sum_error(self.rows.wide.shape[-1], 1, alike=True) + 6
        return -(gradient * self.logits).sum(additions) / widen(temperature)

    def of_weights(self, of_loss: np.ndarray) -> Bounded:
        """The gradient by the weight of each row, (rows, 1).

        It is 0 in rows without a label, where no weight is left, and in rows of weight 0 whose loss is not finite.
        """
        loss = self.of_rows()
        has_any = self._has_label & ((self.weight != 0) | np.isfinite(loss.value))
        loss = loss.where(has_any)
        if self._reduction == "mean":
            whole, losses = self._total_weight(), self.losses()
            size = finite(loss.value) + self.to_rows(self.of_members(finite(losses.value)))
            additions = sum_error(len(self.weight) // self.members, 1) + 8
            difference = loss - self.summed(losses).apply(self.to_rows)
            loss = difference.plus_error(self.u * additions * size) / whole
            has_any = self._has_label & self.to_rows(self.of_members(self.weight) != 0)
        return (loss * of_loss).rounded(3).where(has_any)

    def tangent(self, cotangents: Bounded, t: np.ndarray) -> Bounded:
        """The results' derivative along a tangent t of the given logits, (rows, 1)."""
        rows, along = self.rows, self.slope * known(t, self.rows.precision)
        gradient, size = self.gradient(cotangents, np.ones((len(t), 1))), np.abs(along.value)
        additions = sum_error(t.shape[-1], 1, alike=True) + _TERMS
        c = finite(cotangents.value)
        sizes = total(c) * (total(finite(rows.p) * size) + total(np.where(rows.is_label, size, 0)))
        sizes = sizes + c[:, 3:] * total(size) / rows.seen
        return (gradient * along).sum(additions).plus_error(self.u * additions * sizes)


def _bregman(r: np.ndarray) -> np.ndarray:
    """Computes r + exp(-r) - 1, by its series where it would cancel."""
    near = np.where(np.abs(r) < 0.01, r, 0)
    series = sum((-near) ** k / math.factorial(k) for k in range(2, 12))
    return np.where(np.abs(r) < 0.01, series, r + np.expm1(-r))


@np.errstate(all="ignore")
def kl_divergence(
    x: np.ndarray,
    target: np.ndarray,
    hidden: Any,
    temperature: np.ndarray | None,
    cotangent: np.ndarray,
    accumulators: int,
) -> tuple[Bounded, Bounded, Bounded]:
    """The divergence of each row (rows, 1), and its gradients by x and by the target, times a cotangent.

    The terms of a row are p (r + exp(-r) - 1) with r = log p - log q, computed as p r + q - p unless r is
    small. An error e of one r costs |p - q| e. The error of a log-sum-exp is common to all r. It costs only its
    square, because the terms are divided by the sum of p and the difference of both sums is subtracted.
    """
    none, divisor = np.full(len(x), -1), 1 if temperature is None else widen(temperature)
    rows, slacks, errors = [], [], []
    for logits in (x, target):
        z = known(logits, PRECISION[logits.dtype.name])
        if temperature is not None:
            z = (z / divisor).rounded(2)
        slacks.append(np.where(hidden, 0, z.limit))
        rows.append(Rows(z.where(~np.asarray(hidden), -np.inf), none, accumulators))
        below = np.where(rows[-1].is_seen, rows[-1].wide - rows[-1].largest, 0)
        log_p = finite(below - rows[-1].log_sum.value)
        errors.append(rows[-1].precision.u * (4 + 3 * log_p) + slacks[-1])
    (of_q, of_p), (q_error, p_error), (q, p) = rows, errors, (row.p for row in rows)
    u, seen = of_p.precision.u, of_p.is_seen
    difference = of_p.log_sum - of_q.log_sum
    r = (of_p.wide - of_p.largest) - (of_q.wide - of_q.largest) - difference.value
    r = np.where(seen, r, 0)
    e = sum(slacks) + u * finite(r) + u * sum(finite(row.d.value) for row in rows)
    e_of_all = difference.limit + sum(row.of_sum for row in rows)
    e_of_all += 4 * u * (of_p.log_sum.value + of_q.log_sum.value)
    is_near, far = (np.abs(r) < 0.49) & seen, p * p_error + q * q_error
    terms = np.where(is_near, p * _bregman(r), q + np.where(seen, p * (r - 1), 0))
    terms = np.where(r == np.inf, r, terms)  # also where p underflows
    of_near = terms * (p_error + 20 * u) + np.abs(p - q) * e + p * e * e
    of_far = far + p * finite(r) * p_error + p * e + 4 * u * (p * finite(r) + p + q)
    value = total(terms)
    limit = total(np.where(is_near, of_near, of_far)) + value * total(p * p_error)
    limit += (e_of_all + total(p * e + np.where(is_near, 0, far))) ** 2
    limit += (
        u * (sum_error(x.shape[-1], 1, alike=True) + 8) * value + x.shape[-1] * of_p.precision.flush
    )
    loss, scale = Bounded(value, limit, of_p.precision), widen(cotangent) / divisor
    of_x = far + (p + q) * (e_of_all + 8 * u)
    mean = np.where(np.isfinite(value), value, 0)  # an infinite one has no derivative by the target
    distance = np.abs(r - mean)
    lost = of_p.precision.flush * (1 + finite(distance))  # of subnormal softmaxes
    of_target = distance * (p_error + e_of_all) + e + e_of_all + loss.limit
    of_target = p * (of_target + 8 * u * (np.abs(r) + mean + distance))
    by_target = np.where(r == np.inf, r, p * (r - mean))  # also where p underflows
    dx, dtarget = (
        Bounded(
            scale * a, np.abs(scale) * (b + lost) + of_p.precision.flush, of_p.precision
        ).stored(PRECISION[like.dtype.name])
        for a, b, like in ((q - p, of_x, x), (by_target, of_target, target))
    )
    return loss, dx, dtarget
