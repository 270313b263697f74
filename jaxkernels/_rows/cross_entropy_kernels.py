"""The row kernels of cross entropy, and the two differentiable functions built on them.

The forward kernel reduces a row of logits and its label to residuals (`Residuals`). Plain JAX computes
`Measures` of the row from them. A loss is a sum of measures with `Coefficients`. The gradient kernel
computes the gradient from x and the residuals, without a reduction.

Owns: the primitives, their derivatives and their column-sharded forms. Must not know: what users may
pass (`cross_entropy`), how a kernel is launched.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from jaxkernels._core import compat
from jaxkernels._rows import calls, derivatives, loss_labels, loss_measures, partitioning, primitive
from jaxkernels._rows import cross_entropy_reference as reference
from jaxkernels._rows.contract import OPERATIONS, Operand, RowKernel, RowOperation
from jaxkernels._rows.loss_measures import Measures, Residuals
from jaxkernels._rows.reference import LogitOptions, has_finite_max
from jaxkernels.typing import Implementation


def _label_on_device(label: jax.Array, cols: int, axes: tuple[str, ...]) -> jax.Array:
    """The label's index in this device's shard; out of range if another device holds it."""
    return label - partitioning.index(axes) * cols


def _fwd_in_parts(
    operands: Sequence[jax.Array], axes: tuple[str, ...], *, all_sums: bool, **options: Any
) -> jax.Array:
    """The residuals of rows whose columns are sharded over `axes`.

    Devices exchange one maximum and three sums per row, or six sums with `all_sums`.
    """
    x, label, *given = operands
    cols = x.shape[-1]
    has_mask = options.get("has_mask", False)
    attributes = {"all_sums": all_sums, "has_mask": has_mask}
    own = calls.statistics(OPERATIONS["cross_entropy_fwd"], [x, *given], **attributes)
    own_largest, *own_sums = jnp.split(own, len(Residuals._fields) - 1, axis=-1)
    largest = lax.pmax(own_largest, axes)
    relative = _relative_to(largest, own_largest, own_sums)

    labelled = loss_labels.transformed_at_labels(x, _label_on_device(label, cols, axes), *given)
    labelled = labelled.astype(own.dtype)
    wanted = len(relative) if all_sums else 2  # `rest` and `count`
    sent = jnp.concatenate([*relative[:wanted], labelled], axis=-1)
    *sums, labelled = jnp.split(lax.psum(sent, axes), [*range(1, wanted + 1)], axis=-1)
    sums += [jnp.zeros_like(largest)] * (len(relative) - wanted)
    is_beyond = label >= cols * lax.axis_size(axes)
    largest = jnp.where(largest == -jnp.inf, 0, largest)
    return loss_measures.joined(
        Residuals(largest, *sums, labelled=jnp.where(is_beyond, jnp.nan, labelled))
    )


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
        total + reference.bounded_below(difference) * loss_measures.TOTAL_SCALE * seen,
        seen,
    ]


def _grad_in_parts(
    operands: Sequence[jax.Array], axes: tuple[str, ...], *, in_place: bool = False, **flags: bool
) -> jax.Array:
    """The gradient of this device's columns, from the residuals of whole rows."""
    x, label, *others = operands
    own_label = _label_on_device(label, x.shape[-1], axes)
    aliases = {0: 0} if in_place else None
    call = functools.partial(calls.rows, cross_entropy_grad.operation, aliases=aliases, **flags)
    return cross_entropy_grad.for_labels(call, x, own_label, *others)


def _fwd_grad_in_parts(
    operands: Sequence[jax.Array], axes: tuple[str, ...], *, all_sums: bool, **options: Any
) -> list[jax.Array]:
    *given, numbers = operands
    kept = _fwd_in_parts(given, axes, all_sums=all_sums, **options)
    cotangent = loss_measures.cotangent_of(given[1], kept, numbers)
    return [_grad_in_parts([*given, kept, cotangent], axes, **options), kept]


cross_entropy_fwd = primitive.of_operation(
    in_parts=_fwd_in_parts, of_labels=loss_labels.fwd_of_labels
)(reference.cross_entropy_fwd)
cross_entropy_fwd_grad = primitive.of_operation(in_parts=_fwd_grad_in_parts)(
    reference.cross_entropy_fwd_grad
)
cross_entropy_grad = primitive.of_operation(
    in_parts=_grad_in_parts, of_labels=loss_labels.grad_of_labels
)(reference.cross_entropy_grad)
# The JVP has no kernel of ours, because training steps rarely use forward mode.
cross_entropy_jvp = primitive.of_operation(
    RowOperation(
        name="cross_entropy_jvp",
        operands=(*cross_entropy_grad.operation.operands[:-1], Operand("dx")),
        results=(Operand("dmeasures", "row", len(Measures._fields)),),
        has_kernel=False,
    )
)(reference.cross_entropy_jvp)

