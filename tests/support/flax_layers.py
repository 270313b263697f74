"""Flax's attention layers with an attention function of choice, and how close two of them have to be; for the tests."""

import functools

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels.flax import dot_product_attention

MEAN = functools.partial(dot_product_attention, empty_rows="mean")
LINEN, NNX = flax.linen.dot_product_attention, flax.nnx.dot_product_attention
FEATURES, HEADS, LENGTH = 16, 4, 6
X = np.random.default_rng(0).standard_normal((2, LENGTH, FEATURES)).astype(np.float32)
# Masks as people make them: the last key of the second example is padding, all heads in common.
PADDING = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]], np.float32)
KEY = jax.random.key(7)
BFLOAT16 = 8 * 2.0**-8  # some roundings one after the other


def close(got, want, tolerance=64 * 2.0**-24):
    """Equal structure, shapes and types; values within the tolerance.

    It is relative to the largest value of all leaves, because gradients that are zero in exact arithmetic, like those
    of the biases of keys, are rounding errors of the size of others.
    """
    a, b = jax.tree.leaves(got), jax.tree.leaves(want)
    assert [(x.shape, x.dtype) for x in a] == [(x.shape, x.dtype) for x in b]
    a, b = ([np.asarray(x).astype(np.float64) for x in leaves] for leaves in (a, b))
    largest = max((np.abs(x).max() for x in b), default=0)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * largest)


def all_close(got, want, tolerance=64 * 2.0**-24):
    """Output, gradients and weights, each by itself."""
    for x, y in zip(got, want, strict=True):
        close(x, y, tolerance)


def masks():
    causal = flax.linen.make_causal_mask(X[..., 0])
    padding = flax.linen.make_attention_mask(np.ones_like(PADDING), PADDING)
    assert padding.dtype == jnp.float32
    return {
        "none": None,
        "float": flax.linen.combine_masks(causal, padding),
        "int": 3 * flax.linen.combine_masks(causal, padding, dtype=jnp.int32),
        "empty-rows": padding * (np.arange(LENGTH) > 1)[:, None],
    }


def linen_layer(attention_fn, **options):
    return flax.linen.MultiHeadDotProductAttention(HEADS, attention_fn=attention_fn, **options)


@functools.cache
def linen_variables():
    return linen_layer(LINEN).init(jax.random.key(1), X)


def run_linen(attention_fn, mask=None, dtype=None, **options):
    """The output, the gradients of the parameters and what is sown."""
    layer = linen_layer(attention_fn, dtype=dtype, **options)
    variables = linen_variables()

    @jax.jit
    def run(variables):
        def loss(variables):
            y, sown = layer.apply(
                variables,
                X,
                mask=mask,
                sow_weights=True,
                mutable=["intermediates"],
                deterministic=False,
                rngs={"dropout": KEY},
            )
            return jnp.sum(jnp.sin(y.astype(jnp.float32))), (y, sown)

        return jax.grad(loss, has_aux=True)(variables)

    gradients, (y, sown) = run(variables)
    return y, gradients, sown["intermediates"]["attention_weights"][0]


def run_nnx(attention_fn, mask=None, is_causal=False, sow_weights=False, **options):
    """The same of flax.nnx."""
    layer = flax.nnx.MultiHeadAttention(
        HEADS, FEATURES, attention_fn=attention_fn, decode=False, rngs=flax.nnx.Rngs(3), **options
    )
    graph, parameters, rest = flax.nnx.split(layer, flax.nnx.Param, ...)

    @jax.jit
    def run(parameters):
        def loss(parameters):
            layer = flax.nnx.merge(graph, parameters, rest)
            y, sown = flax.nnx.capture(layer, flax.nnx.Intermediate)(
                X,
                mask=mask,
                is_causal=is_causal,
                sow_weights=sow_weights,
                deterministic=False,
                rngs=flax.nnx.Rngs(dropout=5),
            )
            return jnp.sum(jnp.sin(y.astype(jnp.float32))), (y, sown)

        return jax.grad(loss, has_aux=True)(parameters)

    gradients, (y, sown) = run(parameters)
    return y, flax.nnx.to_pure_dict(gradients), flax.nnx.to_pure_dict(sown)


def decode_linen(attention_fn):
    layer = linen_layer(attention_fn, decode=True)
    variables = layer.init(jax.random.key(1), X)
    step = jax.jit(lambda v, x: layer.apply(v, x, mutable=["cache"]))
    outputs = []
    for i in range(LENGTH):
        y, cache = step(variables, X[:, i : i + 1])
        variables = {**variables, **cache}
        outputs.append(y)
    return jnp.concatenate(outputs, 1), variables["params"]
