"""Sharded attention scores: batches, heads and queries need no communication, whatever broadcasts or counts them.

Whether XLA splits a custom call or gathers its operands first cannot be seen in values, so the compiled HLO is read.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo import collectives, custom_calls, reduced_shapes
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from masked_cases import case

import jaxkernels as jk

pytestmark = pytest.mark.usefixtures("on_a_cpu")
B, H, Q, K = FULL = (8, 4, 16, 24)
CASE = case(FULL, "float32", mask=(B, 1, 1, K), bias=(1, H, Q, K))
X, MASK, BIAS, T = CASE.scores, CASE.mask, CASE.bias, CASE.dy


def ours(x, mask, bias, causal):
    return jk.scaled_masked_softmax(x, mask, bias, scale=0.6, causal=causal)


# Programs of (scores, mask, bias, cotangent), and how many kernels each runs.
PROGRAMS = {
    "forward": (lambda causal, x, m, b, t: ours(x, m, b, causal), 1),
    "gradient": (
        lambda causal, x, m, b, t: jax.vjp(lambda x: ours(x, m, b, causal), x)[1](t)[0],
        2,
    ),
    "tangent": (
        lambda causal, x, m, b, t: jax.jvp(lambda x: ours(x, m, b, causal), (x,), (t,))[1],
        2,
    ),
    "vmapped": (
        lambda causal, x, m, b, t: jax.vmap(
            functools.partial(ours, causal=causal), in_axes=(0, 0, None)
        )(x, m, b[0]),
        1,
    ),
}


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


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    ("spec", "causal", "local"),
    [
        (P("a"), True, "f32[2,4,16,24]"),
        (P("a", "b"), True, "f32[2,2,16,24]"),
        (P(("a", "b")), False, "f32[1,4,16,24]"),
        (P(None, "b"), True, "f32[8,2,16,24]"),
        (P("a", None, "b"), False, "f32[2,4,8,24]"),
        (P(None, "b", "a"), False, "f32[8,2,4,24]"),
    ],
    ids=str,
)
def test_sharded_matrices_run_without_collectives(name, spec, causal, local, mesh):
    """Batches and heads, and queries where no band counts them; operands that broadcast are cut where they do not."""
    program, kernels = PROGRAMS[name]
    compiled, arrays = compile_sharded(program, causal, mesh, spec)
    text = compiled.as_text()
    assert not collectives(text), text
    assert custom_calls(text) == [local] * kernels, text
    got = compiled(*arrays)
    assert got.sharding.is_equivalent_to(arrays[0].sharding, 4)
    want = jax.jit(functools.partial(program, causal))(X, MASK, BIAS, T)
    np.testing.assert_array_equal(got, want)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    ("spec", "causal", "local"),
    [
        (P("b", None, "a"), True, "f32[4,4,4,24]"),
        (P(None, "b", "a"), True, "f32[8,2,4,24]"),
        (P(None, None, ("a", "b")), True, "f32[8,4,2,24]"),
    ],
    ids=str,
)
def test_sharded_rows_of_a_band_run_without_collectives(name, spec, causal, local, mesh):
    """Where a row stands in its matrix is known when the program runs: the band becomes a mask."""
    program, kernels = PROGRAMS[name]
    compiled, arrays = compile_sharded(program, causal, mesh, spec)
    text = compiled.as_text()
    assert not collectives(text), text
    assert custom_calls(text) == [local] * kernels, text
    want = jax.jit(functools.partial(program, causal))(X, MASK, BIAS, T)
    np.testing.assert_allclose(compiled(*arrays), want, rtol=2e-6, atol=2e-6)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    ("spec", "causal", "rows"),
    [
        (P(None, None, None, "a"), False, (8, 4, 16)),
        (P(None, None, None, "a"), True, (8, 4, 16)),
        (P("a", None, None, "b"), True, (2, 4, 16)),
        (P(None, None, "a", "b"), True, (8, 4, 4)),
        (P(None, "b", None, "a"), False, (8, 2, 16)),
    ],
    ids=str,
)
def test_sharded_columns_are_distributed(name, spec, causal, rows, mesh):
    """A maximum and a sum of each row cross the network, and nothing else, whatever band, mask and bias."""
    program, kernels = PROGRAMS[name]
    compiled, arrays = compile_sharded(program, causal, mesh, spec)
    text = compiled.as_text()
    assert not set(collectives(text)) - {"all-reduce"}, text
    assert reduced_shapes(text) == [rows] * (kernels + 1), text
    assert len(custom_calls(text)) == 2 * kernels
    want = jax.jit(functools.partial(program, causal))(X, MASK, BIAS, T)
    np.testing.assert_allclose(compiled(*arrays), want, rtol=2e-6, atol=2e-6)


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


@pytest.mark.parametrize(
    "spec", [P("a"), P("a", "b"), P(None, None, "a"), P(None, None, None, "a")], ids=str
)
def test_without_shardy(spec, cpu_devices):
    """The older partitioner, GSPMD: right, and scores alone are split."""
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=cpu_devices)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        for name in ("forward", "gradient"):
            program, _ = PROGRAMS[name]
            compiled, arrays = compile_sharded(program, True, mesh, spec)
            want = jax.jit(functools.partial(program, True))(X, MASK, BIAS, T)
            np.testing.assert_array_equal(compiled(*arrays), want)
        x = jax.device_put(X, NamedSharding(mesh, P("a", "b")))
        bare = jax.jit(lambda x: ours(x, None, None, True)).lower(x).compile()
        assert not collectives(bare.as_text())
        assert custom_calls(bare.as_text()) == ["f32[2,2,16,24]"]
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma, cpu_devices):
    """Scores and mask differ between devices; the bias is the same on all, so its gradient is summed over them."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=cpu_devices)
    sharded, replicated = P("data"), P()

    def program(f):
        def result(x, m, b):
            return jnp.sin(f(x, m, b))

        shard = jax.shard_map(
            result,
            mesh=mesh,
            in_specs=(sharded, sharded, replicated),
            out_specs=sharded,
            check_vma=check_vma,
        )

        def outer(x, b, m, t):
            return jnp.sum(shard(x, m, b) * t)

        def inner(x, m, b, t):
            return jax.grad(lambda x: jnp.sum(result(x, m, b) * t))(x)

        inner = jax.shard_map(
            inner,
            mesh=mesh,
            in_specs=(sharded, sharded, replicated, sharded),
            out_specs=sharded,
            check_vma=check_vma,
        )
        return jax.jit(
            lambda x, m, b, t: (
                shard(x, m, b),
                jax.grad(outer, (0, 1))(x, b, m, t),
                inner(x, m, b, t),
                jax.grad(lambda x: jnp.sum(jax.grad(outer)(x, b, m, t) ** 2))(x),
            )
        )

    x, m, t = (jax.device_put(a, NamedSharding(mesh, sharded)) for a in (X, MASK, T))
    got = program(functools.partial(ours, causal=True))(x, m, BIAS, t)

    def whole(x, m, b, t):
        def loss(x, b):
            return jnp.sum(jnp.sin(ours(x, m, b, True)) * t)

        return (
            jnp.sin(ours(x, m, b, True)),
            jax.grad(loss, (0, 1))(x, b),
            jax.grad(loss)(x, b),
            jax.grad(lambda x: jnp.sum(jax.grad(loss)(x, b) ** 2))(x),
        )

    want = jax.jit(whole)(X, MASK, BIAS, T)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


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
