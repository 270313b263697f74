"""Families of operands: what networks multiply, drawn on the device, and what is hard to hold in 16 bits.

A product that is as fast on all of them does not depend on what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

Pair = tuple[jax.Array, jax.Array]


def _probabilities(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(5 * x)


def _p_minus_y(x: jax.Array, key: jax.Array) -> jax.Array:
    """The gradient of a cross entropy: probabilities, less 1 at the labels."""
    label = jax.random.randint(key, x.shape[:-1], 0, x.shape[-1])
    return _probabilities(x) - jax.nn.one_hot(label, x.shape[-1], dtype=x.dtype)


def _outliers(x: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.uniform(key, x.shape) < 1e-3, 1e6 * x, x)


def _wide(x: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.exp(4 * x) * jax.random.rademacher(key, x.shape, x.dtype)


# From normal (a, b) and a key to the operands.
FAMILIES: Mapping[str, Callable[[jax.Array, jax.Array, jax.Array], Pair]] = {
    "softmax": lambda a, b, key: (_probabilities(a), b),
    "p_minus_y": lambda a, b, key: (_p_minus_y(a, key), b),
    "gelu": lambda a, b, key: (jax.nn.gelu(a), b),
    "relu": lambda a, b, key: (jax.nn.relu(a), b),
    "outliers": lambda a, b, key: (_outliers(a, key), b),
    "wide": lambda a, b, key: (_wide(a, key), _wide(b, jax.random.fold_in(key, 1))),
}
