"""The cross entropy of a linear layer in exact arithmetic, but for the roundings of a much wider type, and its bounds.

The error of a logit, delta, is that of its product, H u (|x| |w| + |b|), and its rounding to the type in which it is
kept, once for the product and once for the sum with a bias. A loss errs by its kernel's error and by the change of the
measures: log-sum-exp changes by delta at most, lse - x_j by twice that. A softmax changes by exp(2 delta) at most. The
gradient of the logits g errs by that, by its kernel and by its rounding. A product with g errs by the product of these
errors with the other operand, by its own sum, and by the rounding of the result.
"""

import dataclasses

import jax
import numpy as np
from rows_of_losses import assert_within

import jaxkernels as jk
from jaxkernels.verify.truth.bounded import PRECISION, Bounded
from jaxkernels.verify.truth.compare import widen
from jaxkernels.verify.truth.losses import Rows

PLATFORM = "cuda" if jax.default_backend() == "gpu" else "cpu"


def bound_for(chunks, rows, features, classes, dtype, **options):
    """A bound of memory that leads to at least the given number of chunks."""
    options = {"platform": PLATFORM, **options}
    bound = 1e12
    while True:
        plan = jk.plan_linear_cross_entropy(
            rows, features, classes, dtype, max_bytes=int(bound), **options
        )
        if plan.chunks >= chunks:
            assert rows % plan.chunk_rows or chunks == 1, "every chunk has as many rows"
            return int(bound)
        bound /= 1.01


@dataclasses.dataclass(frozen=True)
class Layer:
    """A linear layer, a label for each row, and a loss: weight ((1 - e) nll + e distance + z lse^2)."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None
    label: np.ndarray
    weight: np.ndarray
    smoothing: float = 0.0
    z_loss: float = 0.0
    logits_dtype: str | None = None

    def __post_init__(self):
        x, w = widen(self.x), widen(self.w)
        b = np.zeros(w.shape[1], x.dtype) if self.bias is None else widen(self.bias).astype(x.dtype)
        own = PRECISION[self.x.dtype.name]
        kept = np.dtype(self.logits_dtype or self.x.dtype)
        product = x @ w
        logits = product + b
        size = np.abs(x) @ np.abs(w) + np.abs(b)
        roundings = np.abs(logits) + (0 if self.bias is None else np.abs(product))
        delta = x.shape[1] * own.u * size + 1.01 * PRECISION[kept.name].us * roundings
        delta = np.max(delta, axis=1, keepdims=True)
        values = {
            "truth": Rows(logits.astype(np.float64), self.label, 1),
            "rounded": Rows(logits.astype(kept), self.label, 1),
            "delta": delta,
            "own": own,
            "wide_x": x,
            "wide_w": w,
            "factor": np.where(self.label >= 0, self.weight, 0)[:, None],
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def measure_bounds(self):
        """Errors of (lse - x_l, lse, entropy, mean (lse - x)); that of the entropy is not used."""
        changes = self.delta * [2, 1, np.inf, 2]
        return self.rounded.measures().limit + changes

    def losses(self):
        """The loss of each row."""
        nll, lse, _, distance = np.split(self.truth.measures().value, 4, axis=1)
        e = self.smoothing
        plain = (1 - e) * nll + (e * distance if e else 0)
        return np.where(self.factor == 0, 0, self.factor * (plain + self.z_loss * lse**2))[:, 0]

    def loss_bounds(self):
        nll, lse, _, distance = np.split(self.measure_bounds(), 4, axis=1)
        size = np.abs(self.truth.measures().value[:, 1:2])
        e = self.smoothing
        own = (1 - e) * nll + (e * distance if e else 0)
        own = own + self.z_loss * (2 * size * lse + lse**2)
        rounding = 8 * self.own.u * np.abs(self.losses()[:, None])
        # An infinite or a NaN truth is compared as it is.
        own = np.where(np.isfinite(own), own, 0)
        return (self.factor * own + rounding + self.own.smallest)[:, 0]

    def _cotangents(self):
        lse, error = self.truth.measures().value[:, 1:2], self.measure_bounds()[:, 1:2]
        e, ones = self.smoothing, np.ones_like(self.factor)
        parts = [(1 - e) * ones, 2 * self.z_loss * lse, 0 * ones, e * ones]
        cotangent = np.where(self.factor == 0, 0, self.factor * np.concatenate(parts, axis=1))
        errors = np.zeros_like(cotangent)
        errors[:, 1:2] = self.factor * 2 * self.z_loss * error
        return cotangent, errors + 4 * self.own.u * np.abs(cotangent)

    def logit_gradient(self):
        """The gradient of the logits, and what it may err by."""
        cotangent, errors = self._cotangents()
        gradient = self.truth.gradient(cotangent).value
        change = np.expm1(2 * self.delta)
        mass = np.sum(np.abs(cotangent) * [1, 1, 0, 1], axis=1, keepdims=True)
        limit = self.rounded.gradient(Bounded(cotangent, errors, self.own)).limit * (1 + change)
        limit = limit + mass * self.truth.p * change
        limit = limit + self.own.us * np.abs(gradient) + self.own.smallest
        return gradient, np.where(self.factor == 0, 0, limit)

    def gradients(self):
        """The gradient of the sum of losses by each operand, and its bound."""
        gradient, limit = self.logit_gradient()
        own, x, w = self.own, self.wide_x, self.wide_w
        used = np.where(self.factor == 0, 0, x)

        def product(a, a_limit, b, count):
            truth, size = a @ b, np.abs(a) @ np.abs(b)
            error = a_limit @ np.abs(b) + (count + 2) * own.u * size
            return truth, error + 1.01 * own.us * (np.abs(truth) + error) + own.smallest

        dx = product(gradient, limit, w.T, w.shape[1])
        dw = [part.T for part in product(gradient.T, limit.T, used, len(x))]
        found = {"dx": dx, "dw": dw}
        if self.bias is not None:
            ones = np.ones((len(x), 1))
            dbias = [part[:, 0] for part in product(gradient.T, limit.T, ones, len(x))]
            rounding = PRECISION[self.bias.dtype.name].us * np.abs(dbias[0])
            found["dbias"] = (dbias[0], dbias[1] + rounding)
        return found

    def check(self, loss, gradients, reduction="none"):
        """A loss and the first of its gradients, of x, w and bias, lie within their bounds."""
        want, limit = self.losses(), self.loss_bounds()
        if reduction != "none":
            limit = np.sum(limit) + len(want) * self.own.u * np.sum(np.abs(want))
            want = np.sum(want)
        assert_within(loss, want, limit, "loss")
        found = zip(gradients, self.gradients().items(), strict=False)
        for got, (name, (truth, error)) in found:
            assert_within(got, truth, error, name)
