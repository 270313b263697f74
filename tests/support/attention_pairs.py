"""Distributions of operands for float32 attention by pairs of float16, and errors of its results."""

import numpy as np

DEPTH = 64
F = np.float32


def exact(q, k, v, do, scale, bias, dtype):
    """The same results by products of a dtype."""
    q, k, v, do = (x.astype(dtype) for x in (q, k, v, do))
    s = q @ k.T * dtype(scale)
    if bias is not None:
        s = s + bias.astype(dtype)
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    ds = do @ v.T
    ds -= (ds * p).sum(1, keepdims=True)
    ds *= p
    results = {"O": p @ v, "dV": p.T @ do, "dQ": ds @ k * dtype(scale)}
    return results | {"dK": ds.T @ q * dtype(scale), "dBias": ds}


def operands(name, length, rng):
    """q, k, v, dO and a bias or None of one distribution."""
    q, k, v, do = (rng.standard_normal((length, DEPTH)).astype(F) for _ in range(4))
    bias = None
    if name == "x4":
        q, k = q * 4, k * 4
    elif name == "positive":
        q, k, v, do = (np.abs(x) for x in (q, k, v, do))
    elif name == "lognormal":
        q, k, v, do = (
            np.exp(1.5 * x) * np.sign(rng.standard_normal(x.shape)) for x in (q, k, v, do)
        )
        q, k = q / 4, k / 4
    elif name == "one-hot":
        bias = np.zeros((length, length), F)
        bias[np.arange(length), rng.permutation(length)] = np.log(length * 1e6)
        q = q / 8
    elif name == "rows of dO":
        do = do * np.exp2(-34 * rng.random((length, 1))).astype(F)
    elif name == "V, dO 1e30":
        v, do = v * F(1e30), do * F(1e-30)
    elif name == "V, dO 1e-30":
        v, do = v * F(1e-30), do * F(1e30)
    elif name == "Q 2^60":
        q, k = q * F(2.0**60), k * F(2.0**-60)
    elif name == "bias":
        bias = rng.standard_normal((length, length)).astype(F)
    return *(x.astype(F) for x in (q, k, v, do)), bias


NAMES = ("normal", "x4", "positive", "lognormal", "one-hot", "rows of dO", "V, dO 1e30")
NAMES += ("V, dO 1e-30", "Q 2^60", "bias")
LONG = ("normal", "positive", "lognormal", "rows of dO")


def errors(found, want):
    """The relative Frobenius error, and the largest relative error of a row."""
    want = want[: len(found)]
    difference = found.astype(np.float64) - want
    norms = np.linalg.norm(want, axis=1)
    peak = np.abs(want).max()
    rows = np.linalg.norm(difference, axis=1)[norms > 0] / norms[norms > 0]
    return np.linalg.norm(difference / peak) / np.linalg.norm(want / peak), rows.max()
