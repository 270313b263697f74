"""Sharded attention scores: batches, heads and queries need no communication, whatever broadcasts or counts them.

Whether XLA splits a custom call or gathers its operands first cannot be seen in values, so the compiled HLO is read.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo import collectives
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from masked_cases import case

import jaxkernels as jk

pytestmark = pytest.mark.usefixtures("on_a_cpu")
B, H, Q, K = FULL = (8, 4, 16, 24)
CASE = case(FULL, "float32", mask=(B, 1, 1, K), bias=(1, H, Q, K))
X, MASK, BIAS, T = CASE.scores, CASE.mask, CASE.bias, CASE.dy


def ours(x, mask, bias, causal):
    return jk.scaled_masked_softmax(x, mask, bias, scale=0.6, causal=causal)


def compile_sharded(program, causal, mesh, spec):
    """With the mask sharded over batches as the scores are, and the bias over heads and queries."""
    batch, heads, queries, keys = (*spec, None, None, None, None)[:4]
    specs = (spec, P(batch, None, None, keys), P(None, heads, queries, keys), spec)
    arrays = [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip((X, MASK, BIAS, T), specs, strict=True)
    ]
    compiled = jax.jit(functools.partial(program, causal)).lower(*arrays).compile()
    return compiled, arrays


@pytest.mark.parametrize("spec", [P("a"), P("a", "b"), P(None, "b")], ids=str)
def test_gradient_of_a_bias_is_one_all_reduce(spec, mesh):
    """Over the batches in which the bias broadcasts; over its own heads there is nothing to sum."""

    def program(causal, x, m, b, t):
        return jax.vjp(lambda x, b: ours(x, m, b, causal), x, b)[1](t)

    compiled, arrays = compile_sharded(program, True, mesh, spec)
    text = compiled.as_text()
    assert collectives(text) == (["all-reduce"] if spec[0] == "a" else []), text
    want = jax.jit(functools.partial(program, True))(X, MASK, BIAS, T)
    for g, w in zip(compiled(*arrays), want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def test_replicated_operands(mesh):
    """A mask and a bias that every device has whole."""
    for operand, axes in ((MASK, (1, 0)), (BIAS[0, 0], (0, 1))):
        x = jax.device_put(X, NamedSharding(mesh, P("a", "b")))
        whole = jax.device_put(operand, NamedSharding(mesh, P()))
        mask, bias = (whole if use else None for use in axes)
        compiled = jax.jit(functools.partial(ours, causal=True)).lower(x, mask, bias).compile()
        assert not collectives(compiled.as_text())
        mask, bias = (operand if use else None for use in axes)
        np.testing.assert_array_equal(
            compiled(x, whole if axes[0] else None, whole if axes[1] else None),
            ours(X, mask, bias, True),
        )


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_with_sharded_queries(dtype, key_heads, mesh):
    """Every device has its queries and all keys, which groups of heads may share; nothing is sent."""
    q, k = jnp.ones((8, 16, 4, 8), dtype), jnp.ones((8, 24, key_heads, 8), dtype)
    queries = jax.device_put(q, NamedSharding(mesh, P("a", "b")))
    keys = jax.device_put(k, NamedSharding(mesh, P("a")))
    function = functools.partial(jk.dot_product_attention, is_causal=True)
    compiled = jax.jit(function).lower(queries, keys, keys).compile()
    assert not collectives(compiled.as_text())
    np.testing.assert_allclose(
        compiled(queries, keys, keys).astype(jnp.float32),
        function(q, k, k).astype(jnp.float32),
        rtol=1e-2 if dtype == "bfloat16" else 2e-6,
    )
