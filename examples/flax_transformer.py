"""A transformer block of Flax on our kernels: padding, dropout, training loss, in linen and in nnx.

Some arguments and one call select the kernels: ``attention_fn=`` of the attention layer,
``dot_general=`` of the dense layers (``qkv_dot_general=`` and ``out_dot_general=`` of attention), and
``jaxkernels.cross_entropy`` for the loss, which ignores padding (a negative label). The example
compares the block with Flax's attention, JAX's product and optax's loss, from the same weights and with
the same random bits, so dropout draws the same pattern. Loss and gradients are equal within rounding.
``other_dtypes="xla"`` lets XLA compute products of other dtypes, so the same block works in bfloat16.

Run: python examples/flax_transformer.py [--length N] [--dropout P] [--dtypes float32 bfloat16]
(exit code 1 if they differ)
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from comparison import operations_of, relative_difference, show
from flax import linen, nnx

import jaxkernels as jk
import jaxkernels.flax

BATCH, HEADS, FEATURES, CLASSES = 4, 4, 32, 64
# Relative to the largest entry of all gradients. An entry is a sum of some hundred terms, each
# rounded by 6e-8 (1e-5 if all roundings agree in sign) or by 4e-3 (4e-2 if the signs are random).
ALLOWED = {"float32": 1e-5, "bfloat16": 4e-2}


class Parts(NamedTuple):
    """The functions of a block that are not Flax's own layers."""

    attention: Callable[..., jax.Array]
    dot_general: Callable[..., jax.Array]
    loss: Callable[[jax.Array, jax.Array], jax.Array]  # of logits and labels; negative: none


class Batch(NamedTuple):
    """Sequences of unequal length, padded."""

    tokens: jax.Array  # (BATCH, length)
    labels: jax.Array  # (BATCH, length), the next token; -1: padding
    mask: jax.Array  # (BATCH, 1, length, length); True: a query sees a key


class Finding(NamedTuple):
    """The differences of one kind of block."""

    name: str
    dtype: str
    loss: float  # ours
    loss_difference: float  # relative
    gradient_difference: float  # over all weights, relative to the largest entry
    operations: list[str]  # our row kernels in the compiled program
    products: int  # calls of our primitive in the program

    @property
    def is_equal(self) -> bool:
        """Whether both blocks gave the same, within rounding."""
        allowed = ALLOWED[self.dtype]
        return self.loss_difference <= allowed and self.gradient_difference <= allowed


# From weights and a batch to the loss.
Loss = Callable[[Any, Batch], jax.Array]


def optax_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over the positions that have a label."""
    has_label = labels >= 0
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), jnp.where(has_label, labels, 0)
    )
    return jnp.sum(losses * has_label) / jnp.sum(has_label)


def make_batch(length: int) -> Batch:
    """Random tokens; each sequence is shorter than the one before."""
    tokens = jax.random.randint(jax.random.key(0), (BATCH, length + 1), 0, CLASSES)
    lengths = length - jnp.arange(BATCH)[:, None] * (length // (2 * BATCH))
    is_text = jnp.arange(length) < lengths
    causal = nnx.make_causal_mask(is_text)
    padding = nnx.make_attention_mask(jnp.ones_like(is_text), is_text)
    mask = cast(jax.Array, nnx.combine_masks(causal, padding, dtype=jnp.bool_))
    return Batch(tokens[:, :-1], jnp.where(is_text, tokens[:, 1:], -1), mask)


class LinenModel(linen.Module):
    """Embedding, one transformer block and the layer of logits, in flax.linen."""

    parts: Parts
    dropout: float
    dtype: Any

    @linen.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps tokens (batch, length) to logits (batch, length, CLASSES)."""
        dense = partial(linen.Dense, dtype=self.dtype, dot_general=self.parts.dot_general)
        drop = partial(linen.Dropout, self.dropout, deterministic=False)
        x = linen.Embed(CLASSES, FEATURES, dtype=self.dtype)(tokens)
        attend = linen.MultiHeadDotProductAttention(
            num_heads=HEADS,
            dtype=self.dtype,
            dropout_rate=self.dropout,
            deterministic=False,
            attention_fn=self.parts.attention,
            qkv_dot_general=self.parts.dot_general,
            out_dot_general=self.parts.dot_general,
        )
        x = x + drop()(attend(linen.LayerNorm(dtype=self.dtype)(x), mask=mask))
        y = linen.gelu(dense(4 * FEATURES)(linen.LayerNorm(dtype=self.dtype)(x)))
        x = x + drop()(dense(FEATURES)(y))
        return dense(CLASSES)(linen.LayerNorm(dtype=self.dtype)(x))


