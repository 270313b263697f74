"""Arguments that decide which program is made: traced, they raise what JAX raises, and the text says what to do."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import pytest
from jax.errors import ConcretizationTypeError, TracerBoolConversionError
from wrong_arguments import WRONG

import jaxkernels as jk

# Calls whose further arguments may not be traced, except those of the two sets below.
CALLS = {
    name: functools.partial(function, **arguments)
    for name, (function, arguments, _) in WRONG.items()
    if not re.search("plan|float32_matmuls|optax|64|attention-|entropy-2", name)
}
CALLS["softmax-xla"] = functools.partial(CALLS["softmax"], implementation="xla")
X, NUMBERS = WRONG["softmax"][1]["x"], WRONG["dot_general"][1]["dimension_numbers"]
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
    *(("scaled_masked_softmax", "window", (1, 2)), ("attention", "local_window_size", (1, 2))),
    *(("logsumexp", "axis", 1), ("dot_general", "dimension_numbers", NUMBERS)),
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
    heads = CALLS["attention"].keywords
    for function in (jk.dot_product_attention, jax.nn.dot_product_attention):
        with pytest.raises(TracerBoolConversionError, match="is_causal"):
            jax.jit(functools.partial(function, **heads))(is_causal=True)


def test_the_same_arguments_are_taken_as_static_ones():
    assert jax.jit(jk.softmax, static_argnames="axis")(X, axis=0).shape == X.shape
    windowed = jax.jit(jk.scaled_masked_softmax, static_argnames="window")
    assert windowed(X, window=3).shape == X.shape
    assert jk.softmax(X, axis=jnp.array(0)).shape == X.shape  # an array with a value


@pytest.mark.parametrize("name", ["attention", "flax"])
def test_scales_may_be_traced(name):
    """As may the factors that are operands in the table of functions."""
    jax.eval_shape(jax.grad(lambda s: CALLS[name](scale=s).sum()), 2.0)
