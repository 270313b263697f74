"""Makes JAX primitives of row kernels.

`of_operation` gives a primitive its evaluation, abstract evaluation, batching, lowerings and partitioning;
`derivatives` defines its derivatives.

Owns: evaluation and batching. Must not know: what operations compute, how a kernel is called
(`lowering`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxkernels._core import compat, partitioned_calls, registry
from jaxkernels._rows import calls, lowering, plan
from jaxkernels._rows.contract import OPERATIONS, RowKernel, RowOperation
from jaxkernels._rows.reference import compute_dtype
from jaxkernels.typing import Operation


def of_operation(
    operation: RowOperation | None = None, *, biased: Operation | None = None, **forms: Any
) -> Callable[[Callable[..., Any]], RowKernel]:
    """Returns a decorator that makes a row kernel, without derivatives, of the operation in plain JAX.

    The decorated function works along the last axis, and runs on platforms without kernels. If the kernel
    has a label and stores elements, they overwrite the first operand if it is donated.

    Args:
        operation: the contract; None is that of the function's name in `contract.OPERATIONS`.
        biased: name of the operation with a bias.
        forms: `from_statistics`, `in_parts` and `of_labels` of `RowKernel`.
    """

    def decorate(reference: Callable[..., Any]) -> RowKernel:
        name: Any = reference.__name__
        contract = operation or OPERATIONS[name]
        primitive = Primitive(f"jaxkernels_{name}")
        primitive.multiple_results = len(contract.results) > 1
        with_bias = OPERATIONS[biased] if biased else None
        kernel = RowKernel(primitive, reference, contract, with_bias, **forms)
        abstract_eval = functools.partial(_abstract_eval, kernel)
        compat.define(primitive, abstract_eval, functools.partial(_batch, kernel))
        is_in_place = contract.has_kernel and contract.stores_elements and contract.takes_label
        lowered = lowering.in_place(kernel, abstract_eval) if is_in_place else primitive
        mlir.register_lowering(lowered, functools.partial(lowering.lower_reference, kernel))
        for platform in registry.registered_platforms() if contract.has_kernel else ():
            rule = functools.partial(lowering.lower_kernel, kernel, platform, {})
            mlir.register_lowering(lowered, rule, platform=platform)
        partitioned_calls.needs_devices_for_lowering(primitive)
        return kernel

    return decorate


def _abstract_eval(
    kernel: RowKernel, *avals: Any, tier: str, require_kernel: bool, **attributes: Any
) -> Any:
    del require_kernel
    first, name = avals[0], kernel.primitive.name
    *rows, cols = first.shape
    either = [first.dtype, compute_dtype(first)]
    specs = kernel.operands_of(**attributes)
    more = sum(
        x.shape[-1] - 1 for x, spec in zip(avals, specs, strict=True) if spec.role == "label"
    )
    for aval, spec in zip(avals, specs, strict=True):
        shapes, dtypes = {
            "elements": ([(*rows, cols)], [first.dtype]),
            "label": ([(*rows, 1 + more)], ["int32"]),
            "row": ([(*rows, spec.count + more)], either),
            "scales": ([(*rows, 1), (*rows, 2)], either[1:]),
            "column": ([(cols,)], either),
        }.get(spec.role, ([aval.shape], [aval.dtype]))
        if aval.shape not in shapes or aval.dtype not in dtypes:
            raise TypeError(f"{name}: {spec.name} must be {dtypes} of shape {shapes}, got {avals}")
    operation = kernel.operation_of(**attributes)
    if operation.has_kernel:
        plan.check_tier(operation.name, first.shape, first.dtype, tier)
    # `update` keeps the explicit sharding and the varying axes, which a new ShapedArray would lose.
    results = []
    for spec in operation.results:
        result = first
        if spec.is_of_row:
            shape, sharded = (*first.shape[:-1], spec.count + more), compat.aval_spec(first)[:-1]
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
    roles = [spec.role for spec in kernel.operands_of(**params)]
    if any(d is not None and role == "column" for d, role in zip(batch_dims, roles, strict=True)):
        if params["require_kernel"]:
            raise NotImplementedError(
                f'implementation="ffi": no kernel of {kernel.primitive.name} has a column for each '
                "member of a batch, as under vmap over the scale"
            )
        return jax.vmap(functools.partial(kernel.plain, **params), batch_dims)(*operands), 0
    # `full` operands have data for each row and so for each batch member; others may not.
    full = [i for i, role in enumerate(roles) if role not in ("mask", "broadcast", "column")]
    # The batch dimension stays where it is as a further row dimension, unless the operands disagree or
    # it lies within the dimensions that must be whole. Then it moves to the front.
    at = batch_dims[0] or 0
    row_dims = calls.row_dims(params)
    if {batch_dims[i] for i in full} != {at} or at >= operands[0].ndim - row_dims:
        at = 0
        operands = [
            compat.batch_at_front(axis_data, x, d) if i in full or d is not None else x
            for i, (x, d) in enumerate(zip(operands, batch_dims, strict=True))
        ]
        batch_dims = [0 if i in full or d is not None else None for i, d in enumerate(batch_dims)]
    placed = [
        x
        if role == "column"
        else jax.numpy.expand_dims(x, at)
        if d is None
        else jax.numpy.moveaxis(x, d, at)
        for x, d, role in zip(operands, batch_dims, roles, strict=True)
    ]
    return kernel(*placed, **params), (at, at) if several else at
