"""rms_norm: root-mean-square normalisation on row kernels.

Owns: the operations in plain JAX and their derivatives, the public function, and the conversion of its
arguments to kernel operands. Must not know: how a primitive works, or how a kernel is launched.

The result is linear in the scale, so the forward kernel is its own tangent for the scale. Its Jacobian for
x, and the transpose of that, are two more kernels, which recompute the root from x. The gradient of the
scale is a sum over all rows, in plain JAX.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad
from jax.typing import ArrayLike

from jaxkernels._core import eager, validate
from jaxkernels._rows import derivatives, primitive
from jaxkernels._rows.contract import Operand, RowOperation
from jaxkernels._rows.reference import compute_dtype, widen
from jaxkernels.typing import Implementation, Tier


def _over_rms(x: jax.Array, epsilon: float) -> jax.Array:
    """1 / sqrt(mean(x^2) + epsilon) of each row."""
    return jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon)


def _along_columns(column: jax.Array, x: jax.Array) -> jax.Array:
    """A vector along the columns of `x`, in its dtype and rank."""
    return jnp.expand_dims(column.astype(x.dtype), range(x.ndim - 1))


def _rms_jacobian_times(x: jax.Array, t: jax.Array, epsilon: float) -> jax.Array:
    """The product A t, with A as for `rms_norm_grad`."""
    r = _over_rms(x, epsilon)
    return r * (t - x * (r * r * jnp.mean(x * t, axis=-1, keepdims=True)))


@primitive.of_operation()
def rms_norm_fwd(x: jax.Array, scale: jax.Array, *, epsilon: float) -> jax.Array:
    """RMSNorm: y = scale * r x, with r = 1 / sqrt(mean(x^2) + epsilon)."""
    wide = widen(x)
    return (wide * _over_rms(wide, epsilon) * _along_columns(scale, wide)).astype(x.dtype)


@primitive.of_operation()
def rms_norm_grad(x: jax.Array, scale: jax.Array, dy: jax.Array, *, epsilon: float) -> jax.Array:
    """Gradient: dx = J^T dy = A (scale * dy), with the symmetric A = r (I - x x^T r^2 / cols)."""
    wide = widen(x)
    dx = _rms_jacobian_times(wide, _along_columns(scale, wide) * widen(dy), epsilon)
    return dx.astype(x.dtype)


@primitive.of_operation(
    RowOperation(
        name="rms_norm_jvp",
        operands=(Operand("x"), Operand("scale", "column"), Operand("dx")),
        results=(Operand("dy"),),
        has_kernel=False,
    )
)
def rms_norm_jvp(x: jax.Array, scale: jax.Array, dx: jax.Array, *, epsilon: float) -> jax.Array:
    """Tangent: dy = J dx = scale * (A dx), with A as for `rms_norm_grad`."""
    wide = widen(x)
    dy = _along_columns(scale, wide) * _rms_jacobian_times(wide, widen(dx), epsilon)
    return dy.astype(x.dtype)


def _tangent_of(y: Any, operands: Any, tangents: Any, **params: Any) -> jax.Array:
    del y
    x, scale = operands
    dx, dscale = tangents
    terms = [] if dx is None else [rms_norm_jvp(x, scale, dx, **params)]
    terms += [] if dscale is None else [rms_norm_fwd(x, dscale, **params)]
    return functools.reduce(jnp.add, terms)


def _transpose_for_scale(
    cotangent: Any, x: Any, scale: Any, *, epsilon: float, **options: Any
) -> tuple[None, Any]:
    del options
    if type(cotangent) is ad.Zero:
        return None, ad.Zero(scale.aval)
    wide = widen(x)
    terms = wide * _over_rms(wide, epsilon) * widen(cotangent)
    return None, jnp.sum(terms, axis=tuple(range(x.ndim - 1))).astype(scale.aval.dtype)


derivatives.define_jvp(rms_norm_fwd, _tangent_of)
derivatives.define_linear(rms_norm_jvp, transpose=rms_norm_grad, variables=2)
derivatives.define_linear(rms_norm_grad, transpose=rms_norm_jvp, variables=2)
ad.primitive_transposes[rms_norm_fwd.primitive] = _transpose_for_scale


@eager.jit_when_eager("x", "scale")
def rms_norm(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
    scale_offset: float = 0.0,
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    r"""RMSNorm along one axis: `x / sqrt(mean(x^2) + epsilon) * (scale_offset + scale)`.

    It computes in float32 (float64 for float64) and rounds once, to the dtype of x. It runs this package's
    kernels on CPUs and NVIDIA GPUs, and plain JAX elsewhere. It works with jit, vmap, scan, remat,
    shard_map and derivatives of every order and mode.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> x = jnp.array([[3.0, 4.0], [0.0, 2.0]], jnp.bfloat16)
        >>> print(jk.rms_norm(x, jnp.array([1.0, 10.0])))
        [[0.847656 11.3125]
         [0 14.125]]
        >>> print(jax.grad(lambda scale: jk.rms_norm(x, scale).sum())(jnp.ones(2, jnp.float16)))
        [0.8486 2.545 ]

    Args:
        x: array of at least one dimension; kernels serve float32, bfloat16, float16 and float64. Integers
            are converted to a floating type. Plain JAX computes other floating types (float8).
        scale: the factor of each column, of shape `(x.shape[axis],)` and any real dtype: float32 for x of
            bfloat16 is usual. None means the factor 1.
        axis: the axis that is normalised. The last axis is fastest; others are transposed to it.
        epsilon: added to the mean, a number of at least 0.
        scale_offset: added to the scale in the compute dtype. Gemma's norms have 1.
        tier: as for `softmax`.
        implementation: None uses a kernel if there is one, but plain JAX for rows that are too long for the
            shared memory of a cluster (`plan_softmax(...).xla_by_default`), and for a scale that vmap maps.
            "ffi" uses a kernel for long rows too, and raises an error if there is none. "xla" is plain JAX.

    Returns:
        Array of the shape of x and its dtype (floating).

    Raises:
        TypeError: x or scale is not an array or number, or is complex, or x is bool; `axis` is not an
            integer, or `epsilon` or `scale_offset` not a number.
        ValueError: `axis` is out of bounds, scale has another shape, epsilon is negative or NaN,
            `scale_offset` is given without a scale, `tier` or `implementation` is not one of the above, or
            the registers of the tier cannot hold such a row. (If shared memory cannot, the program fails
            when it runs.)
        NotImplementedError: `implementation="ffi"` or `tier` is given and there is no kernel. For a
            platform without kernels only "ffi" raises it, when the program is lowered.

    Notes:
        * Reverse mode stores x and the scale. A kernel reads x and dy once and writes dx. The gradient of the
          scale is a sum over rows by XLA, which reads x twice and dy once more.
        * Squares overflow in float32 beyond 1.8e19. The mean is then infinite and a finite x gives 0, as in
          plain JAX.
        * Arrays sharded over any dimensions but `axis` need no communication, except one sum of the scale's
          gradient. If `axis` is sharded, devices exchange one mean per row (in derivatives two).
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

    References:
        Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
    """
    validate.check_row_options(implementation, tier)
    validate.check_static(axis=axis, epsilon=epsilon, scale_offset=scale_offset)
    x = validate.as_array("rms_norm", "x", x)
    dtype = validate.computation_dtype(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"rms_norm: x must be real numbers; got {dtype}")
    why_not = validate.why_no_row_kernel(dtype, axis)
    if why_not:
        validate.check_needs_no_kernel("rms_norm", why_not, implementation, tier)
    axes = validate.canonical_axes(axis, x.ndim, x.ndim)
    if len(axes) != 1:
        raise TypeError(f"rms_norm: axis must be an integer; got {axis!r}")
    epsilon = _number("epsilon", epsilon)
    if not epsilon >= 0:
        raise ValueError(f"rms_norm: epsilon must be at least 0; got {epsilon}")

    rows = jnp.moveaxis(x.astype(dtype), axes[0], -1)
    column = _column(scale, _number("scale_offset", scale_offset), rows)
    if why_not or implementation == "xla":
        y = rms_norm_fwd.reference(rows, column, epsilon=epsilon)
    else:
        options = {"tier": tier or "auto", "require_kernel": implementation == "ffi"}
        y = rms_norm_fwd(rows, column, epsilon=epsilon, **options)
    return jnp.moveaxis(y, -1, axes[0])


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"rms_norm: {name} must be a number; got {value!r}") from error


def _column(scale: ArrayLike | None, offset: float, rows: jax.Array) -> jax.Array:
    """The factors of the columns of `rows`, in its dtype or compute dtype."""
    shape, wide = rows.shape[-1:], compute_dtype(rows)
    if scale is None:
        if offset != 0:
            raise ValueError(f"rms_norm: scale_offset needs a scale; got scale_offset={offset}")
        return jnp.ones(shape, wide)
    column = validate.as_array("rms_norm", "scale", scale)
    if not jnp.issubdtype(validate.computation_dtype(column), jnp.floating):
        raise TypeError(f"rms_norm: scale must be real numbers; got {column.dtype}")
    if column.shape != shape:
        raise ValueError(
            f"rms_norm: scale must have the shape {shape} of the normalised axis; got {column.shape}"
        )
    if offset != 0 or column.dtype not in (rows.dtype, wide):
        column = column.astype(wide)
    return column + offset if offset != 0 else column
