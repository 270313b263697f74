"""The scaled, biased and masked softmax and its derivatives, in a wider type than that of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxkernels.verify.truth import tolerance
from jaxkernels.verify.truth.compare import ratios, widen


def band(q: int, k: int, causal: bool = False, window: Any = None) -> np.ndarray:
    """Which columns each of q rows sees by its index; the last row stands on the last column."""
    before, after = window if isinstance(window, (tuple, list)) else (window, window)
    # How far right of its own column a row finds a column.
    distance = np.arange(k) - (np.arange(q)[:, None] + k - q)
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
    """The result and the derivatives of one call, each with the largest error that right arithmetic makes.

    Attributes:
        seen: what each row sees.
        y: the softmax; 0 for rows that see nothing.
        shown: the result, which `empty_rows` may change.
        shown_error: its bound.
    """

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
        """Computes the result.

        Args:
            scores: (..., q, k), in the storage type.
            mask: None, or what broadcasts against the scores.
            bias: None, or what broadcasts against the scores.
            scale: a number, or an array that the program does not know; it broadcasts against the scores.
            options: causal, window, empty_rows.
            dy: a cotangent of the result; only `gradients` wants it.
            accumulators: from an operation and a dtype to the partial sums that a row has at least.
            alike: as for `tolerance.sum_error`.
        """
        self.bias, self.dy, self.given_scale, self.options = bias, dy, scale, options
        self.traces_scale = isinstance(scale, np.ndarray)
        self.dtype = inner = scores.dtype.name
        if bias is not None:  # promotes the scores
            inner = jnp.promote_types(scores.dtype, bias.dtype).name
        self.inner, self.precision = inner, tolerance.PRECISION[inner]
        operation = "masked_softmax_fwd" if bias is None else "biased_softmax_fwd"
        self.sigma, self.grad_sigma = (
            tolerance.sum_error(scores.shape[-1], accumulators(name, inner), alike)
            for name in (operation, "masked_softmax_grad")
        )
        bands = {name: options[name] for name in ("causal", "window") if name in options}
        seen = np.broadcast_to(band(*scores.shape[-2:], **bands), scores.shape)
        self.seen = seen if mask is None else seen & mask
        with np.errstate(all="ignore"):
            self._forward(widen(scores))

    def _forward(self, x: np.ndarray) -> None:
        self.x = x
        scale = self.given_scale
        self.scale = widen(scale) if self.traces_scale else x.dtype.type(scale)
        self.s = self.scale * x
        b = np.zeros_like(self.s)
        if self.bias is not None:
            b = np.broadcast_to(widen(self.bias), self.s.shape)
        # What is beyond the compute type is infinite in it.
        largest = np.finfo(np.float64 if self.inner == "float64" else np.float32).max
        t = np.where(np.abs(self.s + b) > largest, np.copysign(np.inf, self.s + b), self.s + b)
        t = np.where(self.seen, t, -np.inf)
        top = np.max(t, axis=-1, keepdims=True, initial=-np.inf)
        top = np.where(top == -np.inf, 0, top)
        e = np.where(self.seen, np.exp(t - top), 0)
        total = e.sum(-1, keepdims=True)
        self.y = np.where(total == 0, 0, e / np.where(total == 0, 1, total))
        self.y_error = tolerance.masked_bound(
            self.precision, self.y, self.s, b, np.where(e > 0, top - t, 0), total, self.sigma
        )
        self.shown = self.y
        if self.options.get("empty_rows") == "mean":
            alive = self.seen.any(-1, keepdims=True)
            self.shown = np.where(alive, self.y, 1 / max(self.y.shape[-1], 1))
        self.shown_error = self._stored(self.shown, self.y_error, self.dtype)

    def _stored(self, value: np.ndarray, error: Any, dtype: str) -> np.ndarray:
        """The error of a value once it is rounded to a storage type."""
        p = tolerance.PRECISION[dtype]
        return error + (p.us + self.precision.u) * np.abs(value) + p.smallest

    def gradients(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By the name of the operand: its cotangent and the bound of it."""
        with np.errstate(all="ignore"):
            return self._gradients()

    def _gradients(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        u, y = self.precision.u, self.y
        dy = np.where(y == 0, 0, widen(self.dy))

        def total(x: np.ndarray) -> np.ndarray:
            return np.sum(x, axis=-1, keepdims=True)

        difference = dy - total(dy * y)
        dt = np.where(y == 0, 0, y * difference)
        y_error = self._stored(y, self.y_error, self.inner)
        rounding = y * u * ((self.grad_sigma + 1) * total(np.abs(dy * y)) + 3 * np.abs(difference))
        error = y_error * np.abs(difference) + y * total(np.abs(dy) * y_error) + rounding
        error = np.where(self.seen, error + self.precision.smallest * y.shape[-1], 0)
        factor = np.abs(self.scale)
        dx, dx_error = self.scale * dt, factor * error
        # The kernel gives scale * dt in the storage type; that is what is divided by scale and summed.
        inner = "float32" if self.traces_scale and self.inner != "float64" else self.inner
        kernel_error = self._stored(dx, dx_error, inner)
        fused = not self.traces_scale and self.given_scale > 0
        summed_error = kernel_error / factor if fused else self._stored(dt, error, inner)
        found = {"scores": (dx, self._stored(dx, kernel_error, self.dtype))}
        if self.bias is not None:
            want = sum_to(dt, self.bias.shape)
            count = dt.size / max(want.size, 1)
            summed = sum_to(summed_error + (count + 2) * u * np.abs(dt), self.bias.shape)
            found["bias"] = (want, self._stored(want, summed, self.bias.dtype.name))
        if self.traces_scale:
            shape = self.given_scale.shape
            count = dt.size / max(self.given_scale.size, 1)
            size = np.where(np.isfinite(self.x), np.abs(self.x), 0)
            # A score, a product and a sum may each be flushed.
            flushed = self.precision.flush * (np.abs(dt) + 2)
            summed = size * (summed_error + (count + 2) * u * np.abs(dt)) + flushed
            want = sum_to(np.where(dt == 0, 0, self.x * dt), shape)
            found["scale"] = (want, self._stored(want, sum_to(summed, shape), inner))
        return found

    def forgiven(self, got: np.ndarray, want: np.ndarray) -> np.ndarray | None:
        """Where a result need not be the truth: what a NaN row does not see may be 0 as well."""
        if got.shape != self.seen.shape:
            return None
        return np.isnan(want) & ~self.seen & (got == 0)

    def ratios(self, got: np.ndarray, want: np.ndarray, error: np.ndarray) -> np.ndarray:
        """As `compare.ratios`, 0 where a result is forgiven."""
        forgiven, ratio = self.forgiven(got, want), ratios(got, want, error)
        return ratio if forgiven is None else np.where(forgiven, 0, ratio)
