"""Attention and its derivatives in float64, with bounds on the errors of the kernels' steps.

`bounded` and `products` have the rules of each step. u is the unit roundoff of the compute type, us that of the storage type
where it is narrower (else 0). Whatever is stored in 16 bits is rounded once more.

* The error of a score makes its weight wrong by a factor, and so the sum that divides it. The softmax's own steps add a
  relative error: exponential, its argument |s - max|, sum of S terms, quotient.
* Products of 16-bit operands are XLA's, which may sum parts of a row apart and round these sums to 16 bits: us of the
  sum of all sizes. (H200, bfloat16, one query and 130 keys: 0.58 us; as float32 products 0.42.)
* Our flash kernels split an operand into a pair of float16 numbers: 2^-22 of it, or 2^-40 of the largest (docs/attention.md).
* cuDNN rounds exp(s - m) to 16 bits, for the m of the keys so far, before it divides by the sum in float32: the same us of
  a weight. Its D = sum y dy takes the stored y. The error, us |y||dy| and that of y, is within the bound of sum p dp,
  whose weights and dp err by us.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from jaxkernels.verify.truth.bounded import DIVIDE_ERROR, PRECISION, Bounded, known
from jaxkernels.verify.truth.compare import compute
from jaxkernels.verify.truth.masked import band, softmax
from jaxkernels.verify.truth.products import contraction

SOFTMAX_STEPS = 8.0  # exponential 3, quotient 2, scale, bias, and the difference to the maximum


class Truth:
    """One call: q of shape (B, T, N, H), k and v of shape (B, S, K, H).

    Labels: b(atch), t (queries), s (keys), k(ey heads), g (query heads that share one), h (depth).
    """

    @np.errstate(all="ignore")
    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        dtype: str = "float32",
        empty_rows: str | None = "zero",
        is_split: bool = False,
        **options: Any,
    ) -> None:
        """Computes the weights; options are those of `jaxkernels.dot_product_attention`.

        `is_split` says that each operand is a pair of float16 numbers.
        """
        self.is_split = is_split
        p = PRECISION[dtype]
        us = p.us if np.dtype(compute(dtype)).itemsize > q.dtype.itemsize else 0.0
        self.stored = replace(p, us=us)  # float32 is stored as it is
        # XLA's exponential rounds its argument; the quotient has its own 2 of the steps.
        self.precision = replace(p, exp_error=SOFTMAX_STEPS - DIVIDE_ERROR, argument_error=1)
        (batch, t, heads, h), (s, k_heads) = q.shape, k.shape[1:3]
        self.shape, self.grouped = q.shape, (batch, t, k_heads, heads // k_heads, h)
        self.q = self._known(q.reshape(self.grouped))
        self.k, self.v = self._known(k), self._known(v)
        scale, bias, mask = (options.get(name) for name in ("scale", "bias", "mask"))
        self.scale = 1 / math.sqrt(max(h, 1)) if scale is None else float(scale)
        x = contraction("btkgh,bskh->bkgts", self.q, self.k) * self.scale
        weights = x.value.shape

        def by_heads(a: Any) -> np.ndarray:
            return np.broadcast_to(a, (batch, heads, t, s)).reshape(weights)

        if bias is not None:
            x = x + by_heads(np.asarray(bias).astype(np.float64))
        bands = options.get("is_causal", False), options.get("local_window_size")
        seen = band(t, s, *bands, from_end=False) & (True if mask is None else mask)
        if (lengths := options.get("key_value_seq_lengths")) is not None:
            seen = seen & (np.arange(s) < np.asarray(lengths).reshape(-1, 1, 1, 1))
        seen = by_heads(seen)
        alive = seen.any(-1, keepdims=True)
        seen_weights, top, whole = softmax(x, seen, s)
        p = seen_weights.stored(self.stored)
        # The scores get no gradient from rows without keys.
        self.p_of_scores = p.where(seen)
        steps = (SOFTMAX_STEPS + s) * p.precision.u + us
        mean = Bounded(1 / s, steps / s + p.precision.flush, self.precision) if s else 0.0
        self.p = self.p_of_scores.where(alive, mean if empty_rows == "mean" else 0.0)
        self.log_sum_exp = np.where(alive, top + np.log(whole.value), -np.inf)[..., 0]
        self.log_sum_exp = self.log_sum_exp.reshape(batch, heads, t)
        self.rows = np.ones((batch, 1, t, 1), bool)  # False for queries beyond their lengths
        if (lengths := options.get("query_seq_lengths")) is not None:
            self.rows[:, 0, :, 0] = np.arange(t) < np.asarray(lengths)[:, None]

    def _known(self, x: Any) -> Bounded:
        found = known(x, self.precision)
        if not self.is_split or not x.size:
            return found
        size = np.where(np.isfinite(found.value), np.abs(found.value), 0)
        largest = size.max((1, -1), keepdims=True)  # of each head
        return found.plus_error(2.0**-22 * size + 2.0**-40 * largest)

    def _product(self, labels: str, a: Bounded, b: Bounded) -> Bounded:
        return contraction(labels, a, b, parts=self.stored)

    def _within(self, x: Bounded) -> Bounded:
        """0 for queries beyond their lengths."""
        return x.where(self.rows[:, 0, :, :, None, None])

    def result(self) -> Bounded:
        """The result, (B, T, N, H)."""
        o = self._within(self._product("bkgts,bskh->btkgh", self.p, self.v))
        return o.rounded().stored(self.stored).apply(lambda a: a.reshape(self.shape))

    def gradients(self, do: Any) -> dict[str, Bounded]:
        """The cotangents of q, k, v and of the scores with bias, for that of the result."""
        p, t = self.p_of_scores, self._within(self._known(do.reshape(self.grouped)))
        dp = self._product("btkgh,bskh->bkgts", t, self.v).plus_error(self.stored.smallest)
        ds = p * (dp - (p * dp).sum(p.value.shape[-1]))
        # The kernel scales ds before it stores it, and so flushes values that are subnormal after that.
        more = max(1.0, 1 / abs(self.scale)) if self.scale else 1.0
        ds = ds.rounded().stored(replace(self.stored, smallest=more * self.stored.smallest))
        found = {
            "q": self._product("bkgts,bskh->btkgh", ds, self.k) * self.scale,
            "k": self._product("bkgts,btkgh->bskh", ds, self.q) * self.scale,
            "v": self._product("bkgts,btkgh->bskh", self.p, t),
        }
        # A head's share of a key is rounded once more.
        found = {name: x.stored(self.stored).stored(self.stored) for name, x in found.items()}
        found["q"] = found["q"].apply(lambda a: a.reshape(self.shape))
        batch, queries, heads, _ = self.shape
        found["scores"] = ds.apply(lambda a: a.reshape(batch, heads, queries, -1))
        return found
