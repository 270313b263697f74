"""Operands of one primitive are spread over devices alike.

Owns: what makes them so, around a primitive. Must not know: which primitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxkernels._core import compat


def equalize_varying(operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Gives all operands the device-variance of one another.

    Inside shard_map a primitive must see operands that vary over the same mesh axes. `pcast` is an
    operation of its own, with a transpose (a sum over those axes), so it belongs here, around the
    primitive, and not in its lowering.
    """
    union = frozenset[Any]().union(*(compat.varying_axes(x) for x in operands))
    equal = []
    for x in operands:
        missing = tuple(union - compat.varying_axes(x))
        equal.append(jax.lax.pcast(x, missing, to="varying") if missing else x)
    return equal


def equalize(operands: Sequence[jax.Array], is_of_row: Sequence[bool]) -> list[jax.Array]:
    """Gives all operands the device-variance and the explicit sharding of one another.

    Args:
        operands: of one primitive. A dimension of another size than that of the first is not sharded.
        is_of_row: of each, whether it has numbers of each row in place of the last dimension.
    """
    spec = compat.explicit_spec(operands[0])
    equal = equalize_varying(operands)
    for i, (x, of_row) in enumerate(zip(equal, is_of_row, strict=True)):
        sizes = zip(spec, x.shape, operands[0].shape, strict=True)
        axes = [axis if size == full else None for axis, size, full in sizes]
        if of_row:
            axes[-1] = None
        own = PartitionSpec(*axes)
        if compat.explicit_spec(x) != own:
            equal[i] = compat.reshard(x, own, operands[0])
    return equal
