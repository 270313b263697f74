"""jax_debug_nans: what is masked makes no NaN anywhere, eagerly or under jit, forward or backward."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk
import jaxkernels.flax as jkflax

RNG = np.random.default_rng(2)
X = RNG.standard_normal((3, 5)).astype(np.float32)
# The second row sees nothing.
WHERE = np.array([[True] * 5, [False] * 5, [True, False, True, False, True]])
SOME = np.array([False, False, False, False, True])
LABEL = np.array([2, -1, 0])
ROWS_OF_MINUS_INF = X.copy()
ROWS_OF_MINUS_INF[1] = -np.inf
ZERO_FACTOR = np.array([[2.0], [3.0], [0.0]], np.float32)
Q = RNG.standard_normal((2, 3, 2, 4)).astype(np.float32)
K = RNG.standard_normal((2, 5, 2, 4)).astype(np.float32)
LENGTHS = np.array([0, 2], np.int32)


def scores(**options):
    return lambda x: jk.scaled_masked_softmax(x, **options)


def attention(**options):
    return lambda q: jk.dot_product_attention(q, K.astype(q.dtype), K.astype(q.dtype), **options)


FUNCTIONS = {
    "softmax": (functools.partial(jk.softmax, where=WHERE), X),
    "softmax-axis": (functools.partial(jk.softmax, axis=0, where=WHERE.T), X.T),
    "softmax-axes": (functools.partial(jk.softmax, axis=None, where=np.array(False)), X),
    "softmax-broadcast": (functools.partial(jk.softmax, where=WHERE[:, :1]), X),
    "softmax-leading": (functools.partial(jk.softmax, where=WHERE[None]), X),
    "log_softmax": (functools.partial(jk.log_softmax, where=WHERE), X),
    "log_softmax-axis": (functools.partial(jk.log_softmax, axis=0, where=WHERE.T), X.T),
    "logsumexp": (functools.partial(jk.logsumexp, axis=-1, where=WHERE), X),
    "logsumexp-all": (functools.partial(jk.logsumexp, where=np.array(False)), X),
    "logsumexp-minus-inf": (functools.partial(jk.logsumexp, axis=-1), ROWS_OF_MINUS_INF),
    "logsumexp-columns": (functools.partial(jk.logsumexp, axis=0), ROWS_OF_MINUS_INF.T),
    "logsumexp-factors": (functools.partial(jk.logsumexp, axis=-1, b=ZERO_FACTOR), X),
    "rms_norm": (functools.partial(jk.rms_norm, scale=np.ones(5, "f")), 0 * X),
    "cross_entropy": (lambda x: jk.cross_entropy(x, LABEL), X),
    "cross_entropy-where": (lambda x: jk.cross_entropy(x, LABEL, where=WHERE | SOME), X),
    "cross_entropy-hidden": (lambda x: jk.cross_entropy(x, LABEL + 1, where=WHERE | SOME), X),
    "cross_entropy-mean": (
        lambda x: jk.cross_entropy(x, LABEL, label_smoothing=0.1, reduction="mean"),
        X,
    ),
    "cross_entropy-nothing": (lambda x: jk.cross_entropy(x, 0 * LABEL - 1, reduction="mean"), X),
    "cross_entropy-probabilities": (lambda x: jk.cross_entropy(x, np.eye(3, 5, dtype="f")), X),
    "linear_cross_entropy": (lambda x: jk.linear_cross_entropy(x, X.T, 0 * LABEL), X),
    "linear_cross_entropy-mean": (
        lambda x: jk.linear_cross_entropy(x, X.T, 0 * LABEL - 1, reduction="mean"),
        X,
    ),
    "linear_token_log_probs": (lambda x: jk.linear_token_log_probs(x, X.T, 0 * LABEL - 1), X),
    "token_log_probs": (lambda x: jk.token_log_probs(x, LABEL, where=WHERE | SOME), X),
    "scores": (scores(mask=WHERE, causal=True), X),
    "scores-mean": (scores(mask=WHERE, empty_rows="mean"), X),
    "scores-xla": (scores(mask=WHERE, implementation="xla"), X),
    "scores-bias": (scores(bias=np.where(WHERE, 0, -np.inf).astype(np.float32)), X),
    "attention": (attention(mask=WHERE), Q),
    "attention-lengths": (
        attention(query_seq_lengths=LENGTHS, key_value_seq_lengths=LENGTHS),
        Q,
    ),
    "attention-mean": (attention(mask=WHERE, empty_rows="mean"), Q),
    "flax": (lambda q: jkflax.dot_product_attention(q, K, K, mask=WHERE), Q),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_nan_is_made(function):
    function, x = FUNCTIONS[function]

    def loss(x):
        y = function(x)
        return jnp.sum(jnp.where(jnp.isfinite(y), y, 0) ** 2)

    def program(x):
        return function(x), jax.grad(loss)(x), jax.jvp(function, (x,), (x,))

    with jax.debug_nans(True):
        program(x)
        jax.jit(program)(x)


@pytest.mark.parametrize("function", [jk.softmax, jk.log_softmax])
def test_a_nan_that_the_user_sees_is_reported(function):
    """The NaN comes from a row that is -inf throughout, or from an element that is not masked."""
    for bad in (-np.inf, np.nan):
        x = X.copy()
        x[0] = bad
        with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
            function(x, where=WHERE)


@pytest.mark.parametrize("function", [jk.softmax, jk.log_softmax])
def test_rows_that_see_something_keep_their_bits(function):
    masked = function(jnp.where(WHERE, X, -jnp.inf))
    got = function(X, where=WHERE)
    np.testing.assert_array_equal(got[::2], masked[::2])
    empty = 0.0 if function is jk.softmax else -np.inf
    np.testing.assert_array_equal(got[1], np.full(5, empty, np.float32))
