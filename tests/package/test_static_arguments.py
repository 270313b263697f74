"""Arguments that decide which program is made: traced, they raise what JAX raises, and the text says what to do."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.errors import ConcretizationTypeError, TracerBoolConversionError

import jaxkernels as jk
import jaxkernels.flax as jkflax

X = jnp.ones((3, 4))
Q = jnp.ones((2, 4, 2, 8))
attention = functools.partial(jk.dot_product_attention, Q, Q, Q)
NUMBERS = (((1,), (0,)), ((), ()))

# Functions of keyword arguments alone, and those which may not be traced.
STATIC = {
    "softmax": (
        functools.partial(jk.softmax, X),
        {"axis": 0, "tier": 1, "implementation": 1},
    ),
    "softmax-xla": (functools.partial(jk.softmax, X, implementation="xla"), {"axis": 0}),
    "softmax-axes": (functools.partial(jk.softmax, X), {"axis": (0, 1)}),
    "log_softmax": (
        functools.partial(jk.log_softmax, X),
        {"axis": [0], "tier": 1, "implementation": 1},
    ),
    "logsumexp": (
        functools.partial(jk.logsumexp, X),
        {"axis": 1, "keepdims": True, "return_sign": True, "tier": 1, "implementation": 1},
    ),
    "rms_norm": (
        functools.partial(jk.rms_norm, X),
        {"axis": 1, "epsilon": 1.0, "scale_offset": 1.0, "tier": 1, "implementation": 1},
    ),
    "cross_entropy": (
        functools.partial(jk.cross_entropy, X, 1),
        {
            "axis": 0,
            "reduction": 1,
            "return_lse": True,
            "return_entropy": True,
            "tier": 1,
            "implementation": 1,
        },
    ),
    "token_log_probs": (
        functools.partial(jk.token_log_probs, X, 1),
        {"axis": 0, "return_entropy": True, "tier": 1, "implementation": 1},
    ),
    "scores": (
        functools.partial(jk.scaled_masked_softmax, X),
        {"causal": True, "window": 3, "empty_rows": 1, "tier": 1, "implementation": 1},
    ),
    "scores-window": (functools.partial(jk.scaled_masked_softmax, X), {"window": (1, 2)}),
    "attention": (
        attention,
        {
            "is_causal": True,
            "local_window_size": 3,
            "return_residual": True,
            "empty_rows": 1,
            "implementation": 1,
        },
    ),
    "attention-window": (attention, {"local_window_size": (1, 2)}),
    "flax": (
        functools.partial(jkflax.dot_product_attention, Q, Q, Q),
        {
            "is_causal": True,
            "window": 1,
            "empty_rows": 1,
            "implementation": 1,
            "deterministic": True,
            "dropout_rate": 0.5,
            "force_fp32_for_softmax": True,
        },
    ),
    "matmul": (functools.partial(jk.matmul, X, X.T), {"algorithm": 1, "implementation": 1}),
    "dot_general": (
        functools.partial(jk.dot_general, X, X.T, NUMBERS),
        {"algorithm": 1, "implementation": 1},
    ),
    "dot_general-numbers": (
        functools.partial(jk.dot_general, X, X.T),
        {"dimension_numbers": NUMBERS},
    ),
    "linear_cross_entropy": (
        functools.partial(jk.linear_cross_entropy, X, X.T, 0),
        {
            "trans_w": False,
            "reduction": 1,
            "return_lse": True,
            "return_entropy": True,
            "dtype": 1,
            "logits_dtype": 1,
            "max_bytes": 1,
            "implementation": 1,
        },
    ),
    "linear_token_log_probs": (
        functools.partial(jk.linear_token_log_probs, X, X.T, 0),
        {"return_entropy": True, "dtype": 1, "max_bytes": 1},
    ),
    "sgemm": (
        functools.partial(jk.sgemm, X, X.T),
        {"trans_a": False, "trans_b": 0, "algorithm": 1, "implementation": 1},
    ),
}
CASES = [
    pytest.param(function, {name: value}, id=f"{case}-{name}")
    for case, (function, arguments) in STATIC.items()
    for name, value in arguments.items()
]


@pytest.mark.parametrize(("function", "argument"), CASES)
def test_a_traced_argument_is_named(function, argument):
    (name,) = argument
    with pytest.raises(ConcretizationTypeError, match=rf"{name}.*static_argnames='{name}'"):
        jax.jit(function)(**argument)


def test_every_transformation_traces():
    with pytest.raises(ConcretizationTypeError, match=r"axis.*static_argnames"):
        jax.vmap(lambda axis: jk.softmax(X, axis))(jnp.arange(2))
    with pytest.raises(ConcretizationTypeError, match=r"axis.*static_argnames"):
        jax.grad(lambda axis: jk.softmax(X, axis).sum())(0.0)


def test_a_traced_bool_raises_what_it_raises_for_jax_nn():
    for function in (jk.dot_product_attention, jax.nn.dot_product_attention):
        with pytest.raises(TracerBoolConversionError, match="is_causal"):
            jax.jit(functools.partial(function, Q, Q, Q))(is_causal=True)


def test_the_same_arguments_are_taken_as_static_ones():
    assert jax.jit(jk.softmax, static_argnames="axis")(X, axis=0).shape == X.shape
    windowed = jax.jit(jk.scaled_masked_softmax, static_argnames="window")
    assert windowed(X, window=3).shape == X.shape
    assert jk.softmax(X, axis=jnp.array(0)).shape == X.shape  # an array with a value


@pytest.mark.parametrize(
    "call",
    [
        lambda s: jk.scaled_masked_softmax(X, scale=s),
        lambda s: jk.cross_entropy(
            X, 1, label_smoothing=s, z_loss=s, temperature=s, logit_soft_cap=s, weights=s
        ),
        lambda s: attention(scale=s),
        lambda s: jkflax.dot_product_attention(Q, Q, Q, scale=s),
        lambda s: jk.sgemm(X, X.T, jnp.ones((3, 3)), alpha=s, beta=s),
    ],
)
def test_factors_may_be_traced(call):
    jax.eval_shape(jax.grad(lambda s: call(s).sum()), 2.0)
