"""Trains a softmax classifier on handwritten digits with jaxkernels.

The data are the 1797 images of 8 x 8 pixels that come with scikit-learn. The model is multinomial
logistic regression in plain JAX. The loss is ``jaxkernels.cross_entropy``, whose kernel computes the
gradient in the same pass. The predicted probabilities come from ``jaxkernels.softmax``. The example
then trains the same model with ``jax.nn`` to show that the results agree, and prints the line of the
compiled program in which XLA calls our kernel.

Run: python examples/train_digits.py [--epochs N] [--learning-rate R]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits

import jaxkernels as jk

NUM_CLASSES = 10
TRAIN_IMAGES = 1400


class Params(NamedTuple):
    """A linear model: logits = images @ weights + bias."""

    weights: jax.Array  # (64, 10)
    bias: jax.Array  # (10,)


class Split(NamedTuple):
    """Images of shape (n, 64), scaled to 0 .. 1, and their labels of shape (n,)."""

    images: jax.Array
    labels: jax.Array


class Result(NamedTuple):
    """The findings of one run."""

    first_loss: float
    last_loss: float
    accuracy: float  # on the test images
    largest_difference: float  # largest difference from the probabilities trained with jax.nn
    custom_calls: list[str]  # lines of the compiled training step


# The mean loss of logits (n, 10) and labels (n,).
Loss = Callable[[jax.Array, jax.Array], jax.Array]
Step = Callable[[Params, Split], tuple[Params, jax.Array]]


def load_data(seed: int) -> tuple[Split, Split]:
    """Returns the digits, shuffled, as (training set, test set)."""
    pixels, targets = load_digits(return_X_y=True)
    images = jnp.asarray(pixels, jnp.float32) / 16.0
    labels = jnp.asarray(targets, jnp.int32)
    order = jax.random.permutation(jax.random.key(seed), labels.size)
    train, test = order[:TRAIN_IMAGES], order[TRAIN_IMAGES:]
    return Split(images[train], labels[train]), Split(images[test], labels[test])


def logits_of(params: Params, images: jax.Array) -> jax.Array:
    """Returns the logits, shape (n, 10)."""
    return images @ params.weights + params.bias


def plain_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean cross entropy by jax.nn."""
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1))


def make_step(loss: Loss, learning_rate: float) -> Step:
    """Returns the jitted training step: (params, batch) -> (params, loss)."""

    def loss_of(params: Params, batch: Split) -> jax.Array:
        return loss(logits_of(params, batch.images), batch.labels)

    @jax.jit
    def step(params: Params, batch: Split) -> tuple[Params, jax.Array]:
        value, gradient = jax.value_and_grad(loss_of)(params, batch)
        return jax.tree.map(lambda p, g: p - learning_rate * g, params, gradient), value

    return step


def train(step: Step, batch: Split, epochs: int, name: str) -> tuple[Params, list[float]]:
    """Runs full-batch gradient descent and returns the parameters and the loss of every epoch."""
    params = Params(jnp.zeros((batch.images.shape[1], NUM_CLASSES)), jnp.zeros(NUM_CLASSES))
    losses = []
    for epoch in range(epochs):
        params, loss = step(params, batch)
        losses.append(float(loss))
        if epoch % max(1, epochs // 5) == 0 or epoch == epochs - 1:
            print(f"{name:<10}  epoch {epoch:4d}  loss {losses[-1]:.4f}")
    return params, losses


def custom_calls_of(step: Step, params: Params, batch: Split) -> list[str]:
    """Returns the lines of the compiled step that call a kernel of jaxkernels."""
    program = jax.jit(step).lower(params, batch).compile().as_text() or ""
    return [line.strip() for line in program.splitlines() if "jaxkernels_" in line]


def main(argv: Sequence[str] | None = None) -> Result:
    """Trains with jaxkernels and with jax.nn, prints and returns the findings.

    Args:
        argv: command-line arguments; ``sys.argv[1:]`` when None.
    """
    parser = argparse.ArgumentParser(description="Train a softmax classifier on digits.")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)

    training_set, test_set = load_data(options.seed)
    print(f"{training_set.labels.size} training and {test_set.labels.size} test images")
    print(f"running on {jax.devices()[0].device_kind}\n")

    step = make_step(partial(jk.cross_entropy, reduction="mean"), options.learning_rate)
    params, losses = train(step, training_set, options.epochs, "jaxkernels")
    peer_step = make_step(plain_loss, options.learning_rate)
    peer_params, peer_losses = train(peer_step, training_set, options.epochs, "jax.nn")

    probabilities = jk.softmax(logits_of(params, test_set.images))
    accuracy = float(jnp.mean(probabilities.argmax(axis=-1) == test_set.labels))
    peer_probabilities = jax.nn.softmax(logits_of(peer_params, test_set.images))
    difference = float(jnp.max(jnp.abs(probabilities - peer_probabilities)))
    print(f"\ntest accuracy {accuracy:.3f}")
    print(f"final loss {losses[-1]:.6f} with jaxkernels, {peer_losses[-1]:.6f} with jax.nn")
    print(f"largest difference between the two models' probabilities: {difference:.1e}")

    calls = custom_calls_of(step, params, training_set)
    print("\nour kernels in the compiled training step:")
    for line in calls or ["none: this device has no kernels, see python -m jaxkernels"]:
        print(f"  {line[:160]}")
    return Result(losses[0], losses[-1], accuracy, difference, calls)


if __name__ == "__main__":
    main()
