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

ROWS = "tier implementation"
PRODUCTS = "algorithm implementation"
LINEAR = "return_entropy dtype max_bytes implementation"
# Functions of keyword arguments alone, and the names of those which may not be traced.
STATIC = {
    "softmax": (functools.partial(jk.softmax, X), f"axis {ROWS}"),
    "softmax-xla": (functools.partial(jk.softmax, X, implementation="xla"), "axis"),
    "log_softmax": (functools.partial(jk.log_softmax, X), f"axis {ROWS}"),
    "logsumexp": (functools.partial(jk.logsumexp, X), f"axis keepdims return_sign {ROWS}"),
    "rms_norm": (functools.partial(jk.rms_norm, X), f"axis epsilon scale_offset {ROWS}"),
    "cross_entropy": (
        functools.partial(jk.cross_entropy, X, 1),
        f"axis reduction return_lse return_entropy {ROWS}",
    ),
    "token_log_probs": (
        functools.partial(jk.token_log_probs, X, 1),
        f"axis return_entropy {ROWS}",
    ),
    "scores": (
        functools.partial(jk.scaled_masked_softmax, X),
        f"causal window empty_rows {ROWS}",
    ),
    "attention": (
        attention,
        "is_causal local_window_size return_residual empty_rows implementation",
    ),
    "flax": (
        functools.partial(jkflax.dot_product_attention, Q, Q, Q),
        "is_causal window empty_rows implementation deterministic dropout_rate force_fp32_for_softmax",
    ),
    "matmul": (functools.partial(jk.matmul, X, X.T), PRODUCTS),
    "dot_general": (functools.partial(jk.dot_general, X, X.T, dimension_numbers=NUMBERS), PRODUCTS),
    "linear_cross_entropy": (
        functools.partial(jk.linear_cross_entropy, X, X.T, 0),
        f"trans_w reduction return_lse logits_dtype {LINEAR}",
    ),
    "linear_token_log_probs": (functools.partial(jk.linear_token_log_probs, X, X.T, 0), LINEAR),
    "sgemm": (functools.partial(jk.sgemm, X, X.T), f"trans_a trans_b {PRODUCTS}"),
}
CASES = [
    *((case, name, 1) for case, (_, names) in STATIC.items() for name in names.split()),
    *(("softmax", "axis", (0, 1)), ("log_softmax", "axis", [0])),
    *(("scores", "window", (1, 2)), ("attention", "local_window_size", (1, 2))),
    ("dot_general", "dimension_numbers", NUMBERS),
]


@pytest.mark.parametrize(("case", "name", "value"), CASES)
def test_a_traced_argument_is_named(case, name, value):
    with pytest.raises(ConcretizationTypeError, match=rf"{name}.*static_argnames='{name}'"):
        jax.jit(STATIC[case][0])(**{name: value})


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
