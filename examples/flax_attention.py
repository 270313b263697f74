"""Flax's multi-head attention with our softmax, by one argument.

``attention_fn=jaxkernels.flax.dot_product_attention`` works in flax.linen and flax.nnx: scale, mask
and softmax are then one kernel, forward and backward. The example compares a layer of each module
with the same layer and Flax's own attention function, under a causal mask over sequences of unequal
length. Outputs and gradients are equal within rounding, and the compiled program names our kernels.

Run: python examples/flax_attention.py [--length N]    (exit code 1 if anything differs)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from comparison import operations_of, relative_difference
from flax import linen, nnx

import jaxkernels.flax

BATCH, HEADS, FEATURES = 4, 4, 32
# Relative to the largest entry. An entry is a sum over the features and the sequence, some hundred
# terms, each rounded by 6e-8: 1e-5 if all roundings agree in sign.
ALLOWED = 1e-5

Attention = Callable[..., jax.Array]
# From (x, mask) to the outputs and the gradients, a tree of arrays.
Program = Callable[[jax.Array, jax.Array], tuple[jax.Array, Any]]


class Layer(NamedTuple):
    """The differences of one kind of layer."""

    name: str
    output_difference: float  # relative to the largest entry
    gradient_difference: float  # over all weights and the input, also relative
    operations: list[str]  # our kernels in the compiled program

    @property
    def is_equal(self) -> bool:
        """Whether both attention functions gave the same, within rounding."""
        return self.output_difference <= ALLOWED and self.gradient_difference <= ALLOWED


def make_inputs(length: int) -> tuple[jax.Array, jax.Array]:
    """Sequences (BATCH, length, FEATURES), the later ones shorter, and their mask."""
    x = jax.random.normal(jax.random.key(0), (BATCH, length, FEATURES))
    lengths = length - jnp.arange(BATCH)[:, None] * (length // (2 * BATCH))
    is_text = jnp.arange(length) < lengths
    causal = nnx.make_causal_mask(is_text)
    padding = nnx.make_attention_mask(jnp.ones_like(is_text), is_text)
    return x, nnx.combine_masks(causal, padding, dtype=jnp.bool_)  # type: ignore[return-value]


def sum_of_squares(y: jax.Array) -> jax.Array:
    return jnp.sum(y * y)


def linen_program(attention: Attention) -> Program:
    """The layer of flax.linen, which takes its weights as an argument."""
    layer = linen.MultiHeadDotProductAttention(num_heads=HEADS, attention_fn=attention)
    weights = layer.init(jax.random.key(1), jnp.ones((1, 1, FEATURES)))

    def program(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, Any]:
        def loss(weights: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = cast(jax.Array, layer.apply(weights, x, mask=mask))
            return sum_of_squares(y), y

        gradients, y = jax.grad(loss, argnums=(0, 1), has_aux=True)(weights, x)
        return y, gradients

    return program


def nnx_program(attention: Attention) -> Program:
    """The layer of flax.nnx, which holds its weights."""
    layer = nnx.MultiHeadAttention(
        HEADS, FEATURES, attention_fn=attention, decode=False, rngs=nnx.Rngs(1)
    )
    structure, weights = nnx.split(layer)

    def program(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, Any]:
        def loss(weights: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = nnx.merge(structure, weights)(x, mask=mask)
            return sum_of_squares(y), y

        gradients, y = jax.grad(loss, argnums=(0, 1), has_aux=True)(weights, x)
        return y, gradients

    return program


def compare(name: str, ours: Program, theirs: Program, x: jax.Array, mask: jax.Array) -> Layer:
    """Runs both programs of a layer and finds our kernels in the first."""
    compiled = jax.jit(ours).lower(x, mask).compile()
    (y, gradients), (their_y, their_gradients) = compiled(x, mask), jax.jit(theirs)(x, mask)
    return Layer(
        name,
        relative_difference(y, their_y),
        relative_difference(gradients, their_gradients),
        operations_of(compiled.as_text() or ""),
    )


def main(arguments: Sequence[str] | None = None) -> list[Layer]:
    """Compares the layers of both modules and prints the differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=48, help="length of the longest sequence")
    options = parser.parse_args(arguments)

    ours = jaxkernels.flax.dot_product_attention
    x, mask = make_inputs(options.length)
    # On a GPU Flax's products would be TF32, with errors of 3e-4; ours are float32 anyway.
    with jax.default_matmul_precision("highest"):
        linen_programs = linen_program(ours), linen_program(linen.dot_product_attention)
        nnx_programs = nnx_program(ours), nnx_program(nnx.dot_product_attention)
        layers = [
            compare("flax.linen", *linen_programs, x, mask),
            compare("flax.nnx", *nnx_programs, x, mask),
        ]
    print(f"causal attention on {x.shape}, padded, {jax.devices()[0].device_kind}")
    for layer in layers:
        print(
            f"{layer.name:<10}  largest relative difference: output {layer.output_difference:.1e}, "
            f"gradients {layer.gradient_difference:.1e}  {'equal' if layer.is_equal else 'DIFFER'}"
        )
        print(f"{'':<10}  our kernels in the program: {', '.join(layer.operations) or 'none'}")
    return layers


if __name__ == "__main__":
    sys.exit(0 if all(layer.is_equal for layer in main()) else 1)
