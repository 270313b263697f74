"""The primitive of BLAS's factors: factor * x, which is 0 for a factor of 0, even if x is NaN.

A select between 0 and the product has the same value, but the wrong derivative: it treats a factor of 0
as a constant. This primitive is bilinear, in both modes and in every order:
    d(f x) = df x + f dx,   with cotangents  x_bar = f y_bar,   f_bar = sum(y_bar x).
The derivative with respect to the factor is x, so f_bar depends on a NaN in x even if f is 0.

Owns: the transformation rules. Must not know: matrix products.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from jaxkernels._core import compat, sharding

scale_p = Primitive("jaxkernels_scale")


def scale(factor: jax.Array, x: jax.Array) -> jax.Array:
    """Applies the primitive to a factor of the dtype of x; its shape is () or, if mapped, x's first sizes."""
    return scale_p.bind(*sharding.equalize_varying([factor, x]))


def _abstract_eval(factor: Any, x: Any) -> Any:
    if factor.dtype != x.dtype or factor.shape != x.shape[: factor.ndim]:
        raise TypeError(f"{scale_p.name}: {factor} is no factor of {x}")
    spec = tuple(compat.aval_spec(x))
    return compat.with_shape_and_spec(compat.with_mesh(x, factor), x.shape, spec)


def _reference(factor: jax.Array, x: jax.Array) -> jax.Array:
    aligned = jnp.expand_dims(factor, range(factor.ndim, x.ndim))
    return jnp.where(aligned == 0, jnp.zeros((), x.dtype), aligned * x)


def _cotangent_of_factor(ct: jax.Array, factor: Any, x: jax.Array) -> jax.Array:
    return jnp.sum(ct * x, axis=tuple(range(factor.aval.ndim, x.ndim)))


def _batch(
    axis_data: Any, operands: Sequence[jax.Array], batch_dims: Sequence[int | None]
) -> tuple[jax.Array, int | None]:
    if all(dim is None for dim in batch_dims):
        return scale(*operands), None
    factor, x = (
        compat.batch_at_front(axis_data, operand, dim)
        for operand, dim in zip(operands, batch_dims, strict=True)
    )
    return scale(factor, x), 0


compat.define(scale_p, _abstract_eval, _batch)
ad.defbilinear(scale_p, _cotangent_of_factor, lambda ct, factor, x: scale(factor, ct))
mlir.register_lowering(scale_p, mlir.lower_fun(_reference, multiple_results=False))
