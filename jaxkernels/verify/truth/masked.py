"""The scaled, biased and masked softmax and its derivatives, in a wider type than that of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxkernels.verify.truth import tolerance
from jaxkernels.verify.truth.compare import Bounded, total, widen


def band(
    q: int, k: int, causal: bool = False, window: Any = None, from_end: bool = True
) -> np.ndarray:
    """The columns that each of q rows sees in a band, which is aligned at the last row and column, or at the first."""
    before, after = window if isinstance(window, (tuple, list)) else (window, window)
    # The distance of a column from the row's own column, to the right.
    distance = np.arange(k) - np.arange(q)[:, None] - (k - q if from_end else 0)
    seen = np.ones((q, k), bool)
    if causal:
        seen &= distance <= 0
    if before is not None:
        seen &= distance >= -before
    if after is not None:
        seen &= distance <= after
    return seen


def sum_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The transpose of broadcasting an array of `shape` to that of x."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and x.shape[i] != 1)
    return x.sum(axis=axes, keepdims=True)


class Truth:
    """The result and derivatives of one call, each with the largest error of right arithmetic."""

    @np.errstate(all="ignore")
    def __init__(
        self,
        scores: np.ndarray,
        mask: np.ndarray | None,
        bias: np.ndarray | None,
        scale: Any,
        options: Any,
        dy: np.ndarray | None,
        accumulators: Callable[[str, str], int],
        alike: Any = False,
    ) -> None:
        """Computes the result of scores (..., q, k); mask, bias and an array `scale` broadcast.

        A program does not know a scale that is an array. `options` are causal, window and
        empty_rows; `dy` is the cotangent of the result. `accumulators` maps an operation and a
        dtype to the partial sums that a row has at least.
        """
        self.bias, self.dy, self.given_scale = bias, dy, scale
        self.traces_scale = isinstance(scale, np.ndarray)
        self.dtype = self.inner = scores.dtype.name
        if bias is not None:  # promotes the scores
            self.inner = jnp.promote_types(scores.dtype, bias.dtype).name
        self.precision = tolerance.PRECISION[self.inner]
        forward = "masked_softmax_fwd" if bias is None else "biased_softmax_fwd"
        sigma, self.grad_sigma = (
            tolerance.sum_error(scores.shape[-1], accumulators(name, self.inner), alike)
            for name in (forward, "masked_softmax_grad")
        )
        bands = {name: options[name] for name in ("causal", "window") if name in options}
        seen = np.broadcast_to(band(*scores.shape[-2:], **bands), scores.shape)
        self.seen = seen if mask is None else seen & mask
        self.x = x = widen(scores)
        self.scale = widen(scale) if self.traces_scale else x.dtype.type(scale)
        product = self.scale * x
        b = np.zeros_like(product)
        if bias is not None:
            b = np.broadcast_to(widen(bias), product.shape)
        # Values beyond the range of the compute type are infinite in it.
        largest = np.finfo(np.float64 if self.inner == "float64" else np.float32).max
        t = product + b
        t = np.where(np.abs(t) > largest, np.copysign(np.inf, t), t)
        t = np.where(self.seen, t, -np.inf)
        top = np.max(t, axis=-1, keepdims=True, initial=-np.inf)
        top = np.where(top == -np.inf, 0, top)
        e = np.where(self.seen, np.exp(t - top), 0)
        whole = total(e)
        self.y = np.where(whole == 0, 0, e / np.where(whole == 0, 1, whole))
        distance = np.where(e > 0, top - t, 0)
        self.y_error = tolerance.masked_bound(
            self.precision, self.y, product, b, distance, whole, sigma
        )
        self.shown = self.y  # the result, which `empty_rows` may change
        if options.get("empty_rows") == "mean":
            alive = self.seen.any(-1, keepdims=True)
            self.shown = np.where(alive, self.y, 1 / max(self.y.shape[-1], 1))
        self.shown_error = self._stored(self.shown, self.y_error, self.dtype).limit

    def _stored(self, value: np.ndarray, error: Any, dtype: str) -> Bounded:
        """A value once it is rounded to a storage type."""
        p = tolerance.PRECISION[dtype]
        return Bounded(value, error + (p.us + self.precision.u) * np.abs(value) + p.smallest)

    @np.errstate(all="ignore")
    def gradients(self) -> dict[str, Bounded]:
        """The cotangent of each operand, by its name."""
        u, y, inner = self.precision.u, self.y, self.inner
        dy = np.where(y == 0, 0, widen(self.dy))
        difference = dy - total(dy * y)
        dt = np.where(y == 0, 0, y * difference)
        y_error = self._stored(y, self.y_error, inner).limit
        rounding = y * u * ((self.grad_sigma + 1) * total(np.abs(dy * y)) + 3 * np.abs(difference))
        error = y_error * np.abs(difference) + y * total(np.abs(dy) * y_error) + rounding
        error = np.where(self.seen, error + self.precision.smallest * y.shape[-1], 0)
        factor = np.abs(self.scale)
        # The kernel stores scale * dt; the gradient of the bias divides the rounded value by scale.
        widened = "float32" if self.traces_scale and inner != "float64" else inner
        dx, kernel_error = self._stored(self.scale * dt, factor * error, widened)
        fused = not self.traces_scale and self.given_scale > 0
        summed_error = kernel_error / factor if fused else self._stored(dt, error, widened).limit

        def summed(
            terms: np.ndarray, size: Any, flushed: Any, like: np.ndarray, to: str
        ) -> Bounded:
            count = dt.size / max(like.size, 1)
            errors = size * (summed_error + (count + 2) * u * np.abs(dt)) + flushed
            return self._stored(sum_to(terms, like.shape), sum_to(errors, like.shape), to)

        found = {"scores": self._stored(dx, kernel_error, self.dtype)}
        if self.bias is not None:
            found["bias"] = summed(dt, 1, 0, self.bias, self.bias.dtype.name)
        if self.traces_scale:
            size = np.where(np.isfinite(self.x), np.abs(self.x), 0)
            # A score, a product and a sum may each be flushed.
            flushed = self.precision.flush * (np.abs(dt) + 2)
            terms = np.where(dt == 0, 0, self.x * dt)
            found["scale"] = summed(terms, size, flushed, self.given_scale, widened)
        return found

    def forgiving(self, got: np.ndarray, want: np.ndarray) -> np.ndarray:
        """A truth for one result: what a NaN row does not see may be 0 as well."""
        if got.shape != self.seen.shape:
            return want
        return np.where(np.isnan(want) & ~self.seen & (got == 0), 0, want)
