"""Sharded matrix products where users say more: meshes with explicit axes, shard_map, and the older partitioner."""

import functools

import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gemm_partitioning_cases import A, B, split
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxkernels as jk

pytestmark = pytest.mark.usefixtures("on_a_cpu")


@pytest.fixture
def explicit_mesh(cpu_devices):
    return jax.make_mesh(
        (4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=cpu_devices
    )


def test_explicit_axes(explicit_mesh):
    """The result's type says how it is sharded; derivatives and dot_general follow."""
    with jax.set_mesh(explicit_mesh):
        a, b = split(explicit_mesh, A, "x", None), split(explicit_mesh, B, None, "y")
        product = jax.jit(jk.matmul)(a, b)
        assert jax.typeof(product).sharding.spec == P("x", "y")
        cases.check(product, A, B)
        gradient = jax.jit(jax.grad(lambda a: jnp.sum(jk.matmul(a, split_b) ** 2)))
        split_b = split(explicit_mesh, B)
        got = gradient(a)
        assert jax.typeof(got).sharding.spec == P("x", None)
        want = 2 * (A.astype(np.float64) @ B) @ B.T.astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("specs", [(("x", None), (None, None)), (("x", None), (None, "y"))])
def test_explicit_data_parallel_gradients(specs, explicit_mesh):
    """The gradient of the weights contracts over the sharded rows; it is sharded like the weights."""

    def gradients(f, a, b):
        return jax.jit(jax.grad(lambda a, b: jnp.sum(f(a, b) ** 2), (0, 1)))(a, b)

    want = gradients(functools.partial(jnp.matmul, precision="highest"), A, B)
    with jax.set_mesh(explicit_mesh):
        a, b = (split(explicit_mesh, x, *spec) for x, spec in zip((A, B), specs, strict=True))
        for got, expected, x in zip(gradients(jk.matmul, a, b), want, (a, b), strict=True):
            assert jax.typeof(got).sharding.spec == jax.typeof(x).sharding.spec
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("specs", [(("x", None), (None, None)), (("x", None), (None, "y"))])
def test_placed_on_explicit_axes_without_set_mesh(specs, explicit_mesh):
    """The mesh is in the types of the arrays that were placed on it, and not in those of constants."""

    def programs(f, a, b):
        gradients = jax.grad(lambda a, b: jnp.sum(f(a, b) ** 2), (0, 1))
        ones = np.ones((3, A.shape[1]), np.float32)
        return jax.jit(gradients)(a, b), f(a, b), jax.jit(lambda b: f(ones, b))(b)

    exact = functools.partial(jnp.matmul, precision="highest")
    a, b = (split(explicit_mesh, x, *spec) for x, spec in zip((A, B), specs, strict=True))
    got, want = (jax.tree.leaves(programs(f, a, b)) for f in (jk.matmul, exact))
    for ours, theirs in zip(got, want, strict=True):
        assert jax.typeof(ours).sharding.spec == jax.typeof(theirs).sharding.spec
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


def test_constants_beside_scores_on_explicit_axes(explicit_mesh):
    """The mask and the bias are not on the mesh."""
    scores = split(explicit_mesh, np.ones((4, 2, 6, 8), np.float32), "x", "y", None, None)
    mask, bias = jnp.arange(8) < jnp.full((4, 2, 6, 1), 4), jnp.ones((2, 1, 8))
    y = jax.jit(lambda s: jk.scaled_masked_softmax(s, mask, bias=bias))(scores)
    assert jax.typeof(y).sharding.spec == P("x", "y", None, None)
    np.testing.assert_allclose(y, jnp.where(mask, 0.25, 0.0), rtol=1e-6)


def test_batched_contraction_takes_out_sharding(explicit_mesh):
    """As jnp.matmul does; a kernel cannot, and says so."""
    a = split(explicit_mesh, np.ones((2, 6, 8), np.float32), None, None, "x")
    b = split(explicit_mesh, np.ones((2, 8, 4), np.float32), None, "x", None)
    out = jax.jit(functools.partial(jk.matmul, out_sharding=P(None, "y", None)))
    with jax.set_mesh(explicit_mesh):
        product = out(a, b)
        assert jax.typeof(product).sharding.spec == P(None, "y", None)
        np.testing.assert_allclose(product, np.full((2, 6, 4), 8.0))
        with pytest.raises(NotImplementedError, match=r"only XLA's product supports"):
            jk.matmul(a, b, out_sharding=P(), implementation="ffi")


def test_explicit_contraction_is_ambiguous(explicit_mesh):
    """As for jnp.matmul: an error that names out_sharding, or out_sharding."""
    with jax.set_mesh(explicit_mesh):
        a, b = split(explicit_mesh, A, None, "x"), split(explicit_mesh, B, "x", None)
        with pytest.raises(Exception, match=r"(?i)ambiguous.*out_sharding"):
            jax.jit(jk.matmul)(a, b)
        out = jax.jit(functools.partial(jk.matmul, out_sharding=P("y", None)))(a, b)
        assert jax.typeof(out).sharding.spec == P("y", None)
        cases.check(out, A, B)
