"""Memory, derivatives and shardings of scaled_masked_softmax, and mistakes that its truth notices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo import collectives
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from masked_cases import case
from memory_stats import SLACK, stats

import jaxkernels as jk

FULL = (4, 2, 64, 128)
CASE = case(FULL, "float32", mask=(4, 1, 1, 128), bias=(1, 2, 64, 128))
ours = functools.partial(jk.scaled_masked_softmax, scale=0.5, causal=True)


def operands(c):
    return [jnp.asarray(a) for a in (c.scores, c.mask, c.bias)]


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


X, MASK, BIAS = operands(case((8, 4, 16, 24), "float32", mask=(8, 1, 1, 24), bias=(1, 4, 16, 24)))


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("spec", [P("a"), P("a", "b"), P(None, "b")], ids=str)
def test_gradient_of_a_sharded_bias_is_one_all_reduce(spec, mesh):
    """Over the batches in which the bias broadcasts; over its own heads there is nothing to sum."""

    def program(x, m, b, t):
        return jax.vjp(lambda x, b: ours(x, m, b), x, b)[1](t)

    batch, heads = (*spec, None)[:2]
    shardings = [NamedSharding(mesh, s) for s in (spec, P(batch), P(None, heads), spec)]
    given = X, MASK, BIAS, jnp.cos(X)
    spread = jax.device_put(given, tuple(shardings))
    compiled = jax.jit(program).lower(*spread).compile()
    text = compiled.as_text()
    assert collectives(text) == (["all-reduce"] if batch else []), text
    for g, w in zip(compiled(*spread), jax.jit(program)(*given), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)
