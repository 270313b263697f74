"""The models of the suite ``float32``: layers of Flax, with the products and the attention of a contender.

Importing this module imports Flax. Contenders of one model have the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen, nnx

import jaxkernels as jk
import jaxkernels.flax
from jaxkernels.bench.programs import normal
from jaxkernels.bench.records import Case
from jaxkernels.bench.suite import Function

_VOCABULARY = 128


class Parts(NamedTuple):
    """What a contender makes models of."""

    dot_general: Function
    attention: Function
    cross_entropy: Function  # from logits and labels to the mean


def _cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """The mean over all labels, as it is written in JAX."""
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(log_probs, label[..., None], -1))


OURS = Parts(
    jk.dot_general,
    jaxkernels.flax.dot_product_attention,
    lambda logits, label: jk.cross_entropy(logits, label, reduction="mean"),
)
XLA = Parts(jax.lax.dot_general, linen.dot_product_attention, _cross_entropy)


class Model(NamedTuple):
    """A model of one size."""

    init: Callable[[], Any]
    draw: Callable[
        [int], tuple[jax.Array, ...]
    ]  # from a seed to what it is given beside parameters
    apply: Function  # from the parameters and the first of these to the result
    loss: Function  # from the parameters and all of these to a number


def _mean_square(apply: Function) -> Function:
    return lambda params, x: jnp.mean(jnp.square(apply(params, x)))


def _attention_layer(parts: Parts, heads: int, **options: Any) -> linen.Module:
    """Four linear layers and the attention between them."""
    return linen.MultiHeadDotProductAttention(
        num_heads=heads,
        attention_fn=parts.attention,
        qkv_dot_general=parts.dot_general,
        out_dot_general=parts.dot_general,
        **options,
    )


def _attention(case: Case, parts: Parts) -> Model:
    """Self-attention."""
    layer = _attention_layer(parts, case["heads"])
    shape = (case["batch"], case["length"], case["heads"] * case["depth"])

    def init() -> Any:
        return jax.jit(layer.init)(jax.random.key(0), normal(0, (1, *shape[1:])))

    apply = cast(Function, layer.apply)
    return Model(init, lambda seed: (normal(seed, shape),), apply, _mean_square(apply))


class _Mlp(nnx.Module):
    """Two linear layers."""

    def __init__(self, features: int, hidden: int, dot_general: Any):
        rngs = nnx.Rngs(0)
        self.up = nnx.Linear(features, hidden, dot_general=dot_general, rngs=rngs)
        self.down = nnx.Linear(hidden, features, dot_general=dot_general, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (rows, features) to the same shape."""
        return self.down(nnx.gelu(self.up(x)))


def _mlp(case: Case, parts: Parts) -> Model:
    graph, params = nnx.split(_Mlp(case["features"], case["hidden"], parts.dot_general))

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, params)(x)

    shape = (case["rows"], case["features"])
    return Model(lambda: params, lambda seed: (normal(seed, shape),), apply, _mean_square(apply))


class _CharModel(linen.Module):
    """A decoder-only transformer of characters."""

    layers: int
    heads: int
    features: int
    parts: Parts

    @linen.compact
    def __call__(self, text: jax.Array) -> jax.Array:
        """Maps characters (batch, length) to logits (batch, length, characters) of the next."""

        def dense(features: int) -> linen.Dense:
            return linen.Dense(features, dot_general=self.parts.dot_general)

        positions = jnp.arange(text.shape[1])[None]
        x = linen.Embed(_VOCABULARY, self.features)(text)
        x = x + linen.Embed(text.shape[1], self.features)(positions)
        mask = linen.make_causal_mask(text, dtype=jnp.bool_)
        for _ in range(self.layers):
            attention = _attention_layer(self.parts, self.heads, use_bias=False)
            x = x + cast(Any, attention)(linen.LayerNorm()(x), mask=mask)
            y = linen.gelu(dense(4 * self.features)(linen.LayerNorm()(x)))
            x = x + dense(self.features)(y)
        return dense(_VOCABULARY)(linen.LayerNorm()(x))


def _char_lm(case: Case, parts: Parts) -> Model:
    model = _CharModel(case["layers"], case["heads"], case["features"], parts)
    batch, length = case["batch"], case["length"]

    def init() -> Any:
        return jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, length), jnp.int32))

    def draw(seed: int) -> tuple[jax.Array, ...]:
        text = jax.random.randint(jax.random.key(seed), (batch, length + 1), 0, _VOCABULARY)
        return text[:, :-1], text[:, 1:]

    apply = cast(Function, model.apply)

    def loss(params: Any, text: jax.Array, label: jax.Array) -> jax.Array:
        return parts.cross_entropy(apply(params, text), label)

    return Model(init, draw, apply, loss)


_MODELS = {"attention": _attention, "mlp": _mlp, "char_lm": _char_lm}


def model_of(case: Case, parts: Parts) -> Model:
    """The model of a case, made of a contender's parts."""
    return _MODELS[case["model"]](case, parts)
