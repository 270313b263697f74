"""Gaussian-process regression in true float32, and where TF32 breaks its Cholesky factorisation.

A covariance matrix is positive definite by a small margin, the variance of the noise. Its entries
come from a matrix product, |x|^2 + |z|^2 - 2 x z, and TF32 rounds the operands of that product to
10 explicit bits of mantissa. The errors are larger than the margin, the matrix gets negative
eigenvalues, and the factorisation gives NaN. ``jaxkernels.matmul`` keeps float32 under any setting
of JAX. The example fits scale, length and noise by the gradient of the marginal likelihood, with both
products, and compares both with float64.

On an NVIDIA GPU the TF32 product is JAX's default. A CPU has no TF32: there
``jax.lax.reduce_precision`` rounds the operands to 10 bits, and a float32 product multiplies them.
TF32 sums in float32 too.

Run: python examples/gaussian_process.py [--points N] [--steps N]
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from comparison import show
from jax.scipy.linalg import solve_triangular

import jaxkernels as jk

DIMENSIONS = 3
NOISE = 0.03  # standard deviation of the noise in the data
NOISES = tuple(10.0**power for power in range(-7, 1))  # variances that are tried

# A product of two matrices.
Product = Callable[[jax.Array, jax.Array], jax.Array]


class Hyper(NamedTuple):
    """Logarithms of the fitted parameters."""

    signal: jax.Array  # variance of the function
    length: jax.Array  # the scale over which it changes
    noise: jax.Array  # variance of the noise


class Data(NamedTuple):
    """Points of a cube and the values measured there."""

    x: jax.Array  # (n, DIMENSIONS)
    y: jax.Array  # (n,)


class Finding(NamedTuple):
    """The findings of one product, at the hyperparameters that float32 fitted."""

    name: str
    steps_before_nan: int  # steps of the fit before a likelihood was NaN
    largest_error_of_a_covariance: float  # largest error of an entry
    smallest_eigenvalue: float  # smallest eigenvalue of the covariance matrix without noise
    likelihood_error: float  # relative error of the log marginal likelihood; NaN: no factor
    least_noise_with_a_factor: float  # smallest of NOISES with which the matrix has a factor
    error_at_other_points: float  # root mean square at other points, with at least that noise
    estimate_of_that_error: float  # root mean square of the posterior's own estimate of that error


def truth(x: Any) -> Any:
    """The function that is to be learned."""
    return np.sin(x[:, 0]) + 0.5 * np.cos(1.3 * x[:, 1]) * x[:, 2]


def draw(points: int, seed: int, noise: float) -> Data:
    """Points at random, and the function there."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3, 3, (points, DIMENSIONS)).astype(np.float32)
    y = truth(x.astype(np.float64)) + noise * generator.standard_normal(points)
    return Data(jnp.asarray(x), jnp.asarray(y, jnp.float32))


def tf32_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """JAX's default product on a GPU, emulated on a CPU."""
    if jax.default_backend() == "gpu":
        return jnp.matmul(a, b, precision=jax.lax.Precision.DEFAULT)
    a, b = (jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10) for x in (a, b))
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def covariance(
    hyper: Hyper, x: jax.Array, product: Product, z: jax.Array | None = None
) -> jax.Array:
    """exp(-|x - z|^2 / (2 length^2)) times the signal's variance, for all pairs; z=None: of x.

    Distances are at least 0, and a point has the distance 0 to itself, as in scikit-learn and GPyTorch.
    Without this, a product that rounds both operands alike would keep the matrix positive definite,
    but its entries, including the variances on the diagonal, would be just as wrong.
    """
    other = x if z is None else z
    squares = jnp.sum(x * x, axis=1)[:, None] + jnp.sum(other * other, axis=1)
    squares = jnp.maximum(squares - 2 * product(x, other.T), 0)
    if z is None:
        squares = squares * (1 - jnp.eye(len(x)))
    return jnp.exp(hyper.signal - 0.5 * squares * jnp.exp(-2 * hyper.length))


@partial(jax.jit, static_argnames="product")
def factor(hyper: Hyper, data: Data, product: Product) -> tuple[jax.Array, jax.Array]:
    """The Cholesky factor L of the covariance of the data, and L^-1 y. NaN if there is no factor."""
    matrix = covariance(hyper, data.x, product)
    lower = jnp.linalg.cholesky(matrix + jnp.exp(hyper.noise) * jnp.eye(len(data.x)))
    return lower, solve_triangular(lower, data.y, lower=True)


