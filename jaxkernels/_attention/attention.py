"""dot_product_attention: jax.nn's attention, on this package's softmax and products.

Owns: the public function, and the order of its checks and implementations. Must not know: layouts of
products (`products`), or how masks and windows reach a kernel (`masked`).
"""

from __future__ import annotations

import functools
import math
from typing import Literal, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._attention import checks, flash, plain
from jaxkernels._core import eager, validate
from jaxkernels._rows import masked_kernels
from jaxkernels.typing import AttentionImplementation, EmptyRows


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: AttentionImplementation | None = None,
    return_residual: Literal[False] = ...,
    empty_rows: EmptyRows | None = None,
) -> jax.Array: ...


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: AttentionImplementation | None = None,
    return_residual: Literal[True],
    empty_rows: EmptyRows | None = None,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: AttentionImplementation | None = None,
    return_residual: bool,
    empty_rows: EmptyRows | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


@eager.jit_when_eager(
    *("query", "key", "value", "bias", "mask", "query_seq_lengths", "key_value_seq_lengths"),
    factors=("scale",),
    check=eager.is_not_xlas,
)
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | jax.Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: AttentionImplementation | None = None,
    return_residual: bool = False,
    empty_rows: EmptyRows | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Attention for each head: `softmax(scale * query key^T + bias, masked) value`.

    A drop-in replacement for `jax.nn.dot_product_attention`, except for rows without a key (see
    `empty_rows`). The softmax kernel applies scale, bias, mask and window. float32 products are always
    float32, whatever `jax_default_matmul_precision` says (see `matmul`). It works with jit, vmap, scan, remat
    and derivatives of every order and mode. On a GPU, kernels that store no scores run where they are the
    fastest correct choice (`plan_attention`): cuDNN's flash attention for 16-bit types, and on Hopper our
    flash kernels for float32. Otherwise the scores are stored in memory.

    Letters: B batch, T queries, S keys, N query heads, K key heads (N is a multiple of K; each key
    head serves N / K neighbouring query heads and is not copied), H depth. torch's arrays are
    (B, N, T, H) instead: write `x.swapaxes(-3, -2)` for each of them and for the result.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> x = jnp.zeros((3, 1, 2))
        >>> value = jnp.arange(6.0).reshape(3, 1, 2)
        >>> print(jk.dot_product_attention(x, x, value, is_causal=True)[:, 0])
        [[0. 1.]
         [1. 2.]
         [2. 3.]]

    Args:
        query: array of shape (B, T, N, H) or (T, N, H); float32, bfloat16, float16, float64 or an
            integer dtype. Lists become arrays. `jax.nn.dot_product_attention` computes other dtypes.
        key: array of shape (B, S, K, H) or (S, K, H), of the dtype of query.
        value: array of the shape and dtype of key.
        bias: None, or an array of any floating dtype that is added to the scaled scores. It
            broadcasts to (B, N, T, S) as in NumPy: three dimensions are (N, T, S), two (T, S). An array
            of two or three dimensions is refused if its first has the size B > 1, because it may be
            meant for the batch.
        mask: None, or an array of bool that broadcasts as the bias does; True lets a query see a key.
        scale: factor of the scores; None means 1 / sqrt(H), or 1 if H is 0. A Python or NumPy number is
            fused. A JAX array can be differentiated, and costs a pass over the scores or the queries.
        is_causal: query i sees the keys j <= i, both counted from the first one, as in jax.nn, also if T
            and S differ (`scaled_masked_softmax` counts from the last one).
        query_seq_lengths: None, or int32 array of shape (B,): the result is 0 for later queries.
        key_value_seq_lengths: None, or int32 array of shape (B,): later keys are hidden.
        local_window_size: None, or (left, right), or an integer for both: query i sees the keys
            i - left <= j <= i + right, counted from the first.
        implementation: None chooses. "ffi" runs our softmax, and raises an error if it has no kernel.
            "ffi_flash" runs our flash kernels, which store no scores, or raises an error; derivatives
            that they do not compute still store scores. "xla" calls
            `jax.nn.dot_product_attention` with that implementation. "cudnn" calls cuDNN, or jax.nn's
            cuDNN path for calls that only it serves, including its errors.
        return_residual: also returns the logarithm of the sum of the exponentials of each row.
        empty_rows: the result for a query that sees no key: "zero", or "mean" for the mean of all S
            values, as in jax.nn. Scores, bias and scale get no gradient from such rows. None means
            "zero", or the result of jax.nn if jax.nn is called.

    Returns:
        Array of the shape and dtype of query. With `return_residual` also one of shape (B, T, N) or
        (T, N) and that dtype, which has no gradient; it is -inf for a query that sees no key, and
        with `empty_rows="mean"` jax.nn's large negative number.

    Raises:
        TypeError: an argument is not an array, the window contains a value that is not an integer, or a
            static argument is traced (a `ConcretizationTypeError`).
        ValueError: shapes or dtypes that do not fit each other, a mask that is not bool, a negative
            window, an unknown `implementation` or `empty_rows`, or an `empty_rows` that the chosen
            implementation does not have.
        NotImplementedError: `implementation="ffi"` or `"ffi_flash"` and there is no kernel for the call
            or, when the program is lowered, for the platform; `implementation="cudnn"` and the program is
            lowered for another platform than CUDA.
        RuntimeError: `implementation="cudnn"` on a machine where JAX finds no cuDNN.

    Notes:
        * 16-bit inputs: XLA multiplies them into float32 scores, as in jax.nn. The softmax is float32 and
          is rounded to their dtype for the second product.
        * float32 products are planned for the whole batch, so the last bits of a member can differ from
          those that it has alone.
        * float64 inputs: the softmax is float64 too; jax.nn rounds to float32.
        * Integer inputs: the scores and the softmax are float32, and the softmax is rounded towards zero
          to the integers of the result, as in jax.nn.
        * Sequence lengths and windows need no mask of shape (T, S) in memory. A mask or bias that heads or
          batch share is not copied.
        * Reverse mode stores the result of the softmax, never the scores; in bfloat16 also the result of
          the attention. cuDNN stores only its result and one number per row, our flash kernels two.
          Forward mode and second derivatives always store scores.
        * In cuDNN the gradient of the queries can differ in its last bits from run to run, and a NaN under
          a mask can reach its row. `implementation="ffi"` has neither effect.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

    References:
        Vaswani et al., "Attention is all you need", 2017, arXiv:1706.03762. Ainslie et al., "GQA",
        2023, arXiv:2305.13245, for heads that share keys. Dao, "FlashAttention-2", 2023,
        arXiv:2307.08691.
    """
    checks.check_choices(implementation, empty_rows)
    peer = functools.partial(  # pyright: ignore[reportCallIssue]
        jax.nn.dot_product_attention,
        query,
        key,
        value,
        bias,
        mask,
        scale=scale,  # pyright: ignore[reportArgumentType]
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
        return_residual=return_residual,  # pyright: ignore[reportArgumentType]
    )
    if implementation == "xla":
        return peer(implementation=implementation)
    shape = checks.as_array("query", query).shape
    given = checks.as_operands(
        *(query, key, value, bias, mask, query_seq_lengths, key_value_seq_lengths)
    )
    dtype = given.q.dtype
    if dtype.name not in validate.DTYPES and not jnp.issubdtype(dtype, jnp.integer):
        checks.check_no_kernel_is_forced(dtype, implementation, empty_rows)
        return peer(implementation="cudnn" if implementation == "cudnn" else None)
    validate.check_static(
        is_causal=is_causal, local_window_size=local_window_size, return_residual=return_residual
    )
    band = masked_kernels.band_of(is_causal, local_window_size, from_end=False)
    factor = checks.scale_of(scale, given.q.shape[-1])

    found = None
    if implementation != "ffi":
        found = flash.attention(
            *(given, factor, band),
            has_residual=return_residual,
            empty_rows=empty_rows or "zero",
            pinned=implementation,
        )
    if found is None and implementation == "cudnn":
        return peer(implementation=implementation)
    if found is None:
        floor = None
        if return_residual:
            floor = plain.FINITE_FLOOR if empty_rows == "mean" else -math.inf
        found = plain.attention(
            *(given, factor, band),
            empty_rows=empty_rows or "zero",
            implementation="ffi" if implementation == "ffi" else None,
            floor=floor,
        )
    result, sums = found[0].reshape(shape), found[1]
    if sums is None:
        return result
    return result, jnp.swapaxes(sums, -1, -2).astype(dtype).reshape(shape[:-1])
