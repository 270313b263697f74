"""matmul and dot_general: matrix products in true float32, on the SGEMM kernels.

Owns: the public functions, and the conversion of their operands to those of one matrix product. Must not
know: how a primitive works, or how a kernel is launched.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jaxkernels._core import eager, validate
from jaxkernels._sgemm import checks, contraction, primitive
from jaxkernels.typing import Algorithm, Implementation, OtherDtypes

DotDimensionNumbers = tuple[
    tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
]


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
    algorithm: Algorithm | None = None,
    implementation: Implementation | None = None,
    other_dtypes: OtherDtypes | None = None,
) -> jax.Array:
    """Matrix product in true float32, with the shapes of `jnp.matmul`.

    On an NVIDIA GPU `jnp.matmul` computes float32 products in TF32, with a relative error of 3e-4,
    unless a precision is given. This function always computes in float32, whatever
    `jax_default_matmul_precision` says. It runs this package's SGEMM kernels on NVIDIA GPUs, and XLA's
    product at highest precision elsewhere. It works with jit, vmap, scan, remat, shard_map and derivatives
    of every order and mode, which are float32 products too.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> print(jk.matmul(jnp.eye(2), jnp.array([[1.0, 2.0], [3.0, 4.0]])))
        [[1. 2.]
         [3. 4.]]

    Args:
        a: array of shape (..., m, k), or (k,).
        b: array of shape (..., k, n), or (k,). Leading dimensions broadcast.
        precision: as for `jnp.matmul`. It changes no float32 product, and "F64_F64_F64", which asks for
            more, is an error. Products that `other_dtypes` passes to XLA use it.
        preferred_element_type: None or float32. With float32, operands can be float16 and bfloat16: they
            are widened, which is exact, and multiplied in float32.
        out_sharding: sharding of the result on a mesh with explicit axes, as for `jnp.matmul`.
        algorithm: the kernel for a GPU: "naive", "block_tile", "thread_tile", "warp_tile",
            "split_tile", "pipelined", "thin" or "tensor". None uses `default_algorithm`, or else the
            one of the last three that a model of times predicts to be the fastest. "thin" serves small
            k, and few rows or columns. "tensor" multiplies pairs of float16 on the tensor cores of
            compute capability 9.0, within the same error bound. It uses scratch of the size of both
            operands, and of partial results if k is split (see `plan_sgemm`). Without a kernel, as on
            a CPU, it has no effect, and is an error with `implementation="ffi"`.
        implementation: "ffi" requires a kernel, "xla" is XLA's product at highest precision, None
            chooses.
        other_dtypes: None refuses operands that are not float32. "xla" widens operands whose promoted
            dtype is float32, and passes others to `jnp.matmul`, unless `algorithm` or `implementation`
            is given.

    Returns:
        Array of shape (..., m, n), without the dimensions that 1-dimensional operands lack. It is
        float32 unless `other_dtypes` allows other operands.

    Raises:
        TypeError: the operands are not float32 (or 16-bit with `preferred_element_type`), or not
            arrays.
        ValueError: shapes do not fit, `precision` is unsuitable, `algorithm` or `implementation` is
            unknown, or an `algorithm` is given for XLA's product.
        NotImplementedError: `implementation="ffi"` and there is no kernel (for a platform without kernels,
            when the program is lowered), or `algorithm` or "ffi" is given for a call that only XLA serves.

    Notes:
        * The error of an element is at most `k * eps * (|a| |b|)`, eps = 2^-24, with every algorithm. With
          "tensor" a single product errs by up to 2^-21 of itself, so multiplying by an identity or a
          one-hot matrix is exact only with the other algorithms.
        * Results are bitwise the same from run to run. A member of a batch has the same bits as alone,
          with three exceptions: the members share b (their rows become one tall matrix, which can be
          split differently or run on another kernel); the members fit the scratch of "tensor" alone but
          not 1/32 of them together; few rows or columns have another alignment within 16 bytes.
        * With a sharded contraction each device multiplies its part, and one all-reduce or reduce-scatter
          adds the parts.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
        * `jax.checkpoint_policies` do not recognise this product. Use the policies of the same name in
          `jaxkernels.checkpoint_policies`.

    References:
        The ladder of tiles follows the article behind github.com/AyakaGEMM/Hands-on-GEMM; the last three
        kernels are ours (ffi/sgemm/README.md).
    """
    return _product(
        *("matmul", a, b, None, precision, preferred_element_type),
        *(out_sharding, algorithm, implementation, other_dtypes),
    )


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: Any = None,
    algorithm: Algorithm | None = None,
    implementation: Implementation | None = None,
    other_dtypes: OtherDtypes | None = None,
) -> jax.Array:
    """Contraction in true float32, with the signature and the result of `jax.lax.dot_general`.

    Pass it to layers that take such a function: `flax.linen.Dense(dot_general=...)`,
    `flax.nnx.Linear(..., dot_general=...)`. Precision, platforms and transformations are those of
    `matmul`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> x, w = jnp.ones((2, 3, 4)), jnp.ones((4, 5))
        >>> jk.dot_general(x, w, (((2,), (0,)), ((), ()))).shape
        (2, 3, 5)

    Args:
        lhs: array.
        rhs: array.
        dimension_numbers: ((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch)).
        precision: accepted for compatibility. The product always has float32 precision. A request for
            more, such as "F64_F64_F64", is an error.
        preferred_element_type: None or float32; float32 allows 16-bit operands, see `matmul`.
        out_sharding: sharding of the result on a mesh with explicit axes.
        algorithm: as for `matmul`.
        implementation: as for `matmul`.
        other_dtypes: as for `matmul`. `precision` then applies to XLA's product.

    Returns:
        Array with the batch dimensions first, then the remaining dimensions of lhs, then those of rhs.
        It is float32 unless `other_dtypes` allows other operands.

    Raises:
        TypeError: operands are not float32, or dimension numbers do not fit.
        ValueError: `precision` is unsuitable, `algorithm` or `implementation` is unknown, or an
            `algorithm` is given for XLA's product.
        NotImplementedError: as for `matmul`.

    Notes:
        * An operand is read without a copy if its contracted dimensions are the last ones, or the first
          ones after the batch. Any other layout is transposed first; XLA can fuse this transpose into the
          operation before it.
        * On a mesh with explicit axes, XLA's product runs if a sharded dimension would have to be merged.
        * `nn.remat` and `jax.checkpoint` save the products of such layers with the policies of
          `jaxkernels.checkpoint_policies`.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    validate.check_static(dimension_numbers=dimension_numbers)
    (contract, batch) = dimension_numbers
    numbers = (_as_tuples(contract), _as_tuples(batch))
    return _product(
        *("dot_general", lhs, rhs, numbers, precision, preferred_element_type),
        *(out_sharding, algorithm, implementation, other_dtypes),
    )


