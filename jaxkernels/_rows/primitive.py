"""Makes JAX primitives of row kernels.

`define` gives a primitive its evaluation, abstract evaluation, batching, lowerings and partitioning;
`derivatives` defines its derivatives.

Owns: evaluation and batching. Must not know: what operations compute, how a kernel is called
(`lowering`). `of_operation` finds contracts and references by the operation's name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla

from jaxkernels._core import compat, partitioned_calls, registry
from jaxkernels._rows import contract, lowering, plan
from jaxkernels._rows import reference as reference_functions
from jaxkernels._rows.contract import RowOperation
from jaxkernels._rows.reference import compute_dtype
from jaxkernels._rows.row_kernel import AtPlace, InParts, OperationOf, Reference, RowKernel
from jaxkernels.typing import Operation


def _one_row_dim(**attributes: Any) -> int:
    """1: the result of a row does not depend on its index or on other rows."""
    del attributes
    return 1


def define(
    name: str,
    reference: Reference,
    operation: RowOperation,
    *,
    operation_of: OperationOf | None = None,
    in_place: bool = False,
    row_dims: Callable[..., int] = _one_row_dim,
    at_place: AtPlace | None = None,
    in_parts: InParts | None = None,
) -> RowKernel:
    """Makes the primitive of a row kernel, without its derivatives.

    Args:
        name: name of the primitive in jaxprs.
        reference: plain-JAX function of the operands, over the last axis; it runs on platforms without
            kernels.
        operation: the contract of the kernel.
        operation_of: maps the attributes of a call to its contract, if calls differ. All contracts have
            the results of `operation`.
        in_place: whether the elements of the result overwrite the first operand if it is donated.
        row_dims: see `RowKernel`.
        at_place: see `RowKernel`; required if `row_dims` may be 2.
        in_parts: see `RowKernel`.

    Returns:
        The kernel; its operands may have any number of dimensions >= 1.
    """
    primitive = Primitive(name)
    primitive.multiple_results = len(operation.results) > 1
    kernel = RowKernel(
        primitive=primitive,
        reference=reference,
        results=operation.results,
        operation=operation_of or (lambda **attributes: operation),
        row_dims=row_dims,
        at_place=at_place,
        in_parts=in_parts,
    )
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(functools.partial(_abstract_eval, kernel))
    batching.fancy_primitive_batchers[primitive] = functools.partial(_batch, kernel)
    lowered = lowering.in_place(kernel, _abstract_eval) if in_place else primitive
    mlir.register_lowering(lowered, functools.partial(lowering.lower_reference, kernel))
    for platform in registry.registered_platforms():
        if operation.name is not None:
            rule = functools.partial(lowering.lower_kernel, kernel, platform, {})
            mlir.register_lowering(lowered, rule, platform=platform)
    partitioned_calls.needs_devices_for_lowering(primitive)
    compat.register_nan_check(primitive)
    return kernel


def of_operation(
    operation: Operation, reference: Reference | None = None, in_parts: InParts | None = None
) -> RowKernel:
    """Makes the primitive of an operation of `contract.OPERATIONS`.

    Args:
        operation: name of the operation.
        reference: see `RowKernel`; None selects the function of that name in `reference`.
        in_parts: see `RowKernel`.
    """
    traits = contract.OPERATIONS[operation]
    return define(
        name=f"jaxkernels_{operation}",
        reference=reference or getattr(reference_functions, operation),
        operation=traits,
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
    computed = compute_dtype(first)
    for aval, spec in zip(avals, kernel.operands_of(**attributes), strict=True):
        if spec.role == "elements" and (aval.shape, aval.dtype) != (first.shape, first.dtype):
            raise TypeError(f"{name}: operands must agree in shape and dtype, got {avals}")
        if spec.is_of_row:
            dtypes = ["int32"] if spec.role == "label" else [first.dtype, computed]
            if aval.shape != (*first.shape[:-1], spec.count) or aval.dtype not in dtypes:
                raise TypeError(
                    f"{name}: {spec.name} must be {spec.count} for each row, got {avals}"
                )
    operation = kernel.operation(**attributes)
    if operation.name is not None:
        plan.check_tier(operation.name, first.shape, first.dtype, tier)
    # `update` keeps the explicit sharding and the varying axes, which a new ShapedArray would lose.
    results = []
    for spec in kernel.results:
        result, dtype = first, kernel.dtype_of_elements(first, **attributes)
        if spec.is_of_row:
            shape = (*first.shape[:-1], spec.count)
            sharded_as = (*compat.aval_spec(first)[:-1], None)
            result = compat.with_shape_and_spec(first, shape, sharded_as)
            dtype = kernel.dtype_of_scalars(first, **attributes)
        results.append(result.update(dtype=dtype, weak_type=False))
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
    # `full` operands have data for each row and so for each batch member; masks and biases may not.
    specs = kernel.operands_of(**attributes)
    full = [i for i, spec in enumerate(specs) if not spec.may_broadcast]
    if all(d is None for d in batch_dims):
        return call(*operands), (None, None) if several else None
    # The batch dimension stays where it is as a further row dimension, unless the operands disagree or
    # it lies within the `row_dims` last dimensions. Then it moves to the front.
    at = batch_dims[0] or 0
    among_rows = at < operands[0].ndim - kernel.row_dims(**attributes)
    if {batch_dims[i] for i in full} != {at} or not among_rows:
        at = 0
        operands = [
            compat.batch_at_front(axis_data, x, d) if i in full or d is not None else x
            for i, (x, d) in enumerate(zip(operands, batch_dims, strict=True))
        ]
        batch_dims = [0 if i in full or d is not None else None for i, d in enumerate(batch_dims)]
    placed = [
        jax.numpy.expand_dims(x, at) if d is None else jax.numpy.moveaxis(x, d, at)
        for x, d in zip(operands, batch_dims, strict=True)
    ]
    return call(*placed), (at, at) if several else at
