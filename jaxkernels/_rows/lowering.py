"""Lowers a row kernel to a custom call: on one device, partitioned, or in place of a donated operand.

On platforms without kernels the reference is lowered instead.

Owns: the lowerings. Must not know: evaluation, batching, derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxkernels._core import compat, partitioned_calls, registry
from jaxkernels._rows import partitioning as row_partitioning
from jaxkernels._rows import parts as row_parts
from jaxkernels._rows import plan
from jaxkernels._rows.row_kernel import RowKernel


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
    if not registry.has_kernels(platform):
        given = {"tier": tier, "require_kernel": require_kernel, **attributes}
        return lower_reference(kernel, ctx, *operands, **given)
    name = kernel.primitive.name
    if require_kernel and platform == "cpu" and tier != "auto":
        raise NotImplementedError(
            f"{name}: tier={tier!r} has no kernel for platform 'cpu'. Drop tier= or "
            'implementation="ffi"'
        )
    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    shapes = [aval.shape for aval in avals]
    several = kernel.primitive.multiple_results
    if shapes[0][-1] == 0 and any(
        x.is_of_row for x in kernel.results
    ):  # results of empty rows need no kernel
        reference = functools.partial(kernel.reference, **attributes)
        return mlir.lower_fun(reference, multiple_results=several)(ctx, *operands)
    splits = 0 not in shapes[0] and partitioned_calls.partitions_custom_calls(ctx)
    if attributes.get("result_dtype") and splits:
        return _lower_wide(kernel, ctx, operands, tier, require_kernel, attributes)
    may_leave = platform == "cuda" and tier == "auto" and not require_kernel
    if splits:
        call = _split_call(kernel, tier, attributes, aliases, may_leave)
        function = row_partitioning.partitioned(call, shapes)
        decides = f"{tier} {may_leave} {aliases} {sorted(attributes.items())}"
        name = f"{name} {decides} {registry.fingerprint()}"
        return partitioned_calls.lower_partitioned(function, ctx, operands, name, several)
    given = kernel.call_attributes(tier, **attributes)
    if may_leave and plan.is_left_to_xla(given["operation"], shapes[0], avals[0].dtype):
        return mlir.lower_fun(_plain(kernel, attributes), several)(ctx, *operands)
    partitioning = partitioned_calls.batch_partitioning_attributes(
        ctx, kernel.row_dims(**attributes)
    )
    rule = jax.ffi.ffi_lowering(
        registry.ROWS_TARGET, operand_output_aliases=aliases, extra_attributes=partitioning
    )
    return rule(ctx, *operands, **given)


def _lower_wide(
    kernel: RowKernel,
    ctx: mlir.LoweringRuleContext,
    operands: Sequence[Any],
    tier: str,
    require_kernel: bool,
    attributes: dict[str, Any],
) -> Any:
    """Converts to `result_dtype` after the kernel; on one device the kernel itself does it."""
    dtype, wide = attributes["result_dtype"], {**attributes, "result_dtype": None}

    def function(*operands: jax.Array) -> jax.Array:
        given = {"tier": tier, "require_kernel": require_kernel, **wide}
        return kernel(*operands, **given).astype(dtype)

    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def _plain(kernel: RowKernel, attributes: dict[str, Any]) -> Callable[..., Any]:
    """The operation in plain JAX; it enables x64 for float64 operands while it is traced."""

    def function(*operands: jax.Array) -> Any:
        with jax.enable_x64(operands[0].dtype == np.float64):
            return kernel.reference(*operands, **attributes)

    return function


def _split_call(
    kernel: RowKernel,
    tier: str,
    attributes: dict[str, Any],
    aliases: dict[int, int],
    may_leave: bool,
) -> row_partitioning.SplitCall:
    given = kernel.call_attributes(tier, **attributes)

    def whole(first: jax.Array, *others: jax.Array) -> Any:
        if may_leave and plan.is_left_to_xla(given["operation"], first.shape, first.dtype):
            return _plain(kernel, attributes)(first, *others)
        # Shapes are computed by hand, because tracing would lose float64 if x64 is off at lowering.
        results = []
        for spec in kernel.results:
            shape, dtype = first.shape, first.dtype
            if spec.is_of_row:
                shape, dtype = (
                    (*shape[:-1], spec.count),
                    kernel.dtype_of_scalars(first, **attributes),
                )
            results.append(jax.ShapeDtypeStruct(shape, dtype))
        results = results if kernel.primitive.multiple_results else results[0]
        call = jax.ffi.ffi_call(registry.ROWS_TARGET, results, input_output_aliases=aliases)
        return call(first, *others, **given)

    def in_parts(operands: Sequence[jax.Array], axes: tuple[str, ...]) -> Any:
        if kernel.in_parts is not None:
            return kernel.in_parts(operands, axes, **attributes)
        wide = attributes.get("wide", False)
        parts = row_parts.Parts(given["operation"], given["scale"], given["has_mask"], wide)
        return row_parts.apply(parts, operands, axes)

    def at_place(operands: Sequence[jax.Array], place: row_partitioning.Place) -> Any:
        assert kernel.at_place is not None
        there, attributes_there = kernel.at_place(operands, place, **attributes)
        return _split_call(kernel, tier, attributes_there, aliases, may_leave), there

    depends_on_place = kernel.row_dims(**attributes) > 1
    return row_partitioning.SplitCall(
        whole=whole,
        in_parts=in_parts,
        operands=kernel.operands_of(**attributes),
        results=kernel.results,
        at_place=at_place if depends_on_place else None,
    )


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
    if kernel.operation(**attributes).name is None:
        without = []
    if require_kernel and without:
        reasons = "; ".join(registry.why_no_kernels(platform) for platform in without)
        raise NotImplementedError(
            f'implementation="ffi": no kernel of {kernel.primitive.name} for platform '
            f"{', '.join(map(repr, without))}: {reasons}"
        )
    if "cuda" in without:
        registry.warn_missing_cuda()
    reference = functools.partial(kernel.reference, **attributes)
    several = kernel.primitive.multiple_results
    return mlir.lower_fun(reference, multiple_results=several)(ctx, *operands)


def in_place(kernel: RowKernel, abstract_eval: Callable[..., Any]) -> Primitive:
    """Lets a kernel overwrite a donated operand; returns a second primitive for all other calls.

    A cached lowering becomes an inner function, whose arguments cannot alias donated buffers, so the
    kernel's own lowering is not cached. It is one rule for all platforms, because JAX supports no other
    uncached rule for several platforms at once. Calls without donation bind the second primitive, whose
    lowering is cached.
    """
    plain = Primitive(kernel.primitive.name)
    plain.multiple_results = kernel.primitive.multiple_results
    plain.def_abstract_eval(functools.partial(abstract_eval, kernel))
    partitioned_calls.needs_devices_for_lowering(plain)

    def rule(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        platform, *others = compat.lowering_platforms(ctx)
        if not others and registry.has_kernels(platform) and compat.is_donated(operands[0]):
            return lower_kernel(kernel, platform, {0: 0}, ctx, *operands, **params)
        function = functools.partial(plain.bind, **params)
        return mlir.lower_fun(function, multiple_results=plain.multiple_results)(ctx, *operands)

    mlir.register_lowering(kernel.primitive, rule, cacheable=False)
    return plain
