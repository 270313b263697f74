"""Cross entropy in exact arithmetic, but for the roundings of a much wider type, and how far a kernel may be from it.

A row x with a label l has four measures: lse - x_l, lse, the entropy and mean (lse - x), the last over what is not -inf.
Losses are made of them, and gradients follow from their cotangents. The bounds are derived as those of `tolerance`,
whose notation holds here: u, d = x - max, S, sigma. In units of u:

* The kernels keep the sum of the terms without the maxima. Each term errs by its exponential (4 + 3 |d| for float32,
  which uses the hardware's exponential here, as half types do), by one more exponential if parts of a row are combined,
  and by sigma. log S = log1p(rest + count - 1) errs by the sum of these errors, weighed by the terms' share of S, so
  that a loss near 0 is right to a few units of its own last place.
* Differences x - max are rounded once, and so is what is added to them.
* A sum of exp(d) d errs by its terms, each by |d| more, and by sigma; a sum of d by sigma. When parts of a row are
  combined, both sums are shifted to another maximum, which costs each two more roundings.
* A gradient is p (a + b d) - c, without c where x is -inf. p errs by its exponential, which is compensated in float32, and by S; a and b by a few
  roundings and what the entropy's mean of d errs by. At the label it is expm1(-loss), which errs by the loss.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from jaxkernels.verify.truth import tolerance
from jaxkernels.verify.truth.compare import finite, total, widen

MEASURES = ("nll", "lse", "entropy", "distance")


class Rows:
    """Rows of logits with a label each: d = x - max, S - 1 (`rest`) and the softmax p."""

    @np.errstate(all="ignore")
    def __init__(
        self, x: np.ndarray, label: np.ndarray, accumulators: int, storage: str | None = None
    ) -> None:
        """Takes x (rows, cols) in the storage type, and labels (rows,); negative ones are none.

        A row has `accumulators` partial sums at least. `storage` names the storage type of logits that
        the kernel has transformed to x.
        """
        self.x, self.label, self.accumulators = x, label, accumulators
        self.precision, self.wide = tolerance.PRECISION[storage or x.dtype.name], widen(x)
        self.d = self.wide - np.max(self.wide, axis=-1, keepdims=True, initial=-np.inf)
        self.finite = np.where(np.isfinite(self.d), self.d, 0)
        is_largest = self.d == 0
        self.rest = total(np.where(is_largest, 0, np.exp(self.d))) + (total(is_largest) - 1)
        self.p = np.exp(self.d) / (1 + self.rest)
        self.is_label = np.arange(x.shape[-1]) == label[:, None]
        self.is_seen = self.wide != -np.inf  # elements that count in a mean
        self.seen = np.maximum(total(self.is_seen), 1)  # their number
        self._is_beyond = (label >= x.shape[-1])[:, None]

    @np.errstate(all="ignore")
    def measures(self) -> np.ndarray:
        """The truth of the measures, (rows, 4)."""
        largest, log_sum = self.wide.max(-1, keepdims=True), np.log1p(self.rest)
        at_label = total(np.where(self.is_label, self.d, 0))
        nll = np.where(self._is_beyond, np.nan, log_sum - at_label)
        entropy = log_sum - total(self.p * self.finite)
        distance = log_sum - total(self.finite) / self.seen
        distance = np.where(self.is_seen.any(-1, keepdims=True), distance, 0)
        nan = 0 * total(np.where(self.is_seen, self.wide, 0))  # in rows with NaN or inf
        return np.concatenate([nll, largest + log_sum, entropy + nan, distance + nan], axis=-1)

    @cached_property
    @np.errstate(all="ignore")
    def _errors(self) -> dict[str, np.ndarray]:
        p, size = self.precision, np.abs(self.finite)
        weight = np.where(np.isfinite(self.p), self.p, 0)
        single = self.x.dtype.name != "float64"
        exp_error = (
            tolerance.HALF_EXP_ERROR + tolerance.HALF_ARGUMENT_ERROR * size
            if single
            else p.exp_error + size
        )
        each = exp_error + p.exp_error + 1
        sigma = tolerance.sum_error(self.x.shape[-1], self.accumulators, alike=True) + 2
        others = np.where(self.finite < 0, weight, 0)
        log_sum = np.where(np.isfinite(self.rest), np.log1p(self.rest), 0)
        flush = p.flush * self.x.shape[-1] / p.u
        log_error = total(others * (each + sigma)) + tolerance.LOG_ERROR * log_sum + flush
        mean = total(weight * size)
        # A term that is flushed is lost with its d.
        is_small = (weight > 0) & (weight < 4 * p.flush)
        flush = flush + p.flush / p.u * total(np.where(is_small, size, 0))
        mean_error = total(weight * size * (each + sigma + 4)) + 4 * mean + flush
        return {"log": log_error, "mean": mean_error, "log_sum": log_sum, "sigma": sigma}

    @np.errstate(all="ignore")
    def measure_bounds(self) -> np.ndarray:
        """The largest errors of the measures, (rows, 4)."""
        error, log_sum = self._errors, self._errors["log_sum"]
        nll, lse, entropy, distance = np.split(finite(self.measures()), 4, axis=-1)
        at_label = total(np.where(self.is_label, np.abs(self.finite), 0))
        distances = (error["sigma"] + 3) * total(np.abs(self.finite)) / self.seen
        bounds = [
            error["log"] + at_label + nll,
            error["log"] + lse,
            error["log"] + error["mean"] + 2 * log_sum + entropy,
            error["log"] + log_sum + distances + distance,
        ]
        return self.precision.u * np.concatenate(bounds, axis=-1)

    @np.errstate(all="ignore")
    def gradient(self, cotangent: np.ndarray) -> np.ndarray:
        """The truth of the gradient, given the cotangents of the measures, (rows, 4)."""
        wide = widen(cotangent)
        of_nll, of_lse, of_entropy, of_distance = np.split(wide, 4, axis=-1)
        nll = self.measures()[:, :1]
        # log p + entropy, in which log S is not subtracted from itself
        excess = self.finite - total(self.p * self.finite)
        entropy_part = np.where(of_entropy == 0, 0, of_entropy * excess)
        dx = self.p * (of_lse - entropy_part + of_distance)
        dx = dx - np.where(self.is_seen, of_distance / self.seen, 0)
        nll = np.where(np.isnan(nll), 0, nll)
        dx = dx + of_nll * np.where(self.is_label, np.expm1(-nll), self.p)
        dx = np.where((of_nll != 0) & self._is_beyond, np.nan, dx)
        return np.where((wide != 0).any(-1, keepdims=True), dx, 0)

    @np.errstate(all="ignore")
    def gradient_bound(
        self, cotangent: np.ndarray, cotangent_error: np.ndarray | float = 0.0
    ) -> np.ndarray:
        """The largest error of the gradient; the cotangents may err by `cotangent_error`, (rows, 4)."""
        p, error = self.precision, self._errors
        g = finite(widen(cotangent))
        of_nll, of_lse, of_entropy, of_distance = np.split(g, 4, axis=-1)
        off = np.broadcast_to(widen(np.asarray(cotangent_error, np.float64)), g.shape)
        weight, d = np.where(np.isfinite(self.p), self.p, 0), np.abs(self.finite)
        exp_error = p.exp_error + p.argument_error * d
        s_error = error["log"] + tolerance.LOG_ERROR  # of log S, and so relative of S
        mean = total(weight * d)
        parts = of_nll + of_lse + of_distance + of_entropy * (mean + d)
        own = weight * (
            parts * (exp_error + s_error + 8) + of_entropy * (error["mean"] + 4 * (mean + d))
        )
        loss, loss_error = self.measures()[:, :1], self.measure_bounds()[:, :1] / p.u
        loss = np.where(np.isfinite(loss), loss, 0)
        at_label = of_nll * (loss_error * weight + 3 * -np.expm1(-loss))
        at_label = at_label + weight * parts * (loss_error + 4)
        own = own + np.where(self.is_label, np.where(np.isfinite(at_label), at_label, 0), 0)
        of_cotangents = weight * total(off) * (2 + mean + d)
        size = finite(self.gradient(cotangent))
        stored = (p.us + p.u) * size + p.u * 3 * of_distance / self.seen
        return p.u * own + of_cotangents + stored + p.smallest + p.flush * (parts + 2)
