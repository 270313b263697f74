"""The cross entropy of a linear layer, computed in a much wider type than ours, and its bounds.

The error of a logit is that of its product, H u (|x| |w| + |b|), and its rounding to the type in which it is kept, once for
the product and once for the sum with a bias. All logits of a row get the largest error of the row.
"""

import dataclasses
import functools

import jax
import numpy as np
from oracle import assert_within

import jaxkernels as jk
from jaxkernels.verify.truth.bounded import PRECISION, Bounded, known
from jaxkernels.verify.truth.compare import widen
from jaxkernels.verify.truth.losses import Losses
from jaxkernels.verify.truth.products import contraction

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
    """A linear layer, a label for each row, and a loss: weight ((1 - e) nll + e distance + z lse^2).

    `where` (classes,) shows classes; a cap and a temperature of each row transform the logits.
    """

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None
    label: np.ndarray
    weight: np.ndarray
    smoothing: float = 0.0
    z_loss: float = 0.0
    logits_dtype: str | None = None
    where: np.ndarray | bool = True
    soft_cap: float | None = None
    temperature: np.ndarray | None = None

    @functools.cached_property
    def losses(self):
        x, w = widen(self.x), widen(self.w)
        b = np.zeros(w.shape[1], x.dtype) if self.bias is None else widen(self.bias).astype(x.dtype)
        own = PRECISION[self.x.dtype.name]
        kept = PRECISION[np.dtype(self.logits_dtype or self.x.dtype).name]
        product = x @ w
        size = np.abs(x) @ np.abs(w) + np.abs(b)
        roundings = np.abs(product + b) + (0 if self.bias is None else np.abs(product))
        delta = np.max(
            x.shape[1] * own.u * size + 1.01 * kept.us * roundings, axis=1, keepdims=True
        )
        logits, rows = Bounded(product + b, delta, kept), len(x)
        options = {"smoothing": self.smoothing, "z_loss": self.z_loss, "soft_cap": self.soft_cap}
        options |= {"reduction": "none", "returns": []}
        alike, weight = np.zeros((rows, 1), bool), np.broadcast_to(self.weight, (rows,))[:, None]
        t = None if self.temperature is None else self.temperature[:, None]
        hidden = ~np.asarray(self.where)
        return Losses(logits, hidden, self.label, options, 1, alike, 1, weight, t)

    def gradients(self, of_loss=1, of_entropy=0):
        """The gradient of the sum of losses, and of entropies times `of_entropy`, by each operand, and its bound."""
        own, zero = PRECISION[self.x.dtype.name], np.zeros((len(self.x), 1))
        cotangents = self.losses.cotangents(zero + of_loss, zero, zero + of_entropy)
        counted = (cotangents.value != 0).any(-1, keepdims=True)
        of_scaled = self.losses.gradient(cotangents, zero).where(self.where)
        gradient = self.losses.through_scaling(of_scaled, self.logits_dtype or self.x.dtype)
        gradient = gradient.stored(own).where(counted)
        x, w = known(self.x, own).where(counted), known(self.w, own)
        found = {
            "dx": contraction("nc,hc->nh", gradient, w).stored(own),
            "dw": contraction("nh,nc->hc", x, gradient).stored(own),
        }
        if self.bias is not None:
            of_bias = contraction("n,nc->c", known(np.ones(len(self.x)), own), gradient).stored(own)
            found["dbias"] = of_bias.stored(PRECISION[self.bias.dtype.name])
        if self.temperature is not None:
            of_rows = self.losses.of_temperature(of_scaled, self.temperature[:, None])
            found["dtemperature"] = of_rows.apply(lambda a: a[:, 0])
        return found

    @np.errstate(all="ignore")
    def check(self, loss, gradients, reduction="none", **cotangents):
        """A loss and the first of its gradients, of x, w, bias and temperature, lie within their bounds."""
        of_rows = self.losses.losses().rounded(8)
        want = of_rows.apply(lambda a: a[:, 0])
        if reduction != "none":
            want = of_rows.sum(len(self.x), axis=0).apply(np.sum)
        assert_within(loss, *want, "loss")
        found = zip(gradients, self.gradients(**cotangents).items(), strict=False)
        for got, (name, (truth, error)) in found:
            assert_within(got, truth, error, name)
