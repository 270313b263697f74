"""A call of attention: its operands by name, its static parameters, and what its lengths mask.

Owns: the order of the operands. Must not know: how attention is computed, or by which implementation.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxkernels._rows.masked_kernels import Band


class Operands(NamedTuple):
    """The operands of attention: arrays or abstract values; absent ones are None."""

    q: Any  # (B, T, N, H)
    k: Any  # (B, S, K, H); N is a multiple of K
    v: Any  # (B, S, K, H), or another depth
    bias: Any = None  # broadcasts to (B, N, T, S); it is added to the scaled scores
    mask: Any = None  # bool, broadcasts to (B, N, T, S); True keeps a score
    q_lengths: Any = None  # int32 of shape (B,); the result is 0 for later queries
    k_lengths: Any = None  # int32 of shape (B,); later keys are masked

    def names(self) -> tuple[str, ...]:
        """The names of the operands that are not None."""
        return tuple(name for name, x in self._asdict().items() if x is not None)

    def sizes(self) -> tuple[Any, ...]:
        """(B, T, S, N, K, H), for values of another depth the larger one."""
        (batch, t, heads, depth), (_, s, key_heads, of_values) = self.q.shape, self.v.shape
        depth = depth if depth == of_values else max(depth, of_values)
        return (batch, t, s, heads, key_heads, depth)


# The operands with gradients in flash attention. In 16 bits the plain form computes that of a bias.
MOVING = ("q", "k", "v")
# Finite values that cuDNN adds to masked scores, as in jax.nn; the exponential becomes 0. A bias of this
# value or less masks a score too.
HIDDEN = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}


@dataclasses.dataclass(frozen=True)
class Call:
    """The static parameters of a call."""

    names: tuple[str, ...]  # of the operands that are not None, in the order of `Operands`
    scale: float  # factor of the scores
    band: Band  # the causal or window band of the scores
    # The forward pass also returns the log-sum-exp of each row, (B, N, T); in float32 two numbers of it
    # (m, l), (B, N, T, 2): a probability is exp2(log2(e) score - m) / l.
    keeps_sums: bool = False
    pinned: str | None = None  # the implementation that the user asked for; to lack it is an error
    moving: tuple[str, ...] = ()  # the operands with tangents, for the tangent of a call

    @property
    def cotangents(self) -> tuple[str, ...]:
        """The operands whose cotangents the backward pass computes."""
        return (*MOVING, "bias") if "bias" in self.moving else MOVING

    def operands(self, values: Sequence[Any]) -> Operands:
        """Maps operand names to `values`, whose first entries are the operands that are not None."""
        return Operands(**dict(zip(self.names, values, strict=False)))


def present(given: Operands) -> list[Any]:
    """The operands that are not None."""
    return [x for x in given if x is not None]


def both(a: jax.Array | None, b: jax.Array | None) -> jax.Array | None:
    """The conjunction of two masks; None masks nothing."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def within(lengths: jax.Array | None, size: int, new_dims: tuple[int, int]) -> jax.Array | None:
    """A mask of the indices below `size` that are below the lengths (B,), with two dimensions added."""
    if lengths is None:
        return None
    places = jnp.arange(size, dtype=lengths.dtype)
    return jnp.expand_dims(places[None, :] < lengths[:, None], new_dims)
