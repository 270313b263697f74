"""A row kernel: its operation, its reference, and its form for column-sharded rows.

A row kernel reduces over the last axis of its operands; all other dimensions are rows. The contract of
its operation (`contract.RowOperation`) lists its operands and results with their roles.

Owns: the record of a kernel. Must not know: JAX's transformations, what operations compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive

from jaxkernels._core import sharding
from jaxkernels._rows.contract import Operand, RowOperation

Reference = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class RowKernel:
    """A row kernel as a function of JAX arrays.

    Attributes:
        primitive: the JAX primitive.
        reference: the same function of operands and attributes in plain JAX.
        operation: the contract.
        biased: the contract of a call with the attribute `has_bias`; its results are those of `operation`.
        from_statistics: for per-row results, a function of the statistics of whole rows,
            (..., {maximum, sums}).
        in_parts: f(operands, axes, **attributes) for column-sharded rows; None uses `calls.in_parts`.
    """

    primitive: Primitive
    reference: Reference
    operation: RowOperation
    biased: RowOperation | None = None
    from_statistics: Callable[[jax.Array], jax.Array] | None = None
    in_parts: Callable[..., Any] | None = None

    def operation_of(self, *, has_bias: bool = False, **others: Any) -> RowOperation:
        """The contract of a call with these attributes."""
        del others
        return self.biased if has_bias and self.biased else self.operation

    def operands_of(
        self, *, has_mask: bool = False, has_scales: bool = False, **attributes: Any
    ) -> tuple[Operand, ...]:
        """The contracts of the operands of a call."""
        operation = self.operation_of(**attributes)
        return operation.operands_of_call(has_mask=has_mask, has_scales=has_scales)

    def __call__(
        self, *operands: jax.Array, tier: str, require_kernel: bool, **attributes: Any
    ) -> Any:
        """Applies the kernel along the last axis.

        Args:
            operands: in the order of the contract. Elements have the shape (..., cols) and one dtype,
                labels the shape (..., 1), per-row numbers the shape (..., count) and that dtype or its
                compute dtype.
            tier: "auto", or the tier to force.
            require_kernel: raises at lowering on a platform without kernels, instead of running the
                reference.
            attributes: static arguments of the reference; those that the FFI target knows are passed to
                it too.

        Returns:
            The result, or the list of results.
        """
        specs = self.operands_of(**attributes)
        equal = sharding.equalize(operands, [spec.is_of_row for spec in specs])
        return self.primitive.bind(*equal, tier=tier, require_kernel=require_kernel, **attributes)


def without_options(*, tier: str, require_kernel: bool, **attributes: Any) -> dict[str, Any]:
    """The parameters of a primitive that its reference has too."""
    del tier, require_kernel
    return attributes
