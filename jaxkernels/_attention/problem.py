"""A call of attention: its operands by name, and its static parameters.

Owns: the order of the operands. Must not know: how attention is computed, or by which implementation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxkernels._rows.masked_kernels import Band


class Operands(NamedTuple):
    """The operands of attention: arrays or abstract values; absent ones are None.

    Attributes:
        q: (B, T, N, H).
        k: (B, S, K, H); N is a multiple of K.
        v: (B, S, K, H).
        bias: broadcasts to (B, N, T, S); it is added to the scaled scores.
        mask: bool, broadcasts to (B, N, T, S); True keeps a score.
        q_lengths: int32 of shape (B,); the result is 0 for later queries.
        k_lengths: int32 of shape (B,); later keys are masked.
    """

    q: Any
    k: Any
    v: Any
    bias: Any = None
    mask: Any = None
    q_lengths: Any = None
    k_lengths: Any = None


# The operands with gradients in flash attention; that of a bias needs the plain form.
MOVING = ("q", "k", "v")


@dataclasses.dataclass(frozen=True)
class Call:
    """The static parameters of a call.

    Attributes:
        names: names of the operands that are not None, in the order of `Operands`.
        scale: factor of the scores.
        band: the causal or window band of the scores.
        keeps_sums: the forward pass also returns the log-sum-exp of each row.
        is_pinned: the user asked for cuDNN, so a platform without it is an error.
        moving: names of the operands with tangents, for the tangent of a call.
    """

    names: tuple[str, ...]
    scale: float
    band: Band
    keeps_sums: bool = False
    is_pinned: bool = False
    moving: tuple[str, ...] = ()

    def operands(self, values: Sequence[Any]) -> Operands:
        """Maps operand names to `values`, whose first entries are the operands that are not None."""
        return Operands(**dict(zip(self.names, values, strict=False)))


def names_of(given: Operands) -> tuple[str, ...]:
    """The names of the operands that are not None."""
    return tuple(name for name, x in given._asdict().items() if x is not None)


def present(given: Operands) -> list[Any]:
    """The operands that are not None."""
    return [x for x in given if x is not None]
