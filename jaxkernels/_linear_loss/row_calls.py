"""The ways to call the row kernels on a chunk of logits.

Owns: the choice between them. Must not know: how logits are computed.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax

from jaxkernels._rows import calls
from jaxkernels._rows.row_kernel import RowKernel


@dataclasses.dataclass(frozen=True)
class RowCalls:
    """Calls row kernels in one way.

    Attributes:
        way: "plain", plain JAX; "primitive", which JAX can differentiate, partition and export; or
            "in_place", where the gradient overwrites the logits, which JAX cannot differentiate.
        require_kernel: see `RowKernel.__call__`.
        axes: the mesh axes over which the columns of "in_place" are sharded.
        scales: whether the kernels of "in_place" apply scales; those of a CPU do not.
    """

    way: Literal["plain", "primitive", "in_place"]
    require_kernel: bool = False
    axes: tuple[str, ...] = ()
    scales: bool = True

    def __call__(self, kernel: RowKernel, *operands: jax.Array, **attributes: Any) -> Any:
        """The result of the kernel, or the list of results."""
        if self.way == "plain":
            return kernel.reference(*operands, **attributes)
        if self.way == "primitive":
            required = self.require_kernel
            return kernel(*operands, tier="auto", require_kernel=required, **attributes)
        if self.axes:
            assert kernel.in_parts is not None
            return kernel.in_parts(operands, self.axes, in_place=True, **attributes)
        aliases = {0: 0} if kernel.operation.stores_elements else None
        return calls.rows(kernel.operation, *operands, aliases=aliases, **attributes)
