"""The models of the suite ``float32``: Flax layers with a contender's products, attention and loss.

Importing this module imports Flax. All contenders of a model have the same parameters.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen

import jaxkernels as jk
import jaxkernels.flax
from jaxkernels.bench.programs import normal
from jaxkernels.bench.records import Case
from jaxkernels.bench.suite import Arguments, Function

_VOCABULARY = 128


class Parts(NamedTuple):
    """A contender's functions, for its models."""

    dot_general: Function
    attention: Function
    cross_entropy: Function  # f(logits, labels) -> the mean loss


def _cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """The mean loss over all labels, as usually written in JAX."""
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(log_probs, label[..., None], -1))


OURS = Parts(
    jk.dot_general,
    jaxkernels.flax.dot_product_attention,
    partial(jk.cross_entropy, reduction="mean"),
)
# Attention that keeps its scores in memory, instead of our flash kernels.
SCORES = OURS._replace(
    attention=partial(jaxkernels.flax.dot_product_attention, implementation="ffi")
)
XLA = Parts(jax.lax.dot_general, linen.dot_product_attention, _cross_entropy)


def _attention_layer(parts: Parts, heads: int, **options: Any) -> Any:
    """An attention layer: four linear layers, with the attention between them."""
    return linen.MultiHeadDotProductAttention(
        num_heads=heads,
        attention_fn=parts.attention,
        qkv_dot_general=parts.dot_general,
        out_dot_general=parts.dot_general,
        **options,
    )


class _CharModel(linen.Module):
    """A decoder-only transformer that maps characters (batch, length) to logits of the next ones."""

    parts: Parts
    layers: int
    heads: int
    features: int

    @linen.compact
    def __call__(self, text: jax.Array) -> jax.Array:
        dense = partial(linen.Dense, dot_general=self.parts.dot_general)
        positions = jnp.arange(text.shape[1])[None]
        x = linen.Embed(_VOCABULARY, self.features)(text)
        x = x + linen.Embed(text.shape[1], self.features)(positions)
        mask = linen.make_causal_mask(text, dtype=jnp.bool_)
        for _ in range(self.layers):
            attention = _attention_layer(self.parts, self.heads, use_bias=False)
            x = x + attention(linen.LayerNorm()(x), mask=mask)
            y = linen.gelu(dense(4 * self.features)(linen.LayerNorm()(x)))
            x = x + dense(self.features)(y)
        return dense(_VOCABULARY)(linen.LayerNorm()(x))


class _TriangleAttention(linen.Module):
    """AlphaFold's attention over the rows of a pair representation, around their starting nodes."""

    parts: Parts
    heads: int
    depth: int

    @linen.compact
    def __call__(self, pair: jax.Array) -> jax.Array:
        dense = partial(linen.DenseGeneral, use_bias=False, dot_general=self.parts.dot_general)
        x = linen.LayerNorm()(pair)
        q, k, v, gate = (dense((self.heads, self.depth))(x) for _ in range(4))
        bias = dense(self.heads)(x).transpose(2, 0, 1)[None]
        visible = jnp.arange(pair.shape[1]) < pair.shape[1] * 7 // 8
        y = self.parts.attention(q, k, v, bias=bias, mask=visible[None, None, None])
        return pair + dense(pair.shape[-1], axis=(-2, -1))(y * linen.sigmoid(gate))


def layer_of(case: Case, parts: Parts) -> Any:
    """The layer of a case with a contender's functions."""
    if case["model"] == "triangle":
        return _TriangleAttention(parts, case["heads"], case["depth"])
    if case["model"] == "char_lm":
        return _CharModel(parts, case["layers"], case["heads"], case["features"])
    if case["model"] == "attention":
        return _attention_layer(parts, case["heads"])
    dense = partial(linen.Dense, dot_general=parts.dot_general)
    return linen.Sequential([dense(case["hidden"]), linen.gelu, dense(case["features"])])


def inputs_of(case: Case, seed: int) -> Arguments:
    """Random inputs of a case; for ``char_lm`` a text, and the same text shifted by one character."""
    if case["model"] == "char_lm":
        shape = (case["batch"], case["length"] + 1)
        text = jax.random.randint(jax.random.key(seed), shape, 0, _VOCABULARY)
        return text[:, :-1], text[:, 1:]
    if case["model"] == "triangle":
        return (normal(seed, (case["length"], case["length"], case["features"])),)
    if case["model"] == "attention":
        return (normal(seed, (case["batch"], case["length"], case["heads"] * case["depth"])),)
    return (normal(seed, (case["rows"], case["features"])),)


def loss_of(case: Case, parts: Parts) -> Function:
    """f(parameters, x, optional label) -> the loss of a case."""
    layer = layer_of(case, parts)

    def loss(params: Any, x: jax.Array, *label: jax.Array) -> jax.Array:
        y = layer.apply(params, x)
        return parts.cross_entropy(y, *label) if label else jnp.mean(jnp.square(y))

    return loss
