"""What the programs of several suites are made of: random inputs, chains, gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxkernels.bench.timing import last_level_cache_bytes, rotations_for

# What a head of depth 64 asks for.
SCALE = 0.125
# Calls in a chain: enough to hide its dispatch.
CHAIN_CALLS = 64


@partial(jax.jit, static_argnums=(1, 2))
def normal(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> jax.Array:
    """Random normal numbers, drawn on the device in float32, rounded to `dtype`."""
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def rotations(touched_bytes: int) -> int:
    """How many copies of what a call touches push it past this platform's cache."""
    return rotations_for(touched_bytes, last_level_cache_bytes(jax.default_backend()))


def draw_normal(shape: tuple[int, ...], dtype: str, arrays: int, count: int) -> list[tuple]:
    """So many tuples of as many arrays of random normal numbers, all different."""
    return [
        tuple(normal(arrays * turn + i, shape, dtype) for i in range(arrays))
        for turn in range(count)
    ]


def chain(
    function: Callable[..., jax.Array], rounds: int = CHAIN_CALLS
) -> Callable[..., list[jax.Array]]:
    """Applies a function to tuples of arguments in turn, round after round.

    A result takes the place of its tuple's last argument. The barrier before each call holds all of
    those, so that it waits for the call before it and XLA can neither fuse nor reorder the two. The
    chain is unrolled, because each turn of a jitted loop would cost more than these kernels take.
    """

    def chained(*tuples: tuple[jax.Array, ...]) -> list[jax.Array]:
        last = [arguments[-1] for arguments in tuples]
        for _ in range(rounds):
            for i, (*others, _) in enumerate(tuples):
                last = list(jax.lax.optimization_barrier(last))
                last[i] = function(*others, last[i])
        return last

    return chained


def forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """From (cotangent, ...) to the result; the cotangent is not read."""
    return lambda _, *arguments: function(*arguments)


def with_gradient(function: Callable[..., Any], differentiated: int = 1) -> Callable[..., Any]:
    """From (cotangent, ...) to the result and the gradients of the first `differentiated`.

    The cotangent is an argument, so every contender reads it from memory.
    """

    def result_and_gradients(cotangent: jax.Array, *arguments: jax.Array) -> tuple[jax.Array, ...]:
        inputs, rest = arguments[:differentiated], arguments[differentiated:]
        y, pullback = jax.vjp(lambda *inputs: function(*inputs, *rest), *inputs)
        return (y, *pullback(cotangent))

    return result_and_gradients


def temp_bytes(function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """Temporary memory of the compiled program of a jitted function, beyond arguments and results."""
    analysis = function.lower(*arguments).compile().memory_analysis()  # pyright: ignore[reportFunctionMemberAccess]
    if analysis is None:
        raise NotImplementedError("this backend does not tell")
    return int(analysis.temp_size_in_bytes)
