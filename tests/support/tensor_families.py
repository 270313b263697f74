"""Operands that try what pairs of float16 hold, and the errors that products of them are held to.

Two measures, against float64: relF = ||C - C64|| / ||C64||, and the largest |C - C64| / (|A| |B|) of an element.
"""

import numpy as np


def _graded(x, axis, log2=40):
    """Lines along `axis` times powers of two, from 2^-log2 to 2^log2."""
    powers = np.exp2(np.linspace(-log2, log2, x.shape[axis]))
    return x * np.expand_dims(powers, 1 - axis)


def _softmax(x):
    e = np.exp(5 * (x - x.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def _one_hot(x, rng):
    return (np.arange(x.shape[1]) == rng.integers(0, x.shape[1], (len(x), 1))).astype(float)


def _signed(x, rng):
    return x * rng.choice([-1.0, 1.0], x.shape)


def _subnormal_rows(x, rng):
    return np.where(rng.random((len(x), 1)) < 0.5, 1e-39 * x, x)


# From (a, b), normal, and a generator to the operands. Dense: no element needs another product than that of pairs.
DENSE = {
    "normal": lambda a, b, rng: (a, b),
    "uniform": lambda a, b, rng: (rng.random(a.shape), rng.random(b.shape)),
    "signs": lambda a, b, rng: (rng.uniform(-1, 1, a.shape), rng.uniform(-1, 1, b.shape)),
    "lognormal": lambda a, b, rng: (np.exp(a), np.exp(b)),
    "relu": lambda a, b, rng: (np.maximum(a, 0), b),
    "gelu": lambda a, b, rng: (_gelu(a), b),
    "softmax": lambda a, b, rng: (_softmax(a), b),
    "p_minus_y": lambda a, b, rng: (_softmax(a) - _one_hot(a, rng), b),
}
FAMILIES = {
    **DENSE,
    "wide": lambda a, b, rng: (_signed(np.exp(4 * a), rng), _signed(np.exp(4 * b), rng)),
    "graded_rows": lambda a, b, rng: (_graded(a, 0), b),
    "graded_k": lambda a, b, rng: (_graded(a, 1), b[::-1] * 1.0),
    "graded_against": lambda a, b, rng: (_graded(a, 1), _graded(b, 0)[::-1]),
    "outliers": lambda a, b, rng: (np.where(rng.random(a.shape) < 1e-3, 1e6 * a, a), b),
    "one_hot": lambda a, b, rng: (_one_hot(a, rng), b),
    "permutation": lambda a, b, rng: (a, np.eye(len(b))[rng.permutation(len(b))]),
    "spread_permutation": lambda a, b, rng: (
        a * np.exp2(rng.integers(-60, 1, a.shape)),
        np.eye(len(b))[rng.permutation(len(b))],
    ),
    "tiny_times_huge": lambda a, b, rng: (1e-30 * a, 1e30 * b),
    "tiny": lambda a, b, rng: (1e-18 * a, 1e-15 * b),
    "huge": lambda a, b, rng: (1e30 * a, b),
    "near_largest": lambda a, b, rng: (3.4e38 * rng.uniform(-1, 1, a.shape), 1e-4 * b),
    "subnormal_rows": lambda a, b, rng: (_subnormal_rows(a, rng), b),
    "zero_lines": lambda a, b, rng: (a * (rng.random((len(a), 1)) < 0.5), b),
}


def operands(family, m, n, k, seed=0):
    """Two float32 matrices of a family; the permutations are square."""
    rng = np.random.default_rng([seed, m, n, k])
    n = k if family.endswith("permutation") else n
    made = FAMILIES[family](rng.standard_normal((m, k)), rng.standard_normal((k, n)), rng)
    return tuple(np.ascontiguousarray(x, dtype=np.float32) for x in made)


def errors(got, a, b):
    """(relF, the largest componentwise error) of a product in float32."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    want, size = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    error = np.abs(np.asarray(got, np.float64) - want)
    # Half of the smallest subnormal number is a rounding that everyone makes.
    error = np.maximum(error - 2.0**-150, 0)
    relative = np.linalg.norm(error) / max(np.linalg.norm(want), 2.0**-149)
    return relative, float(np.max(error / np.where(size > 0, size, 1)))
