"""Distributions of operands: those of neural networks, and those that are hard to represent in 16 bits.

They show whether the speed and accuracy of a product depend on its data. Benchmarks draw operands on the
device, and tests draw the same ones in float64 on the host.
"""

from collections.abc import Callable, Mapping
from typing import Any

Array = Any  # numpy or jax.numpy, like the first argument of a family
# f(xp, a, b, u, v) -> operands. xp is numpy or jax.numpy, a and b are normal, and u and v are uniform in
# [0, 1) with the shapes of a and b.
Family = Callable[[Any, Array, Array, Array, Array], tuple[Array, Array]]


def _probabilities(xp: Any, x: Array) -> Array:
    e = xp.exp(5 * (x - xp.max(x, axis=-1, keepdims=True)))
    return e / xp.sum(e, axis=-1, keepdims=True)


def _one_hot(xp: Any, u: Array) -> Array:
    cols = u.shape[-1]
    label = xp.floor(u[..., :1] * cols)
    return xp.where(xp.arange(cols) == label, xp.ones_like(u), 0)


def _wide(xp: Any, x: Array, u: Array) -> Array:
    """Log-normal magnitudes with random signs."""
    return xp.exp(4 * x) * xp.where(u < 0.5, -1, 1)


def _graded(xp: Any, x: Array, axis: int) -> Array:
    """Scales x along `axis`, -1 or -2, by powers of two from 2^-40 to 2^40."""
    powers = xp.exp2(xp.linspace(-40, 40, x.shape[axis]))
    return x * (powers if axis == -1 else powers[:, None])


def _permutation(xp: Any, v: Array) -> Array:
    return xp.eye(v.shape[-1])[xp.argsort(v[..., 0])]


# Distributions for which pairs of float16 represent every element well enough.
DENSE: Mapping[str, Family] = {
    "normal": lambda xp, a, b, u, v: (a, b),
    "uniform": lambda xp, a, b, u, v: (u, v),
    "signs": lambda xp, a, b, u, v: (2 * u - 1, 2 * v - 1),
    "lognormal": lambda xp, a, b, u, v: (xp.exp(a), xp.exp(b)),
    "relu": lambda xp, a, b, u, v: (xp.maximum(a, 0), b),
    "gelu": lambda xp, a, b, u, v: (
        0.5 * a * (1 + xp.tanh(0.7978845608 * (a + 0.044715 * a**3))),
        b,
    ),
    "softmax": lambda xp, a, b, u, v: (_probabilities(xp, a), b),
    # The gradient of a cross entropy: probabilities minus one-hot labels.
    "p_minus_y": lambda xp, a, b, u, v: (_probabilities(xp, a) - _one_hot(xp, u), b),
}
FAMILIES: Mapping[str, Family] = {
    **DENSE,
    "wide": lambda xp, a, b, u, v: (_wide(xp, a, u), _wide(xp, b, v)),
    "graded_rows": lambda xp, a, b, u, v: (_graded(xp, a, -2), b),
    "graded_k": lambda xp, a, b, u, v: (_graded(xp, a, -1), b[::-1]),
    "graded_against": lambda xp, a, b, u, v: (_graded(xp, a, -1), _graded(xp, b, -2)[::-1]),
    "outliers": lambda xp, a, b, u, v: (xp.where(u < 1e-3, 1e6 * a, a), b),
    "one_hot": lambda xp, a, b, u, v: (_one_hot(xp, u), b),
    "permutation": lambda xp, a, b, u, v: (a, _permutation(xp, v)),
    "spread_permutation": lambda xp, a, b, u, v: (
        a * xp.exp2(xp.floor(61 * u) - 60),
        _permutation(xp, v),
    ),
    "tiny_times_huge": lambda xp, a, b, u, v: (1e-30 * a, 1e30 * b),
    "tiny": lambda xp, a, b, u, v: (1e-18 * a, 1e-15 * b),
    "huge": lambda xp, a, b, u, v: (1e30 * a, b),
    "near_largest": lambda xp, a, b, u, v: (3.4e38 * (2 * u - 1), 1e-4 * b),
    "subnormal_rows": lambda xp, a, b, u, v: (xp.where(u[..., :1] < 0.5, 1e-39 * a, a), b),
    "zero_lines": lambda xp, a, b, u, v: (xp.where(u[..., :1] < 0.5, a, 0), b),
}
# The families that the suite ``sgemm`` measures.
MEASURED = ("softmax", "p_minus_y", "gelu", "relu", "outliers", "wide")
