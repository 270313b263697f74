"""The arguments of cross entropy and its siblings."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk

X = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)
LABEL = np.random.default_rng(1).integers(0, 7, (3, 5))


def nll(x, label):
    return -np.take_along_axis(np.asarray(jax.nn.log_softmax(x)), label[..., None], -1)[..., 0]


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=3e-6)


def test_shapes_that_broadcast():
    """Labels, weights and temperatures against the loss; masks and probabilities against the logits."""
    close(jk.cross_entropy(X, 3), nll(X, np.full((3, 5), 3)))
    close(jk.cross_entropy(X, LABEL[:1]), nll(X, np.broadcast_to(LABEL[0], (3, 5))))
    close(jk.cross_entropy(X[0, 0], 2), nll(X[0, 0], np.array(2)))
    weights = np.array([[1.0], [2], [3]], np.float32)
    close(jk.cross_entropy(X, LABEL, weights=weights), nll(X, LABEL) * weights)
    close(jk.cross_entropy(X, LABEL, temperature=weights), nll(X / weights[..., None], LABEL))
    uniform = jk.cross_entropy(X, np.full(7, 1 / 7, np.float32))
    close(uniform, -np.mean(jax.nn.log_softmax(X), -1))
    seen = np.arange(7) > 2
    hidden = np.where(seen, X, -np.inf)
    with np.errstate(all="ignore"):
        close(jk.cross_entropy(X, LABEL, where=seen), nll(hidden, LABEL))


NEUTRAL = np.array([[1.0, -1, 0, 2, -2]], np.float32)


@pytest.mark.parametrize(
    ("label", "weights"),
    [(np.full_like(LABEL, -1), None), (LABEL, np.zeros(5, np.float32)[None]), (LABEL, NEUTRAL)],
    ids=["no labels", "no weights", "weights whose sum is 0"],
)
def test_a_mean_of_nothing_is_0(label, weights):
    mean = functools.partial(jk.cross_entropy, labels=label, weights=weights, reduction="mean")
    loss, dx = jax.value_and_grad(mean)(X)
    assert loss == 0
    assert (dx == 0).all()


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_a_hidden_label_under_smoothing_alone(reduction, implementation):
    """It has no part in the loss, in which the other classes are; one that is no class still gives NaN."""
    x = X[0].copy()
    x[0, 3] = -np.inf
    log_p = np.asarray(jax.nn.log_softmax(x))

    def loss(x, smoothing, label=(3, 3, 3, 3, 3)):
        return jnp.sum(
            jk.cross_entropy(
                *(x, jnp.array(label)),
                label_smoothing=smoothing,
                reduction=reduction,
                implementation=implementation,
            )
        )

    hidden = np.isinf(log_p)
    want = -np.sum(np.where(hidden, 0, log_p) / np.sum(~hidden, -1, keepdims=True))
    close(loss(x, 1.0), want)
    assert np.isfinite(jax.grad(loss)(x, 1.0)).all()
    assert np.isnan(jax.jit(loss)(x, 1.0, jnp.array([9, 3, 3, 3, 3])))
    # Smoothing is differentiated there too, where labels are not hidden.
    got = jax.grad(loss, 1)(X[0], 1.0)
    log_p = np.asarray(jax.nn.log_softmax(X[0]))
    close(got, np.sum(log_p[:, 3]) - np.sum(log_p) / 7)


def test_probabilities():
    """Any that are not negative; where one is 0, what it multiplies may be infinite."""
    p = np.random.default_rng(3).random(X.shape).astype(np.float32)
    p[..., 2] = 0
    x = X.copy()
    x[..., 2] = -np.inf
    log_p = np.asarray(jax.nn.log_softmax(x), np.float64)
    with np.errstate(all="ignore"):
        want = -np.sum(np.where(p == 0, 0, p * log_p), -1)
    close(jk.cross_entropy(x, p), want)
    close(jk.cross_entropy(x, p, reduction="mean"), want.mean())
    dx = jax.grad(lambda x: jk.cross_entropy(x, p, reduction="sum"))(x)
    close(dx, p.sum(-1, keepdims=True) * np.exp(log_p) - p)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float8_e4m3fn", "float16", "bfloat16"])
def test_dtypes_of_logits(dtype):
    x = jnp.asarray(np.arange(12).reshape(3, 4), dtype)
    loss = jk.cross_entropy(x, np.array([0, 1, 2]))
    assert loss.dtype == jnp.float32
    close(loss, nll(np.asarray(x, np.float32), np.array([0, 1, 2])))


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4])
def test_labels_of_few_bits(dtype):
    for label in (LABEL.astype(dtype), jnp.asarray(LABEL, dtype)):
        close(jk.cross_entropy(X, label), nll(X, LABEL))
        close(jk.token_log_probs(X, label), -nll(X, LABEL))


def test_known_labels_are_copied_as_guards_allow():
    """And one that is too large is found, of NumPy under jit too."""
    x, label = jnp.asarray(X), jnp.asarray(LABEL)
    with jax.transfer_guard_device_to_host("disallow"):
        jk.cross_entropy(x, label)
        with pytest.raises(ValueError, match="labels must be smaller than 7"):
            jk.cross_entropy(x, label + 7)
    for function in (jk.cross_entropy, jk.token_log_probs):
        with pytest.raises(ValueError, match="must be smaller than 7"):
            jax.jit(lambda x: function(x, LABEL + 7))(x)  # noqa: B023
