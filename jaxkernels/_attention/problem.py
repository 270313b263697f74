"""One call of attention as a value: its operands by name, and what a program is made for.

Owns: the order of the operands. Must not know: how attention is computed, or who computes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxkernels._rows.masked_kernels import Band


class Operands(NamedTuple):
    """The operands of attention: arrays, or their types. None is one that a call does not have.

    Attributes:
        q: (B, T, N, H).
        k: (B, S, K, H); N is a multiple of K.
        v: like k.
        bias: broadcasts to (B, N, T, S); added to the scaled scores.
        mask: bool, broadcasts to (B, N, T, S); True lets a query see a key.
        q_lengths: int32 of shape (B,): the result is 0 for later queries.
        k_lengths: int32 of shape (B,): later keys are not seen.
    """

    q: Any
    k: Any
    v: Any
    bias: Any = None
    mask: Any = None
    q_lengths: Any = None
    k_lengths: Any = None


# The operands that may be differentiated without a bias.
MOVING = ("q", "k", "v")


@dataclasses.dataclass(frozen=True)
class Call:
    """What a program is made for, beside the types of its operands.

    Attributes:
        names: of the operands that there are, in the order of `Operands`.
        scale: factor of the scores.
        band: which keys a query sees by its index.
        keeps_sums: the forward direction also gives the logarithm of the sum of each row.
        is_pinned: the user asked for cuDNN, so that its absence is an error.
    """

    names: tuple[str, ...]
    scale: float
    band: Band
    keeps_sums: bool = False
    is_pinned: bool = False

    def operands(self, values: Sequence[Any]) -> Operands:
        """Maps operand names to `values`, whose first entries are the operands that are not None."""
        return Operands(**dict(zip(self.names, values, strict=False)))


def names_of(given: Operands) -> tuple[str, ...]:
    """The names of the operands that are not None."""
    return tuple(name for name, x in given._asdict().items() if x is not None)


def present(given: Operands) -> list[Any]:
    """The operands that there are."""
    return [x for x in given if x is not None]
