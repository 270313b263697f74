"""softmax and log_softmax: drop-ins for jax.nn's, on row kernels.

Owns: the operations in plain JAX and their derivatives, the two public functions, and the conversion of
any axis, mask and dtype to rows of a kernel. Must not know: how a primitive works, or how a kernel is
launched.

The kernels have the tiers of OneFlow's softmax (a row is kept in the registers of a warp, in the shared
memory of a block, or not at all) and two more (the registers of a block, the shared memory of a
cluster). Rows too long for one thread block use the online normalizer of Milakov & Gimelshein.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import compat, eager, validate
from jaxkernels._rows import contract, derivatives, last_axis, primitive
from jaxkernels._rows.reference import (
    below,
    difference_error,
    exp_difference,
    largest_of,
    row_sum,
    widen,
)
from jaxkernels.typing import Implementation, Tier

Axis = int | tuple[int, ...] | list[int] | None


@primitive.of_operation()
def softmax_fwd(x: jax.Array) -> jax.Array:
    """Softmax: y = exp(x - max x) / sum exp(x - max x)."""
    wide = widen(x)
    unnormalized = jnp.exp(below(wide, largest_of(wide)))  # the shift prevents overflow
    return (unnormalized / row_sum(unnormalized)).astype(x.dtype)


@primitive.of_operation()
def softmax_grad(y: jax.Array, dy: jax.Array) -> jax.Array:
    """Gradient: dx = J^T dy = y * (dy - sum(dy * y)), with J = diag(y) - y y^T.

    J is symmetric, so this is also the JVP.
    """
    wide_y, wide_dy = widen(y), widen(dy)
    return (wide_y * (wide_dy - row_sum(wide_dy * wide_y))).astype(y.dtype)


@primitive.of_operation()
def log_softmax_fwd(x: jax.Array) -> jax.Array:
    """Log of softmax: y = x - max x - log sum exp(x - max x).

    The terms of the maximum are exactly 1 and are counted apart. Added to them, a term such as 1e-9
    would be lost, and results near 0 with it.
    """
    wide = widen(x)
    largest = largest_of(wide)
    shifted = below(wide, largest)
    terms = exp_difference(wide, largest)
    is_largest = (terms == 1).astype(terms.dtype)
    log_sum = jnp.log1p(row_sum(terms - is_largest) + (row_sum(is_largest) - 1))
    y = (shifted - log_sum) + difference_error(wide, largest, shifted)
    return y.astype(x.dtype)


def _softmax_of_kept(kept: jax.Array) -> jax.Array:
    """Softmax from the residual: exp(y), or from x for 16-bit dtypes, where exp(y) errs by |y| eps."""
    if kept.dtype.itemsize > 2:
        return jnp.exp(kept)
    wide = widen(kept)
    terms = jnp.exp(wide - jax.lax.stop_gradient(largest_of(wide)))
    return terms / row_sum(terms)


@primitive.of_operation()
def log_softmax_grad(kept: jax.Array, dy: jax.Array) -> jax.Array:
    """Gradient: dx = J^T dy = dy - p * sum(dy), with J = I - 1 p^T and p the softmax of x."""
    wide_dy = widen(dy)
    return (wide_dy - _softmax_of_kept(kept) * row_sum(wide_dy)).astype(kept.dtype)


# Tangents have no kernels of ours, because training steps rarely use forward mode.
@primitive.of_operation(
    contract.RowOperation(
        name="log_softmax_jvp",
        operands=(contract.Operand("y"), contract.Operand("dx")),
        results=(contract.Operand("dy"),),
        has_kernel=False,
    )
)
def log_softmax_jvp(kept: jax.Array, dx: jax.Array) -> jax.Array:
    """Tangent: dy = J dx = dx - sum(p * dx), with J = I - 1 p^T and p the softmax of x."""
    wide_dx = widen(dx)
    return (wide_dx - row_sum(_softmax_of_kept(kept) * wide_dx)).astype(kept.dtype)


# The Jacobian of softmax, diag(y) - y y^T, is symmetric; that of log_softmax, I - 1 exp(y)^T, is not.
derivatives.define_derivatives(softmax_fwd, jvp=softmax_grad, grad=softmax_grad)
derivatives.define_derivatives(
    log_softmax_fwd,
    jvp=log_softmax_jvp,
    grad=log_softmax_grad,
    keeps_x=contract.OPERATIONS["log_softmax_grad"].reads_x_for_y,
)

# The kernel, the original of jax.nn (even inside `patch_jax_nn`), and the result of masked elements.
_FUNCTIONS = {
    "softmax": (softmax_fwd, jax.nn.softmax, 0.0),
    "log_softmax": (log_softmax_fwd, jax.nn.log_softmax, -math.inf),
}


@eager.jit_when_eager("x", "where", check=eager.is_not_xlas)
def softmax(
    x: ArrayLike,
    axis: Axis = -1,
    where: ArrayLike | None = None,
    *,
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    r"""Softmax along one or more axes: `exp(x_i) / sum_j exp(x_j)`.

    A drop-in replacement for `jax.nn.softmax`, edge cases included. It runs this package's kernels on
    CPUs and NVIDIA GPUs, and plain JAX elsewhere. It works with jit, vmap, scan, remat, shard_map and
    derivatives of every order and mode.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> print(jk.softmax(jnp.array([[0.0, 0.0], [1.0, -jnp.inf]])))
        [[0.5 0.5]
         [1.  0. ]]
        >>> print(jk.softmax(jnp.array([3.0, 3.0, 9.0]), where=jnp.array([True, True, False])))
        [0.5 0.5 0. ]

    Args:
        x: array of any shape; kernels serve float32, bfloat16, float16 and float64. Integers are
            converted to a floating type. `jax.nn.softmax` computes dtypes without a kernel (complex,
            float8).
        axis: the axis or axes over which the result sums to 1; None means all of them. The last
            axis is fastest; others are transposed to it.
        where: mask of bool that broadcasts against x (and x against it). Elements where it is False
            are excluded, and are 0 in the result. A fully masked row is 0 and has the gradient 0.
        tier: selects a GPU kernel for measurements: "warp", "block", "block_smem", "cluster" (compute
            capability 9.0 and later, and code compiled for it) or "block_uncached". None lets the plan
            choose (see `plan_softmax`). It has no effect if the axis is sharded, nor without a GPU. It is an
            error with `implementation="xla"` and, on a CPU, with "ffi".
        implementation: None uses a kernel if there is one, but XLA's softmax for rows that are too long
            for the shared memory of a cluster (`plan_softmax(...).xla_by_default`). "ffi" uses a kernel
            for these rows too, and raises an error if there is none. "xla" calls `jax.nn.softmax`.

    Returns:
        Array of the shape of x (broadcast against `where`) and its dtype (floating).

    Raises:
        TypeError: x or `where` is not an array or number, x is bool, or `axis` is traced or
            contains a value that is not an integer.
        ValueError: `axis` is out of bounds or has duplicates, `where` is not bool or does not
            broadcast, `tier` or `implementation` is not one of the above, or the registers of the
            tier cannot hold such a row. (If shared memory cannot, the program fails when it runs.)
        NotImplementedError: `implementation="ffi"` or `tier` is given and there is no kernel. For a
            platform without kernels only "ffi" raises it, when the program is lowered.

    Notes:
        * 16-bit types are computed in float32 and rounded once, also in the gradient. jax.nn rounds the
          sum to 16 bits, so the results differ by that error.
        * A row is NaN if all its elements are -inf, or if an unmasked one is +inf or NaN.
        * Reverse mode stores only the result: `dx = y * (dy - sum(dy * y))`.
        * Arrays sharded over any dimensions but `axis` need no communication. If `axis` is sharded, devices
          exchange one maximum and one sum per row (in the gradient one sum), not the array.
          docs/sharding.md lists the cases that need an all-gather.
        * If x and `where` have different ranks, x is broadcast first, and `axis` counts in the result.
          (Up to JAX 0.11, jax.nn takes the maximum along another axis.)
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

    References:
        Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv:1805.02867.
        OneFlow, "How to implement an efficient softmax CUDA kernel", and its softmax.cuh, for the
        tiers.
    """
    return _apply("softmax", x, axis, where, tier, implementation)


@eager.jit_when_eager("x", "where", check=eager.is_not_xlas)
def log_softmax(
    x: ArrayLike,
    axis: Axis = -1,
    where: ArrayLike | None = None,
    *,
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    r"""Logarithm of the softmax along one or more axes: `x_i - log sum_j exp(x_j)`.

    A drop-in replacement for `jax.nn.log_softmax`, edge cases included. It runs this package's kernels
    on CPUs and NVIDIA GPUs, and plain JAX elsewhere. It works with jit, vmap, scan, remat, shard_map
    and derivatives of every order and mode.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> print(jk.log_softmax(jnp.array([0.0, -jnp.inf])))
        [  0. -inf]
        >>> print(jax.grad(lambda x: jk.log_softmax(x)[0])(jnp.zeros(4)))
        [ 0.75 -0.25 -0.25 -0.25]

    Args:
        x: array of any shape; kernels serve float32, bfloat16, float16 and float64. Integers are
            converted to a floating type. `jax.nn.log_softmax` computes dtypes without a kernel
            (complex, float8).
        axis: the axis or axes over which the exponential of the result sums to 1; None means all of
            them. The last axis is fastest; others are transposed to it.
        where: mask of bool that broadcasts against x (and x against it). Elements where it is False
            are excluded, and are -inf in the result. A fully masked row is -inf and has the gradient
            0.
        tier: selects a GPU kernel; see `softmax`.
        implementation: as in `softmax`; "xla" calls `jax.nn.log_softmax`.

    Returns:
        Array of the shape of x (broadcast against `where`) and its dtype (floating).

    Raises:
        TypeError: x or `where` is not an array or number, x is bool, or `axis` is traced or
            contains a value that is not an integer.
        ValueError: `axis` is out of bounds or has duplicates, `where` is not bool or does not
            broadcast, `tier` or `implementation` is not one of the above, or the registers of the
            tier cannot hold such a row. (If shared memory cannot, the program fails when it runs.)
        NotImplementedError: `implementation="ffi"` or `tier` is given and there is no kernel. For a
            platform without kernels only "ffi" raises it, when the program is lowered.

    Notes:
        The notes of `softmax` apply. Reverse mode stores the result y: `dx = dy - exp(y) * sum(dy)`.
        Forward mode computes `dy = dx - sum(exp(y) * dx)`. 16-bit types store x instead, because
        exp(y) of a rounded y errs by |y| eps.

        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

        float32 and float64 results stay accurate near 0: `jk.log_softmax(jnp.array([0, -20.7]))[0]` is
        -1.0e-9; jax.nn returns 0.

    References:
        As for `softmax`.
    """
    return _apply("log_softmax", x, axis, where, tier, implementation)


def _apply(
    name: str,
    x: Any,
    axis: Any,
    where: Any,
    tier: Tier | None,
    implementation: Implementation | None,
) -> jax.Array:
    validate.check_row_options(implementation, tier)
    validate.check_static(axis=axis)
    forward, jax_nn, masked = _FUNCTIONS[name]
    if implementation == "xla":
        return jax_nn(x, axis, where)

    x = validate.as_array(name, "x", x)
    dtype = validate.computation_dtype(x)
    why_not = validate.why_no_row_kernel(dtype, axis)
    if why_not:
        validate.check_needs_no_kernel(name, why_not, implementation, tier)
        try:
            return jax_nn(x, axis, where)
        except TypeError as error:
            if dtype != jnp.bool_:
                raise
            text = f"{name}: x must be numbers; got bool. Write x.astype(jnp.float32)"
            raise TypeError(text) from error

    mask = None if where is None else validate.as_mask(name, "where", where)
    validate.broadcast_all(name, x=x, where=mask)
    result_ndim = x.ndim if mask is None else max(x.ndim, mask.ndim)
    axes = validate.canonical_axes(axis, x.ndim, result_ndim)
    x = x.astype(dtype)
    options = {"tier": tier or "auto", "require_kernel": implementation == "ffi"}
    kernel = functools.partial(forward, **options)
    y = _along_last_axis(kernel, x if mask is None else _unmasked(x, mask, axes), axes)
    return y if mask is None else jnp.where(mask, y, masked)


def _unmasked(x: jax.Array, mask: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Puts -inf where the mask is False.

    Masked elements do not reach the kernel, and the select drops their gradient, so a NaN there has no
    effect. A fully masked row becomes 0, because the kernel would turn a row of -inf into NaNs, which
    `jax_debug_nans` and checkify would report although no result contains them.
    """
    rank = max(x.ndim, mask.ndim)
    whole = mask.reshape((1,) * (rank - mask.ndim) + mask.shape)
    seen = jnp.any(whole, axis=axes, keepdims=True)
    return jnp.where(mask, x, jnp.where(seen, -jnp.inf, 0.0).astype(x.dtype))


def _along_last_axis(
    function: Callable[[jax.Array], jax.Array], x: jax.Array, axes: tuple[int, ...]
) -> jax.Array:
    """Applies a function of (..., cols) to x, with `axes` (ascending) of x merged into cols."""
    if not axes:  # every element is a row of its own
        return jnp.squeeze(function(jnp.expand_dims(x, -1)), -1)
    if axes == (x.ndim - 1,):
        return function(x)
    moved = last_axis.moved_last(x, axes)
    order = last_axis.order(x.ndim, axes)
    back = tuple(order.index(d) for d in range(x.ndim))
    if len(axes) == 1:
        return jnp.transpose(function(moved), back)
    spec, whole = compat.explicit_spec(moved), last_axis.unsharded_spec(moved, len(axes))
    y = function(last_axis.merged(moved, len(axes))).reshape(moved.shape)
    return jnp.transpose(y if spec == whole else compat.reshard(y, spec), back)
