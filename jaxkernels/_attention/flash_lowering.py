"""Lowers the operations of flash attention: to cuDNN on CUDA, otherwise to the plain form.

Owns: the lowerings. Must not know: derivatives, batching, or what an operation computes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxkernels._attention import choice, flash_partitioning
from jaxkernels._attention.flash_forms import Forms
from jaxkernels._attention.problem import Call
from jaxkernels._core import compat, partitioned_calls, registry


def define(primitive: Primitive, forms: Forms, results: Sequence[str]) -> None:
    """Gives a primitive its lowerings.

    Args:
        primitive: the primitive.
        forms: its two forms.
        results: names of its results, for `flash_partitioning`.
    """
    mlir.register_lowering(primitive, functools.partial(_lower_plain, forms))
    rule = functools.partial(lower_cuda, primitive.name, forms, results)
    mlir.register_lowering(primitive, rule, platform="cuda")


def lower_form(
    form: Callable[..., Any], ctx: mlir.LoweringRuleContext, operands: Sequence[Any]
) -> Any:
    """Lowers a function of a list of operands."""

    def of(*values: jax.Array) -> list[jax.Array]:
        return form(operands=values)

    return mlir.lower_fun(of, multiple_results=True)(ctx, *operands)


def _lower_plain(forms: Forms, ctx: mlir.LoweringRuleContext, *operands: Any, call: Call) -> Any:
    if call.is_pinned:
        platforms = ", ".join(map(repr, compat.lowering_platforms(ctx)))
        raise NotImplementedError(
            f'dot_product_attention: implementation="cudnn" runs on CUDA devices, not on {platforms}'
        )
    return lower_form(functools.partial(_run, forms.plain, call), ctx, operands)


def lower_cuda(
    name: str,
    forms: Forms,
    results: Sequence[str],
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    call: Call,
) -> Any:
    """Lowers to cuDNN on one device, or on each device's shards.

    If no callback can partition the call, as in an exported program, every device would compute on whole
    arrays. The call then uses the plain form, unless the user asked for cuDNN.
    """
    # The batch is checked again, because vmap may have enlarged it, and jax.export may make it symbolic.
    batch = ctx.avals_in[0].shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    is_plain = not (isinstance(batch, int) and batch <= choice.MOST_BLOCKS)
    if not is_plain and partitioned_calls.partitions_custom_calls(ctx):
        ctx = compat.without_types_of_shardings(ctx)
        shapes = [aval.shape for aval in ctx.avals_in]  # pyright: ignore[reportAttributeAccessIssue]
        names = results[: len(ctx.avals_out)]
        function = flash_partitioning.partitioned(call, forms, shapes, names)
        key = f"{name} {call} {registry.fingerprint()}"
        return partitioned_calls.lower_partitioned(function, ctx, operands, key, several=True)
    if is_plain or not (call.is_pinned or partitioned_calls.runs_on_its_own(ctx)):
        return lower_form(functools.partial(_run, forms.plain, call), ctx, operands)
    ctx = compat.without_types_of_shardings(ctx)
    return lower_form(functools.partial(_run, forms.cudnn, call), ctx, operands)


def _run(form: Callable[..., Any], call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    return form(call, operands)