class NnxModel(nnx.Module):
    """The same in flax.nnx."""

    def __init__(self, parts: Parts, dropout: float, dtype: Any, rngs: nnx.Rngs):
        linear = partial(nnx.Linear, dtype=dtype, dot_general=parts.dot_general, rngs=rngs)
        norm = partial(nnx.LayerNorm, FEATURES, dtype=dtype, rngs=rngs)
        self.embed = nnx.Embed(CLASSES, FEATURES, dtype=dtype, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            HEADS,
            FEATURES,
            dtype=dtype,
            dropout_rate=dropout,
            deterministic=False,
            attention_fn=parts.attention,
            qkv_dot_general=parts.dot_general,
            out_dot_general=parts.dot_general,
            decode=False,
            rngs=rngs,
        )
        self.drop = nnx.Dropout(dropout, deterministic=False, rngs=rngs)
        self.first, self.second, self.last = norm(), norm(), norm()
        self.up, self.down = linear(FEATURES, 4 * FEATURES), linear(4 * FEATURES, FEATURES)
        self.logits = linear(FEATURES, CLASSES)

    def __call__(self, tokens: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps tokens (batch, length) to logits (batch, length, CLASSES)."""
        x = self.embed(tokens)
        x = x + self.drop(self.attention(self.first(x), mask=mask))
        x = x + self.drop(self.down(nnx.gelu(self.up(self.second(x)))))
        return self.logits(self.last(x))


def linen_loss(parts: Parts, dropout: float, dtype: str) -> tuple[Loss, Any]:
    """The loss of the linen model, and its weights."""
    model = LinenModel(parts, dropout, dtype)
    keys = {"params": jax.random.key(1), "dropout": jax.random.key(2)}
    one = jnp.zeros((1, 1), jnp.int32)
    weights = jax.jit(model.init)(keys, one, jnp.ones((1, 1, 1, 1), jnp.bool_))

    def loss(weights: Any, batch: Batch) -> jax.Array:
        rngs = {"dropout": jax.random.key(3)}
        logits = model.apply(weights, batch.tokens, batch.mask, rngs=rngs)
        return parts.loss(cast(jax.Array, logits), batch.labels)

    return loss, weights


def nnx_loss(parts: Parts, dropout: float, dtype: str) -> tuple[Loss, Any]:
    """The loss of the nnx model, and its weights. The rest holds the state of its random bits."""
    model = NnxModel(parts, dropout, dtype, nnx.Rngs(1))
    structure, weights, rest = nnx.split(model, nnx.Param, ...)

    def loss(weights: Any, batch: Batch) -> jax.Array:
        merged = nnx.merge(structure, weights, rest, copy=True)
        return parts.loss(merged(batch.tokens, batch.mask), batch.labels)

    return loss, weights


def compare(name: str, dtype: str, ours: Any, theirs: Any, batch: Batch) -> Finding:
    """Loss and gradients of two models, and our kernels in the program of the first."""
    (our_loss, weights), (their_loss, their_weights) = ours, theirs
    assert relative_difference(weights, their_weights) == 0, "both begin alike"
    ours, theirs = (jax.jit(jax.value_and_grad(loss)) for loss in (our_loss, their_loss))
    traced = ours.trace(weights, batch)
    compiled = traced.lower().compile()
    value, gradients = compiled(weights, batch)
    their_value, their_gradients = theirs(weights, batch)
    return Finding(
        name,
        dtype,
        float(value),
        abs(float(value) / float(their_value) - 1),
        relative_difference(gradients, their_gradients),
        operations_of(compiled.as_text() or ""),
        str(traced.jaxpr).count("jaxkernels_sgemm["),
    )


def main(argv: Sequence[str] | None = None) -> list[Finding]:
    """Compares blocks of both modules, prints the differences and returns them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=48, help="length of the longest sequence")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--dtypes", nargs="+", choices=tuple(ALLOWED), default=["float32"])
    options = parser.parse_args(argv)

    batch = make_batch(options.length)
    kinds = {
        "flax.linen": (linen_loss, linen.dot_product_attention),
        "flax.nnx": (nnx_loss, nnx.dot_product_attention),
    }
    our_parts = Parts(
        jaxkernels.flax.dot_product_attention,
        partial(jk.dot_general, other_dtypes="xla"),
        partial(jk.cross_entropy, reduction="mean"),
    )
    findings = []
    # On a GPU JAX's products would be TF32, with errors of 3e-4; ours are float32 anyway.
    with jax.default_matmul_precision("highest"):
        for dtype in options.dtypes:
            for name, (make, attention) in kinds.items():
                theirs = Parts(attention, jax.lax.dot_general, optax_loss)
                ours, theirs = (make(p, options.dropout, dtype) for p in (our_parts, theirs))
                findings.append(compare(name, dtype, ours, theirs, batch))

    print(f"{batch.tokens.shape} tokens, dropout {options.dropout}, ", end="")
    print(jax.devices()[0].device_kind)
    show("relative differences to Flax's attention and optax's loss", findings)
    return findings


if __name__ == "__main__":
    sys.exit(0 if all(finding.is_equal for finding in main()) else 1)
