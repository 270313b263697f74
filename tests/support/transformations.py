"""The table of transformations: each maps a function and its operands to results."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def tangents(xs):
    return [jnp.cos(x + i) for i, x in enumerate(xs)]


def loss(f):
    """A number that depends on each element of each result, and of each derivative, in a different way."""

    def of(*xs):
        total = 0.0
        for i, y in enumerate(jax.tree.leaves(f(*xs))):
            weights = np.linspace(-1, 2, y.size).reshape(y.shape)
            total += jnp.sum(jnp.sin((1.5 + i) * y) * jnp.asarray(weights, y.dtype))
        return total

    return of


def some(f):
    """Three numbers of the results, whose derivatives of the second order are not symmetric."""

    def of(*xs):
        flat = jnp.concatenate([jnp.ravel(y) for y in jax.tree.leaves(f(*xs))])
        return jnp.sin(flat[:: -(-flat.size // 3)] * jnp.ravel(xs[0])[0])

    return of


def numbers(xs):
    return tuple(range(len(xs)))


def pulled(f, *xs):
    y, pull = jax.vjp(f, *xs)
    return y, pull(jax.tree.map(jnp.cos, y))


def along(f, *xs):
    return jax.jvp(f, xs, tuple(tangents(xs)))


def gradient(f):
    return lambda *xs: jax.grad(loss(f), numbers(xs))(*xs)


def alone(transform, f, *xs):
    return [transform(lambda x, i=i: f(*xs[:i], x, *xs[i + 1 :]), x) for i, x in enumerate(xs)]


def linearized(f, *xs):
    y, linear = jax.linearize(f, *xs)
    return y, linear(*tangents(xs)), jax.linear_transpose(linear, *xs)(jax.tree.map(jnp.cos, y))


def stacked(axis, *xs):
    """Three members of each operand, along an axis that differs from operand to operand."""
    axes = [(axis + i) % (x.ndim + 1) for i, x in enumerate(xs)]
    return axes, [jnp.stack([x, 0.5 * x, jnp.sin(x)], d) for x, d in zip(xs, axes, strict=True)]


def mapped(transform, axis, f, *xs):
    axes, members = stacked(axis, *xs)
    return jax.vmap(functools.partial(transform, f), tuple(axes), -1)(*members)


def mapped_cotangents(f, *xs):
    """The pullback, the tangent and the residuals, each mapped by itself."""
    y, pull = jax.vjp(f, *xs)
    weights = jnp.arange(1.0, 4)
    shared = jax.tree.map(jnp.cos, y)
    first = jnp.multiply.outer(weights, xs[0])
    return (
        jax.vmap(lambda w: pull(jax.tree.map(lambda t: w * t, shared)))(weights),
        jax.vmap(lambda w: jax.jvp(f, xs, tuple(w * t for t in tangents(xs)))[1])(weights),
        jax.vmap(lambda x: jax.vjp(lambda x: f(x, *xs[1:]), x)[1](shared)[0])(first),
        jax.vmap(lambda x: jax.jvp(lambda x: f(x, *xs[1:]), (x,), (xs[0],))[1])(first),
    )


def call(f, *xs):
    return f(*xs)


def scanned(f, *xs):
    def step(carry, s):
        y = f(*(x * (1 + 0.1 * s) + 0.01 * carry for x in xs))
        return loss(lambda: y)(), y

    return jax.lax.scan(step, 0.0, jnp.arange(3.0))


def while_looped(f, *xs):
    def body(state):
        return state[0] + 1, 0.1 * loss(f)(*(x + state[1] for x in xs))

    return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, 0.0))


def branching(f, *xs):
    def branch(limit):
        return jax.lax.cond(jnp.ravel(xs[0])[0] > limit, lambda *xs: 0.0, loss(f), *xs)

    return branch(-99.0) + 2 * branch(99.0)


def remat(f):
    """Recomputes the tanh, which keeps a temperature positive."""
    return jax.checkpoint(lambda *xs: f(*map(jnp.tanh, xs)))


def scan_of_remat(f, *xs):
    def step(carry, s):
        return remat(loss(f))(*(x * (1 + 0.1 * s) + 0.01 * carry for x in xs)), None

    return jax.lax.scan(step, 0.0, jnp.arange(2.0))[0]


def third_order(f, *xs):
    return along(lambda *xs: along(gradient(f), *xs)[1], *xs)


TRANSFORMS = {
    "call": call,
    "value-and-grad": lambda f, *xs: jax.value_and_grad(loss(f), numbers(xs))(*xs),
    "vjp": pulled,
    "vjp-alone": functools.partial(alone, pulled),
    "jvp": along,
    "jvp-alone": functools.partial(alone, along),
    "linearize": linearized,
    "hessian": lambda f, *xs: jax.hessian(loss(f), numbers(xs))(*xs),
    "forward-over-forward": lambda f, *xs: jax.jacfwd(jax.jacfwd(some(f)), numbers(xs))(*xs),
    "reverse-over-reverse": lambda f, *xs: jax.jacrev(jax.jacrev(some(f)), numbers(xs))(*xs),
    "reverse-over-forward": lambda f, *xs: jax.jacrev(jax.jacfwd(some(f)), numbers(xs))(*xs),
    "third-order": third_order,
    "vmap-inner-axis": functools.partial(mapped, call, -2),
    "vmap-last-axis": functools.partial(mapped, call, -1),
    "vmap-grad": functools.partial(mapped, lambda f, *xs: gradient(f)(*xs), 1),
    "vmap-cotangents": mapped_cotangents,
    "vmap-cond": functools.partial(mapped, branching, 0),
    "scan-grad": lambda f, *xs: gradient(functools.partial(scanned, f))(*xs),
    "while-loop": while_looped,
    "map": lambda f, *xs: jax.lax.map(
        lambda xs: f(*xs), [jnp.stack([x, 2 * x, x / 3]) for x in xs], batch_size=2
    ),
    "cond-grad": lambda f, *xs: jax.grad(functools.partial(branching, f), numbers(xs))(*xs),
    "remat-grad": lambda f, *xs: gradient(remat(f))(*xs),
    "remat-jvp": lambda f, *xs: along(remat(f), *xs),
    "scan-of-remat-grad": lambda f, *xs: jax.grad(functools.partial(scan_of_remat, f), numbers(xs))(
        *xs
    ),
}


def orders(f, *xs):
    """A value, and derivatives of the first and of the second order."""
    return call(f, *xs), gradient(f)(*xs), along(f, *xs)[1], along(gradient(f), *xs)[1]


def assert_same(got, want, tolerance):
    """Equal structure, shapes and dtypes, and values within a few roundings of the largest one."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (jnp.shape(a), jnp.result_type(a)) == (jnp.shape(b), jnp.result_type(b))
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)
