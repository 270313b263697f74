"""Arguments that decide which program is made: traced, they raise what JAX raises, and the text says what to do."""

import functools
import inspect

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

# Calls whose further arguments may not be traced, except those of the two sets below.
CALLS = {
    "softmax": functools.partial(jk.softmax, X),
    "softmax-xla": functools.partial(jk.softmax, X, implementation="xla"),
    "log_softmax": functools.partial(jk.log_softmax, X),
    "logsumexp": functools.partial(jk.logsumexp, X),
    "rms_norm": functools.partial(jk.rms_norm, X),
    "cross_entropy": functools.partial(jk.cross_entropy, X, 1),
    "softmax_kl_divergence": functools.partial(jk.softmax_kl_divergence, X, X),
    "token_log_probs": functools.partial(jk.token_log_probs, X, 1),
    "scores": functools.partial(jk.scaled_masked_softmax, X),
    "attention": attention,
    "flax": functools.partial(jkflax.dot_product_attention, Q, Q, Q),
    "matmul": functools.partial(jk.matmul, X, X.T),
    "dot_general": functools.partial(jk.dot_general, X, X.T, dimension_numbers=NUMBERS),
    "linear_cross_entropy": functools.partial(jk.linear_cross_entropy, X, X.T, 0),
    "linear_token_log_probs": functools.partial(jk.linear_token_log_probs, X, X.T, 0),
    "sgemm": functools.partial(jk.sgemm, X, X.T),
}
MAY_BE_TRACED = {
    *("where", "mask", "bias", "b", "c", "scale", "weights", "alpha", "beta", "dropout_rng"),
    *("label_smoothing", "z_loss", "temperature", "logit_soft_cap"),
    *("query_seq_lengths", "key_value_seq_lengths"),
}
# JAX or Flax check these.
OF_OTHERS = {
    *("initial", "precision", "preferred_element_type", "out_sharding", "other_dtypes", "module"),
    *("broadcast_dropout", "promote_dtype", "einsum_dot_general", "qk_attn_weights_einsum"),
    *("attn_weights_value_einsum", "dtype of flax", "tier of softmax-xla"),
}
CASES = [
    *(
        (case, name, 1)
        for case, call in CALLS.items()
        for name in inspect.signature(call).parameters
        if not {name, f"{name} of {case}"} & (MAY_BE_TRACED | OF_OTHERS)
        and name not in (call.keywords or {})
    ),
    *(("softmax", "axis", (0, 1)), ("log_softmax", "axis", [0])),
    *(("scores", "window", (1, 2)), ("attention", "local_window_size", (1, 2))),
    ("dot_general", "dimension_numbers", NUMBERS),
]


@pytest.mark.parametrize(("case", "name", "value"), CASES)
def test_a_traced_argument_is_named(case, name, value):
    with pytest.raises(ConcretizationTypeError, match=rf"{name}.*static_argnames='{name}'"):
        jax.jit(CALLS[case])(**{name: value})


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
        lambda s: jk.cross_entropy(X, 1, logit_soft_cap=s),
        lambda s: attention(scale=s),
        lambda s: jkflax.dot_product_attention(Q, Q, Q, scale=s),
    ],
)
def test_factors_may_be_traced(call):
    """As may those that are operands in the table of functions."""
    jax.eval_shape(jax.grad(lambda s: call(s).sum()), 2.0)
