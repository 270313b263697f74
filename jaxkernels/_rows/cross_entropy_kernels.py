"""The row kernels of cross entropy, and the two differentiable functions built on them.

The forward kernel reduces a row of logits and its label to seven residuals (`KEPT`). Plain JAX computes
four measures of the row from them: lse - x_l, lse - max, the entropy and mean (lse - x). A loss is a sum
of measures. The gradient kernel computes the gradient from x and the residuals, without a reduction.

Owns: the primitives, their derivatives and their column-sharded forms. Must not know: what users may
pass (`cross_entropy`), how a kernel is launched.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxkernels._core import registry
from jaxkernels._rows import contract, derivatives, partitioning, primitive
from jaxkernels._rows import cross_entropy_reference as reference
from jaxkernels._rows.contract import Operand, RowOperation
from jaxkernels._rows.reference import compute_dtype, largest_of
from jaxkernels.typing import Implementation

# FFI attributes that cross entropy does not use, at their neutral values.
_PLAIN = {"scale": 1.0, "has_mask": False}


def label_on_device(label: jax.Array, cols: int, axes: tuple[str, ...]) -> jax.Array:
    """The label's index in this device's shard; out of range if another device holds it."""
    return label - partitioning.index(axes) * cols


def _fwd_in_parts(
    operands: Sequence[jax.Array], axes: tuple[str, ...], *, all_sums: bool
) -> jax.Array:
    """The residuals of rows whose columns are sharded over `axes`.

    Devices exchange one maximum and three sums per row, or six sums with `all_sums`.
    """
    x, label = operands
    cols, dtype = x.shape[-1], compute_dtype(x)
    sums = contract.OPERATIONS["cross_entropy_fwd"].sums_of(x.dtype)
    statistics = jax.ShapeDtypeStruct((*x.shape[:-1], 1 + sums), dtype)
    call = jax.ffi.ffi_call(registry.STATISTICS_TARGET, statistics)
    own = call(x, operation="cross_entropy_fwd", all_sums=all_sums, **_PLAIN)
    own_largest, *own_sums = jnp.split(own, 1 + sums, axis=-1)
    largest = lax.pmax(own_largest, axes)
    relative = _relative_to(largest, own_largest, own_sums)

    own_label = label_on_device(label, cols, axes)
    has_label = (own_label >= 0) & (own_label < cols)
    labelled = jnp.take_along_axis(x, jnp.clip(own_label, 0, cols - 1), axis=-1).astype(dtype)
    labelled = jnp.where(has_label, labelled, 0)
    wanted = sums if all_sums else 2  # `rest` and `count`
    sent = jnp.concatenate([*relative[:wanted], labelled], axis=-1)
    *all_of, labelled = jnp.split(lax.psum(sent, axes), wanted + 1, axis=-1)
    all_of += [jnp.zeros_like(largest)] * (sums - wanted)
    is_beyond = label >= cols * lax.axis_size(axes)
    largest = jnp.where(largest == -jnp.inf, 0, largest)
    return jnp.concatenate([largest, *all_of, jnp.where(is_beyond, jnp.nan, labelled)], axis=-1)


def _relative_to(
    largest: jax.Array, own_largest: jax.Array, own_sums: Sequence[jax.Array]
) -> list[jax.Array]:
    """Rescales the sums of a column shard from its own maximum to that of the whole row."""
    rest, count, spread, total, seen = own_sums
    has_any = own_largest != -jnp.inf
    difference = jnp.where(has_any, own_largest - largest, 0)
    factor = jnp.where(has_any, jnp.exp(difference), 0)
    is_largest = own_largest == largest
    joining = jnp.where(is_largest, 0, count)
    spread = factor * (spread + difference * (rest + count))
    return [
        (rest + joining) * factor,
        (count - joining) * factor,
        jnp.where(factor == 0, 0, spread),
        total + reference.bounded_below(difference) * reference.TOTAL_SCALE * seen,
        seen,
    ]


def _grad_in_parts(operands: Sequence[jax.Array], axes: tuple[str, ...]) -> jax.Array:
    """The gradient of this device's columns, from the residuals of whole rows."""
    x, label, kept, cotangent = operands
    own_label = label_on_device(label, x.shape[-1], axes)
    call = jax.ffi.ffi_call(registry.ROWS_TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype))
    return call(x, own_label, kept, cotangent, **cross_entropy_grad.call_attributes("auto"))


