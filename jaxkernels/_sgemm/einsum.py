"""einsum and tensordot, on `dot_general`.

Owns: the conversion of axes. Must not know: which dtypes the kernels serve (`checks`), how a product is
computed (`matmul`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from jaxkernels._core import compat, eager, validate
from jaxkernels._sgemm import checks
from jaxkernels._sgemm.matmul import dot_general

# jnp.einsum calls this for each product. It is one object, because it is part of JAX's cache keys.
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
    """Einstein summation with the signature of `jax.numpy.einsum`, in true float32.

    Labels, contraction orders and errors are those of jnp.einsum. float32 contractions use `matmul`,
    whatever `precision` and `jax_default_matmul_precision` say. A contraction is float32 if the promoted
    dtype of its operands is float32, or if `preferred_element_type` is float32 and they have 16 bits. XLA
    computes all others, at highest precision if both operands are float32.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> jk.einsum("bij,jk->bik", jnp.ones((5, 2, 3)), jnp.ones((3, 4))).shape
        (5, 2, 4)

    Args:
        subscripts: the labels, such as "bij,bjk->bik", or the first array, with lists of labels as in NumPy.
        *operands: arrays, of any dtype and shape that fit the labels.
        out: must be None.
        optimize: the order of contractions.
        precision: precision of XLA's products. float32 products refuse a request for more, such as
            "F64_F64_F64".
        preferred_element_type: dtype of the result and of its sums.
        out_sharding: sharding of the result on a mesh with explicit axes, computed by XLA's products.

    Returns:
        The sums: an array of jnp.einsum's shape and dtype.

    Raises:
        TypeError, ValueError: as jnp.einsum, and for more precision than float32 has.

    Notes:
        Outside of `jax.jit` a call costs the host the time of jnp.einsum, ten times that of `matmul`.
        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    return compat.einsum(
        _product,
        subscripts,
        *operands,
        out=out,
        optimize=optimize,
        precision=precision,
        preferred_element_type=preferred_element_type,
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
    """Sums over pairs of axes with the signature of `jax.numpy.tensordot`, in true float32 like `einsum`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> jk.tensordot(jnp.ones((2, 3, 4)), jnp.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
        (2, 5)

    Args:
        a: array.
        b: array.
        axes: the number of contracted axes (the last of a, the first of b), or the axes of each: a pair
            of integers or of sequences.
        precision: as for `einsum`.
        preferred_element_type: as for `einsum`.
        out_sharding: as for `einsum`.

    Returns:
        Array with the remaining axes of a, then those of b.

    Raises:
        TypeError, ValueError: as jnp.tensordot, and for more precision than float32 has.

    Notes:
        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    validate.check_static(axes=axes)
    return _tensordot(a, b, _as_integers(axes), precision, preferred_element_type, out_sharding)


@eager.jit_when_eager("a", "b")
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
    # jnp.tensordot keeps weak types.
    if like.weak_type or checks.are_xlas(a, b, preferred_element_type):
        return reference(a, b, precision=checks.xlas_precision(a, b, precision))
    if isinstance(axes, tuple):
        of_a, of_b = (x if isinstance(x, tuple) else (x,) for x in axes)
        contracted = tuple(i % a.ndim for i in of_a), tuple(i % b.ndim for i in of_b)
    else:
        contracted = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    return _product(
        a,
        b,
        (contracted, ((), ())),
        precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )


def _as_integers(axes: Any) -> Any:
    """Converts axes to integers and tuples; jnp.tensordot raises for anything else."""
    if isinstance(axes, (tuple, list)):
        return tuple(_as_integers(x) for x in axes)
    try:
        return operator.index(axes)
    except TypeError:
        return axes
