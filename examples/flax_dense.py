"""A Flax network whose matrix products are true float32, by one argument.

On an NVIDIA GPU a float32 ``Dense`` layer computes in TF32, with a relative error of 3e-4, unless a
precision is set. ``dot_general=jaxkernels.dot_general`` makes the products of a layer float32,
forward and backward, on our SGEMM kernels. Large products run on Hopper's tensor cores with float32
accuracy, unless ``jaxkernels.default_algorithm`` selects other kernels. The example trains the same
small network in flax.linen and in flax.nnx on a function that is easy to check, and compares it with
XLA's product at highest precision.

Run: python examples/flax_dense.py [--steps N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen, nnx

import jaxkernels as jk

FEATURES, HIDDEN = 8, 64
DotGeneral = Callable[..., jax.Array]


def exact_dot_general(lhs: Any, rhs: Any, dimension_numbers: Any, **options: Any) -> jax.Array:
    """XLA's product at the highest precision, whatever the layer asks for."""
    options["precision"] = jax.lax.Precision.HIGHEST
    return jax.lax.dot_general(lhs, rhs, dimension_numbers, **options)


class LinenMlp(linen.Module):
    """Two dense layers; a module's attributes are its arguments in flax.linen."""

    dot_general: DotGeneral

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (n, FEATURES) to (n, 1)."""
        x = linen.tanh(linen.Dense(HIDDEN, dot_general=self.dot_general)(x))
        return linen.Dense(1, dot_general=self.dot_general)(x)


class NnxMlp(nnx.Module):
    """The same in flax.nnx."""

    def __init__(self, dot_general: DotGeneral, rngs: nnx.Rngs):
        self.first = nnx.Linear(FEATURES, HIDDEN, dot_general=dot_general, rngs=rngs)
        self.second = nnx.Linear(HIDDEN, 1, dot_general=dot_general, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (n, FEATURES) to (n, 1)."""
        return self.second(nnx.tanh(self.first(x)))


class Result(NamedTuple):
    """The findings of one run."""

    first_loss: float
    last_loss: float
    largest_difference: float  # relative difference of the losses of the two products
    nnx_difference: float
    products: int  # calls of our primitive in one training step


def train(dot_general: DotGeneral, steps: int) -> list[float]:
    """The losses of gradient descent on the linen network."""
    model = LinenMlp(dot_general)
    x = jax.random.normal(jax.random.key(0), (256, FEATURES))
    y = jnp.sin(x.sum(axis=1, keepdims=True))
    params = model.init(jax.random.key(1), x)

    @jax.jit
    def step(params: Any) -> tuple[Any, jax.Array]:
        def mean_square(p: Any) -> jax.Array:
            return jnp.mean((cast(jax.Array, model.apply(p, x)) - y) ** 2)

        loss, gradient = jax.value_and_grad(mean_square)(params)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient), loss

    losses = []
    for _ in range(steps):
        params, loss = step(params)
        losses.append(float(loss))
    return losses


def nnx_difference() -> float:
    """The largest difference of the outputs of two nnx networks with equal weights."""
    x = jax.random.normal(jax.random.key(2), (32, FEATURES))
    ours, theirs = (NnxMlp(f, nnx.Rngs(0))(x) for f in (jk.dot_general, exact_dot_general))
    return float(jnp.max(jnp.abs(ours - theirs)))


def products_of_a_step() -> int:
    """The number of our products in one training step: two forward, the rest backward."""
    model = LinenMlp(jk.dot_general)
    x = jnp.ones((4, FEATURES))
    params = model.init(jax.random.key(1), x)

    def sum_of(params: Any) -> jax.Array:
        return jnp.sum(cast(jax.Array, model.apply(params, x)))

    gradient = jax.grad(sum_of)
    return str(jax.make_jaxpr(gradient)(params)).count("jaxkernels_sgemm[")


def main(arguments: Sequence[str] | None = None) -> Result:
    """Trains with both products and prints the differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args(arguments)

    ours, theirs = (train(f, options.steps) for f in (jk.dot_general, exact_dot_general))
    difference = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    result = Result(ours[0], ours[-1], difference, nnx_difference(), products_of_a_step())

    show = partial(print, flush=True)
    show(f"loss {result.first_loss:.4f} -> {result.last_loss:.4f} in {options.steps} steps")
    show(f"largest relative difference of the losses: {result.largest_difference:.1e}")
    show(f"largest difference of the nnx network's outputs: {result.nnx_difference:.1e}")
    device = jax.devices()[0]
    kernels = "jaxkernels' SGEMM kernels" if device.platform == "gpu" else "XLA's exact product"
    show(f"{result.products} products in a training step, by {kernels} on {device.device_kind}")
    return result


if __name__ == "__main__":
    main()
