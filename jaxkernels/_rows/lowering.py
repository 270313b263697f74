"""Lowers a row kernel to a custom call: on one device, partitioned, or in place of a donated operand.

On platforms without kernels the reference is lowered instead.

Owns: the lowerings, and the choice between kernel, reference and XLA's own operation. Must not know:
evaluation, batching, derivatives.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxkernels._core import compat, partitioned_calls, registry
from jaxkernels._rows import calls, partitioning, plan, reference
from jaxkernels._rows.contract import RowKernel


def lower_kernel(
    kernel: RowKernel,
    platform: str,
    aliases: dict[int, int],
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    tier: str,
    require_kernel: bool,
    **attributes: Any,
) -> Any:
    """Lowers a call to the FFI target, to a call that a callback partitions, or to other JAX operations."""
    options = {"tier": tier, "require_kernel": require_kernel}
    if not registry.has_kernels(platform):
        return lower_reference(kernel, ctx, *operands, **options, **attributes)

    def traced(function: Callable[..., Any]) -> Any:
        return mlir.lower_fun(function, kernel.primitive.multiple_results)(ctx, *operands)

    name = kernel.primitive.name
    if require_kernel and platform == "cpu" and tier != "auto":
        raise NotImplementedError(
            f"{name}: tier={tier!r} has no kernel for platform 'cpu'. Drop tier= or "
            'implementation="ffi"'
        )

    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    shapes = [aval.shape for aval in avals]
    if shapes[0][-1] == 0 and any(x.is_of_row for x in kernel.operation.results):
        return traced(functools.partial(kernel.reference, **attributes))  # needs no kernel
    splits = 0 not in shapes[0] and partitioned_calls.partitions_custom_calls(ctx)
    if attributes.get("has_mask") and kernel.operation.takes_label:
        # XLA would gather the logits for a mask that rows share, as for a column below.
        is_shared = shapes[2][:-1] != shapes[0][:-1]
        gathers = is_shared and not splits and partitioned_calls.may_be_split(ctx)
        # A GPU kernel takes a mask or a soft cap, not both. Handlers take no mask of more than nine dimensions.
        is_capped = attributes.get("has_scales") and shapes[3][-1] > 1
        if (is_capped and platform == "cuda") or gathers or len(shapes[0]) > 9:
            return traced(functools.partial(_masked_by_xla, kernel, **options, **attributes))
    dtype = attributes.get("result_dtype")
    if dtype and splits:  # the kernel itself converts on one device only
        call = functools.partial(kernel, **options, **{**attributes, "result_dtype": None})
        return traced(lambda *operands: call(*operands).astype(dtype))
    may_leave = platform == "cuda" and tier == "auto" and not require_kernel
    if splits:
        local = functools.partial(whole, kernel, tier, aliases, may_leave)
        function = partitioning.partitioned(kernel, local, shapes, attributes)
        decides = f"{tier} {may_leave} {aliases} {sorted(attributes.items())}"
        name = f"{name} {decides} {registry.fingerprint()}"
        several = kernel.primitive.multiple_results
        ctx = compat.without_types_of_shardings(ctx)
        return partitioned_calls.lower_partitioned(function, ctx, operands, name, several)
    if kernel.of_labels and shapes[1][-1] != 1:
        return traced(
            functools.partial(kernel.of_labels, functools.partial(kernel, **options, **attributes))
        )
    operation = kernel.operation_of(**attributes)
    if may_leave and plan.is_left_to_xla(operation.name, shapes[0], avals[0].dtype):
        return traced(functools.partial(_plain, kernel, attributes))
    has_column = any(x.role == "column" for x in kernel.operands_of(**attributes))
    if has_column and not require_kernel and partitioned_calls.may_be_split(ctx):
        # Attributes cannot say that a column has no rows to split, so XLA would gather the other operands.
        return traced(functools.partial(_plain, kernel, attributes))
    row_dims = calls.row_dims(attributes)
    rule = jax.ffi.ffi_lowering(
        registry.ROWS_TARGET,
        operand_output_aliases=aliases,
        extra_attributes=partitioned_calls.batch_partitioning_attributes(ctx, row_dims),
    )
    return rule(ctx, *operands, **calls.attributes_of(operation, tier, **attributes))


def _masked_by_xla(
    kernel: RowKernel,
    x: jax.Array,
    label: jax.Array,
    mask: jax.Array,
    *others: jax.Array,
    has_mask: bool,
    **params: Any,
) -> Any:
    """The results of a masked loss, by a kernel without a mask: XLA hides logits and gradients."""
    del has_mask
    mask = compat.broadcast_like(mask, x)
    found = kernel(reference.hidden(x, mask), label, *others, **params)
    if not kernel.operation.stores_elements:
        return found
    first, *rest = found if kernel.primitive.multiple_results else [found]
    dx = reference.hidden(first, mask, 0)
    return [dx, *rest] if rest else dx


def whole(
    kernel: RowKernel,
    tier: str,
    aliases: dict[int, int],
    may_leave: bool,
    *operands: jax.Array,
    **attributes: Any,
) -> Any:
    """One device's results from whole rows; with `may_leave`, XLA computes the longest rows."""
    first, operation = operands[0], kernel.operation_of(**attributes)
    if may_leave and plan.is_left_to_xla(operation.name, first.shape, first.dtype):
        return _plain(kernel, attributes, *operands)
    call = functools.partial(calls.rows, operation, tier=tier, aliases=aliases, **attributes)
    return kernel.for_labels(call, *operands)


