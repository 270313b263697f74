"""Gives all operands of a primitive the same sharding and varying axes.

Owns: the `pcast` and `reshard` calls around a primitive. Must not know: which primitive.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxkernels._core import compat


def equalize_varying(operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Makes all operands vary over the union of their varying axes.

    Inside shard_map the operands of a primitive must vary over the same mesh axes. `pcast` has a
    transpose (a sum over those axes), so it must be applied before the primitive, not in its lowering.
    """
    union = frozenset[Any]().union(*(compat.varying_axes(x) for x in operands))
    equal = []
    for x in operands:
        missing = tuple(union - compat.varying_axes(x))
        equal.append(jax.lax.pcast(x, missing, to="varying") if missing else x)
    return equal


def equalize(operands: Sequence[jax.Array], is_of_row: Sequence[bool]) -> list[jax.Array]:
    """Makes all operands vary over the same axes, with the explicit sharding of the first.

    A dimension whose size differs from that of the first operand is not sharded, nor is the last one of
    operands that hold per-row numbers (`is_of_row`). An operand with fewer dimensions has the last ones.
    """
    first, spec = operands[0], compat.explicit_spec(operands[0])
    equal = equalize_varying(operands)
    for i, (x, of_row) in enumerate(zip(equal, is_of_row, strict=True)):
        missing = first.ndim - x.ndim
        sizes = zip(spec[missing:], x.shape, first.shape[missing:], strict=True)
        axes = [axis if size == full else None for axis, size, full in sizes]
        if of_row:
            axes[-1] = None
        own = PartitionSpec(*axes)
        if compat.explicit_spec(x) != own:
            equal[i] = compat.reshard(x, own, first)
    return equal