def _as_tuples(pair: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(map(operator.index, pair[0])), tuple(map(operator.index, pair[1]))


@eager.jit_when_eager("a", "b")
def _product(
    function: str,
    a: ArrayLike,
    b: ArrayLike,
    numbers: Any,
    precision: Any,
    preferred_element_type: DTypeLike | None,
    out_sharding: Any,
    algorithm: Algorithm | None,
    implementation: Implementation | None,
    other_dtypes: OtherDtypes | None,
) -> jax.Array:
    """The product of `matmul`, or of `dot_general` with dimension numbers.

    XLA computes products that ask for it, and those of other dtypes if `other_dtypes` allows them.
    """
    options = {"preferred_element_type": preferred_element_type, "out_sharding": out_sharding}
    reference = functools.partial(jnp.matmul, **options)
    if numbers is not None:
        reference = functools.partial(lax.dot_general, dimension_numbers=numbers, **options)
    a, b = checks.as_operands(function, a, b)
    if checks.asks_for_xla(algorithm, implementation):
        return reference(a, b, precision=lax.Precision.HIGHEST)
    validate.check_choice("other_dtypes", other_dtypes, validate.OTHER_DTYPES)
    widens = other_dtypes is not None and algorithm is implementation is None
    if widens and checks.are_xlas(a, b, preferred_element_type):
        return reference(a, b, precision=checks.xlas_precision(a, b, precision))
    if "64" in str(precision):
        raise ValueError(
            f"float32 products are computed in float32; got precision={precision!r}. Drop precision=, "
            "or multiply float64 operands with jnp.matmul"
        )
    # eval_shape raises the reference's errors for bad shapes and unknown precisions.
    jax.eval_shape(functools.partial(reference, precision=precision), a, b)
    a, b = checks.as_float32(function, a, b, preferred_element_type, widens)
    choices = (out_sharding, algorithm, implementation)
    if numbers is not None:
        return contraction.dot_general(a, b, numbers, *choices)
    if a.ndim <= 2 or b.ndim <= 2:
        # At most one operand has batch dimensions; they become free dimensions.
        numbers = (((a.ndim - 1,), (max(b.ndim - 2, 0),)), ((), ()))
        product = contraction.dot_general(a, b, numbers, *choices)
        # The product has the shape (m, ..., n); jnp.matmul returns (..., m, n).
        return product if b.ndim <= 2 or a.ndim == 1 else jnp.moveaxis(product, 0, -2)
    if out_sharding is not None:
        checks.check_no_kernel_is_forced(algorithm, implementation)
        return reference(a, b, precision=lax.Precision.HIGHEST)
    rank = max(a.ndim, b.ndim)
    a, b = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    return primitive.multiply(a, b, options=contraction.options_of(algorithm, implementation))
