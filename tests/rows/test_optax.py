"""jaxkernels.optax: the values, shapes, dtypes and derivatives of optax's functions, and their replacement."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxkernels as jk
import jaxkernels.optax
from jaxkernels.optax import (
    safe_softmax_cross_entropy,
    softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels,
)

RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 6, 9)).astype(np.float32) * 3
LABEL = RNG.integers(0, 9, (4, 6)).astype(np.int32)
P = np.asarray(jax.nn.softmax(RNG.standard_normal((4, 6, 9)).astype(np.float32)))
SEEN = RNG.random(X.shape) < 0.7
SEEN[0, 0] = False
MASKS = {"none": None, "classes": SEEN, "rows": SEEN[..., 0], "whole-rows": SEEN & SEEN[..., :1]}
masks = pytest.mark.parametrize("where", MASKS.values(), ids=MASKS)
PAIRS = [
    pytest.param(
        *(softmax_cross_entropy_with_integer_labels, LABEL),
        optax.softmax_cross_entropy_with_integer_labels,
        id="ids",
    ),
    pytest.param(softmax_cross_entropy, P, optax.softmax_cross_entropy, id="probabilities"),
]


def compare(ours, peer, *arguments, wide=False):
    """Equal types, and values within the rounding of theirs."""
    got, want = ours(*arguments), peer(*arguments)
    of_got, of_want = (jax.tree.map(lambda a: (a.shape, a.dtype), y) for y in (got, want))
    assert of_got == of_want
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        eps = 16 * float(jnp.finfo(b.dtype).eps)
        a, b = (np.asarray(v, np.float64) for v in (a, b))
        np.testing.assert_allclose(a, b, rtol=eps, atol=eps * (16 if wide else 1))


@masks
@pytest.mark.parametrize(("ours", "labels", "peer"), PAIRS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_and_gradients(ours, labels, peer, where, dtype):
    """Along the last axis, another, and several or all."""
    labels = jnp.asarray(labels, dtype if labels.dtype == np.float32 else labels.dtype)
    of_ids = labels.ndim == 2
    several = RNG.integers(0, 54, 4) if of_ids else labels

    def program(f):
        def of(x, labels, where, axis):
            y, pull = jax.vjp(functools.partial(f, labels=labels, axis=axis, where=where), x)
            return y, *pull(jnp.cos(jnp.arange(y.size)).reshape(y.shape).astype(y.dtype))

        def run(x):
            found = [of(x, labels, where, -1)]
            if where is None or where.ndim == 3:
                moved = [
                    a if a is None or a.ndim == 2 else jnp.moveaxis(a, -1, 1)
                    for a in (x, labels, where)
                ]
                found += [of(*moved, 1), of(x, several, where, (2, 1))]
            return found if of_ids else [*found, of(x, labels, None, None)]

        return jax.jit(run)

    with jax.debug_nans(False):
        compare(program(ours), program(peer), jnp.asarray(X, dtype), wide=dtype != "float32")


@pytest.mark.parametrize("jit", [False, True])
def test_labels_that_are_no_classes(jit):
    """Negative ones count from the end, as indices do; others give NaN, in the gradient too."""
    wrapped = jax.jit if jit else lambda f: f
    ours = wrapped(softmax_cross_entropy_with_integer_labels)
    peer = wrapped(optax.softmax_cross_entropy_with_integer_labels)
    beyond = np.array([9, -10, 3, 100, 0, 2], np.int16)
    for label in (np.array([-1, -9, 3, 8, 0, 2]), beyond):
        compare(ours, peer, X[0], label)
    dx = jax.grad(lambda x: jnp.sum(ours(x, beyond)))(X[0])
    np.testing.assert_array_equal(
        np.isnan(dx), np.broadcast_to([[v] for v in (1, 1, 0, 1, 0, 0)], X[0].shape)
    )
    hidden = jax.grad(lambda x: jnp.sum(jnp.where(beyond == 3, ours(x, beyond), 0)))(X[0])
    assert np.isfinite(hidden).all()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_labels_beyond_32_bits_are_no_classes(dtype):
    """They do not wrap around to a class."""
    label = np.array([2**32 + 1, 1], dtype)
    loss = softmax_cross_entropy_with_integer_labels(X[0, :2], label)
    np.testing.assert_array_equal(np.isnan(loss), [True, False])


def test_promotion_of_probabilities():
    """The loss has the type of both together, and is computed in it throughout; optax rounds the logarithm before."""
    x = jnp.asarray(X, "bfloat16")
    got, want = softmax_cross_entropy(x, P), optax.softmax_cross_entropy(x.astype("float32"), P)
    assert got.dtype == optax.softmax_cross_entropy(x, P).dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=2e-6)
    compare(softmax_cross_entropy, optax.softmax_cross_entropy, X, P[0, 0])


@pytest.mark.smoke
def test_patch_optax():
    """Inside a block optax's names are ours, also in its submodule; behind it they are what they were."""
    originals = {name: getattr(optax, name) for name in jaxkernels.optax.__all__}
    with jk.patch_optax():
        for name in jaxkernels.optax.__all__:
            for module in (optax, optax.losses):
                assert getattr(module, name) is getattr(jaxkernels.optax, name)
        with jk.patch_optax(), jk.patch_jax_nn():
            assert jax.nn.softmax is jk.softmax
        assert optax.softmax_cross_entropy is softmax_cross_entropy
        text = str(jax.make_jaxpr(optax.softmax_cross_entropy_with_integer_labels)(X, LABEL))
        assert "jaxkernels_cross_entropy_fwd" in text
    for name, original in originals.items():
        for module in (optax, optax.losses):
            assert getattr(module, name) is original

    @jk.patch_optax()
    def inside():
        return optax.safe_softmax_cross_entropy is safe_softmax_cross_entropy

    assert inside()
