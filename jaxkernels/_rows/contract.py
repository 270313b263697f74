"""The contracts of the row operations: their operands and results by role, and how they reduce a row.

Owns: the records that are read from `ffi/rows/operations.h`. Must not know: what operations compute.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxkernels._core.registry import cpu_module
from jaxkernels.typing import Operation


class Operand(NamedTuple):
    """An operand or a result of a row operation, as `ffi/rows/contract.h` has it.

    Attributes:
        name: its name.
        role: "elements", "broadcast" (a bias), "mask", "label" or "row" (numbers of each row).
        count: the size of the last dimension of a label, or of numbers of each row.
    """

    name: str
    role: Literal["elements", "broadcast", "mask", "label", "row"] = "elements"
    count: int = 1

    @property
    def is_of_row(self) -> bool:
        """Whether it has `count` in place of the last dimension."""
        return self.role in ("label", "row")

    @property
    def may_broadcast(self) -> bool:
        """Whether its dimensions but the last may be 1."""
        return self.role in ("mask", "broadcast")


@dataclasses.dataclass(frozen=True)
class RowOperation:
    """The contract of a row operation: what `ffi/rows/operations.h` says of it.

    Attributes:
        name: its name; None if it has no kernel, and the reference runs everywhere.
        operands: in the order of a call. A call may leave out a mask.
        results: in the order of a call.
        finds_max: whether it finds the maximum of a row before it sums.
        hides: whether it works on attention scores, some of which a row may not see.
        sums: numbers that a row sums, side by side.
        counts_max: whether it also counts the terms of the maximum, unless they are of a 16-bit type.
        x_if_half: number of sums relative to the maximum if a 16-bit input is x, whose maximum and sum of
            exp(x - max) the kernel then finds; 0 if the operation always reads y.
    """

    name: Any
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    finds_max: bool = False
    hides: bool = False
    sums: int = 0
    counts_max: bool = False
    x_if_half: int = 0

    def operands_of_call(self, *, has_mask: bool = False) -> tuple[Operand, ...]:
        """The operands of a call with or without a mask."""
        return tuple(x for x in self.operands if has_mask or x.role != "mask")

    @property
    def inputs(self) -> int:
        """The arrays that it reads with an element for each element of a row."""
        return sum(x.role in ("elements", "broadcast") for x in self.operands)

    @property
    def takes_label(self) -> bool:
        """Whether it reads a column of each row."""
        return any(x.role == "label" for x in self.operands)

    @property
    def shares_rows(self) -> bool:
        """Whether all its inputs have one shape."""
        return not any(x.role == "broadcast" for x in self.operands)

    @property
    def stores_elements(self) -> bool:
        """Whether it has a result with an element for each element of a row."""
        return any(x.role == "elements" for x in self.results)

    def counts_max_of(self, dtype: np.dtype) -> bool:
        """Whether it counts the terms of the maximum of a row of this dtype."""
        return self.counts_max and dtype.itemsize > 2

    def reads_x_for_y(self, dtype: np.dtype) -> bool:
        """Whether it reads x of this dtype, of wider ones y."""
        return self.x_if_half > 0 and dtype.itemsize == 2

    def sums_of(self, dtype: np.dtype) -> int:
        """The numbers that a row of this dtype sums, such a count included."""
        return self.sums + (self.counts_max_of(dtype) or self.reads_x_for_y(dtype))

    def relative_sums_of(self, dtype: np.dtype) -> int:
        """How many of these are relative to the maximum: the first ones; 0 if it finds none."""
        if self.reads_x_for_y(dtype):
            return self.x_if_half
        return self.sums_of(dtype) if self.finds_max else 0


def _row_operation(name: str, table: dict[str, Any]) -> RowOperation:
    specs = {key: tuple(Operand(*x) for x in table.pop(key)) for key in ("operands", "results")}
    return RowOperation(name, **specs, **table)


OPERATIONS: dict[Operation, RowOperation] = {
    name: _row_operation(name, table) for name, table in cpu_module.row_operations().items()
}
