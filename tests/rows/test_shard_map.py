"""Both operations inside shard_map, with and without the check of replication (vma)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairs import T, X, both, loss, remat

AUTO = jax.sharding.AxisType.Auto


@pytest.mark.half_on_a_cpu
@both
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    "name", ["eager", "grad", "jvp", "vmap-axis-0", "scan", "remat-grad", "hessian"]
)
def test_shard_map(ours, peer, name, check_vma, cpu_devices):
    """Inside shard_map, over a varying operand, with and without the check of replication."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,), devices=cpu_devices)
    spec = jax.sharding.PartitionSpec("data")
    x = jax.device_put(np.stack([X + i for i in range(8)]), jax.sharding.NamedSharding(mesh, spec))

    def local(f, x):
        transform = {
            "eager": lambda x: f(x),
            "grad": jax.grad(functools.partial(loss, f)),
            "jvp": lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1],
            "vmap-axis-0": jax.vmap(f),
            "scan": lambda x: jax.lax.scan(lambda c, r: (c, f(r)), 0, x)[1],
            "remat-grad": jax.grad(lambda x: jnp.sum(remat(f, x))),
            "hessian": lambda x: jax.hessian(functools.partial(loss, f))(x[0, 0, 0])[None],
        }[name]
        return transform(x)

    def program(f):
        body = functools.partial(local, f)
        return jax.jit(
            jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
        )

    np.testing.assert_allclose(program(ours)(x), program(peer)(x), rtol=2e-6, atol=2e-5)


@both
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_with_a_replicated_operand(ours, peer, check_vma, cpu_devices):
    """x is the same everywhere and the cotangent is not: the gradient of x is a sum over devices."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,), devices=cpu_devices)
    replicated, sharded = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("data")
    t = np.stack([T[0] + i for i in range(8)])

    def program(f):
        def outer(x, t):
            shard = jax.shard_map(
                lambda x, t: f(x)[None] * t,
                mesh=mesh,
                in_specs=(replicated, sharded),
                out_specs=sharded,
                check_vma=check_vma,
            )
            return jnp.sum(shard(x, t))

        return jax.jit(jax.grad(outer))

    with jax.default_device(cpu_devices[0]):
        np.testing.assert_allclose(
            program(ours)(X[0], t), program(peer)(X[0], t), rtol=2e-6, atol=2e-5
        )


@both
def test_shard_map_with_an_inner_gradient(ours, peer, cpu_devices):
    """jax.grad inside shard_map with a replicated parameter and a varying cotangent."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,), devices=cpu_devices)
    replicated, sharded = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("data")
    t = np.stack([T[0] + i for i in range(8)])

    def program(f):
        def body(x, t):
            return jax.grad(lambda x: jnp.sum(f(x) * t[0]))(x)

        return jax.jit(
            jax.shard_map(body, mesh=mesh, in_specs=(replicated, sharded), out_specs=replicated)
        )

    with jax.default_device(cpu_devices[0]):
        np.testing.assert_allclose(
            program(ours)(X[0], t), program(peer)(X[0], t), rtol=2e-6, atol=2e-5
        )


def test_kernels_of_a_replicated_and_a_varying_operand(cpu_devices):
    """Two operands that vary over different mesh axes: the result varies over both, and its gradients have the
    types of the operands, so that that of the replicated one is summed over the devices.
    """
    from jaxkernels._rows import reference, softmax

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,), devices=cpu_devices)
    y, t = jax.nn.softmax(X[0]), np.stack([T[0] + i for i in range(8)])
    options = {"tier": "auto", "require_kernel": False}

    def body(y, t):
        dx = softmax.softmax_grad(y, t[0], **options)
        assert jax.typeof(dx).manual_axis_type.varying == {"data"}
        _, pull = jax.vjp(lambda t: softmax.softmax_grad(y, t, **options), t[0])
        return dx[None], pull(dx)[0][None]

    specs = (jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("data"))
    shard = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(specs[1], specs[1]))
    with jax.default_device(cpu_devices[0]):
        dx, back = jax.jit(shard)(y, t)
    want = np.stack([reference.softmax_grad(y, row) for row in t])
    np.testing.assert_allclose(dx, want, rtol=2e-6, atol=2e-6)
    twice = np.stack([reference.softmax_grad(y, row) for row in want])
    np.testing.assert_allclose(back, twice, rtol=2e-6, atol=2e-6)
