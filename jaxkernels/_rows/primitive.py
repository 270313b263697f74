"""Makes JAX primitives of row kernels.

`define` gives a primitive its evaluation, abstract evaluation, batching, lowerings and partitioning;
`derivatives` defines its derivatives.

Owns: evaluation and batching. Must not know: what operations compute, how a kernel is called
(`lowering`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxkernels._core import compat, partitioned_calls, registry
from jaxkernels._rows import calls, lowering, plan
from jaxkernels._rows.contract import OPERATIONS, RowOperation
from jaxkernels._rows.reference import compute_dtype
from jaxkernels._rows.row_kernel import Reference, RowKernel, without_options
from jaxkernels.typing import Operation


def of_operation(
    *, biased: Operation | None = None, **forms: Any
) -> Callable[[Reference], RowKernel]:
    """Returns a decorator that makes a row kernel, without derivatives, of the operation in plain JAX.

    The decorated function has the name of the operation in `contract.OPERATIONS`, and works along the last
    axis. It runs on platforms without kernels.

    Args:
        biased: name of the operation with a bias.
        forms: `from_statistics` and `in_parts` of `RowKernel`.
    """

    def decorate(reference: Reference) -> RowKernel:
        name: Any = reference.__name__
        with_bias = OPERATIONS[biased] if biased else None
        return define(f"jaxkernels_{name}", reference, OPERATIONS[name], biased=with_bias, **forms)

    return decorate


def define(name: str, reference: Reference, operation: RowOperation, **forms: Any) -> RowKernel:
    """As `of_operation`, with any name and contract; `forms` are the last fields of `RowKernel`.

    If the kernel has a label and stores elements, they overwrite the first operand if it is donated.
    """
    primitive = Primitive(name)
    primitive.multiple_results = len(operation.results) > 1
    kernel = RowKernel(primitive, reference, operation, **forms)
    compat.define(
        primitive, functools.partial(_abstract_eval, kernel), functools.partial(_batch, kernel)
    )
    is_in_place = operation.has_kernel and operation.stores_elements and operation.takes_label
    lowered = lowering.in_place(kernel, _abstract_eval) if is_in_place else primitive
    mlir.register_lowering(lowered, functools.partial(lowering.lower_reference, kernel))
    for platform in registry.registered_platforms() if operation.has_kernel else ():
        rule = functools.partial(lowering.lower_kernel, kernel, platform, {})
        mlir.register_lowering(lowered, rule, platform=platform)
    partitioned_calls.needs_devices_for_lowering(primitive)
    return kernel


def _abstract_eval(
    kernel: RowKernel, *avals: Any, tier: str, require_kernel: bool, **attributes: Any
) -> Any:
    del require_kernel
    first, name = avals[0], kernel.primitive.name
    computed = compute_dtype(first)
    for aval, spec in zip(avals, kernel.operands_of(**attributes), strict=True):
        if spec.role == "elements" and (aval.shape, aval.dtype) != (first.shape, first.dtype):
            raise TypeError(f"{name}: operands must agree in shape and dtype, got {avals}")
        if spec.is_of_row:
            dtypes = {"label": ["int32"], "scales": [computed]}.get(
                spec.role, [first.dtype, computed]
            )
            counts = (1, 2) if spec.role == "scales" else (spec.count,)
            shapes = [(*first.shape[:-1], count) for count in counts]
            if aval.shape not in shapes or aval.dtype not in dtypes:
                raise TypeError(
                    f"{name}: {spec.name} must be {spec.count} for each row, got {avals}"
                )
        if spec.is_column and (
            aval.shape != first.shape[-1:] or aval.dtype not in (first.dtype, computed)
        ):
            raise TypeError(f"{name}: {spec.name} must be one number for each column, got {avals}")
    operation = kernel.operation_of(**attributes)
    if operation.has_kernel:
        plan.check_tier(operation.name, first.shape, first.dtype, tier)
    # `update` keeps the explicit sharding and the varying axes, which a new ShapedArray would lose.
    results = []
    for spec in operation.results:
        result = first
        if spec.is_of_row:
            shape, sharded = (*first.shape[:-1], spec.count), compat.aval_spec(first)[:-1]
            result = compat.with_shape_and_spec(first, shape, (*sharded, None))
        dtype = calls.dtype_of(spec, first, attributes)
        results.append(result.update(dtype=dtype, weak_type=False))
    return results if kernel.primitive.multiple_results else results[0]


def _batch(
    kernel: RowKernel,
    axis_data: Any,
    operands: Sequence[jax.Array],
    batch_dims: Sequence[int | None],
    **params: Any,
) -> tuple[Any, Any]:
    several = kernel.primitive.multiple_results
    if all(d is None for d in batch_dims):
        return kernel(*operands, **params), (None, None) if several else None
    # `full` operands have data for each row and so for each batch member; masks and biases may not.
    given = without_options(**params)
    specs = kernel.operands_of(**given)
    if any(d is not None for spec, d in zip(specs, batch_dims, strict=True) if spec.is_column):
        return _batch_plain(kernel, operands, batch_dims, **params)
    full = [i for i, spec in enumerate(specs) if not (spec.may_broadcast or spec.is_column)]
    # The batch dimension stays where it is as a further row dimension, unless the operands disagree or
    # it lies within the dimensions that must be whole. Then it moves to the front.
    at = batch_dims[0] or 0
    row_dims = calls.row_dims(given)
    if {batch_dims[i] for i in full} != {at} or at >= operands[0].ndim - row_dims:
        at = 0
        operands = [
            compat.batch_at_front(axis_data, x, d) if i in full or d is not None else x
            for i, (x, d) in enumerate(zip(operands, batch_dims, strict=True))
        ]
        batch_dims = [0 if i in full or d is not None else None for i, d in enumerate(batch_dims)]
    placed = [
        x
        if spec.is_column
        else jax.numpy.expand_dims(x, at)
        if d is None
        else jax.numpy.moveaxis(x, d, at)
        for x, d, spec in zip(operands, batch_dims, specs, strict=True)
    ]
    return kernel(*placed, **params), (at, at) if several else at


def _batch_plain(
    kernel: RowKernel,
    operands: Sequence[jax.Array],
    batch_dims: Sequence[int | None],
    **params: Any,
) -> tuple[Any, Any]:
    """Maps the reference: the rows of one call of a kernel share each column."""
    if params["require_kernel"]:
        raise NotImplementedError(
            f'implementation="ffi": no kernel of {kernel.primitive.name} has a column for each member '
            "of a batch, as under vmap over the scale"
        )
    reference = functools.partial(kernel.reference, **without_options(**params))
    return jax.vmap(reference, batch_dims)(*operands), 0
