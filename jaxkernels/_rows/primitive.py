"""Makes JAX primitives out of row kernels: where a kernel meets JAX's transformations.

Such a primitive gets evaluation, typing, batching, a lowering per platform and a rule for
partitioning from `define`, and its derivatives from `derivatives`.

Owns: evaluation and batching. Must not know: what operations compute, how a kernel is called
(`lowering`). `of_operation` reads the table of operations and their references by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla

from jaxkernels._core import compat, partitioned_calls, registry
from jaxkernels._rows import lowering, plan
from jaxkernels._rows import reference as reference_functions
from jaxkernels._rows.reference import compute_dtype
from jaxkernels._rows.row_kernel import AtPlace, InParts, OperationOf, Reference, RowKernel
from jaxkernels.typing import Operation


def _one_row_dim(**attributes: Any) -> int:
    """Rows that do not depend on one another, nor on where they stand."""
    del attributes
    return 1


def define(
    name: str,
    reference: Reference,
    operation: OperationOf | None,
    *,
    full_operands: int,
    broadcasts: bool = False,
    takes_label: bool = False,
    takes: tuple[int, ...] = (),
    stores_elements: bool = True,
    stores: int = 0,
    in_place: bool = False,
    row_dims: Callable[..., int] = _one_row_dim,
    at_place: AtPlace | None = None,
    in_parts: InParts | None = None,
) -> RowKernel:
    """Makes the primitive of a row kernel; everything but its derivatives.

    Args:
        name: name of the primitive, seen in jaxprs.
        reference: plain-JAX function of the operands, over the last axis; runs where there are no
            kernels.
        operation: see `RowKernel`.
        full_operands: see `RowKernel`.
        broadcasts: see `RowKernel`.
        takes_label: see `RowKernel`.
        takes: see `RowKernel`.
        stores_elements: see `RowKernel`.
        stores: see `RowKernel`.
        in_place: whether the result of the full shape takes the memory of the first operand where the
            caller of the program has given that away.
        row_dims: see `RowKernel`.
        at_place: see `RowKernel`; needed if `row_dims` may be 2.
        in_parts: see `RowKernel`.

    Returns:
        The kernel, ready to be called on any number of dimensions >= 1.
    """
    primitive = Primitive(name)
    primitive.multiple_results = stores_elements and stores > 0
    kernel = RowKernel(
        *(primitive, reference, full_operands, broadcasts, takes_label, takes),
        *(stores_elements, stores, row_dims, operation, at_place, in_parts),
    )
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(functools.partial(_abstract_eval, kernel))
    batching.fancy_primitive_batchers[primitive] = functools.partial(_batch, kernel)
    lowered = lowering.in_place(kernel, _abstract_eval) if in_place else primitive
    mlir.register_lowering(lowered, functools.partial(lowering.lower_reference, kernel))
    for platform in registry.registered_platforms():
        if operation is not None:
            rule = functools.partial(lowering.lower_kernel, kernel, platform, {})
            mlir.register_lowering(lowered, rule, platform=platform)
    partitioned_calls.needs_devices_for_lowering(primitive)
    compat.register_nan_check(primitive)
    return kernel


def of_operation(
    operation: Operation, reference: Reference | None = None, in_parts: InParts | None = None
) -> RowKernel:
    """Makes the primitive of an operation that has no attributes but those of row scalars.

    Args:
        operation: its name; the rest is in the table of operations.
        reference: see `RowKernel`; None for the function of that name in `reference`.
        in_parts: see `RowKernel`.
    """
    traits = registry.ROW_OPERATIONS[operation]
    return define(
        name=f"jaxkernels_{operation}",
        reference=reference or getattr(reference_functions, operation),
        operation=lambda **_: operation,
        full_operands=traits.inputs,
        takes_label=traits.takes_label,
        takes=tuple(filter(None, traits.takes)),
        stores_elements=traits.stores_elements,
        stores=traits.stores,
        in_place=traits.stores_elements and traits.takes_label,
        in_parts=in_parts,
    )


def _abstract_eval(
    kernel: RowKernel,
    *avals: Any,
    tier: str,
    require_kernel: bool,
    **attributes: Any,
) -> Any:
    del require_kernel
    first, name = avals[0], kernel.primitive.name
    whole, behind = avals[: kernel.full_operands], kernel.full_operands + kernel.row_scalars
    if not kernel.broadcasts:
        whole += avals[behind:]
    if any((a.shape, a.dtype) != (first.shape, first.dtype) for a in whole):
        raise TypeError(f"{name}: operands must agree in shape and dtype, got {avals}")
    scalars = avals[kernel.full_operands : behind]
    expected = [(1, {jax.numpy.dtype("int32")})] if kernel.takes_label else []
    expected += [(size, {first.dtype, compute_dtype(first)}) for size in kernel.takes]
    for aval, (size, dtypes) in zip(scalars, expected, strict=True):
        if aval.shape != (*first.shape[:-1], size) or aval.dtype not in dtypes:
            raise TypeError(f"{name}: row scalars must be {size} for each row, got {avals}")
    if kernel.operation is not None:
        plan.check_tier(kernel.operation(**attributes), first.shape, first.dtype, tier)
    # `update` keeps what a fresh ShapedArray would lose: explicit sharding and the mesh axes it
    # varies over.
    dtype = kernel.dtype_of_elements(first, **attributes)
    results = [first.update(dtype=dtype, weak_type=False)] if kernel.stores_elements else []
    if kernel.stores > 0:
        shape = (*first.shape[:-1], kernel.stores)
        spec = (*compat.aval_spec(first)[:-1], None)
        dtype = kernel.dtype_of_scalars(first, **attributes)
        results.append(compat.with_shape_and_spec(first, shape, spec).update(dtype=dtype))
    return results if kernel.primitive.multiple_results else results[0]


def _batch(
    kernel: RowKernel,
    axis_data: Any,
    operands: Sequence[jax.Array],
    batch_dims: Sequence[int | None],
    *,
    tier: str,
    require_kernel: bool,
    **attributes: Any,
) -> tuple[Any, Any]:
    call = functools.partial(kernel, tier=tier, require_kernel=require_kernel, **attributes)
    several = kernel.primitive.multiple_results
    # Operands with something for each row, and so for each member; masks and biases may be shared.
    full = len(operands)
    if kernel.broadcasts:
        full = kernel.full_operands + kernel.row_scalars
    if all(d is None for d in batch_dims):
        return call(*operands), (None, None) if several else None
    # A batch dimension is one more dimension of rows wherever it stands, unless it stands among
    # those that the kernel needs whole.
    at = batch_dims[0] or 0
    among_rows = at < operands[0].ndim - kernel.row_dims(**attributes)
    if set(batch_dims[:full]) != {at} or not among_rows:
        at = 0
        operands = [
            compat.batch_at_front(axis_data, x, d) if i < full or d is not None else x
            for i, (x, d) in enumerate(zip(operands, batch_dims, strict=True))
        ]
        batch_dims = [0 if i < full or d is not None else None for i, d in enumerate(batch_dims)]
    placed = [
        jax.numpy.expand_dims(x, at) if d is None else jax.numpy.moveaxis(x, d, at)
        for x, d in zip(operands, batch_dims, strict=True)
    ]
    return call(*placed), (at, at) if several else at
