"""Memory and derivatives of scaled_masked_softmax, and mistakes that the tests of its values notice."""

import functools

import jax
import jax.numpy as jnp
import masked_cases
import numpy as np
import pytest
from masked_cases import case
from memory_stats import SLACK, stats

import jaxkernels as jk

FULL = (4, 2, 64, 128)
CASE = case(FULL, "float32", mask=(4, 1, 1, 128), bias=(1, 2, 64, 128))
ours = functools.partial(jk.scaled_masked_softmax, scale=0.5, causal=True)


def operands(c, dtype="float32"):
    return jnp.asarray(c.scores, dtype), jnp.asarray(c.mask), jnp.asarray(c.bias, dtype)


def test_gradient_of_a_bias_needs_one_more_array():
    """The array is the gradient of the scores; its sum is the gradient of the bias."""
    x, mask, bias = operands(CASE)
    step = stats(lambda x, m, b, t: jax.vjp(lambda b: ours(x, m, b), b)[1](t)[0], x, mask, bias, x)
    # y, the gradient, and where XLA's CPU sums in parts, a few of the size of the bias
    assert step.temp_size_in_bytes <= 2 * x.nbytes + 2 * bias.nbytes + SLACK


@pytest.mark.parametrize("empty_rows", ["zero", "mean"])
def test_higher_derivatives_of_rows_that_see_nothing_are_zero(empty_rows):
    """As are those of what is hidden, be it NaN."""
    x = np.full((3, 5), np.nan, np.float32)
    x[:, 0] = 1
    mask = np.zeros((3, 5), bool)
    mask[1, 0] = True

    def loss(x):
        return jnp.sum(jnp.sin(jk.scaled_masked_softmax(x, mask, empty_rows=empty_rows)))

    for derivative in (jax.grad(loss), jax.hessian(loss), jax.jacrev(jax.grad(loss))):
        assert not np.any(jax.jit(derivative)(x))


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gradient_of_the_bias_does_not_depend_on_the_scale(dtype, scale):
    """The scores are zero. Dividing their gradient by the scale would give 0 or infinity in float16."""
    rng = np.random.default_rng(0)
    x, bias = np.zeros((2, 3, 40), dtype), rng.standard_normal((1, 3, 40)).astype(dtype)
    cotangent = rng.standard_normal(x.shape).astype(dtype)

    def gradient(scale, implementation):
        def function(b):
            options = {"scale": scale, "implementation": implementation}
            return jk.scaled_masked_softmax(x, None, b, **options)

        return np.asarray(jax.vjp(function, jnp.asarray(bias))[1](cotangent)[0], np.float64)

    want = gradient(1.0, "xla")
    epsilon = float(jnp.finfo(dtype).eps)
    assert np.abs(gradient(scale, None) - want).max() <= 8 * epsilon * np.abs(want).max()


def with_operands(change):
    """The function of operands that `change` has spoiled: scores, mask, bias and scale."""

    def function(x, mask, bias, *, scale, **options):
        x, mask, bias, scale = change(x, mask, bias, scale)
        return jk.scaled_masked_softmax(x, mask, bias, scale=scale, **options)

    return function


def gradient_times(x, factor):
    """x, whose gradient is multiplied by a number."""
    return factor * x + jax.lax.stop_gradient(x - factor * x)


def gradient_of_first(b, shape):
    """b broadcast, with the gradient of the first of each dimension alone."""
    full = jnp.broadcast_to(b, shape)
    return jax.lax.stop_gradient(full).at[:1].set(full[:1])


def rounded(x, mask, bias, **options):
    # A relative mistake of 2^-9 of the largest results of a row, less than half of bfloat16's last place.
    y = jk.scaled_masked_softmax(x, mask, bias, **options)
    # A conversion there and back would be left out on a GPU.
    return jax.lax.reduce_precision(y, exponent_bits=8, mantissa_bits=7)


# The smallest mistakes; those of verify/mistakes.py are planted into results of every shape.
MISTAKES = {
    "mask of another row": with_operands(lambda x, m, b, s: (x, jnp.roll(m, 1, 2), b, s)),
    "bias of another head": with_operands(lambda x, m, b, s: (x, m, jnp.roll(b, 1, 1), s)),
    "no scale in the gradient": with_operands(
        lambda x, m, b, s: (gradient_times(x, 1 / s), m, b, s)
    ),
    "scale in the gradient of the bias": with_operands(
        lambda x, m, b, s: (x, m, gradient_times(b, s), s)
    ),
    "gradient of the bias not summed": with_operands(
        lambda x, m, b, s: (x, m, gradient_of_first(b, x.shape), s)
    ),
    "rounded to bfloat16": rounded,
}


@pytest.mark.parametrize("mistake", [None, *MISTAKES])
def test_truth_notices_mistakes(mistake):
    """At each size, of what a right implementation passes."""
    for q, k in ((5, 7), (7, 5), (6, 70)):
        shapes = {"mask": (2, 1, q, k), "bias": (1, 3, q, k)}
        some = [case((2, 3, q, k), "float32", scale=0.7, causal=True, window=(2, 9), **shapes)]
        some[0].mask[..., -1] = True
        if mistake is None:
            masked_cases.check_all(some, "float32")
            continue
        with pytest.raises(AssertionError, match="times the bound"):
            masked_cases.check_all(some, "float32", function=MISTAKES[mistake])