def _plain(kernel: RowKernel, attributes: dict[str, Any], *operands: jax.Array) -> Any:
    """The operation in plain JAX, with x64 for float64 operands."""
    with jax.enable_x64(operands[0].dtype == np.float64):
        return kernel.reference(*operands, **attributes)


def lower_reference(
    kernel: RowKernel,
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    tier: str,
    require_kernel: bool,
    **attributes: Any,
) -> Any:
    del tier
    without = [p for p in compat.lowering_platforms(ctx) if not registry.has_kernels(p)]
    if not kernel.operation.has_kernel:
        without = []
    if require_kernel and without:
        reasons = "; ".join(registry.why_no_kernels(platform) for platform in without)
        raise NotImplementedError(
            f'implementation="ffi": no kernel of {kernel.primitive.name} for platform '
            f"{', '.join(map(repr, without))}: {reasons}"
        )
    if "cuda" in without:
        registry.warn_missing_cuda()
    reference = functools.partial(_plain, kernel, attributes)
    return mlir.lower_fun(reference, kernel.primitive.multiple_results)(ctx, *operands)


def in_place(kernel: RowKernel, abstract_eval: Callable[..., Any]) -> Primitive:
    """Lets a kernel overwrite a donated operand; returns a second primitive for all other calls.

    A cached lowering becomes an inner function, whose arguments cannot alias donated buffers, so the
    kernel's own lowering is not cached. It is one rule for all platforms, because JAX supports no other
    uncached rule for several platforms at once. Calls without donation bind the second primitive, whose
    lowering is cached.
    """
    plain = Primitive(kernel.primitive.name)
    plain.multiple_results = kernel.primitive.multiple_results
    plain.def_abstract_eval(abstract_eval)
    partitioned_calls.needs_devices_for_lowering(plain)

    def rule(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        platform, *others = compat.lowering_platforms(ctx)
        if not others and registry.has_kernels(platform) and compat.is_donated(operands[0]):
            return lower_kernel(kernel, platform, {0: 0}, ctx, *operands, **params)
        function = functools.partial(plain.bind, **params)
        return mlir.lower_fun(function, multiple_results=plain.multiple_results)(ctx, *operands)

    mlir.register_lowering(kernel.primitive, rule, cacheable=False)
    return plain
