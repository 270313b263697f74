"""Inputs, the truth and its bounds for the tests of attention.

The truth is computed in float64 from operands that are already rounded. The bounds are elementwise and of first order.
u is the unit roundoff of the compute type, us that of the storage type, gamma_n = n u bounds a sum of n products in any
order (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).

* A score s = scale q.k + bias is wrong by ds = (H + 2) u scale |q|.|k| + 2 u |s|.
* A weight p is wrong by p times rho = ds + sum p ds (numerator, and the sum under the fraction) + the errors of the
  softmax itself: exponential, its argument |s - max|, sum of S terms, quotient; and us where weights are stored.
* The result o is wrong by sum rho p |v| + S u sum p |v| + us |o|, and backward in the same way: every product adds
  gamma of its length times the product of the absolute values.
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from oracle import compute, storage

SOFTMAX_STEPS = 8.0  # exponential 3, quotient 2, scale, bias, and the difference to the maximum


@dataclasses.dataclass(frozen=True)
class Sizes:
    """B batch, T queries, S keys, N query heads, K key heads, H depth."""

    B: int
    T: int
    S: int
    N: int
    K: int
    H: int


SIZES = {
    "heads": Sizes(2, 5, 7, 4, 4, 8),
    "grouped": Sizes(2, 7, 5, 6, 2, 4),
    "one-key-head": Sizes(1, 6, 6, 3, 1, 8),
    "decode": Sizes(2, 1, 9, 4, 2, 16),
}


def operands(sizes, dtype="float32", seed=0):
    """Queries, keys and values of standard normal numbers."""
    rng = np.random.default_rng([seed, *dataclasses.astuple(sizes)])
    s = sizes
    shapes = (s.B, s.T, s.N, s.H), (s.B, s.S, s.K, s.H), (s.B, s.S, s.K, s.H)
    return [(1.5 * rng.standard_normal(shape)).astype(storage(dtype)) for shape in shapes]


def arguments(sizes, seed=0):
    """Sets of keyword arguments by name; masks and lengths leave some queries without keys."""
    rng = np.random.default_rng([seed, 1, *dataclasses.astuple(sizes)])
    s = sizes

    def mask(*shape):
        return rng.random(shape) < 0.6

    def bias(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def lengths(most, *some):
        return np.minimum(np.array(some[: s.B], np.int32), most).astype(np.int32)

    empty = mask(s.B, 1, s.T, s.S)
    empty[0, 0, 0] = False
    return {
        "plain": {},
        "scale": {"scale": 0.3},
        "causal": {"is_causal": True},
        "window": {"local_window_size": 1},
        "window-pair": {"local_window_size": (2, 0)},
        "causal-window": {"is_causal": True, "local_window_size": (2, 3)},
        "key-lengths": {"key_value_seq_lengths": lengths(s.S, 3, 0)},
        "query-lengths": {"query_seq_lengths": lengths(s.T, 1, 4)},
        "mask": {"mask": empty},
        "mask-heads": {"mask": mask(1, s.N, s.T, s.S)},
        "mask-keys": {"mask": mask(s.B, 1, 1, s.S)},
        "mask-2d": {"mask": mask(s.T, s.S)},
        "bias": {"bias": bias(s.B, s.N, s.T, s.S)},
        "bias-keys": {"bias": bias(1, s.N, 1, s.S)},
        "bias-queries": {"bias": bias(s.B, 1, s.T, 1)},
        "everything": {
            "bias": bias(1, s.N, s.T, s.S),
            "mask": empty,
            "scale": 0.4,
            "is_causal": True,
            "local_window_size": (3, 1),
            "query_seq_lengths": lengths(s.T, 5, 3),
            "key_value_seq_lengths": lengths(s.S, 4, 6),
        },
    }


def seen_by(
    sizes, mask=None, is_causal=False, local_window_size=None, key_value_seq_lengths=None, **_
):
    """Which keys a query sees, (B, N, T, S), written out index by index."""
    s = sizes
    seen = np.ones((s.B, s.N, s.T, s.S), bool)
    if mask is not None:
        seen &= mask
    window = local_window_size
    left, right = window if isinstance(window, tuple) else (window, window)
    for b, i, j in np.ndindex(s.B, s.T, s.S):
        outside = is_causal and j > i
        outside |= left is not None and j < i - left
        outside |= right is not None and j > i + right
        outside |= key_value_seq_lengths is not None and j >= key_value_seq_lengths[b]
        if outside:
            seen[b, :, i, j] = False
    return seen


class Truth:
    """Attention and its derivatives in float64, with bounds on what float32 steps can make of them."""

    def __init__(self, q, k, v, dtype="float32", empty_rows="zero", **options):
        self.sizes = Sizes(*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
        self.options = options
        self.u = 2.0**-53 if compute(dtype) == np.float64 else 2.0**-24
        self.us = {"float32": 0, "float64": 0, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
        self.groups = q.shape[2] // k.shape[2]
        q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
        # (B, N, length, H), keys repeated for the heads that share them
        self.q = q.swapaxes(1, 2)
        self.k, self.v = (x.repeat(self.groups, axis=2).swapaxes(1, 2) for x in (k, v))
        self.scale = options.get("scale")
        self.scale = 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale
        self._softmax(empty_rows)

    def _softmax(self, empty_rows):
        bias = self.options.get("bias")
        s = self.scale * self.q @ self.k.swapaxes(-1, -2)
        s = s + (0 if bias is None else np.asarray(bias).astype(np.float64))
        size = self.scale * np.abs(self.q) @ np.abs(self.k).swapaxes(-1, -2)
        ds = (self.sizes.H + 2) * self.u * size + 2 * self.u * np.abs(s)
        seen = seen_by(self.sizes, **self.options)
        alive = seen.any(-1, keepdims=True)
        top = np.where(alive, np.max(s, -1, keepdims=True, where=seen, initial=-1e30), 0)
        e = np.where(seen, np.exp(np.where(seen, s - top, 0)), 0)
        total = e.sum(-1, keepdims=True)
        self.p = np.where(alive, e / np.where(alive, total, 1), 0)
        steps = (SOFTMAX_STEPS + self.sizes.S + np.where(seen, top - s, 0)) * self.u
        self.rho = ds + (self.p * ds).sum(-1, keepdims=True) + steps + self.us
        with np.errstate(divide="ignore"):
            self.log_sum_exp = np.where(alive, top + np.log(total), -np.inf)[..., 0]
        # The scores get no gradient from rows without keys.
        self.p_of_scores = self.p
        if empty_rows == "mean":
            self.p = np.where(alive, self.p, 1 / self.sizes.S)
        self.rows = np.ones((self.sizes.B, 1, self.sizes.T, 1))
        if (lengths := self.options.get("query_seq_lengths")) is not None:
            self.rows[:] = (np.arange(self.sizes.T) < lengths[:, None])[:, None, :, None]

    def result(self):
        """The result and its bound, (B, T, N, H)."""
        o = self.rows * (self.p @ self.v)
        error = ((self.rho + self.sizes.S * self.u) * self.p) @ np.abs(self.v)
        error = error + (self.us + self.u) * np.abs(o)
        return o.swapaxes(1, 2), (error + 1e-37).swapaxes(1, 2)

    def gradients(self, do):
        """The cotangents of q, k, v and of the scores with bias, with bounds, for that of the result."""
        do = self.rows * np.asarray(do).astype(np.float64).swapaxes(1, 2)
        b, t, s, n, _, h = dataclasses.astuple(self.sizes)
        dv, dv_size = self.p.swapaxes(-1, -2) @ do, self.p.swapaxes(-1, -2) @ np.abs(do)
        dp, dp_size = do @ self.v.swapaxes(-1, -2), np.abs(do) @ np.abs(self.v).swapaxes(-1, -2)
        p = self.p_of_scores
        ds = p * (dp - (p * dp).sum(-1, keepdims=True))
        ds_size = p * (dp_size + (p * dp_size).sum(-1, keepdims=True))
        rho = 2 * self.rho.max() + (h + s + 8) * self.u + 2 * self.us
        ds_error = rho * ds_size + 1e-37
        dq = self.scale * ds @ self.k
        dq_error = self.scale * (ds_error + s * self.u * ds_size) @ np.abs(self.k)
        dk = self.scale * ds.swapaxes(-1, -2) @ self.q
        rows = t * self.groups
        dk_error = (ds_error + rows * self.u * ds_size).swapaxes(-1, -2) @ np.abs(self.q)
        dv_error = (self.rho.max() + (rows + 2) * self.u) * dv_size + 1e-37

        def shared(x):  # the sum over the heads that share a key head, (B, S, K, H)
            return x.reshape(b, n // self.groups, self.groups, s, h).sum(2).swapaxes(1, 2)

        return {
            "q": (
                dq.swapaxes(1, 2),
                dq_error.swapaxes(1, 2) + 2 * self.us * np.abs(dq).swapaxes(1, 2),
            ),
            "k": (shared(dk), self.scale * shared(dk_error) + 2 * self.us * shared(np.abs(dk))),
            "v": (shared(dv), shared(dv_error) + 2 * self.us * shared(np.abs(dv))),
            "scores": (ds, ds_error),
        }


def check(got, want_and_bound, what=""):
    """Asserts that a result lies within its bound."""
    want, bound = want_and_bound
    got = np.asarray(jnp.asarray(got)).astype(np.float64)
    assert got.shape == want.shape, f"{what}: {got.shape}, not {want.shape}"
    ratio = np.where(got == want, 0, np.abs(got - want) / bound)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    place = np.unravel_index(np.argmax(ratio), ratio.shape)
    assert ratio[place] <= 1, (
        f"{what} at {tuple(map(int, place))}: {got[place]!r}, truth {want[place]!r}, "
        f"{ratio[place]:.3g} times the bound"
    )
