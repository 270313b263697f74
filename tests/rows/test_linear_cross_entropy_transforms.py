"""Transformations of the cross entropy of a linear layer whose rows are computed in chunks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_losses import PLATFORM, bound_for

import jaxkernels as jk

RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 11, 12)).astype(np.float32)
W = RNG.standard_normal((12, 33)).astype(np.float32)
B = RNG.standard_normal(33).astype(np.float32)
LABEL = RNG.integers(-1, 33, (7, 11)).astype(np.int32)
SCALE = RNG.uniform(0.5, 1.5, (7, 11)).astype(np.float32)
TANGENTS = (np.sin(X), np.cos(W), np.sin(B))
OPTIONS = {"label_smoothing": 0.1, "z_loss": 0.02}
ALL = (0, 1, 2)
BOUND = bound_for(3, 77, 12, 33, "float32")
pytestmark = pytest.mark.usefixtures("exact_products")

each_reduction = pytest.mark.parametrize("reduction", ["none", "mean"])


def ours(x, w, b, label, **options):
    return jk.linear_cross_entropy(x, w, label, bias=b, max_bytes=BOUND, **options)


def plain(x, w, b, label, **options):
    return jk.cross_entropy(jnp.matmul(x, w) + b, label, implementation="xla", **options)


def check(program, tolerance=2e-5):
    """A program of the loss gives the same with either."""
    got, want = jax.jit(lambda: [jax.tree.leaves(program(f)) for f in (ours, plain)])()
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.max(np.abs(b)))


def total(f, reduction):
    """A nonlinear function of the losses; rows without a label contribute nothing."""
    return lambda x, w, b: jnp.sum(jnp.sin(f(x, w, b, LABEL, reduction=reduction, **OPTIONS)))


def test_a_constant_w_has_no_gradient():
    """Neither its product nor its sum is in the program."""
    program = str(jax.make_jaxpr(jax.grad(total(ours, "mean")))(X, W, B))
    assert "wanted=('kept', 'dx')" in program
    assert "'dw'" in str(jax.make_jaxpr(jax.grad(total(ours, "mean"), 1))(X, W, B))


@each_reduction
def test_second_order(reduction):
    """Hessian-vector products, each order of modes."""

    def dot(a, b):
        return sum(jnp.vdot(p, q) for p, q in zip(a, b, strict=True))

    def gradient(f):
        return jax.grad(total(f, reduction), ALL)

    tangent = lambda f: lambda *a: jax.jvp(total(f, reduction), a, TANGENTS)[1]  # noqa: E731
    check(lambda f: jax.jvp(gradient(f), (X, W, B), TANGENTS), 1e-4)
    check(lambda f: jax.grad(lambda *a: dot(gradient(f)(*a), TANGENTS), ALL)(X, W, B), 1e-4)
    check(lambda f: jax.grad(tangent(f), ALL)(X, W, B), 1e-4)


@each_reduction
def test_mapped_rows(reduction):
    """Over any axis; with a gradient of the sum, and one of each member."""

    def mapped(f, axis=0):
        options = {"reduction": reduction, **OPTIONS}
        axes = (axis, None, None, axis)
        return jax.vmap(functools.partial(f, **options), axes)

    check(lambda f: [mapped(f, axis)(X, W, B, LABEL) for axis in (0, 1)])
    of_sum = lambda f: lambda x, w, b: jnp.sum(jnp.sin(mapped(f)(x, w, b, LABEL)))  # noqa: E731
    check(lambda f: jax.grad(of_sum(f), ALL)(X, W, B))
    check(lambda f: jax.jvp(of_sum(f), (X, W, B), TANGENTS))

    def member(f):
        return lambda x, w, b, label: jnp.sum(f(x, w, b, label, reduction=reduction))

    each = lambda f: jax.vmap(jax.grad(member(f), ALL), (0, None, None, 0))  # noqa: E731
    check(lambda f: each(f)(X, W, B, LABEL))


@pytest.mark.smoke
def test_mapped_rows_share_chunks():
    """A mean of each member, and the gradient of w of all of them: nothing has w's size for each member."""
    x, w = jnp.zeros((64, 2, 64)), jnp.zeros((64, 512))
    label = jnp.zeros((64, 2), jnp.int32)

    def loss(w):
        member = functools.partial(jk.linear_cross_entropy, reduction="mean")
        return jnp.sum(jax.vmap(member, (0, None, 0))(x, w, label))

    used = jax.jit(jax.grad(loss)).lower(w).compile().memory_analysis().temp_size_in_bytes
    assert used < 8 * w.nbytes


