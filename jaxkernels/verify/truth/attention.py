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

from jaxkernels.verify.truth.compare import Bounded, compute, total
from jaxkernels.verify.truth.masked import band
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
    seen = np.broadcast_to(band(*shape[2:], is_causal, local_window_size, from_end=False), shape)
    if mask is not None:
        seen = seen & mask
    if key_value_seq_lengths is not None:
        seen = seen & (np.arange(shape[3]) < np.asarray(key_value_seq_lengths).reshape(-1, 1, 1, 1))
    return seen


class Truth:
    """One call: q of shape (B, T, N, H), k and v of shape (B, S, K, H)."""

    @np.errstate(all="ignore")
    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        dtype: str = "float32",
        empty_rows: str | None = "zero",
        **options: Any,
    ) -> None:
        """Computes the weights; options are those of `jaxkernels.dot_product_attention`."""
        precision = PRECISION[dtype]
        self.u, self.floor = precision.u, precision.smallest
        self.us = precision.us if np.dtype(compute(dtype)).itemsize > q.dtype.itemsize else 0.0
        self.groups = q.shape[2] // k.shape[2]
        q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
        # (B, N, length, H), keys repeated for the heads that share them
        self.q = q.swapaxes(1, 2)
        self.k, self.v = (x.repeat(self.groups, axis=2).swapaxes(1, 2) for x in (k, v))
        scale, bias = options.get("scale"), options.get("bias")
        self.scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
        (batch, heads, t, h), s = self.q.shape, self.k.shape[2]
        x = self.scale * self.q @ _turned(self.k)
        x = x + (0 if bias is None else np.asarray(bias).astype(np.float64))
        size = abs(self.scale) * np.abs(self.q) @ _turned(np.abs(self.k))
        wrong = (h + 2) * self.u * size + 2 * self.u * np.abs(x) + PRECISION["float32"].flush * h
        seen = seen_by((batch, heads, t, s), **options)
        alive = seen.any(-1, keepdims=True)
        top = np.where(alive, np.max(x, -1, keepdims=True, where=seen, initial=-np.inf), 0)
        e = np.where(seen, np.exp(np.where(seen, x - top, 0)), 0)
        p = np.where(alive, e / np.where(alive, total(e), 1), 0)
        factor = wrong + np.log(np.where(alive, total(p * np.exp(wrong)), 1))
        steps = (SOFTMAX_STEPS + s + np.where(seen, top - x, 0)) * self.u
        relative = np.exp(factor) * (1 + steps) * (1 + self.us) - 1
        # The scores get no gradient from rows without keys.
        self.p_of_scores = self.p = p
        if empty_rows == "mean":
            self.p = np.where(alive, p, 1 / s)
        self.p_error = np.where(seen | ~alive, relative * self.p + self.floor, 0)
        self.log_sum_exp = np.where(alive, top + np.log(total(e)), -np.inf)[..., 0]
        self.rows = np.ones((batch, 1, t, 1))  # 0 for queries beyond their lengths
        if (lengths := options.get("query_seq_lengths")) is not None:
            self.rows[:] = (np.arange(t) < np.asarray(lengths)[:, None])[:, None, :, None]

    def result(self) -> Bounded:
        """The result, (B, T, N, H)."""
        o = self.rows * (self.p @ self.v)
        sums = self.p.shape[-1] * self.u * (self.p + self.p_error)
        error = self.rows * ((self.p_error + sums + self.us * self.p) @ np.abs(self.v))
        error = error + (self.us + self.u) * (np.abs(o) + error) + self.floor
        return Bounded(o.swapaxes(1, 2), error.swapaxes(1, 2))

    def gradients(self, do: Any) -> dict[str, Bounded]:
        """The cotangents of q, k, v and of the scores with bias, for that of the result."""
        do = self.rows * np.asarray(do).astype(np.float64).swapaxes(1, 2)
        (batch, heads, t, h), s = self.q.shape, self.k.shape[2]
        u, us, floor = self.u, self.us, self.floor
        p, p_error = self.p_of_scores, np.where(self.p_of_scores > 0, self.p_error, 0)
        dp, dp_size = do @ _turned(self.v), np.abs(do) @ _turned(np.abs(self.v))
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

        def stored(x: np.ndarray, error: np.ndarray, groups: int) -> Bounded:
            """Sums over the heads that share a key head, (B, length, heads, H), and rounds to the storage type."""

            def shared(a: np.ndarray) -> np.ndarray:
                apart = a.reshape(batch, heads // groups, groups, *a.shape[2:])
                return apart.sum(2).swapaxes(1, 2)

            error = shared(np.abs(error)) + (2 * us + u) * shared(np.abs(x)) + floor
            return Bounded(shared(x), error)

        rows = t * self.groups
        dq = (self.scale * x for x in product(ds, ds_error, self.k, s))
        dk = (self.scale * x for x in product(_turned(ds), _turned(ds_error), self.q, rows))
        dv = product(_turned(self.p), _turned(self.p_error), do, rows)
        return {
            "q": stored(*dq, groups=1),
            "k": stored(*dk, groups=self.groups),
            "v": stored(*dv, groups=self.groups),
            "scores": Bounded(ds, ds_error),
        }


def _turned(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2)
