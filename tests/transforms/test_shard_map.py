"""Public functions inside shard_map; some of each family also without the check of what varies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ON_GPU
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from public_functions import FUNCTIONS, NAMES
from transformations import assert_same

pytestmark = pytest.mark.usefixtures("on_a_cpu", "exact_products", "small_chunks")
DEVICES = 4


def loss(f, *xs):
    return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(*xs)))


def stacked(tree):
    return jax.tree.map(lambda y: y[None], tree)


def inside(f, varying, same):
    """Results and derivatives where all operands, the first, or only the cotangent differ by device."""
    own = [x[0] for x in varying]
    mixed = [own[0], *same[1:]]
    numbers = tuple(range(len(own)))

    def gradient(*xs):
        return jax.grad(lambda *xs: loss(f, *xs), numbers)(*xs)

    def by_shared_ones(*xs):
        """The gradient of a sum over devices, as far as JAX checks what varies."""
        return jax.grad(lambda *xs: jnp.sum(own[0]) * loss(f, *xs), numbers)(*xs)

    def remat(*xs):
        return loss(jax.checkpoint(lambda *xs: f(*map(jnp.cos, xs))), *xs)

    return stacked(
        (
            f(*own),
            gradient(*own),
            gradient(*mixed),
            by_shared_ones(*same),
            jax.jvp(f, mixed, [jnp.cos(x) for x in mixed])[1],
            jax.vmap(lambda x: f(x, *same[1:]))(jnp.stack([own[0], -own[0]])),
            jax.lax.scan(lambda c, s: (c, loss(f, own[0] * s, *same[1:])), 0.0, jnp.arange(2.0))[1],
            jax.grad(remat)(*mixed),
            jax.jvp(lambda x: jax.grad(lambda x: loss(f, x, *same[1:]))(x), own[:1], own[:1])[1],
        )
    )


@pytest.mark.parametrize(
    ("name", "check_vma"),
    [*((n, True) for n in NAMES), *((n, False) for n in NAMES[:: 2 if ON_GPU else 4])],
)
def test_shard_map(name, check_vma, cpu_devices):
    mesh = jax.make_mesh(
        (DEVICES,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices[:DEVICES]
    )
    function = FUNCTIONS[name]
    operands = function.draw()
    moving, same = function.of_moving(function.ours, operands)
    peer, _ = function.of_moving(function.peer, operands)
    varying = [np.stack([x * (1 + 0.1 * i) for i in range(DEVICES)]) for x in same]
    specs = {"in_specs": (P("a"), P()), "out_specs": P("a"), "check_vma": check_vma}

    def program(f):
        shard = jax.shard_map(functools.partial(inside, f), mesh=mesh, **specs)

        def outer(same):
            whole = lambda varying, same: stacked(loss(f, varying[0][0], *same[1:]))  # noqa: E731
            return jnp.sum(jax.shard_map(whole, mesh=mesh, **specs)(varying, same))

        return shard(varying, same), jax.grad(outer)(same)

    got, want = jax.jit(lambda: [program(f) for f in (moving, peer)])()
    assert_same(got, want, 1e-5)