def _fwd_grad_in_parts(
    operands: Sequence[jax.Array], axes: tuple[str, ...], *, all_sums: bool
) -> list[jax.Array]:
    x, label, numbers = operands
    kept = _fwd_in_parts([x, label], axes, all_sums=all_sums)
    cotangent = reference.cotangent_of(label, kept, numbers)
    return [_grad_in_parts([x, label, kept, cotangent], axes), kept]


cross_entropy_fwd = primitive.of_operation(
    "cross_entropy_fwd", reference.cross_entropy_fwd, _fwd_in_parts
)
cross_entropy_fwd_grad = primitive.of_operation(
    "cross_entropy_fwd_grad", reference.cross_entropy_fwd_grad, _fwd_grad_in_parts
)
cross_entropy_grad = primitive.of_operation(
    "cross_entropy_grad", reference.cross_entropy_grad, _grad_in_parts
)
# The JVP has no kernel of ours, because training steps rarely use forward mode.
_OF_ROWS = len(reference.KEPT)
cross_entropy_jvp = primitive.define(
    name="jaxkernels_cross_entropy_jvp",
    reference=reference.cross_entropy_jvp,
    operation=RowOperation(
        name=None,
        operands=(
            Operand("x"),
            Operand("label", "label"),
            Operand("kept", "row", _OF_ROWS),
            Operand("dx"),
        ),
        results=(Operand("dmeasures", "row", 4),),
    ),
)

# These rules serve second and higher derivatives; the two functions below have their own first ones.
derivatives.define_jvp_by_reference(cross_entropy_fwd, reference.without_spoiled_rows)
derivatives.define_jvp_by_reference(cross_entropy_fwd_grad)
derivatives.define_linear(cross_entropy_jvp, transpose=cross_entropy_grad)
derivatives.define_linear(cross_entropy_grad, transpose=cross_entropy_jvp)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def measures(
    x: jax.Array, label: jax.Array, all_sums: bool, tier: str, require_kernel: bool
) -> tuple[jax.Array, jax.Array]:
    """The measures of each row and its maximum. Reverse mode reads x twice and writes its gradient.

    Args:
        x: logits of shape (..., cols).
        label: int32 of shape (..., 1): a column, or negative for no label. Without a label the first
            measure is meaningless; with a label of `cols` or more it is NaN.
        all_sums: whether to compute the last two measures; otherwise they are 0.
        tier: see `RowKernel.__call__`.
        require_kernel: see `RowKernel.__call__`.

    Returns:
        (lse - x_l, lse - max, entropy, mean (lse - x)) of shape (..., 4), and the maximum of shape
        (..., 1), both in the compute dtype. The mean excludes elements of -inf. The maximum has the
        derivative 0, and the second measure has that of lse.
    """
    options = {"tier": tier, "require_kernel": require_kernel}
    kept = cross_entropy_fwd(x, label, all_sums=all_sums, **options)
    return reference.measures_of(kept, all_sums=all_sums), lax.stop_gradient(kept[..., :1])


