"""What a row kernel is: its operands and results, and the call of the FFI target.

A row kernel reduces over the last axis of its operands; all other dimensions are rows. The contract of
its operation (`registry.RowOperation`) names its operands and results, each with a role.

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
# From the attributes of a call to the operation that it is.
OperationOf = Callable[..., RowOperation]
# f(operands, place, **attributes) -> operands, attributes: the call of one device, given where its
# part lies in the whole arrays.
AtPlace = Callable[..., tuple[list[jax.Array], dict[str, Any]]]
# f(operands, axes, **attributes) -> results: of rows that are spread over mesh axes.
InParts = Callable[..., Any]


# The attributes of the FFI target, besides operation and tier, as they are where a kernel has none of
# them.
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
        primitive: what JAX traces.
        reference: the same function in plain JAX, of the operands and the attributes.
        results: the contracts of its results. A static argument of the reference, `wide`, says whether
            numbers of each row have the dtype of the first operand or, as they do without it, the one
            that this is computed in.
        operation: from the attributes of a call to the contract of the operation that it is.
        row_dims: from the attributes of a call to the number of last dimensions that it needs whole
            and in their order: 1, or 2 where it matters at which place of its matrix a row stands.
        at_place: what to run on a part of a matrix where it matters where it lies; None if it never
            does.
        in_parts: what to run on rows that are spread over mesh axes, f(operands, axes, **attributes);
            None for the two parts of the operation.
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
            operands: in the order of the contract: elements of shape (..., cols), all of one shape and
                dtype; labels of shape (..., 1); numbers of each row of shape (..., count), of that dtype
                or the one that it is computed in.
            tier: "auto", or the tier to force.
            require_kernel: a platform without kernels is an error when lowering, instead of a
                reason to run the reference.
            attributes: static arguments of the reference. Those that the FFI target knows are given
                to it, too.

        Returns:
            The result, or a list of both.
        """
        specs = self.operands_of(**attributes)
        equal = sharding.equalize(operands, [spec.is_of_row for spec in specs])
        return self.primitive.bind(*equal, tier=tier, require_kernel=require_kernel, **attributes)

    def call_attributes(self, tier: str, **attributes: Any) -> dict[str, Any]:
        """The attributes of the call of the FFI target."""
        known = {name: attributes.get(name, value) for name, value in _WITHOUT.items()}
        return {"operation": self.operation(**attributes).name, "tier": tier, **known}

    def dtype_of_elements(self, first: Any, **attributes: Any) -> Any:
        """The dtype of the result of the full shape, from its first operand.

        A static argument of the reference, `result_dtype`, may name another one.
        """
        return jnp.dtype(attributes.get("result_dtype") or first.dtype)

    def dtype_of_scalars(self, first: Any, **attributes: Any) -> Any:
        """The dtype of the row scalars that it stores, from its first operand."""
        return compute_dtype(first) if attributes.get("wide", True) else first.dtype
