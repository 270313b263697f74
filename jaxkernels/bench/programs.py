"""Parts of programs that several suites share: random inputs, chains, gradients, inspection."""

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from jaxkernels.bench.suite import Arguments, Function, compiled
from jaxkernels.bench.timing import last_level_cache_bytes

# The scale of a head of depth 64.
SCALE = 0.125
# Calls in a chain, enough to hide its dispatch.
CHAIN_CALLS = 64
_MAX_ROTATIONS = 16


@partial(jax.jit, static_argnums=(1, 2, 3))
def normal(
    seed: int, shape: tuple[int, ...], dtype: str = "float32", sharding: Any = None
) -> jax.Array:
    """Random normal numbers, drawn on the device in float32, rounded to `dtype`."""
    drawn = jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)
    return drawn if sharding is None else jax.lax.with_sharding_constraint(drawn, sharding)


def rotations(touched_bytes: int) -> int:
    """The number of copies of a call's data that exceed four times this platform's cache, at most 16."""
    cache = last_level_cache_bytes(jax.default_backend())
    return min(max(1, math.ceil(4 * cache / max(1, touched_bytes))), _MAX_ROTATIONS)


def draw(
    types: Sequence[jax.ShapeDtypeStruct],
    touched: int = 0,
    also: tuple[jax.Array, ...] = (),
    turns: int = 0,
) -> list[tuple[jax.Array, ...]]:
    """A tuple of random normal arrays for each rotation, all different, with further arguments.

    A call touches `touched` bytes (0: those of the arrays); 0 `turns` means `rotations` of them.
    """
    size = touched or sum(math.prod(x.shape) * x.dtype.itemsize for x in types)
    found = []
    for turn in range(turns or rotations(size)):
        seeds = enumerate(types, turn * len(types))
        arrays = [normal(seed, x.shape, x.dtype.name, x.sharding) for seed, x in seeds]
        found.append((*arrays, *also))
    return found


def chain(
    function: Callable[..., jax.Array], rounds: int = CHAIN_CALLS
) -> Callable[..., list[jax.Array]]:
    """Applies a function to tuples of arguments in turn, for several rounds.

    Each result replaces the last argument of its tuple. A barrier over all last arguments before each
    call keeps XLA from fusing or reordering calls. The chain is unrolled, because an iteration of a
    jitted loop would cost more than these kernels take.
    """

    def chained(*tuples: tuple[jax.Array, ...]) -> list[jax.Array]:
        last = [arguments[-1] for arguments in tuples]
        for _ in range(rounds):
            for i, (*others, _) in enumerate(tuples):
                last = list(jax.lax.optimization_barrier(last))
                last[i] = function(*others, last[i])
        return last

    return chained


def with_gradient(function: Callable[..., Any], differentiated: int = 1) -> Callable[..., Any]:
    """f(cotangent, ...) -> the result and the gradients of the first `differentiated` arguments.

    The cotangent is an argument, so every contender reads it from memory.
    """

    def result_and_gradients(cotangent: jax.Array, *arguments: jax.Array) -> tuple[jax.Array, ...]:
        inputs, rest = arguments[:differentiated], arguments[differentiated:]
        y, pullback = jax.vjp(lambda *inputs: function(*inputs, *rest), *inputs)
        return (y, *pullback(cotangent))

    return result_and_gradients


def of_torch(prepare: Callable[..., Callable[[], Any]]) -> Function:
    """The function to time, of JAX's arrays: it calls what `prepare(torch, *tensors)` returns.

    It raises NotImplementedError if torch cannot use the memory of JAX's device. `jax.block_until_ready`
    waits for its results.
    """
    torch: Any = importlib.import_module("torch")
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    prepared: dict[Any, Callable[[], Any]] = {}

    def call(*arguments: Any) -> SimpleNamespace:
        key = tuple(map(id, arguments))
        if key not in prepared:
            if arguments[-1].device.platform != "cpu" and not torch.cuda.is_available():
                raise NotImplementedError("torch has no CUDA")
            prepared[key] = prepare(torch, *map(torch.from_dlpack, arguments))
        return SimpleNamespace(results=prepared[key](), block_until_ready=wait)

    return call


def compiled_text(function: Any, arguments: Arguments) -> str:
    """The compiled program of a contender, as text."""
    if (text := compiled(function, arguments).as_text()) is None:
        raise NotImplementedError("this backend does not show the compiled program")
    return text


def temp_bytes(function: Any, arguments: Arguments) -> int:
    """The memory of a contender's program, in bytes, beyond arguments and results."""
    if (analysis := compiled(function, arguments).memory_analysis()) is None:
        raise NotImplementedError("this backend does not tell the memory of a program")
    return int(analysis.temp_size_in_bytes)


def relative_error(got: Sequence[jax.Array], want: Sequence[jax.Array]) -> float:
    """RelF: the norm of got - want over all arrays, relative to the norm of want."""

    def norm(arrays: Sequence[jax.Array]) -> jax.Array:
        return jnp.linalg.norm(jnp.stack([jnp.linalg.norm(x.ravel()) for x in arrays]))

    off = [x - y for x, y in zip(got, want, strict=True)]
    return float(norm(off) / norm(want))
