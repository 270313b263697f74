"""logsumexp: a drop-in for jax.nn's and jax.scipy.special's, on row kernels.

Owns: the operations in plain JAX and their derivatives, the public function, and the conversion of its
arguments to kernel operands. Must not know: how a primitive works, or how a kernel is launched.

The forward kernel reduces each row to log sum exp(x). The gradient kernel recomputes the softmax from x
and multiplies it by the cotangent of each row, so reverse mode saves only x.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxkernels._core import eager, validate
from jaxkernels._rows import derivatives, last_axis, primitive
from jaxkernels._rows.contract import Operand, RowOperation
from jaxkernels._rows.reference import below, largest_of, quotient, row_sum, widen
from jaxkernels.typing import Implementation, Tier

Axis = int | tuple[int, ...] | list[int] | None

_jax_nn_logsumexp = jax.nn.logsumexp  # the original, even inside `patch_jax_nn`


def _log_sum_exp_terms(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(shift, exp(x - shift)) of each row; the shift is the maximum, made finite."""
    relative_to = _finite(largest_of(x))
    return relative_to, jnp.exp(below(x, relative_to))


def _finite(largest: jax.Array) -> jax.Array:
    most = jnp.finfo(largest.dtype).max
    return jnp.where(largest == -jnp.inf, 0, jnp.where(largest == jnp.inf, most, largest))


@primitive.of_operation(
    from_statistics=lambda found: jnp.log(found[..., 1:]) + _finite(found[..., :1])
)
def logsumexp_fwd(x: jax.Array) -> jax.Array:
    """Log-sum-exp of each row: y = max x + log sum exp(x - max x)."""
    relative_to, terms = _log_sum_exp_terms(widen(x))
    return (jnp.log(row_sum(terms)) + relative_to).astype(x.dtype)


@primitive.of_operation()
def logsumexp_grad(x: jax.Array, dy: jax.Array) -> jax.Array:
    """Gradient: dx = dy * exp(x - max x) / sum exp(x - max x), for dy of shape (..., 1)."""
    _, terms = _log_sum_exp_terms(widen(x))
    return (terms * quotient(dy.astype(terms.dtype), row_sum(terms))).astype(x.dtype)


@primitive.of_operation(
    RowOperation(
        name="logsumexp_jvp",
        operands=(Operand("x"), Operand("dx")),
        results=(Operand("dlse", "row"),),
        has_kernel=False,
    )
)
def logsumexp_jvp(x: jax.Array, dx: jax.Array) -> jax.Array:
    """Tangent: dy = sum(exp(x - max x) * dx) / sum exp(x - max x)."""
    _, terms = _log_sum_exp_terms(widen(x))
    return quotient(row_sum(terms * widen(dx)), row_sum(terms)).astype(x.dtype)


# The Jacobian of a row is softmax(x), which both derivatives compute from x.
derivatives.define_derivatives(
    logsumexp_fwd, jvp=logsumexp_jvp, grad=logsumexp_grad, keeps_x=lambda dtype: True
)


