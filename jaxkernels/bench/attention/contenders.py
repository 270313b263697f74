"""What is compared: random inputs, and the functions of every contender."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench.attention import cases
from jaxkernels.bench.timing import last_level_cache_bytes, rotations_for

# What a head of depth 64 asks for.
_SCALE = 0.125

Function = Callable[..., Any]
Arguments = tuple[jax.Array, ...]


@partial(jax.jit, static_argnums=(1, 2))
def _normal(seed: int, shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Random normal numbers, drawn in float32, rounded to `dtype`."""
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


@partial(jax.jit, static_argnums=0)
def padding(shape: cases.Shape) -> jax.Array:
    """A mask (batch, 1, length, length) of sequences of random lengths, a quarter at least."""
    least = max(1, shape.length // 4)
    kept = jax.random.randint(jax.random.key(0), (shape.batch, 1, 1, 1), least, shape.length + 1)
    seen = jnp.arange(shape.length) < kept
    return jnp.broadcast_to(seen, (shape.batch, 1, shape.length, shape.length))


def _rotated(
    shape: tuple[int, ...], dtype: str, arrays: int, make: Callable[[int], Arguments]
) -> list[Arguments]:
    """As many sets of arguments as push `arrays` of a shape, what a call touches, past the cache."""
    touched = arrays * math.prod(shape) * jnp.dtype(dtype).itemsize
    count = rotations_for(touched, last_level_cache_bytes(jax.default_backend()))
    return [make(rotation) for rotation in range(count)]


def score_arguments(shape: cases.Shape, dtype: str, variant: str) -> list[Arguments]:
    """(cotangent, scores), and the mask if there is one."""
    mask = (padding(shape),) if variant == "mask" else ()

    def make(rotation: int) -> Arguments:
        drawn = (_normal(2 * rotation + i, shape.scores, dtype) for i in range(2))
        return (*drawn, *mask)

    return _rotated(shape.scores, dtype, 2, make)


def layer_arguments(shape: cases.Shape, dtype: str) -> list[Arguments]:
    """(cotangent, queries, keys, values)."""

    def make(rotation: int) -> Arguments:
        return tuple(_normal(4 * rotation + i, shape.layer, dtype) for i in range(4))

    return _rotated(shape.layer, dtype, 4, make)


def _our_softmax(variant: str, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Ours; it refuses instead of falling back to XLA."""
    return jk.scaled_masked_softmax(
        x, mask, scale=_SCALE, causal=variant == "causal", implementation="ffi"
    )


def _xla_softmax(variant: str, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """What Flax's layers do with scores, all in the type of the scores."""
    scaled = x * _SCALE
    if variant == "causal":
        row, col = (jax.lax.broadcasted_iota(jnp.int32, x.shape[-2:], axis) for axis in (0, 1))
        mask = col <= row
    if mask is not None:
        scaled = jnp.where(mask, scaled, jnp.finfo(x.dtype).min)
    return jax.nn.softmax(scaled)


def _xla_layer(
    variant: str, q: jax.Array, k: jax.Array, v: jax.Array, *, implementation: str = "xla"
) -> jax.Array:
    """jax.nn's layer; float32 at the highest precision, for its default is TF32."""
    precision = "highest" if q.dtype == jnp.float32 else "default"
    with jax.default_matmul_precision(precision):
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            is_causal=variant == "causal",
            implementation=implementation,  # type: ignore[arg-type]
        )


def _our_layer(variant: str, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Ours, as a user gets it."""
    return jk.dot_product_attention(q, k, v, is_causal=variant == "causal")


SCORES: dict[str, Function] = {"xla": _xla_softmax, "ours": _our_softmax}
LAYERS: dict[str, Function] = {"xla": _xla_layer, "ours": _our_layer}
CUDNN = partial(_xla_layer, implementation="cudnn")


def copy(_: jax.Array, x: jax.Array, *mask: jax.Array) -> jax.Array:
    """A copy of the scores, read and written once, whatever else is compared."""
    return jnp.copy(x)


def forward(function: Function, variant: str) -> Function:
    """From (cotangent, ...) to the result; the cotangent is not read."""
    return lambda _, *arguments: function(variant, *arguments)


def both(function: Function, variant: str, differentiated: int) -> Function:
    """From (cotangent, ...) to the result and the gradients of the first `differentiated`.

    The cotangent is an argument, so every contender reads it from memory.
    """

    def result_and_gradients(cotangent: jax.Array, *arguments: jax.Array) -> tuple[jax.Array, ...]:
        inputs, rest = arguments[:differentiated], arguments[differentiated:]
        y, pullback = jax.vjp(lambda *inputs: function(variant, *inputs, *rest), *inputs)
        return (y, *pullback(cotangent))

    return result_and_gradients
