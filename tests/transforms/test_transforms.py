"""Every public function under JAX's transformations, against plain JAX under the same ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from public_functions import FUNCTIONS

pytestmark = pytest.mark.usefixtures("exact_products", "small_chunks")


def tangents(xs):
    return [jnp.cos(x + i) for i, x in enumerate(xs)]


def loss(f):
    """A number that feels every element of every result, and of every derivative, differently."""

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
    """The transformation with respect to each operand by itself."""

    def at(i):
        return lambda x: f(*xs[:i], x, *xs[i + 1 :])

    return [transform(at(i), x) for i, x in enumerate(xs)]


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


def remat(f, policy=None):
    """The tanh is computed again; it keeps a temperature positive."""
    return jax.checkpoint(lambda *xs: f(*map(jnp.tanh, xs)), policy=policy)


def scan_of_remat(f, *xs):
    def step(carry, s):
        return remat(loss(f))(*(x * (1 + 0.1 * s) + 0.01 * carry for x in xs)), None

    return jax.lax.scan(step, 0.0, jnp.arange(2.0))[0]


def third_order(f, *xs):
    def second(*xs):
        return along(gradient(f), *xs)[1]

    return along(second, *xs)


TRANSFORMS = {
    "call": call,
    "value-and-grad": lambda f, *xs: jax.value_and_grad(loss(f), numbers(xs))(*xs),
    "vjp": pulled,
    "vjp-alone": functools.partial(alone, pulled),
    "jvp": along,
    "jvp-alone": functools.partial(alone, along),
    "linearize": linearized,
    "jacfwd": lambda f, *xs: jax.jacfwd(some(f), numbers(xs))(*xs),
    "jacrev": lambda f, *xs: jax.jacrev(some(f), numbers(xs))(*xs),
    "hessian": lambda f, *xs: jax.hessian(loss(f), numbers(xs))(*xs),
    "forward-over-forward": lambda f, *xs: jax.jacfwd(jax.jacfwd(some(f)), numbers(xs))(*xs),
    "reverse-over-reverse": lambda f, *xs: jax.jacrev(jax.jacrev(some(f)), numbers(xs))(*xs),
    "reverse-over-forward": lambda f, *xs: jax.jacrev(jax.jacfwd(some(f)), numbers(xs))(*xs),
    "third-order": third_order,
    "vmap-axis-1": functools.partial(mapped, call, 1),
    "vmap-inner-axis": functools.partial(mapped, call, -2),
    "vmap-last-axis": functools.partial(mapped, call, -1),
    "vmap-grad": functools.partial(mapped, lambda f, *xs: gradient(f)(*xs), 1),
    "vmap-cotangents": mapped_cotangents,
    "vmap-cond": functools.partial(mapped, branching, 0),
    "scan": scanned,
    "scan-grad": lambda f, *xs: gradient(functools.partial(scanned, f))(*xs),
    "while-loop": while_looped,
    "cond-grad": lambda f, *xs: jax.grad(functools.partial(branching, f), numbers(xs))(*xs),
    "map": lambda f, *xs: jax.lax.map(
        lambda xs: f(*xs), [jnp.stack([x, 2 * x, x / 3]) for x in xs], batch_size=2
    ),
    "remat-grad": lambda f, *xs: gradient(remat(f))(*xs),
    "remat-policy-grad": lambda f, *xs: gradient(
        remat(f, jax.checkpoint_policies.nothing_saveable)
    )(*xs),
    "remat-jvp": lambda f, *xs: along(remat(f), *xs),
    "scan-of-remat-grad": lambda f, *xs: jax.grad(functools.partial(scan_of_remat, f), numbers(xs))(
        *xs
    ),
}


# Variants run these on a CPU, where compiling is what costs. test_mapped_transforms.py maps every subset
# of operands along the first axis, and has second derivatives.
FEW = ("call", "value-and-grad", "jvp", "vmap-last-axis", "vmap-grad")


def transforms_of(function):
    if function.is_variant and jax.default_backend() == "cpu":
        return {name: TRANSFORMS[name] for name in FEW}
    return TRANSFORMS


@functools.cache
def results(name):
    """Results of ours and of plain JAX under every transformation, from one program."""
    function = FUNCTIONS[name]

    def program(operands):
        found = []
        for f in (function.ours, function.peer):
            moving, xs = function.of_moving(f, operands)
            some = transforms_of(function)
            found.append({name: of(moving, *xs) for name, of in some.items()})
        return found

    return jax.device_get(jax.jit(program)(function.draw()))


def assert_same(got, want, tolerance):
    """Equal structure, shapes and dtypes, and values within a few roundings of the largest one."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (jnp.shape(a), jnp.result_type(a)) == (jnp.shape(b), jnp.result_type(b))
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def cases():
    for name, function in FUNCTIONS.items():
        marks = [pytest.mark.xdist_group(f"transforms of {name}")]  # they share a program
        if function.is_smoke:
            marks.append(pytest.mark.smoke)
        for transform in transforms_of(function):
            yield pytest.param(name, transform, marks=marks)


@pytest.mark.parametrize(("name", "transform"), list(cases()))
def test_transform(name, transform):
    got, want = (of[transform] for of in results(name))
    assert_same(got, want, FUNCTIONS[name].tolerance)


def orders(f, *xs):
    """A value, and derivatives of the first and of the second order."""
    return call(f, *xs), gradient(f)(*xs), along(f, *xs)[1], along(gradient(f), *xs)[1]


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name, function in FUNCTIONS.items()
        for dtype in function.dtypes[1:]
        if not (function.is_variant or function.closed)  # logits of a layer are rounded
    ],
)
def test_other_dtypes(name, dtype):
    """Against plain JAX in float64, from the same rounded operands; gradients have their dtype."""
    function = FUNCTIONS[name]
    with jax.enable_x64(True):
        drawn = function.draw(dtype)
        wide = [x.astype(np.float64) if x.dtype == dtype else x for x in drawn]
        moving, xs = function.of_moving(function.ours, drawn)
        peer, wide_xs = function.of_moving(function.peer, wide)
        got = jax.jit(functools.partial(orders, moving))(*xs)
        want = jax.jit(functools.partial(orders, peer))(*wide_xs)
    kept = "float32" if function.is_wide and dtype != "float64" else dtype
    expected = [{kept}, {dtype}, {kept}, {dtype}]
    assert [{str(a.dtype) for a in jax.tree.leaves(part)} for part in got] == expected
    eps = [float(jnp.finfo(kept).eps), *[float(jnp.finfo(dtype).eps)] * 3]
    for part, truth, unit in zip(got, want, eps, strict=True):
        for a, b in zip(jax.tree.leaves(part), jax.tree.leaves(truth), strict=True):
            atol = 16 * unit * max(1.0, float(np.max(np.abs(b))))
            np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name, f in FUNCTIONS.items() if "float64" in f.dtypes and not f.is_variant),
        "masked-scale",
    ],
)
def test_differences(name):
    """Independent of any formula: numerical derivatives, in float64, of orders 1 and 2."""
    function = FUNCTIONS[name]
    with jax.enable_x64(True):
        moving, xs = function.of_moving(function.ours, function.draw("float64"))
        check_grads(jax.jit(loss(moving)), xs, order=2, atol=1e-5, rtol=1e-5)
