"""Attention and its derivatives in float64, with bounds on what the steps of the kernels can make of them.

The bounds are elementwise. u is the unit roundoff of the compute type, us that of the storage type where it is narrower
(else 0), gamma_n = n u bounds a sum of n products in any order (Higham, Accuracy and Stability of Numerical Algorithms,
3.1). Whatever is stored in 16 bits is rounded once more, and below the normal numbers by an absolute error ("floor").

* A score s = scale q.k + bias is wrong by ds = (H + 2) u scale |q|.|k| + 2 u |s|.
* Scores that are wrong by up to ds make weights p wrong by a factor between exp(-r) and exp(r), r = ds + log sum p
  exp(ds): the numerator, and the sum under the fraction (Jensen's inequality for its other side). The softmax's own
  steps add a relative error: exponential, its argument |s - max|, sum of S terms, quotient.
* Backward every operand goes into a product with the error that it has already: the cotangent of the weights
  dp = do.v, the sum D of p dp, ds = p (dp - D), then dq, dk and dv.
* Products of 16-bit operands are XLA's, which may sum parts of a row apart and round these sums to 16 bits: us of the
  sum of all sizes. (H200, bfloat16, one query and 130 keys: 0.58 us; as float32 products 0.42.)
* cuDNN rounds exp(s - m) to 16 bits, for the m of the keys so far, before it divides by the sum in float32: the same us of
  a weight. Its D = sum y dy has the y that was stored: us |y||dy| and the error of y, which us of the weights and of dp
  in sum p dp bound.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxkernels.verify.truth.compare import compute
from jaxkernels.verify.truth.tolerance import PRECISION

SOFTMAX_STEPS = 8.0  # exponential 3, quotient 2, scale, bias, and the difference to the maximum


def seen_by(
    shape: tuple[int, int, int, int],
    mask: Any = None,
    is_causal: bool = False,
    local_window_size: Any = None,
    key_value_seq_lengths: Any = None,
    **_: Any,
) -> np.ndarray:
    """Which keys a query sees, of `shape` (batch, heads, queries, keys)."""
    window = local_window_size
    left, right = window if isinstance(window, (tuple, list)) else (window, window)
    distance = np.arange(shape[3]) - np.arange(shape[2])[:, None]
    seen = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape).copy()
    if is_causal:
        seen &= distance <= 0
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    if key_value_seq_lengths is not None:
        seen &= np.arange(shape[3]) < np.asarray(key_value_seq_lengths)[:, None, None, None]
    return seen


class Truth:
    """One call: q of shape (B, T, N, H), k and v of shape (B, S, K, H).

    Attributes:
        log_sum_exp: (B, N, T), -inf for rows without keys.
        rows: 1 for queries within their lengths, else 0, of shape (B, 1, T, 1).
        u: unit roundoff of the compute type.
    """

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        dtype: str = "float32",
        empty_rows: str | None = "zero",
        **options: Any,
    ) -> None:
        """Computes the weights.

        Args:
            q: queries.
            k: keys.
            v: values.
            dtype: the storage type's name.
            empty_rows: as for `jaxkernels.dot_product_attention`.
            **options: bias, mask, scale, is_causal, local_window_size, query_seq_lengths, key_value_seq_lengths.
        """
        precision = PRECISION[dtype]
        self.options, self.empty_rows = options, empty_rows
        self.u = precision.u
        self.us = precision.us if np.dtype(compute(dtype)).itemsize > q.dtype.itemsize else 0.0
        self.floor = precision.smallest
        self.groups = q.shape[2] // k.shape[2]
        q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
        # (B, N, length, H), keys repeated for the heads that share them
        self.q = q.swapaxes(1, 2)
        self.k, self.v = (x.repeat(self.groups, axis=2).swapaxes(1, 2) for x in (k, v))
        scale = options.get("scale")
        self.scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
        with np.errstate(all="ignore"):
            self._softmax()

    def _softmax(self) -> None:
        (batch, heads, t, h), s = self.q.shape, self.k.shape[2]
        bias = self.options.get("bias")
        x = self.scale * self.q @ self.k.swapaxes(-1, -2)
        x = x + (0 if bias is None else np.asarray(bias).astype(np.float64))
        size = abs(self.scale) * np.abs(self.q) @ np.abs(self.k).swapaxes(-1, -2)
        wrong = (h + 2) * self.u * size + 2 * self.u * np.abs(x) + PRECISION["float32"].flush * h
        seen = seen_by((batch, heads, t, s), **self.options)
        alive = seen.any(-1, keepdims=True)
        top = np.where(alive, np.max(x, -1, keepdims=True, where=seen, initial=-np.inf), 0)
        e = np.where(seen, np.exp(np.where(seen, x - top, 0)), 0)
        total = e.sum(-1, keepdims=True)
        p = np.where(alive, e / np.where(alive, total, 1), 0)
        factor = wrong + np.log(np.where(alive, (p * np.exp(wrong)).sum(-1, keepdims=True), 1))
        steps = (SOFTMAX_STEPS + s + np.where(seen, top - x, 0)) * self.u
        relative = np.exp(factor) * (1 + steps) * (1 + self.us) - 1
        # The scores get no gradient from rows without keys.
        self.p_of_scores = self.p = p
        if self.empty_rows == "mean":
            self.p = np.where(alive, p, 1 / s)
        self.p_error = np.where(seen | ~alive, relative * self.p + self.floor, 0)
        self.log_sum_exp = np.where(alive, top + np.log(total), -np.inf)[..., 0]
        self.rows = np.ones((batch, 1, t, 1))
        if (lengths := self.options.get("query_seq_lengths")) is not None:
            self.rows[:] = (np.arange(t) < np.asarray(lengths)[:, None])[:, None, :, None]

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """The result and its bound, (B, T, N, H)."""
        o = self.rows * (self.p @ self.v)
        sums = self.p.shape[-1] * self.u * (self.p + self.p_error)
        error = self.rows * ((self.p_error + sums + self.us * self.p) @ np.abs(self.v))
        error = error + (self.us + self.u) * (np.abs(o) + error) + self.floor
        return o.swapaxes(1, 2), error.swapaxes(1, 2)

    def gradients(self, do: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The cotangents of q, k, v and of the scores with bias, with bounds, for that of the result."""
        do = self.rows * np.asarray(do).astype(np.float64).swapaxes(1, 2)
        (batch, heads, t, h), s = self.q.shape, self.k.shape[2]
        u, us, floor = self.u, self.us, self.floor

        def total(x: np.ndarray) -> np.ndarray:
            return x.sum(-1, keepdims=True)

        p, p_error = self.p_of_scores, np.where(self.p_of_scores > 0, self.p_error, 0)
        dp, dp_size = do @ self.v.swapaxes(-1, -2), np.abs(do) @ np.abs(self.v).swapaxes(-1, -2)
        dp_error = ((h + 1) * u + us) * dp_size + floor
        most, difference = p + p_error, dp - total(p * dp)
        sum_error = total(p_error * np.abs(dp) + most * dp_error)
        sum_error = sum_error + (s + 1) * u * total(most * (np.abs(dp) + dp_error))
        ds = p * difference
        ds_error = p_error * np.abs(difference) + most * (dp_error + sum_error)
        # The kernel scales ds before it stores it, and so flushes what is below the normal numbers then.
        scaled_floor = floor * max(1.0, 1 / abs(self.scale)) if self.scale else floor
        ds_error = ds_error + (us + 3 * u) * (np.abs(ds) + ds_error) + scaled_floor

        def product(x: np.ndarray, wrong: np.ndarray, y: np.ndarray, terms: int) -> Any:
            sums = ((terms + 2) * u + us) * (np.abs(x) + wrong)
            return x @ y, (wrong + sums) @ np.abs(y) + terms * floor  # each term may be flushed

        def turned(x: np.ndarray) -> np.ndarray:
            return x.swapaxes(-1, -2)

        rows = t * self.groups
        dq, dq_error = (self.scale * x for x in product(ds, ds_error, self.k, s))
        dk, dk_error = (self.scale * x for x in product(turned(ds), turned(ds_error), self.q, rows))
        dv, dv_error = product(turned(self.p), turned(self.p_error), do, rows)

        def stored(x: np.ndarray, error: np.ndarray, size: Any) -> tuple[np.ndarray, np.ndarray]:
            return x, np.abs(error) + (2 * us + u) * size + floor

        def shared(x: np.ndarray) -> np.ndarray:
            """The sum over the heads that share a key head, (B, S, K, H)."""
            return x.reshape(batch, heads // self.groups, self.groups, s, h).sum(2).swapaxes(1, 2)

        return {
            "q": stored(dq.swapaxes(1, 2), dq_error.swapaxes(1, 2), np.abs(dq).swapaxes(1, 2)),
            "k": stored(shared(dk), shared(np.abs(dk_error)), shared(np.abs(dk))),
            "v": stored(shared(dv), shared(dv_error), shared(np.abs(dv))),
            "scores": (ds, ds_error),
        }
