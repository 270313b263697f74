"""Trains a softmax classifier on handwritten digits with jaxkernels.

The data are the 1797 images of 8 x 8 pixels that come with scikit-learn. The model is multinomial
logistic regression in plain JAX. The loss is ``jaxkernels.cross_entropy``, whose kernel computes the
gradient in the same pass. The predicted probabilities come from ``jaxkernels.softmax``. The example
then trains the same model with ``jax.nn`` to show that the results agree, and prints our kernels in the
compiled program.

Run: python examples/train_digits.py [--epochs N] [--learning-rate R]
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from comparison import operations_of
from sklearn.datasets import load_digits

import jaxkernels as jk

TRAIN_IMAGES = 1400
# A matrix of weights (64, 10) and a bias (10,).
Params = tuple[jax.Array, jax.Array]


class Result(NamedTuple):
    """The findings of one run."""

    first_loss: float
    last_loss: float
    accuracy: float  # on the test images
    largest_difference: float  # largest difference from the probabilities trained with jax.nn
    kernels: list[str]  # our row operations in the compiled training step


def logits_of(params: Params, images: jax.Array) -> jax.Array:
    """Returns the logits, shape (n, 10)."""
    weights, bias = params
    return images @ weights + bias


def plain_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean cross entropy by jax.nn."""
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1))


def train(
    loss: Callable[..., jax.Array], options: argparse.Namespace, *data: jax.Array
) -> tuple[Params, list[float], str]:
    """Runs full-batch gradient descent on images and labels.

    Returns the parameters, the loss of every epoch, and the compiled program of a step.
    """

    def step(params: Params, images: jax.Array, labels: jax.Array) -> tuple[Params, jax.Array]:
        def loss_of(params: Params) -> jax.Array:
            return loss(logits_of(params, images), labels)

        value, gradient = jax.value_and_grad(loss_of)(params)
        return jax.tree.map(lambda p, g: p - options.learning_rate * g, params, gradient), value

    params = jnp.zeros((64, 10)), jnp.zeros(10)
    compiled = jax.jit(step).lower(params, *data).compile()
    losses = []
    for epoch in range(options.epochs):
        params, value = compiled(params, *data)
        losses.append(float(value))
        if epoch % max(1, options.epochs // 5) == 0 or epoch == options.epochs - 1:
            print(f"epoch {epoch:4d}  loss {losses[-1]:.4f}")
    return params, losses, compiled.as_text() or ""


def main(argv: Sequence[str] | None = None) -> Result:
    """Trains with jaxkernels and with jax.nn, prints and returns the findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1.0)
    options = parser.parse_args(argv)

    pixels, targets = load_digits(return_X_y=True)
    order = jax.random.permutation(jax.random.key(0), len(targets))
    images, labels = jnp.asarray(pixels, jnp.float32)[order] / 16, jnp.asarray(targets)[order]
    data = images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]
    test_images, test_labels = images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:]
    print(f"{TRAIN_IMAGES} training and {len(test_labels)} test images")

    print(f"jaxkernels on {jax.devices()[0].device_kind}")
    params, losses, program = train(partial(jk.cross_entropy, reduction="mean"), options, *data)
    print("jax.nn")
    peer_params, peer_losses, _ = train(plain_loss, options, *data)

    probabilities = jk.softmax(logits_of(params, test_images))
    accuracy = float(jnp.mean(probabilities.argmax(axis=-1) == test_labels))
    peer_probabilities = jax.nn.softmax(logits_of(peer_params, test_images))
    difference = float(jnp.max(jnp.abs(probabilities - peer_probabilities)))
    print(f"test accuracy {accuracy:.3f}")
    print(f"final loss {losses[-1]:.6f} with jaxkernels, {peer_losses[-1]:.6f} with jax.nn")
    print(f"largest difference between the two models' probabilities: {difference:.1e}")
    kernels = operations_of(program)
    print(f"our kernels in the compiled training step: {', '.join(kernels) or 'none'}")
    return Result(losses[0], losses[-1], accuracy, difference, kernels)


if __name__ == "__main__":
    main()
