"""Equinox attention on our softmax, in two ways: a patch around Equinox's layer, and a new module.

Equinox has no argument for a softmax. Its attention calls ``jax.nn.softmax``, so inside
``jaxkernels.patch_jax_nn()`` the unchanged layer runs our kernel. The new module calls
``jaxkernels.scaled_masked_softmax``, which includes scale and mask. The example compares both with
Equinox's causal layer with the same weights, under ``jax.vmap`` over the batch and over the heads. Outputs
and gradients are equal within rounding, and the compiled program names our kernels.

Run: python examples/equinox_module.py [--length N]    (exit code 1 if anything differs)
"""

import argparse
import contextlib
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from comparison import operations_of, relative_difference, show

import jaxkernels as jk

BATCH, HEADS, FEATURES = 4, 4, 32
# Relative to the largest entry: some hundred terms, each rounded by 6e-8.
ALLOWED = 1e-5


class Finding(NamedTuple):
    """The differences of one way from Equinox."""

    name: str
    output_difference: float  # relative to the largest entry
    gradient_difference: float  # over all weights, also relative
    operations: list[str]  # our kernels in the compiled program

    @property
    def is_equal(self) -> bool:
        """Whether it equals Equinox within rounding."""
        return self.output_difference <= ALLOWED and self.gradient_difference <= ALLOWED


class CausalAttention(eqx.Module):
    """Attention with the weights of Equinox's layer and our softmax."""

    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    output: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, layer: eqx.nn.MultiheadAttention):
        self.query, self.key = layer.query_proj, layer.key_proj
        self.value, self.output = layer.value_proj, layer.output_proj
        self.heads = layer.num_heads

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (length, features) to the same shape."""

        def by_heads(layer: eqx.nn.Linear) -> jax.Array:
            return jax.vmap(layer)(x).reshape(len(x), self.heads, -1).swapaxes(0, 1)

        attended = jax.vmap(attend)(by_heads(self.query), by_heads(self.key), by_heads(self.value))
        return jax.vmap(self.output)(attended.swapaxes(0, 1).reshape(len(x), -1))


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """One head, (length, depth) each. Scale, mask and softmax are one kernel."""
    scale = 1 / math.sqrt(query.shape[-1])
    return jk.scaled_masked_softmax(query @ key.T, scale=scale, causal=True) @ value


class CausalEquinox(eqx.Module):
    """Equinox's layer with a causal mask."""

    layer: eqx.nn.MultiheadAttention

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (length, features) to the same shape."""
        mask = jnp.tri(len(x), dtype=bool)
        return self.layer(x, x, x, mask=mask)


def run(module: Any, x: jax.Array) -> tuple[jax.Array, list[jax.Array], list[str]]:
    """Outputs, gradients by all weights, and our kernels in the compiled program.

    The function is new each time, because a jitted one keeps the softmax that it was traced with.
    """

    def loss(module: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jax.vmap(module)(x)
        return jnp.sum(y * y), y

    weights, rest = eqx.partition(module, eqx.is_inexact_array)

    def program(weights: Any, x: jax.Array) -> Any:
        return jax.grad(lambda w: loss(eqx.combine(w, rest), x), has_aux=True)(weights)

    compiled = jax.jit(program).lower(weights, x).compile()
    gradients, y = compiled(weights, x)
    return y, jax.tree.leaves(gradients), operations_of(compiled.as_text() or "")


def main(argv: Sequence[str] | None = None) -> list[Finding]:
    """Runs attention three ways, prints the differences and returns those of our two ways."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=48, help="length of the sequences")
    options = parser.parse_args(argv)

    x = jax.random.normal(jax.random.key(1), (BATCH, options.length, FEATURES))
    bias = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
    layer = eqx.nn.MultiheadAttention(HEADS, FEATURES, **bias, key=jax.random.key(0))
    theirs = CausalEquinox(layer)
    ways = {
        "Equinox's layer, patched": (theirs, jk.patch_jax_nn()),
        "a module of its own": (CausalAttention(layer), contextlib.nullcontext()),
    }
    findings = []
    # On a GPU the products would be TF32, with errors of 3e-4.
    with jax.default_matmul_precision("highest"):
        want, want_gradients, _ = run(theirs, x)
        for name, (module, context) in ways.items():
            with context:
                y, gradients, operations = run(module, x)
            differences = (
                relative_difference(y, want),
                relative_difference(gradients, want_gradients),
            )
            findings.append(Finding(name, *differences, operations))

    print(f"causal attention on {x.shape}, {jax.devices()[0].device_kind}")
    show("relative differences to Equinox's own layer", findings)
    return findings


if __name__ == "__main__":
    sys.exit(0 if all(finding.is_equal for finding in main()) else 1)
