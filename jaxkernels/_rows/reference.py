"""Arithmetic of rows in plain JAX, along the last axis, which the references of several operations share.

Owns: compute dtypes, sums and maxima of rows, what hides and scales logits, bands of attention scores.
Must not know: operations, primitives.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from jaxkernels.typing import HasDtype

_LARGEST_INDEX = (1 << 31) - 1


def compute_dtype(x: HasDtype) -> Any:
    """The compute dtype of `x`: float64 for float64, otherwise float32."""
    return jnp.dtype("float64" if x.dtype == jnp.float64 else "float32")


def widen(x: jax.Array) -> jax.Array:
    """`x` in its compute dtype."""
    return x.astype(compute_dtype(x))


def row_sum(x: jax.Array) -> jax.Array:
    """The sum of each row."""
    return jnp.sum(x, axis=-1, keepdims=True)


def largest_of(x: jax.Array) -> jax.Array:
    """The maximum of each row; -inf for an empty row."""
    return jnp.max(x, axis=-1, keepdims=True, initial=-jnp.inf)


def has_finite_max(x: jax.Array) -> jax.Array:
    """Whether each row has a finite maximum and no NaN.

    XLA's maximum can lose a NaN on a CPU, if the rows are columns of more than a thousand elements.
    """
    is_below, is_visible = x < jnp.inf, x > -jnp.inf
    return jnp.all(is_below, -1, keepdims=True) & jnp.any(is_visible, -1, keepdims=True)


def _or_zero(x: jax.Array) -> jax.Array:
    """`x` where it is finite, else 0."""
    return jnp.where(jnp.isfinite(x), x, 0)


@jax.custom_jvp
def scaled(x: jax.Array, scales: jax.Array) -> jax.Array:
    """Applies an optional soft cap, then a temperature, to logits, in the dtype of `scales`.

    These are the temperature of each row, of shape (..., 1), or (temperature, cap), of shape (..., 2). A
    logit of -inf stays -inf.
    """
    x = x.astype(scales.dtype)
    if scales.shape[-1] == 2:
        cap = scales[..., 1:]
        x = jnp.where(x == -jnp.inf, x, cap * jnp.tanh(x / cap))
    return x / scales[..., :1]


# Non-finite factors become 0, so that a gradient of 0 stays 0. In a row that counts, the gradient that
# they multiply is NaN already.
@functools.partial(scaled.defjvp, symbolic_zeros=True)
def _scaled_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    x, scales = primals
    dx, dscales = tangents
    y = scaled(x, scales)
    temperature = scales[..., :1]
    scales_move = not isinstance(dscales, SymbolicZero)
    tangent = jnp.zeros_like(y) if isinstance(dx, SymbolicZero) else dx.astype(y.dtype)
    if scales.shape[-1] == 2:
        ratio = x.astype(y.dtype) / scales[..., 1:]
        capped = jnp.tanh(ratio)
        slope = _or_zero((1 - capped) * (1 + capped))
        tangent *= slope
        if scales_move:
            of_cap = jnp.where(x == -jnp.inf, 0, _or_zero(capped - _or_zero(ratio) * slope))
            tangent += of_cap * dscales[..., 1:]
    if scales_move:
        tangent -= _or_zero(y) * dscales[..., :1]
    return y, tangent / jnp.where(jnp.abs(temperature) > 0, temperature, 1)


class LogitOptions(NamedTuple):
    """The mask and the scales of logits, as operands of the kernels of losses.

    Attributes:
        mask: bool, of the rank of the logits; its last dimension is that of the logits, others may be 1.
        scales: those of `scaled`.
    """

    mask: jax.Array | None = None
    scales: jax.Array | None = None

    def applied(self, x: jax.Array) -> jax.Array:
        """The logits with these options, by plain JAX."""
        return transformed(x, *(option for option in self if option is not None))


def transformed(x: jax.Array, *options: jax.Array) -> jax.Array:
    """Logits with -inf where a mask hides them, then `scaled`; `options` are the mask and the scales, if given."""
    for option in options:
        x = hidden(x, option) if option.dtype == bool else scaled(x, option)
    return x


def mask_of(options: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """The mask of the options of `transformed`, in a sequence that is empty if they have none."""
    return [option for option in options if option.dtype == bool]


def hidden(x: jax.Array, mask: jax.Array, value: float = -jnp.inf) -> jax.Array:
    """`x` with `value` where the mask is False."""
    return jnp.where(mask, x, jnp.asarray(value, x.dtype))


def slope_of_scaled(y: jax.Array, scales: jax.Array) -> jax.Array:
    """The derivative of y = scaled(x, scales) by x."""
    temperature = scales[..., :1]
    slope = 1 / temperature
    if scales.shape[-1] == 2:
        capped = jnp.clip(y * temperature / scales[..., 1:], -1, 1)
        slope *= (1 - capped) * (1 + capped)
    return slope


def difference_error(a: jax.Array, b: jax.Array, difference: jax.Array) -> jax.Array:
    """The rounding error of a - b (Knuth's TwoDiff); 0 if the difference is not finite."""
    is_finite = jnp.isfinite(difference)
    a, b, difference = (jnp.where(is_finite, value, 0) for value in (a, b, difference))
    b_part = a - difference
    return (a - (difference + b_part)) + (b_part - b)


def below(x: jax.Array, largest: jax.Array) -> jax.Array:
    """The difference x - largest, which is exactly 0 where they are equal.

    XLA may fuse a product x into a multiply-add on a CPU. x - largest is then the rounding error of the product, up to 1e31.
    """
    difference = x - largest
    return difference - jax.lax.stop_gradient(jnp.where(x == largest, difference, 0))


def exp_difference(x: jax.Array, largest: jax.Array) -> jax.Array:
    """exp(x - largest), corrected for the rounding of x - largest; this rounding alone costs up to 90 ulp."""
    difference = below(x, largest)
    exponential = jnp.exp(difference)
    return exponential + exponential * difference_error(x, largest, difference)


def quotient(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """The quotient; 0 if the denominator is 0, as for a row of -inf."""
    is_zero = denominator == 0
    return jnp.where(is_zero, 0, numerator / jnp.where(is_zero, 1, denominator))


def band(shape: Sequence[int], left: int, right: int, from_end: bool) -> jax.Array:
    """A mask (1, ..., q, k) of the columns visible to row i of (q, k) matrices: i + left <= j <= i + right.

    `from_end` aligns the last row with the last column, instead of the first with the first.
    """
    q, k = shape[-2:]
    own = jnp.arange(q) + (k - q if from_end else 0)
    return within_band(own, jnp.arange(k), left, right, len(shape))


def within_band(own: jax.Array, cols: jax.Array, left: int, right: int, ndim: int) -> jax.Array:
    """As `band`, for rows whose diagonal columns are `own` and columns `cols`, with rank `ndim`."""
    distance = cols[None, :] - own[:, None]
    # Unbounded sides may exceed the index dtype, so they are clipped.
    left, right = max(left, -_LARGEST_INDEX), min(right, _LARGEST_INDEX)
    return jnp.expand_dims((distance >= left) & (distance <= right), range(ndim - 2))