@partial(jax.jit, static_argnames="product")
def likelihood(hyper: Hyper, data: Data, product: Product) -> jax.Array:
    """The logarithm of the marginal likelihood of the data, for each point."""
    lower, whitened = factor(hyper, data, product)
    terms = 0.5 * whitened**2 + jnp.log(jnp.diag(lower)) + 0.5 * jnp.log(2 * jnp.pi)
    return -jnp.mean(terms)


@partial(jax.jit, static_argnames="product")
def predict(
    hyper: Hyper, data: Data, z: jax.Array, product: Product
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the function at the points z."""
    lower, whitened = factor(hyper, data, product)
    across = solve_triangular(lower, covariance(hyper, data.x, product, z), lower=True)
    variance = jnp.exp(hyper.signal) - jnp.sum(across * across, axis=0)
    return product(across.T, whitened[:, None])[:, 0], variance


def fit(data: Data, product: Product, steps: int) -> tuple[Hyper, np.ndarray]:
    """Adam on the hyperparameters; their last values and the likelihood at each step."""
    optimizer = optax.adam(optax.cosine_decay_schedule(0.2, steps))
    start = Hyper(jnp.zeros(()), jnp.zeros(()), jnp.log(jnp.float32(0.01)))

    def step(state: Any, _: None) -> Any:
        hyper, moments = state
        value, gradient = jax.value_and_grad(lambda h: -likelihood(h, data, product))(hyper)
        change, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(hyper, change), moments), -value

    run = jax.jit(lambda state: jax.lax.scan(step, state, None, steps))
    (hyper, _), values = run((start, optimizer.init(start)))
    return hyper, np.asarray(values)


def exact(hyper: Hyper, data: Data) -> tuple[np.ndarray, float]:
    """The covariance matrix without noise, and the likelihood, in float64."""
    with jax.enable_x64(True):
        hyper, data = jax.tree.map(lambda x: x.astype(jnp.float64), (hyper, data))
        matrix = covariance(hyper, data.x, jnp.matmul)
        return np.asarray(matrix), float(likelihood(hyper, data, jnp.matmul))


def least_noise(hyper: Hyper, data: Data, product: Product) -> float:
    """The least variance of NOISES with which the covariance matrix can be factorised."""
    for variance in NOISES:
        lower, _ = factor(hyper._replace(noise=jnp.log(jnp.float32(variance))), data, product)
        if jnp.all(jnp.isfinite(lower)):
            return variance
    return float("nan")


def examine(
    name: str, product: Product, values: np.ndarray, hyper: Hyper, data: Data, test: Data
) -> Finding:
    """Compares one product with float64, at the same hyperparameters for all."""
    matrix = np.asarray(covariance(hyper, data.x, product), np.float64)
    exact_matrix, exact_likelihood = exact(hyper, data)
    needed = least_noise(hyper, data, product)
    gap = float(likelihood(hyper, data, product)) - exact_likelihood
    noisy = hyper._replace(noise=jnp.maximum(hyper.noise, jnp.log(jnp.float32(needed))))
    mean, variance = predict(noisy, data, test.x, product)
    return Finding(
        name,
        int(np.argmin(np.isfinite(values))) if np.isnan(values).any() else len(values),
        float(np.max(np.abs(matrix - exact_matrix))),
        float(np.linalg.eigvalsh(matrix)[0]),
        abs(gap / exact_likelihood),
        needed,
        float(jnp.sqrt(jnp.mean((mean - test.y) ** 2))),
        float(jnp.sqrt(jnp.mean(variance))),
    )


def main(argv: Sequence[str] | None = None) -> list[Finding]:
    """Fits with both products, prints the findings and returns them: float32, then TF32."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=250)
    parser.add_argument("--steps", type=int, default=40, help="steps of the fit")
    options = parser.parse_args(argv)

    data, test = draw(options.points, 0, NOISE), draw(200, 1, 0.0)
    tf32 = "TF32" if jax.default_backend() == "gpu" else "TF32, emulated"
    products: dict[str, Product] = {"jaxkernels.matmul": jk.matmul, tf32: tf32_product}
    fits = {name: fit(data, product, options.steps) for name, product in products.items()}
    hyper, _ = fits["jaxkernels.matmul"]
    findings = [
        examine(name, product, fits[name][1], hyper, data, test)
        for name, product in products.items()
    ]

    signal, length, noise = (float(value) for value in jnp.exp(jnp.array(hyper)))
    print(f"{options.points} points in {DIMENSIONS} dimensions, {jax.devices()[0].device_kind}")
    print(f"fitted in float32: signal {signal:.3g}, length {length:.3g}, noise {noise:.2g}")
    print(f"(variances; that of the noise in the data is {NOISE**2:.2g})")
    show("", findings)
    return findings


if __name__ == "__main__":
    main()
