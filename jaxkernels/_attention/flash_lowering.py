"""Lowers the operations of flash attention: to cuDNN on CUDA, otherwise to the plain form.

Owns: the lowerings. Must not know: derivatives, batching, or what an operation computes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxkernels._attention import choice, flash_partitioning
from jaxkernels._attention.flash_forms import Form, Forms
from jaxkernels._attention.problem import Call
from jaxkernels._core import compat, partitioned_calls, registry


def define(primitive: Primitive, forms: Forms) -> None:
    """Gives a primitive its lowerings."""
    mlir.register_lowering(primitive, functools.partial(_lower_plain, forms.plain))
    rule = functools.partial(_lower_cuda, primitive.name, forms)
    mlir.register_lowering(primitive, rule, platform="cuda")


def lower_form(form: Form, ctx: mlir.LoweringRuleContext, *operands: Any, call: Call) -> Any:
    """Lowers a form."""
    lower = mlir.lower_fun(lambda *values: form(call, values), multiple_results=True)
    return lower(ctx, *operands)


def _lower_plain(form: Form, ctx: mlir.LoweringRuleContext, *operands: Any, call: Call) -> Any:
    if call.is_pinned:
        platforms = ", ".join(map(repr, compat.lowering_platforms(ctx)))
        raise NotImplementedError(
            f'dot_product_attention: implementation="cudnn" runs on CUDA devices, not on {platforms}'
        )
    return lower_form(form, ctx, *operands, call=call)


def _lower_cuda(
    name: str, forms: Forms, ctx: mlir.LoweringRuleContext, *operands: Any, call: Call
) -> Any:
    """Lowers to cuDNN on one device, or on each device's shards.

    If no callback can partition the call, as in an exported program, every device would compute on whole
    arrays. The call then uses the plain form, unless the user asked for cuDNN.
    """
    # The batch is checked again, because vmap may have enlarged it, and jax.export may make it symbolic.
    avals: Sequence[Any] = ctx.avals_in  # pyright: ignore[reportAttributeAccessIssue]
    batch = avals[0].shape[0]
    is_split = partitioned_calls.partitions_custom_calls(ctx)
    runs = is_split or call.is_pinned or partitioned_calls.runs_on_its_own(ctx)
    if not (runs and isinstance(batch, int) and 0 < batch <= choice.MOST_BLOCKS):
        return lower_form(forms.plain, ctx, *operands, call=call)
    ctx = compat.without_types_of_shardings(ctx)
    if not is_split:
        return lower_form(forms.cudnn, ctx, *operands, call=call)
    names = forms.results[: len(ctx.avals_out)]  # pyright: ignore[reportAttributeAccessIssue]
    shapes = [aval.shape for aval in avals]
    function = flash_partitioning.partitioned(call, forms.cudnn, shapes, names)
    key = f"{name} {call} {registry.fingerprint()}"
    return partitioned_calls.lower_partitioned(function, ctx, operands, key, several=True)
