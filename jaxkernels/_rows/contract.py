"""Contracts of the row operations (the roles of operands and results, the reductions), and row kernels.

A row kernel reduces over the last axis of its operands; all other dimensions are rows.

Owns: the records read from `ffi/rows/operations.h`, and that of a kernel. Must not know: JAX's
transformations, what operations compute.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.extend.core import Primitive

from jaxkernels._core import sharding
from jaxkernels._core.registry import cpu_module
from jaxkernels.typing import Operation


class Operand(NamedTuple):
    """An operand or result of a row operation; mirrors `ffi/rows/contract.h`.

    Attributes:
        name: its name.
        role: "elements", "broadcast" (a bias), "mask", "label", "row" (per-row numbers), "scales" (the
            temperature, or temperature and soft cap, of each row) or "column" (one number per column).
        count: the size of the last dimension, for a label or per-row numbers. Rows with K labels have
            K - 1 more of each.
        is_wide: whether a single number of a row has the compute dtype, as several have.
    """

    name: str
    role: Literal["elements", "broadcast", "mask", "label", "row", "scales", "column"] = "elements"
    count: int = 1
    is_wide: bool = False

    @property
    def is_of_row(self) -> bool:
        """Whether it has numbers of each row in place of the elements."""
        return self.role in ("label", "row", "scales")


@dataclasses.dataclass(frozen=True)
class RowOperation:
    """The contract of a row operation, from its entry in `ffi/rows/operations.h`.

    Attributes:
        name: its name.
        operands: in the order of a call. A call may omit a mask and scales.
        results: in the order of a call.
        finds_max: whether it finds the maximum of a row before it sums.
        hides: whether it masks attention scores.
        sums: the number of sums over each row.
        counts_max: whether it also counts the elements equal to the maximum (not for 16-bit dtypes).
        x_if_half: for 16-bit inputs, the operation reads x instead of y, and its first sum is relative to
            the maximum of x.
        averages: whether the result follows from the means of the summed terms and from an epsilon.
        has_kernel: whether it has kernels; if not, the reference runs everywhere.
    """

    name: Any
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    finds_max: bool = False
    hides: bool = False
    sums: int = 0
    counts_max: bool = False
    x_if_half: bool = False
    averages: bool = False
    has_kernel: bool = True

    def operands_of_call(
        self, *, has_mask: bool = False, has_scales: bool = False
    ) -> tuple[Operand, ...]:
        """The operands of a call with or without a mask and scales."""
        is_given = {"mask": has_mask, "scales": has_scales}
        return tuple(x for x in self.operands if is_given.get(x.role, True))

    @property
    def inputs(self) -> int:
        """The number of operands with one element per row element."""
        return sum(x.role in ("elements", "broadcast") for x in self.operands)

    @property
    def takes_label(self) -> bool:
        """Whether it has a label, which selects a column of each row."""
        return any(x.role == "label" for x in self.operands)

    @property
    def stores_elements(self) -> bool:
        """Whether a result has one element per row element."""
        return any(x.role == "elements" for x in self.results)

    def counts_max_of(self, dtype: np.dtype) -> bool:
        """Whether it counts the elements equal to the maximum of a row of this dtype."""
        return self.counts_max and dtype.itemsize > 2

    def reads_x_for_y(self, dtype: np.dtype) -> bool:
        """Whether it reads x instead of y for this dtype."""
        return self.x_if_half and dtype.itemsize == 2

    def sums_of(self, dtype: np.dtype) -> int:
        """The number of sums over a row of this dtype, including the count of maxima."""
        return self.sums + (self.counts_max_of(dtype) or self.reads_x_for_y(dtype))

    def relative_sums_of(self, dtype: np.dtype) -> int:
        """How many of the sums, counted from the first, are relative to the maximum."""
        if self.reads_x_for_y(dtype):
            return 1
        return self.sums_of(dtype) if self.finds_max else 0


def _row_operation(name: str, table: dict[str, Any]) -> RowOperation:
    specs = {key: tuple(Operand(*x) for x in table.pop(key)) for key in ("operands", "results")}
    return RowOperation(name, **specs, **table)


OPERATIONS: dict[Operation, RowOperation] = {
    name: _row_operation(name, table) for name, table in cpu_module.row_operations().items()
}


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
        of_labels: f(call, *operands), the result for rows with several labels, or none, from
            `call(*operands)` for one label.
    """

    primitive: Primitive
    reference: Callable[..., Any]
    operation: RowOperation
    biased: RowOperation | None = None
    from_statistics: Callable[[jax.Array], jax.Array] | None = None
    in_parts: Callable[..., Any] | None = None
    of_labels: Callable[..., Any] | None = None

    def operation_of(self, *, has_bias: bool = False, **others: Any) -> RowOperation:
        """The contract of a call with these parameters."""
        del others
        return self.biased if has_bias and self.biased else self.operation

    def operands_of(
        self, *, has_mask: bool = False, has_scales: bool = False, **others: Any
    ) -> tuple[Operand, ...]:
        """The contracts of the operands of a call with these parameters."""
        operation = self.operation_of(**others)
        return operation.operands_of_call(has_mask=has_mask, has_scales=has_scales)

    def __call__(self, *operands: jax.Array, **params: Any) -> Any:
        """Applies the kernel along the last axis; returns the result, or the list of results.

        Args:
            operands: in the order of the contract. Elements have the shape (..., cols) and one dtype,
                labels the shape (..., 1), per-row numbers the shape (..., count) and that dtype or its
                compute dtype.
            params: those of the primitive. `tier` is "auto" or the tier to force. `require_kernel` raises
                at lowering on a platform without kernels, instead of running the reference. All others are
                attributes: static arguments of the reference, passed to the FFI target if it knows them.
        """
        equal = sharding.equalize(operands, [x.is_of_row for x in self.operands_of(**params)])
        return self.primitive.bind(*equal, **params)

    def for_labels(self, call: Callable[..., Any], *operands: jax.Array) -> Any:
        """`call(*operands)` for any number of labels; `call` runs the kernel, which takes one label per row."""
        if self.of_labels is None or operands[1].shape[-1] == 1:
            return call(*operands)
        return self.of_labels(call, *operands)

    def plain(
        self, *operands: jax.Array, tier: str, require_kernel: bool, **attributes: Any
    ) -> Any:
        """The reference, called with the parameters of the primitive."""
        del tier, require_kernel
        return self.reference(*operands, **attributes)
