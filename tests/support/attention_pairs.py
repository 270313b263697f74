"""Distributions of operands for float32 attention by pairs of float16, and errors of its results."""

import jax
import jax.numpy as jnp
import numpy as np

F = np.float32


@jax.jit
def _exact_rows(q, k, v, do, scale, bias):
    """The float64 results of some queries; dK and dV are their parts of the sums."""
    s = q @ k.T * scale + bias
    p = jnp.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    ds = do @ v.T
    ds = (ds - (ds * p).sum(1, keepdims=True)) * p
    return {"O": p @ v, "dQ": ds @ k * scale, "dBias": ds}, {"dK": ds.T @ q * scale, "dV": p.T @ do}


def exact(q, k, v, do, scale, bias, rows=4096):
    """The results in float64, computed for blocks of queries."""
    of_rows, sums = [], []
    with jax.enable_x64(True):
        q, k, v, do = (jnp.asarray(x, jnp.float64) for x in (q, k, v, do))
        for i in range(0, len(q), rows):
            own = 0.0 if bias is None else jnp.asarray(bias[i : i + rows], jnp.float64)
            found = _exact_rows(q[i : i + rows], k, v, do[i : i + rows], scale, own)
            if bias is None:
                found[0].pop("dBias")
            of_rows.append(jax.device_get(found[0]))
            sums.append(jax.device_get(found[1]))
    results = {name: np.concatenate([x[name] for x in of_rows]) for name in of_rows[0]}
    return results | {name: sum(x[name] for x in sums) for name in sums[0]}


def operands(name, length, rng):
    """q, k, v, dO and a bias or None of one distribution."""
    q, k, v, do = (rng.standard_normal((length, 64)).astype(F) for _ in range(4))
    bias, factors = None, FACTORS.get(name, (1, 1, 1, 1))
    if name == "positive":
        q, k, v, do = (np.abs(x) for x in (q, k, v, do))
    elif name == "lognormal":
        q, k, v, do = (
            np.exp(1.5 * x) * np.sign(rng.standard_normal(x.shape)) for x in (q, k, v, do)
        )
    elif name == "one-hot":
        bias = np.zeros((length, length), F)
        bias[np.arange(length), rng.permutation(length)] = np.log(length * 1e6)
    elif name == "rows of dO":
        do = do * np.exp2(-34 * rng.random((length, 1))).astype(F)
    elif name == "bias":
        bias = rng.standard_normal((length, length)).astype(F)
    return *((x * factor).astype(F) for x, factor in zip((q, k, v, do), factors, strict=True)), bias


# Factors of q, k, v and dO.
FACTORS = {
    "x4": (4, 4, 1, 1),
    "lognormal": (0.25, 0.25, 1, 1),
    "one-hot": (0.125, 1, 1, 1),
    "V, dO 1e30": (1, 1, 1e30, 1e-30),
    "V, dO 1e-30": (1, 1, 1e-30, 1e30),
    "Q 2^60": (2.0**60, 2.0**-60, 1, 1),
}
NAMES = ("normal", "positive", "rows of dO", "bias", *FACTORS)
LONG = ("normal", "positive", "lognormal", "rows of dO")


def errors(found, want):
    """The relative Frobenius error, and the largest relative error of a row."""
    difference = found.astype(np.float64) - want
    norms = np.linalg.norm(want, axis=1)
    peak = np.abs(want).max()
    rows = np.linalg.norm(difference, axis=1)[norms > 0] / norms[norms > 0]
    return np.linalg.norm(difference / peak) / np.linalg.norm(want / peak), rows.max()
