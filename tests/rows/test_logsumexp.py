"""The bits of logsumexp and of losses do not depend on the batch. test_softmax_grad.py has the values of logsumexp."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_give_the_same_bits_whatever_the_batch(dtype):
    """Losses and gradients too. Few rows have several blocks each. Rows of whole cache lines apart begin alike."""

    @jax.jit
    def program(x, label):
        def loss(x):
            losses = jk.cross_entropy(x, label)
            return jnp.sum(losses**2), losses

        return jk.logsumexp(x, axis=-1), jax.grad(loss, has_aux=True)(x)

    for cols in (33, 1000, 5003, 50_003, 131_072) if cases.ON_GPU else (33, 1000, 50_003):
        x, label = jnp.asarray(cases.logits("normal", 72, cols, dtype)), np.arange(72) % cols
        of_all = program(x, label)
        for rows in (slice(0, 72), slice(0, 1), slice(0, 5), slice(64, 72)):
            want = jax.tree.map(lambda y: y[rows], of_all)  # noqa: B023
            jax.tree.map(np.testing.assert_array_equal, program(x[rows], label[rows]), want)