@each_reduction
def test_mapped_weights(reduction):
    """Each of several w has its own chunks."""
    ws, bs = np.stack([W, 2 * W, np.sin(W)]), np.stack([B, B, 2 * B])
    check(lambda f: jax.vmap(total(f, reduction), (None, 0, 0))(X, ws, bs))
    check(lambda f: jax.vmap(jax.grad(total(f, reduction), ALL), (None, 0, 0))(X, ws, bs))
    check(lambda f: jax.vmap(lambda b: jax.jvp(total(f, reduction), (X, W, b), TANGENTS))(bs))


@each_reduction
@pytest.mark.parametrize("cap", [None, 3.0])
def test_hidden_classes(reduction, cap):
    """Neither smoothing nor the cap counts them; each of several masks has its own chunks."""
    options = {"temperature": SCALE, "logit_soft_cap": cap, "reduction": reduction, **OPTIONS}
    masks = np.stack([np.arange(33) % 3 != i for i in range(3)])
    label = np.where(LABEL % 3 == 0, LABEL + 1, LABEL) % 33 if reduction == "mean" else LABEL

    def of(f, shown):
        return lambda x, w, b: jnp.sum(
            jnp.sin(jnp.minimum(f(x, w, b, label, where=shown, **options), 1e3))
        )

    shown = np.arange(33) % 3 != 0
    check(lambda f: jax.value_and_grad(of(f, shown), ALL)(X, W, B))
    check(lambda f: jax.jvp(of(f, shown), (X, W, B), TANGENTS))
    check(lambda f: jax.vmap(lambda m: jax.grad(of(f, m), ALL)(X, W, B))(masks))


@each_reduction
def test_in_a_scan_and_under_remat(reduction):
    def scanned(f):
        def step(carry, row):
            loss = lambda w: jnp.sum(f(row[0], w, B, row[1], reduction=reduction))  # noqa: E731
            value, gradient = jax.value_and_grad(loss)(W)
            return carry + gradient, value

        return jax.lax.scan(step, jnp.zeros_like(W), (X, LABEL))

    check(scanned)
    check(lambda f: jax.grad(jax.checkpoint(total(f, reduction)), ALL)(X, W, B))
    check(lambda f: jax.linearize(total(f, reduction), X, W, B)[1](*TANGENTS))


@each_reduction
def test_scales_weights_and_options_are_differentiated(reduction):
    """A temperature for each row, a soft cap, weights; smoothing and z."""

    def of(f):
        def loss(x, w, temperature, cap, weights, smoothing, z):
            values = f(
                *(x, w, B, LABEL),
                reduction=reduction,
                **{"temperature": temperature, "logit_soft_cap": cap, "weights": weights},
                **{"label_smoothing": smoothing, "z_loss": z},
            )
            return jnp.sum(jnp.sin(values))

        return loss

    operands = (X, W, SCALE, 3.0, SCALE + 1, 0.1, 0.02)
    tangents = (X, W, SCALE, 1.0, SCALE, 1.0, 0.5)
    check(lambda f: jax.value_and_grad(of(f), tuple(range(7)))(*operands))
    check(lambda f: jax.jvp(of(f), operands, tangents))


@each_reduction
def test_what_is_returned_beside_the_loss_is_differentiated(reduction):
    options = {"return_lse": True, "return_entropy": True, "reduction": reduction}

    def of(f):
        return lambda x, w, b: sum(
            jnp.sum(jnp.sin(y)) for y in f(x, w, b, LABEL, **options, **OPTIONS)
        )

    check(lambda f: jax.value_and_grad(of(f), ALL)(X, W, B))


def test_a_frozen_w_keeps_no_sum():
    """The bound that a plan of sums would break."""
    bound = bound_for(3, 77, 12, 33, "float32", w_is_constant=True)
    with pytest.raises(ValueError, match="for sums over chunks"):
        jk.plan_linear_cross_entropy(77, 12, 33, "float32", max_bytes=bound // 2, platform=PLATFORM)
    loss = lambda x: jk.linear_cross_entropy(x, W, LABEL, reduction="sum", max_bytes=bound)  # noqa: E731
    want = jax.grad(lambda x: plain(x, W, 0.0, LABEL, reduction="sum"))(X)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(X), want, rtol=2e-5, atol=2e-6)
