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
BOUNDS = {chunks: bound_for(chunks, 77, 12, 33, "float32") for chunks in (1, 3)}
pytestmark = pytest.mark.usefixtures("exact_products")

each_reduction = pytest.mark.parametrize("reduction", ["none", "mean"])
in_chunks = pytest.mark.parametrize("chunks", BOUNDS)


def ours(x, w, b, label, chunks=3, **options):
    return jk.linear_cross_entropy(x, w, label, bias=b, max_bytes=BOUNDS[chunks], **options)


def plain(x, w, b, label, chunks=3, **options):
    del chunks
    return jk.cross_entropy(jnp.matmul(x, w) + b, label, implementation="xla", **options)


def check(program, tolerance=2e-5):
    """A program of the loss gives the same with either."""
    got, want = (jax.tree.leaves(program(f)) for f in (ours, plain))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.max(np.abs(b)))


def total(f, reduction, chunks=3, **options):
    """A nonlinear function of the losses; rows without a label contribute nothing."""
    options = {"reduction": reduction, "chunks": chunks, **OPTIONS, **options}
    return lambda x, w, b: jnp.sum(jnp.sin(f(x, w, b, LABEL, **options)))


def test_a_constant_w_has_no_gradient():
    """Neither its product nor its sum is in the program."""
    program = str(jax.make_jaxpr(jax.grad(total(ours, "mean")))(X, W, B))
    assert "wanted=('kept', 'dx')" in program
    assert "'dw'" in str(jax.make_jaxpr(jax.grad(total(ours, "mean"), 1))(X, W, B))


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
@in_chunks
def test_scales_weights_and_options_are_differentiated(reduction, chunks):
    """A temperature for each row, a soft cap, weights; smoothing and z."""

    def of(f):
        def loss(x, w, temperature, cap, weights, smoothing, z):
            values = f(
                *(x, w, B, LABEL),
                chunks=chunks,
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
