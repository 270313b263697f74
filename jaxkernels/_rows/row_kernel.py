"""A row kernel: its operands, results, and attributes of the FFI call.

A row kernel reduces over the last axis of its operands; all other dimensions are rows. The contract of
its operation (`contract.RowOperation`) lists its operands and results with their roles.

Owns: the record of a kernel. Must not know: JAX's transformations, what operations compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from jaxkernels._core import sharding
from jaxkernels._core.registry import UNBOUNDED
from jaxkernels._rows.contract import Operand, RowOperation
from jaxkernels._rows.reference import compute_dtype

Reference = Callable[..., Any]
# f(**attributes) -> the contract of the call.
OperationOf = Callable[..., RowOperation]
# f(operands, place, **attributes) -> (operands, attributes) of the call on one device's shard, whose
# offset in the whole matrix is `place`.
AtPlace = Callable[..., tuple[list[jax.Array], dict[str, Any]]]
# f(operands, axes, **attributes) -> results for rows that are sharded over mesh axes.
InParts = Callable[..., Any]


# Defaults of the FFI target's attributes, besides operation and tier.
_WITHOUT = {
    "scale": 1.0,
    "left": -UNBOUNDED,
    "right": UNBOUNDED,
    "from_end": False,
    "has_mask": False,
    "all_sums": False,
}


@dataclasses.dataclass(frozen=True)
class RowKernel:
    """A row kernel as a function of JAX arrays.

    Attributes:
        primitive: the JAX primitive.
        reference: the same function of operands and attributes in plain JAX.
        results: the contracts of the results. Per-row results have the compute dtype, unless the
            reference has a static argument `wide` and it is False: then they have that of the first
            operand.
        operation: maps the attributes of a call to the contract of its operation.
        row_dims: maps the attributes of a call to the number of last dimensions that must be whole and
            in order: 1, or 2 if a row's result depends on its index in its matrix.
        at_place: f(operands, place, **attributes) for a shard of a matrix; None if `row_dims` is never 2.
        in_parts: f(operands, axes, **attributes) for column-sharded rows; None uses `parts.apply`.
    """

    primitive: Primitive
    reference: Reference
    results: tuple[Operand, ...]
    operation: OperationOf
    row_dims: Callable[..., int]
    at_place: AtPlace | None
    in_parts: InParts | None

    def operands_of(self, *, has_mask: bool = False, **attributes: Any) -> tuple[Operand, ...]:
        """The contracts of the operands of a call."""
        return self.operation(**attributes).operands_of_call(has_mask=has_mask)

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

    def call_attributes(self, tier: str, **attributes: Any) -> dict[str, Any]:
        """The attributes of the FFI call."""
        known = {name: attributes.get(name, value) for name, value in _WITHOUT.items()}
        return {"operation": self.operation(**attributes).name, "tier": tier, **known}

    def dtype_of_elements(self, first: Any, **attributes: Any) -> Any:
        """The dtype of elementwise results: `result_dtype`, or that of the first operand."""
        return jnp.dtype(attributes.get("result_dtype") or first.dtype)

    def dtype_of_scalars(self, first: Any, **attributes: Any) -> Any:
        """The dtype of per-row results, from the first operand and the attribute `wide`."""
        return compute_dtype(first) if attributes.get("wide", True) else first.dtype
