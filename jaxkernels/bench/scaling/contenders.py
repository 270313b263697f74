"""What is compared: the functions, and random inputs that are born sharded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxkernels as jk

# What a head of depth 64 asks for.
_SCALE = 0.125

Function = Callable[..., Any]
Arguments = tuple[jax.Array, ...]

# Ours refuse instead of falling back to XLA.
WEAK: dict[str, Function] = {
    "softmax": partial(jk.softmax, implementation="ffi"),
    "attention": partial(jk.scaled_masked_softmax, scale=_SCALE, causal=True, implementation="ffi"),
}
_our_log_softmax = partial(jk.log_softmax, implementation="ffi")


def first_dimension(devices: Sequence[Any]) -> NamedSharding:
    """Rows, or a batch, cut over devices."""
    return NamedSharding(_mesh(devices), PartitionSpec("devices"))


def last_dimension(devices: Sequence[Any]) -> NamedSharding:
    """A vocabulary cut over devices."""
    return NamedSharding(_mesh(devices), PartitionSpec(None, "devices"))


def _mesh(devices: Sequence[Any]) -> Mesh:
    return Mesh(np.array(devices), ("devices",))


def vocabulary(sharding: NamedSharding) -> dict[str, Function]:
    """The contenders on an array of a sharding."""
    whole = partial(
        jax.lax.with_sharding_constraint, shardings=NamedSharding(sharding.mesh, PartitionSpec())
    )

    def gathered(x: jax.Array) -> jax.Array:
        # The result is held whole as well, or the gradient would gather it once more.
        return whole(_our_log_softmax(whole(x)))

    return {"gathered": gathered, "xla": jax.nn.log_softmax, "ours": _our_log_softmax}


def both(function: Function) -> Function:
    """From (x, cotangent) to the result and the gradient.

    The cotangent is an argument, so every contender reads it from memory.
    """

    def result_and_gradient(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, ...]:
        y, pullback = jax.vjp(function, x)
        return (y, *pullback(cotangent))

    return result_and_gradient


def directed(function: Function, direction: str) -> Function:
    """The function itself, or with its gradient."""
    return function if direction == "fwd" else both(function)


def compiled(function: Function, arguments: Arguments) -> jax.stages.Compiled:
    """The program whose results are sharded as the first argument is."""
    sharding = arguments[0].sharding
    return jax.jit(function, out_shardings=sharding).lower(*arguments).compile()


@cache
def _drawing(shape: tuple[int, ...], dtype: str, sharding: NamedSharding) -> Function:
    """From a seed to random normal numbers, drawn in float32; each device draws its own."""

    def draw(seed: int) -> jax.Array:
        return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)

    return jax.jit(draw, out_shardings=sharding)


def arguments(
    shape: tuple[int, ...], dtype: str, sharding: NamedSharding, direction: str, rotations: int
) -> list[Arguments]:
    """(x,) or (x, cotangent), as often as calls rotate."""
    draw, each = _drawing(shape, dtype, sharding), 1 if direction == "fwd" else 2
    return [tuple(draw(each * turn + i) for i in range(each)) for turn in range(rotations)]
