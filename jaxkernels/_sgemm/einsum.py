"""Contractions by labels and by axes: einsum and tensordot, whose products are those of `dot_general`.

Owns: what becomes of axes. Must not know: dtypes, how a product is computed (`matmul`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from jaxkernels._core import eager, validate
from jaxkernels._sgemm.matmul import dot_general

# What jnp.einsum calls for each product. One object, because programs are cached by it.
_product = functools.partial(dot_general, other_dtypes="xla")


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Einstein's sums, with the signature of `jax.numpy.einsum`: float32 products are true float32.

    Labels, orders of contraction and errors are jnp.einsum's. Each product of two float32 operands is
    that of `matmul`, whatever `precision` and `jax_default_matmul_precision` say; 16-bit operands are
    widened where `preferred_element_type` is float32. Products of other dtypes are XLA's own.

    Args:
        subscripts: the labels, such as "bij,bjk->bik", or the first array of the other form.
        *operands: arrays, of any dtype and shape that fit the labels.
        out: None.
        optimize: the order of contractions.
        precision: of products that are not float32; a request for more than float32 is an error there.
        preferred_element_type: dtype of the result and of its sums.
        out_sharding: sharding of the result on a mesh with explicit axes; XLA's products serve it.

    Returns:
        The sums: an array of jnp.einsum's shape and dtype.

    Raises:
        TypeError, ValueError: as jnp.einsum.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> jk.einsum("bij,jk->bik", jnp.ones((5, 2, 3)), jnp.ones((3, 4))).shape
        (5, 2, 4)
    """
    return jnp.einsum(
        subscripts,
        *operands,
        out=out,
        optimize=optimize,
        precision=precision,
        preferred_element_type=preferred_element_type,
        _dot_general=_product,
        out_sharding=out_sharding,
    )


def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: int | Sequence[int] | Sequence[Sequence[int]] = 2,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Sums over pairs of axes, with the signature of `jax.numpy.tensordot`: true float32, as `einsum`.

    Args:
        a: array.
        b: array.
        axes: how many of a's last axes and b's first ones are contracted, or the axes of each: a pair
            of integers or of sequences.
        precision: as for `einsum`.
        preferred_element_type: as for `einsum`.
        out_sharding: as for `einsum`.

    Returns:
        Array with the remaining axes of a, then those of b.

    Raises:
        TypeError, ValueError: as jnp.tensordot.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> jk.tensordot(jnp.ones((2, 3, 4)), jnp.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
        (2, 5)
    """
    validate.check_static(axes=axes)
    static: Any = axes
    if isinstance(axes, Sequence):
        static = tuple(tuple(x) if isinstance(x, Sequence) else x for x in axes)
    return _tensordot(a, b, static, precision, preferred_element_type, out_sharding)


@eager.jit_when_eager(operands=2)
def _tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: Any,
    precision: Any,
    preferred_element_type: DTypeLike | None,
    out_sharding: Any,
) -> jax.Array:
    a, b = validate.as_array("tensordot", "a", a), validate.as_array("tensordot", "b", b)
    reference = functools.partial(
        jnp.tensordot,
        axes=axes,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )
    like = jax.eval_shape(reference, a, b)  # raises what jnp.tensordot raises
    if a.dtype != b.dtype:
        a, b = (x.astype(jnp.promote_types(a.dtype, b.dtype)) for x in (a, b))
    contracted = _axes_of_each(axes, a.ndim, b.ndim)
    product = _product(
        a,
        b,
        (contracted, ((), ())),
        precision,
        preferred_element_type=like.dtype,
        out_sharding=out_sharding,
    )
    return product.astype(like.dtype)


def _axes_of_each(axes: Any, a_rank: int, b_rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The contracted axes of a and of b.

    Example:
        >>> _axes_of_each(2, 3, 4)
        ((1, 2), (0, 1))
        >>> _axes_of_each((-1, 0), 3, 4)
        ((2,), (0,))
    """
    if isinstance(axes, Sequence):
        sides = [x if isinstance(x, Sequence) else (x,) for x in axes]
        of_a, of_b = (
            tuple(operator.index(i) % rank for i in side)
            for side, rank in zip(sides, (a_rank, b_rank), strict=True)
        )
        return of_a, of_b
    count = operator.index(axes)
    return tuple(range(a_rank - count, a_rank)), tuple(range(count))