# The tangents of a weighted loss, whose gradient is known, and of the measures of its rows.
cross_entropy_loss_jvp = primitive.of_operation(
    RowOperation(
        name="cross_entropy_loss_jvp",
        operands=(
            *cross_entropy_fwd_grad.operation.operands,
            *(Operand("kept", "row", len(Residuals._fields)), Operand("gradient"), Operand("dx")),
        ),
        results=(Operand("dloss", "row", is_wide=True), *cross_entropy_jvp.operation.results),
        has_kernel=False,
    )
)(reference.cross_entropy_loss_jvp)


def _times(cotangent: jax.Array, x: jax.Array) -> jax.Array:
    """The product; 0 where the cotangent is 0, even if x is not finite, as in the gradient kernel."""
    return cotangent * jnp.where((cotangent == 0) & ~jnp.isfinite(x), 0, x)


def _transpose_of_weighted_loss(cotangents: Any, *operands: Any, **params: Any) -> list[Any]:
    """The known gradient times the loss's cotangent; if measures have one, the gradient kernel serves both."""
    of_loss, of_measures = cotangents
    *given, dx = operands
    *others, numbers, kept, gradient = given
    if type(of_measures) is not ad.Zero:
        if type(of_loss) is not ad.Zero:
            of_measures += _times(of_loss, loss_measures.cotangent_of(others[1], kept, numbers))
        found = cross_entropy_grad(*others, kept, of_measures, **params)
    elif type(of_loss) is not ad.Zero:
        found = _times(of_loss, gradient.astype(of_loss.dtype)).astype(gradient.dtype)
    else:
        found = ad.Zero(dx.aval)
    return [*(None for _ in given), found]


def _without_gradient(used: Sequence[bool], eqn: Any) -> tuple[list[bool], Any]:
    """Replaces a loss whose gradient is unused by the forward kernel."""
    if used[0] or not used[1]:
        return [any(used)] * len(eqn.invars), eqn if any(used) else None
    (_, kept), forward = eqn.outvars, cross_entropy_fwd.primitive
    loss = eqn.replace(invars=eqn.invars[:-1], outvars=[kept], primitive=forward)
    return [*[True] * len(loss.invars), False], loss


ad.primitive_transposes[cross_entropy_loss_jvp.primitive] = _transpose_of_weighted_loss
derivatives.define_jvp_by_reference(cross_entropy_loss_jvp)
compat.register_dce_rule(cross_entropy_fwd_grad.primitive, _without_gradient)
# These rules serve second and higher derivatives; the two functions below have their own first ones.
derivatives.define_jvp_by_reference(
    cross_entropy_fwd, lambda x, label, *options: reference.without_spoiled_rows(x, *options)
)
derivatives.define_jvp_by_reference(cross_entropy_fwd_grad)
derivatives.define_linear(cross_entropy_jvp, transpose=cross_entropy_grad)
derivatives.define_linear(cross_entropy_grad, transpose=cross_entropy_jvp)


