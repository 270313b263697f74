"""How a row kernel with operands that broadcast is split over devices.

Every dimension but the last ones is split as that of the first operand, without communication; in
the others a dimension of size 1 stays whole. XLA splits a custom call by itself only where all
operands have one shape (`_compat.batch_partitioning_attributes`).

Owns: the rule and the partitions. Must not know: the primitive, or what computes a local result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec


def partitioned(
    local: Callable[..., jax.Array], shapes: Sequence[tuple[int, ...]], row_dims: int
) -> Callable[..., jax.Array]:
    """`local` as a function that XLA's partitioner knows how to split.

    Args:
        local: the result of one device; it has the shape of the first operand.
        shapes: those of the operands.
        row_dims: the number of last dimensions that are needed whole.
    """
    full = shapes[0]
    rank = len(full)
    names = [
        [
            f"d{i}" if size == full_size else f"o{n}x{i}"
            for i, (size, full_size) in enumerate(zip(shape, full, strict=True))
        ]
        for n, shape in enumerate(shapes)
    ]

    def partition(mesh: Any, operands: Any, result_info: Any) -> Any:
        del result_info  # where it asks for another split than the operands give, XLA reshards
        spec = [*operands[0].sharding.spec, *[None] * rank][: rank - row_dims]
        axes = {f"d{i}": axis for i, axis in enumerate(spec)}
        shardings = tuple(
            NamedSharding(mesh, PartitionSpec(*(axes.get(name) for name in dims))) for dims in names
        )
        return mesh, local, shardings[0], shardings

    function = custom_partitioning(lambda *operands: local(*operands))
    operands = ", ".join(" ".join(dims) for dims in names)
    function.def_partition(
        partition=partition,
        sharding_rule=f"{operands} -> {' '.join(names[0])}",
        need_replication_factors=tuple(names[0][rank - row_dims :]),
    )
    return function
