"""The operations of flash attention by our flash kernels, on Hopper's tensor cores.

The kernels multiply float32 as pairs of float16, and keep no scores (`ffi/attention`).

Owns: their calls, and which problems they serve. Must not know: when they are chosen, or what users may
pass.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels._attention.problem import Call, Operands
from jaxkernels._core import devices, registry
from jaxkernels._cpu import AttentionKernelPlan, DeviceLimits


def plan(
    sizes: Sequence[Any], limits: DeviceLimits, *, backward: bool = False
) -> AttentionKernelPlan:
    """The plan for sizes (B, T, S, N, K, H); raises ValueError if no kernel serves them."""
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError("sizes are not known")
    return registry.cpu_module.plan_attention_kernel(*sizes, sizes[-1], limits, backward)


def why_not(sizes: Sequence[Any], limits: DeviceLimits) -> str:
    """The reason why no kernels serve sizes (B, T, S, N, K, H); empty if they do."""
    try:
        plan(sizes, limits)
    except ValueError as error:
        return str(error)
    return ""


def why_not_lowered(call: Call, avals: Sequence[Any], *, backward: bool) -> str:
    """The reason why a call cannot be lowered to a kernel for CUDA; empty if it can."""
    if not registry.has_kernels("cuda"):
        return registry.why_no_kernels("cuda")
    given = call.operands(avals)
    sizes = given.sizes()
    if backward and "bias" in call.moving and given.bias.shape[2:] != sizes[1:3]:
        return "the gradient of a bias that queries or keys share keeps scores"
    return why_not(sizes, devices.limits_of(None))


def forward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """`plain.forward` by the kernels."""
    given = call.operands(operands)
    (batch, t, heads, _), depth = given.q.shape, given.v.shape[-1]
    shapes = (batch, t, heads, depth), (batch, heads, t, 2)
    *found, _ = _call(registry.ATTENTION_TARGET, call, given, operands, shapes, backward=False)
    return found if call.keeps_sums else found[:1]


def backward(call: Call, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """`plain.backward` by the kernels."""
    *kept, pairs, y, dy = operands
    given = call.operands(kept)
    # The gradient of a bias comes as partial sums.
    sums = (_bias_groups(given), *given.bias.shape) if "bias" in call.moving else (0,)
    shapes = [*(x.shape for x in (given.q, given.k, given.v)), sums]
    target, operands = registry.ATTENTION_BACKWARD_TARGET, [*kept, y, pairs, dy]
    *found, dbias, _ = _call(target, call, given, operands, shapes, backward=True)
    return [*found, dbias.sum(0)] if "bias" in call.moving else found


def _call(
    target: str,
    call: Call,
    given: Operands,
    operands: Sequence[jax.Array],
    shapes: Sequence[tuple[int, ...]],
    *,
    backward: bool,
) -> Sequence[jax.Array]:
    """The float32 results of these shapes, and the scratch."""
    planned = plan(given.sizes(), devices.limits_of(None), backward=backward)
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    results.append(jax.ShapeDtypeStruct((planned.scratch_bytes,), jnp.uint8))
    band = call.band.attributes()
    flags = ("bias", "mask", "q_lengths", "k_lengths")
    return jax.ffi.ffi_call(target, results)(
        *operands,
        scale=np.float32(call.scale),
        left=band["left"],
        right=band["right"],
        **{f"has_{name}": name in call.names for name in flags},
    )


def _bias_groups(given: Operands) -> int:
    """The number of partial sums of the bias's gradient, over groups of heads: each SM gets up to two blocks."""
    planned = plan(given.sizes(), devices.limits_of(None), backward=True)
    batch, heads, queries, keys = given.bias.shape
    members = 1 if batch > 1 else planned.batch_of_group
    shared = members * (1 if heads > 1 else given.q.shape[2])
    tiles = min(batch, planned.batch_of_group) * heads * -(-queries // 128) * -(-keys // 128)
    return max(1, min(shared, 2 * planned.sm_count // tiles))
