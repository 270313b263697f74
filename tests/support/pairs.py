"""What the tests of transformations share: the pairs of functions to compare, inputs, a loss."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk

PAIRS = [
    pytest.param(jk.softmax, jax.nn.softmax, id="softmax"),
    pytest.param(jk.log_softmax, jax.nn.log_softmax, id="log_softmax"),
]
both = pytest.mark.parametrize(("ours", "peer"), PAIRS)

X = np.asarray(cases.logits("normal", 6, 7, "float32") / 3).reshape(2, 3, 7)
T = cases.cotangents(6, 7, "float32").reshape(2, 3, 7)
# Coefficients with which a scalar loss feels every element differently.
C = np.linspace(-1, 2, 7, dtype=np.float32)


def weighted(y):
    """Coefficients times y, in the type of y (they are exact in all of them)."""
    return y * jnp.asarray(C, y.dtype)


def loss(f, x):
    return jnp.sum(weighted(jnp.sin(f(x))))


def remat(f, x, policy=None):
    return jax.checkpoint(lambda x: weighted(jnp.sin(f(jnp.cos(x)))), policy=policy)(x)
