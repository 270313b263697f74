"""Sharded matrix products where users say more: meshes with explicit axes, shard_map, and the older partitioner."""

import functools

import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gemm_partitioning_cases import SHARDINGS, A, B, split
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxkernels as jk

pytestmark = pytest.mark.usefixtures("on_a_cpu")


@pytest.fixture
def mesh(cpu_devices):
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=cpu_devices)


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


def test_explicit_contraction_is_ambiguous(explicit_mesh):
    """As for jnp.matmul: an error that names out_sharding, or out_sharding."""
    with jax.set_mesh(explicit_mesh):
        a, b = split(explicit_mesh, A, None, "x"), split(explicit_mesh, B, "x", None)
        with pytest.raises(Exception, match=r"(?i)ambiguous.*out_sharding"):
            jax.jit(jk.matmul)(a, b)
        out = jax.jit(functools.partial(jk.matmul, out_sharding=P("y", None)))(a, b)
        assert jax.typeof(out).sharding.spec == P("y", None)
        cases.check(out, A, B)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma, mesh):
    """Inside shard_map, rows split and weights replicated: forward, gradient, tangent."""

    def program(f):
        def local(a, b):
            gradients = jax.grad(lambda a, b: jnp.sum(jnp.sin(f(a, b))), (0, 1))(a, b)
            tangent = jax.jvp(f, (a, b), (jnp.cos(a), jnp.cos(b)))[1]
            return f(a, b), gradients[0], tangent, jax.vmap(f, (0, None))(a[:, None], b)

        return jax.jit(
            jax.shard_map(
                local, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=check_vma
            )
        )

    exact = functools.partial(jnp.matmul, precision="highest")
    for got, want in zip(program(jk.matmul)(A, B), program(exact)(A, B), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_without_shardy(mesh):
    """The older partitioner may gather, but is right."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        for spec_a, spec_b, _ in SHARDINGS.values():
            got = jax.jit(jk.matmul)(split(mesh, A, *spec_a), split(mesh, B, *spec_b))
            cases.check(got, A, B)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