@eager.jit_when_eager("a", "b", "where", check=eager.is_not_xlas)
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
    *,
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Logarithm of a sum of exponentials along one or more axes: `log(sum_j b_j exp(a_j))`.

    A drop-in replacement for `jax.nn.logsumexp` and `jax.scipy.special.logsumexp`, edge cases included.
    It runs this package's kernels on CPUs and NVIDIA GPUs, and plain JAX elsewhere. It works with jit,
    vmap, scan, remat, shard_map and derivatives of every order and mode.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> print(jk.logsumexp(jnp.array([[0.0, 0.0], [1000.0, -jnp.inf]]), axis=-1))
        [6.931472e-01 1.000000e+03]
        >>> print(jax.grad(jk.logsumexp)(jnp.zeros(4)))
        [0.25 0.25 0.25 0.25]

    Args:
        a: array of any shape; kernels serve float32, bfloat16, float16 and float64. Integers and
            bool are converted to a floating type. `jax.nn.logsumexp` computes dtypes without a kernel
            (complex, float8).
        axis: the summed axis or axes; None means all of them. The last axis is fastest; others are
            transposed to it.
        b: factors of the exponentials; None means 1. They broadcast against a. If `b` varies along
            `axis`, plain JAX computes the sum; otherwise log|b| is added to the result of the kernel. An
            element with the factor 0 is excluded, even if it is NaN.
        keepdims: keeps the summed axes in the result, with size 1.
        return_sign: also returns the sign of the sum. Without it, the logarithm of a negative sum is
            NaN.
        where: boolean mask that broadcasts against a (and a against it). Elements where it is False
            are excluded.
        tier: as for `softmax`.
        implementation: None uses a kernel if there is one, "ffi" raises an error if there is none,
            "xla" calls `jax.nn.logsumexp`.

    Returns:
        Array of the shape of a (broadcast against `where` and b) without the summed axes, of their
        common dtype (floating); with `return_sign` a pair of such arrays, log|sum| and its sign, -1,
        0 or 1.

    Raises:
        TypeError: an argument is not an array or number, or `axis` is traced or contains
            a value that is not an integer.
        ValueError: `axis` is out of bounds or has duplicates, `where` is not of type bool, it or b
            does not broadcast, `tier` or `implementation` is not one of the above, or the registers
            of the tier cannot hold such a row. (If shared memory cannot, the program fails when it
            runs.)
        NotImplementedError: `implementation="ffi"` or `tier` is given and there is no kernel. For a
            platform without kernels only "ffi" raises it, when the program is lowered.

    Notes:
        * 16-bit types are computed in float32 and rounded once, also in the gradient. log|b| is added to the
          rounded result.
        * A row of -inf, and a fully masked row, give -inf with the gradient 0 (`jax.nn.logsumexp` has NaN
          for a row of -inf). +inf gives +inf, NaN gives NaN.
        * Rows without elements give -inf.
        * The derivative with respect to a factor b_j is exp(a_j) over the sum, also if b_j is 0 (`jax.nn.logsumexp`
          has 0 there). It is 0 in a sum that is 0 as a whole.
        * Reverse mode stores the input and one number per row.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

    References:
        P. Blanchard, D. J. Higham and N. J. Higham, "Accurately computing the log-sum-exp and softmax
        functions", IMA Journal of Numerical Analysis 41 (2021). M. Milakov and N. Gimelshein, "Online
        normalizer calculation for softmax", 2018, arXiv:1805.02867.
    """
    validate.check_row_options(implementation, tier)
    validate.check_static(axis=axis, keepdims=keepdims, return_sign=return_sign)
    if implementation == "xla":
        return _jax_nn_logsumexp(a, axis, b, keepdims, return_sign, where)

    x = validate.as_array("logsumexp", "a", a)
    factor = None if b is None else validate.as_array("logsumexp", "b", b)
    mask = None if where is None else validate.as_mask("logsumexp", "where", where)
    dtype = _result_dtype(x, factor)
    no_kernel = validate.why_no_row_kernel(dtype, axis)
    factors_vary = "" if no_kernel else _why_factors_vary(x, factor, mask, axis)
    if no_kernel or factors_vary:
        validate.check_needs_no_kernel("logsumexp", no_kernel or factors_vary, implementation, tier)
    if no_kernel:
        return _jax_nn_logsumexp(a, axis, b, keepdims, return_sign, where)

    shape = validate.broadcast_all("logsumexp", a=x, where=mask, b=factor)
    x = x.astype(dtype)
    if mask is not None:
        x = jnp.where(mask, x, jnp.asarray(-jnp.inf, dtype))
    sign = None
    if factor is not None and factors_vary:
        if mask is not None:
            factor = jnp.where(mask, factor, 0)
        axes = validate.canonical_axes(axis, len(shape), len(shape))
        log_sum, sign = _sum_with_factors(x, factor.astype(dtype), axes)
    else:
        axes = validate.canonical_axes(axis, x.ndim, x.ndim)
        if axes and axes != (x.ndim - 1,):
            x = last_axis.merged(last_axis.moved_last(x, axes), len(axes))
        rows = x if axes else jnp.expand_dims(x, -1)  # without axes, an element is a row of its own
        options = {"tier": tier or "auto", "require_kernel": implementation == "ffi"}
        log_sum = jnp.squeeze(logsumexp_fwd(rows, **options), -1)
        if factor is not None:  # one factor per row
            factor = factor.astype(dtype).reshape((1,) * (len(shape) - factor.ndim) + factor.shape)
            log_sum, sign = _multiplied(log_sum, jnp.squeeze(factor, axes))
    if sign is not None and not return_sign:
        with jax.debug_nans(False):  # the NaN of a negative sum is the documented result
            log_sum = jnp.where(sign < 0, np.asarray(np.nan, dtype), log_sum)
    if keepdims:
        log_sum = jnp.expand_dims(log_sum, axes)
    if not return_sign:
        return log_sum
    sign = _sign_of(log_sum) if sign is None else sign
    return log_sum, sign.reshape(log_sum.shape)


def _result_dtype(x: jax.Array, factor: jax.Array | None) -> Any:
    """The dtype to which JAX promotes the arguments of a floating-point function."""
    dtype = x.dtype if factor is None else validate.promoted_dtype(x, factor)
    given = jax.ShapeDtypeStruct((), dtype)  # debug_nans may find NaN in a GPU's empty array
    return jnp.dtype("float32") if dtype == jnp.bool_ else validate.computation_dtype(given)


def _why_factors_vary(
    x: jax.Array, factor: jax.Array | None, mask: jax.Array | None, axis: Any
) -> str:
    """The reason why b cannot be factored out of the sum; empty if it can."""
    if factor is None:
        return ""
    ndim = max(x.ndim, 0 if mask is None else mask.ndim)
    if factor.ndim > ndim:
        return f"b has {factor.ndim} dimensions, and a has {ndim}"
    axes = validate.canonical_axes(axis, ndim, ndim)
    sizes = (1,) * (ndim - factor.ndim) + factor.shape
    if all(sizes[d] == 1 for d in axes):
        return ""
    return f"factors that differ within a sum have no kernel; b has the shape {factor.shape}"


def _sum_with_factors(
    x: jax.Array, factor: jax.Array, axes: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """Log |sum b_j exp(x_j)| over `axes` and the sign of the sum, in plain JAX.

    The derivative with respect to b_j is exp(x_j) / sum, even if b_j is 0. An element with b_j = 0
    therefore keeps its exponential, clipped to a finite number, unless x_j is infinite or NaN.
    """
    x, factor = jnp.broadcast_arrays(x, factor)
    hidden = factor == 0
    shift = jnp.max(x, axes, keepdims=True, where=~hidden, initial=-jnp.inf)
    shift = lax.stop_gradient(jnp.where(jnp.isfinite(shift), shift, 0))
    exponent = jnp.where(hidden & ~jnp.isfinite(x), -jnp.inf, x) - shift
    largest = math.log(jnp.finfo(x.dtype).max) - 1
    exponent = jnp.where(hidden, jnp.minimum(exponent, largest), exponent)
    total = jnp.sum(factor * jnp.exp(exponent), axes)
    is_zero = total == 0
    log_sum = jnp.log(jnp.abs(jnp.where(is_zero, 1, total))) + jnp.squeeze(shift, axes)
    return jnp.where(is_zero, -jnp.inf, log_sum), jnp.sign(total)


def _sign_of(log_sum: jax.Array) -> jax.Array:
    """The sign of a sum of exponentials, from its logarithm: 0 or 1, or NaN for NaN."""
    zero, one = lax.full_like(log_sum, 0), lax.full_like(log_sum, 1)
    sign = lax.select(log_sum == -jnp.inf, zero, one)
    return lax.select(jnp.isnan(log_sum), log_sum, sign)


def _multiplied(log_sum: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log |b s| and the sign of b s, from log s and b. If b is 0, s is ignored, even if it is NaN."""
    is_zero = factor == 0
    log_factor = jnp.log(jnp.abs(jnp.where(is_zero, 1, factor)))
    zero = jnp.asarray(-jnp.inf, log_sum.dtype)
    return (
        jnp.where(is_zero, zero, log_sum + log_factor),
        jnp.where(is_zero, 0, jnp.sign(factor) * _sign_of(log_sum)),
    )