@dataclasses.dataclass(frozen=True)
class Calls:
    """Computes measures and losses by kernels, or in plain JAX, with the options of a public function.

    Attributes:
        tier: "auto", or the tier to force.
        implementation: as for the public functions.
        all_sums: whether to compute the last two measures; otherwise they are 0.
    """

    tier: str
    implementation: Implementation | None
    all_sums: bool

    def run(
        self,
        kernel: RowKernel,
        x: jax.Array,
        label: jax.Array,
        options: LogitOptions,
        *others: jax.Array,
    ) -> Any:
        """The results of a kernel or, for "xla", of its reference, with the given options."""
        given = (x, label, *(option for option in options if option is not None), *others)
        is_tangent = kernel in (cross_entropy_jvp, cross_entropy_loss_jvp)
        attributes = {} if is_tangent else {"all_sums": self.all_sums}
        if self.implementation == "xla":
            return kernel.reference(*given, **attributes)
        attributes |= {"tier": self.tier, "require_kernel": self.implementation == "ffi"}
        flags = {f"has_{name}": x is not None for name, x in options._asdict().items()}
        return kernel(*given, **flags, **attributes)

    def measures_of(self, kept: jax.Array) -> jax.Array:
        """The measures of each row."""
        return loss_measures.measures_of(kept, all_sums=self.all_sums)

    def of_rows(self, kept: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The measures of each row, and its maximum."""
        return self.measures_of(kept), lax.stop_gradient(kept[..., :1])

    def loss_of(self, label: jax.Array, kept: jax.Array, numbers: jax.Array) -> jax.Array:
        """The weighted loss of each row."""
        of_row = self.measures_of(kept)
        return loss_measures.loss_of(label >= 0, of_row, kept[..., :1], numbers)

    def prepared(
        self, x: jax.Array, options: LogitOptions, is_left_out: jax.Array
    ) -> tuple[jax.Array, LogitOptions]:
        """Logits and options for `measures`. Plain JAX applies the options here.

        It also stops gradients of excluded rows that are not finite, to give 0 for them, not NaN.
        """
        if self.implementation != "xla":
            return x, options
        x = options.applied(x)
        is_harmful = is_left_out & ~has_finite_max(x)
        return jnp.where(is_harmful, lax.stop_gradient(x), x), LogitOptions()

    def measures(
        self, x: jax.Array, label: jax.Array, options: LogitOptions
    ) -> tuple[jax.Array, jax.Array]:
        """The `Measures` of each row and its maximum, in the compute dtype; label may have several.

        Reverse mode reads x twice and writes its gradient. Without a label the first measure is
        meaningless; with a label of `cols` or more it is NaN. The maximum, of the transformed logits, has
        the derivative 0, and the second measure has that of lse.
        """
        if self.implementation != "xla":
            return measures(self, x, label, options)
        return self.of_rows(self.run(cross_entropy_fwd, x, label, options))

    def weighted_loss(
        self, x: jax.Array, label: jax.Array, numbers: jax.Array, options: LogitOptions
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The loss of each row, of shape (..., 1), and `measures`; see `loss_measures.loss_of`.

        In reverse mode one kernel reads x once and writes both loss and gradient. The gradient is then
        multiplied by the cotangent of each row. If the measures have cotangents too, the backward pass reads
        x again, and JAX removes the forward pass's gradient as dead code; a forward pass compiled by itself
        (`jax.vjp` outside of jit) still writes it. `numbers`, the `Coefficients`, are differentiable too; a
        smoothing that is not 0 needs `all_sums`. For any x, a row without a label has the loss 0, and one
        with the weight 0 the gradient 0.
        """
        if self.implementation != "xla":
            return weighted_loss(self, x, label, numbers, options)
        of_rows = self.measures(x, label, options)
        return loss_measures.loss_of(label >= 0, *of_rows, numbers), *of_rows


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def measures(
    how: Calls, x: jax.Array, label: jax.Array, options: LogitOptions
) -> tuple[jax.Array, jax.Array]:
    """`Calls.measures` by kernels."""
    return how.of_rows(how.run(cross_entropy_fwd, x, label, options))


@functools.partial(measures.defjvp, symbolic_zeros=True)
def _measures_jvp(how: Calls, primals: Any, tangents: Any) -> Any:
    x, label, options = primals
    x, dx, options = _with_fixed_scales(x, tangents[0], options, tangents[2].scales)
    kept = how.run(cross_entropy_fwd, x, label, options)
    of_rows, largest = how.of_rows(kept)
    if isinstance(dx, SymbolicZero):
        tangent = jnp.zeros_like(of_rows)
    else:
        tangent = how.run(cross_entropy_jvp, x, label, options, lax.stop_gradient(kept), dx)
    return (of_rows, largest), (tangent, jnp.zeros_like(largest))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def weighted_loss(
    how: Calls, x: jax.Array, label: jax.Array, numbers: jax.Array, options: LogitOptions
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`Calls.weighted_loss` by kernels."""
    kept = how.run(cross_entropy_fwd, x, label, options)
    # The kernel of the derivative returns mapped measures if vmap maps only `numbers`. JAX needs mapped measures
    # here too, and the select makes them. XLA removes it.
    found, largest = (jnp.where(False, numbers[..., :1], part) for part in how.of_rows(kept))
    return how.loss_of(label, kept, numbers), found, largest


# Zero tangents stay symbolic: multiplied by an infinite loss, a zero tangent of `numbers` would give NaN.
@functools.partial(weighted_loss.defjvp, symbolic_zeros=True)
def _weighted_loss_jvp(how: Calls, primals: Any, tangents: Any) -> Any:
    x, label, numbers, options = primals
    dx, _, dnumbers, doptions = tangents
    x, dx, options = _with_fixed_scales(x, dx, options, doptions.scales)
    terms = []
    if isinstance(dx, SymbolicZero):
        kept = how.run(cross_entropy_fwd, x, label, options)
        of_measures = jnp.zeros_like(how.measures_of(kept))
    else:
        gradient, kept = how.run(cross_entropy_fwd_grad, x, label, options, numbers)
        known = (numbers, kept, gradient)
        along, of_measures = how.run(cross_entropy_loss_jvp, x, label, options, *known, dx)
        terms.append(along)
    loss = functools.partial(how.loss_of, label, kept)
    if not isinstance(dnumbers, SymbolicZero):
        terms.append(jax.jvp(loss, (numbers,), (dnumbers,))[1])
    of_rows, largest = how.of_rows(kept)
    tangent = functools.reduce(jnp.add, terms)
    return (loss(numbers), of_rows, largest), (tangent, of_measures, jnp.zeros_like(largest))


def _with_fixed_scales(
    x: jax.Array, dx: Any, options: LogitOptions, dscales: Any
) -> tuple[jax.Array, Any, LogitOptions]:
    """Logits, their tangent, and scales without a tangent: plain JAX applies options whose scales have one."""
    mask, scales = options
    if scales is None or isinstance(dscales, SymbolicZero):
        return x, dx, options

    def applied(scales: jax.Array, x: jax.Array = x) -> jax.Array:
        return LogitOptions(mask, scales).applied(x)

    if isinstance(dx, SymbolicZero):
        return *jax.jvp(applied, (scales,), (dscales,)), LogitOptions()
    return *jax.jvp(applied, (scales, x), (dscales, dx)), LogitOptions()
