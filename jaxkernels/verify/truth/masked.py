"""The scaled, biased and masked softmax and its derivatives, with their bounds.

The exponent t = scale x + bias is not exact: the factor, the product, a bias that changes units and their sum are rounded
once each. The maximum has the same error, and cancels. Half types divide within the exponent: log2 of the sum is subtracted
there.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxkernels.verify.truth.bounded import (
    LOG_ERROR,
    PRECISION,
    Bounded,
    known,
    precision_of,
    sum_error,
)
from jaxkernels.verify.truth.compare import finite


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


def softmax(t: Bounded, seen: np.ndarray, additions: Any) -> tuple[Bounded, np.ndarray, Bounded]:
    """The softmax of what a row sees, 0 elsewhere; its maximum (0 if it sees nothing) and its sum."""
    value = np.where(seen, t.value, -np.inf)
    top = np.max(value, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(top == -np.inf, 0, top)
    e = Bounded(value - top, t.limit, t.precision).exp().where(seen)
    whole = e.sum(additions)
    return (e / whole).where(whole.value != 0), top, whole


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
        how: str | None = None,
    ) -> None:
        """Computes the result of scores (..., q, k); mask, bias and an array `scale` broadcast.

        A scale that is an array is traced. `options` are causal, window and
        empty_rows; `dy` is the cotangent of the result. `accumulators` maps an operation and a
        dtype to the partial sums that a row has at least; `how` is "xla" for plain JAX.
        """
        self.bias, self.dy, self.given_scale = bias, dy, scale
        self.traces_scale = isinstance(scale, np.ndarray)
        self.dtype = self.inner = scores.dtype.name
        if bias is not None:  # promotes the scores
            self.inner = jnp.promote_types(scores.dtype, bias.dtype).name
        p = self.precision = precision_of(self.inner, how)
        forward = "masked_softmax_fwd" if bias is None else "biased_softmax_fwd"
        sigma, self.grad_sigma = (
            sum_error(scores.shape[-1], accumulators(name, self.inner), alike)
            for name in (forward, "masked_softmax_grad")
        )
        bands = {name: options[name] for name in ("causal", "window") if name in options}
        seen = np.broadcast_to(band(*scores.shape[-2:], **bands), scores.shape)
        self.seen = seen if mask is None else seen & mask
        self.x = known(scores, p)
        self.scale = np.asarray(scale).astype(self.x.value.dtype)
        product = self.scale * self.x.value
        t = Bounded(product, 2 * p.u * np.abs(product), p)
        if bias is not None:
            b = known(bias, p)
            t = t + b.plus_error(2 * p.u * np.abs(b.value))
        # Values beyond the range of the compute type are infinite in it.
        largest = np.finfo(np.float64 if self.inner == "float64" else np.float32).max
        value = np.where(np.abs(t.value) > largest, np.copysign(np.inf, t.value), t.value)
        y, _, whole = softmax(Bounded(value, t.limit, p), self.seen, sigma)
        if p.us > p.u:
            logs = LOG_ERROR + 2 * np.log2(np.where(whole.value > 1, whole.value, 1))
            y = y.plus_error(p.u * y.value * logs)
        self.y = y.where(y.value != 0)
        shown = self.y  # the result, which `empty_rows` may change
        if options.get("empty_rows") == "mean":
            alive = self.seen.any(-1, keepdims=True)
            shown = self.y.where(alive, 1 / max(scores.shape[-1], 1))
        self.result = shown.rounded().stored(PRECISION[self.dtype])

    @np.errstate(all="ignore")
    def gradients(self) -> dict[str, Bounded]:
        """The cotangent of each operand, by its name."""
        is_zero = self.y.value == 0
        y, dy = self.y.rounded().stored(self.precision), known(self.dy, self.precision)
        dy = dy.where(~is_zero)
        dt = (y * (dy - (dy * y).sum(self.grad_sigma))).plus_error(self.precision.smallest)
        dt = dt.where(~is_zero)
        # The kernel stores scale * dt; the gradient of the bias divides the rounded value by scale.
        widened = "float32" if self.traces_scale and self.inner != "float64" else self.inner
        dx = (dt * self.scale).rounded().stored(PRECISION[widened])
        fused = not self.traces_scale and self.given_scale > 0
        dt = dx / self.scale if fused else dt.rounded().stored(PRECISION[widened])
        found = {"scores": dx.rounded().stored(PRECISION[self.dtype])}
        if self.bias is not None:
            found["bias"] = sum_to(dt, self.bias).stored(PRECISION[self.bias.dtype.name])
        if self.traces_scale:
            # A gradient of 0 may be the rest of a cancellation, which a large score makes large.
            rest = Bounded(0 * dt.value, finite(self.x.value) * dt.limit, dt.precision)
            of_scale = sum_to((self.x * dt).where(dt.value != 0, rest), self.given_scale)
            found["scale"] = of_scale.stored(PRECISION[widened])
        return found

    def forgiving(self, got: np.ndarray, want: np.ndarray) -> np.ndarray:
        """The truth for one result: in a row of NaN, hidden elements may be 0 as well."""
        if got.shape != self.seen.shape:
            return want
        return np.where(np.isnan(want) & ~self.seen & (got == 0), 0, want)


def sum_to(x: Bounded, like: np.ndarray) -> Bounded:
    """The transpose of broadcasting an array to the shape of x, with one more rounding; sums in any order."""
    p, whole = x.precision, (1,) * (x.value.ndim - like.ndim) + like.shape
    axes = tuple(i for i, size in enumerate(whole) if size != x.value.shape[i])
    total = x.apply(lambda a: a.sum(axes, keepdims=True).reshape(like.shape))
    size = np.abs(x.value).sum(axes, keepdims=True).reshape(like.shape)
    count = x.value.size / max(like.size, 1)
    return total.plus_error((count + 2) * (p.u * size + p.flush))