@measures.defjvp
def _measures_jvp(
    all_sums: bool, tier: str, require_kernel: bool, primals: Any, tangents: Any
) -> Any:
    x, label = primals
    options = {"tier": tier, "require_kernel": require_kernel}
    kept = cross_entropy_fwd(x, label, all_sums=all_sums, **options)
    largest = lax.stop_gradient(kept[..., :1])
    tangent = cross_entropy_jvp(x, label, lax.stop_gradient(kept), tangents[0], **options)
    of_row = reference.measures_of(kept, all_sums=all_sums)
    return (of_row, largest), (tangent, jnp.zeros_like(largest))


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4, 5))
def weighted_loss(
    x: jax.Array,
    label: jax.Array,
    numbers: jax.Array,
    all_sums: bool,
    tier: str,
    require_kernel: bool,
) -> jax.Array:
    """The loss of each row, weight * (q (lse - x_l) + smoothing mean (lse - x) + z lse^2).

    In reverse mode one kernel reads x once and writes both loss and gradient. The gradient is then
    multiplied by the cotangent of each row. `numbers` is differentiable too.

    Args:
        x: as for `measures`.
        label: as for `measures`; a row without a label has the loss 0 for any x.
        numbers: (weight, q, smoothing, z) of each row, of shape (..., 4), in the compute dtype. A row
            with the weight 0 has the gradient 0 for any x.
        all_sums: must be True if a smoothing is not 0.
        tier: see `RowKernel.__call__`.
        require_kernel: see `RowKernel.__call__`.

    Returns:
        Array of shape (..., 1) in the compute dtype.
    """
    options = {"tier": tier, "require_kernel": require_kernel}
    kept = cross_entropy_fwd(x, label, all_sums=all_sums, **options)
    return _loss_of(all_sums, label, kept, numbers)


# Zero tangents stay symbolic: multiplied by an infinite loss, a zero tangent of `numbers` would give NaN.
@functools.partial(weighted_loss.defjvp, symbolic_zeros=True)
def _weighted_loss_jvp(
    all_sums: bool, tier: str, require_kernel: bool, primals: Any, tangents: Any
) -> Any:
    x, label, numbers = primals
    dx, _, dnumbers = tangents
    options = {"tier": tier, "require_kernel": require_kernel}
    call = functools.partial(_loss_of, all_sums, label)
    if isinstance(dx, SymbolicZero):
        kept = cross_entropy_fwd(x, label, all_sums=all_sums, **options)
        return jax.jvp(functools.partial(call, kept), (numbers,), (dnumbers,))
    gradient, kept = cross_entropy_fwd_grad(x, label, numbers, all_sums=all_sums, **options)
    along = gradient.astype(numbers.dtype) * dx.astype(numbers.dtype)
    tangent = jnp.sum(along, axis=-1, keepdims=True)
    if isinstance(dnumbers, SymbolicZero):
        return call(kept, numbers), tangent
    loss, of_numbers = jax.jvp(functools.partial(call, kept), (numbers,), (dnumbers,))
    return loss, tangent + of_numbers


def _loss_of(all_sums: bool, label: jax.Array, kept: jax.Array, numbers: jax.Array) -> jax.Array:
    """The weighted loss from the residuals of each row."""
    of_row = reference.measures_of(kept, all_sums=all_sums)
    return reference.loss_of(label >= 0, of_row, kept[..., :1], numbers)


@dataclasses.dataclass(frozen=True)
class Calls:
    """Calls `measures` and `weighted_loss`, or plain JAX, with the options of a public function.

    Attributes:
        tier: "auto", or the tier to force.
        implementation: as for the public functions.
        all_sums: as for `measures` and `weighted_loss`.
    """

    tier: str
    implementation: Implementation | None
    all_sums: bool

    @property
    def _of_kernels(self) -> tuple[bool, str, bool]:
        return self.all_sums, self.tier, self.implementation == "ffi"

    def leaving_out(self, x: jax.Array, is_left_out: jax.Array) -> jax.Array:
        """Stops gradients of excluded rows that are not finite, so that plain JAX gives 0, not NaN."""
        if self.implementation != "xla":
            return x
        is_harmful = is_left_out & ~jnp.isfinite(largest_of(x))
        return jnp.where(is_harmful, lax.stop_gradient(x), x)

    def measures(self, x: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Calls `measures` or its reference."""
        if self.implementation != "xla":
            return measures(x, label, *self._of_kernels)
        kept = reference.cross_entropy_fwd(x, label, all_sums=self.all_sums)
        return reference.measures_of(kept, all_sums=self.all_sums), kept[..., :1]

    def weighted_loss(self, x: jax.Array, label: jax.Array, numbers: jax.Array) -> jax.Array:
        """Calls `weighted_loss` or its reference."""
        if self.implementation != "xla":
            return weighted_loss(x, label, numbers, *self._of_kernels)
        return reference.loss_of(label >= 0, *self.measures(x, label), numbers)
