"""Converts contractions (dot_general's dimension numbers) to matrix products.

Owns: which dimensions are transposed, merged or kept apart. Must not know: what users may pass
(`matmul`), or how a product is computed (`primitive`).
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxkernels._core import compat
from jaxkernels._sgemm import checks, default_algorithm, primitive
from jaxkernels._sgemm.options import Options


def options_of(algorithm: str | None, implementation: str | None, **options: Any) -> Options:
    """Builds `Options` from users' `algorithm` and `implementation`; other options pass unchanged."""
    rung = algorithm or default_algorithm.current()
    return Options(algorithm=rung, require_kernel=implementation == "ffi", **options)


def dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: Any,
    out_sharding: Any,
    algorithm: str | None,
    implementation: str | None,
    *,
    for_batch: bool = False,
) -> jax.Array:
    """The contraction of two float32 arrays as a product of matrices.

    XLA computes it if there is an `out_sharding`, or if dimensions with explicit shardings would have to
    be merged. The arguments are those of `matmul.dot_general`, and `for_batch` that of `Options`.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    # Pairs of contracted dimensions may come in any order; they are sorted by their order in lhs.
    order = sorted(range(len(lhs_contract)), key=lambda i: lhs_contract[i] % lhs.ndim)
    a, a_free, trans_a = _as_matrices(
        lhs, lhs_batch, [lhs_contract[i] for i in order], keeps_rows=True
    )
    b, b_free, b_along_k = _as_matrices(rhs, rhs_batch, [rhs_contract[i] for i in order])
    if a is None or b is None or out_sharding is not None:
        checks.check_no_kernel_is_forced(algorithm, implementation)
        highest = functools.partial(lax.dot_general, precision=lax.Precision.HIGHEST)
        return highest(lhs, rhs, dimension_numbers, out_sharding=out_sharding)
    row_dims = a.ndim - len(lhs_batch) - 2
    b = jnp.expand_dims(b, range(len(lhs_batch), len(lhs_batch) + row_dims))
    flags = {"trans_a": trans_a, "trans_b": not b_along_k, "for_batch": for_batch}
    options = options_of(algorithm, implementation, **flags, row_dims=row_dims)
    product = primitive.multiply(a, b, options=options)
    return product.reshape(*product.shape[: len(lhs_batch)], *a_free, *b_free)


def batched_dot_general(lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any) -> jax.Array:
    """`dot_general` of float32 arrays that may sum batch elements in another order than if alone.

    The last bits of a batch element may then differ from those of the same product alone. On an H200, 64
    products of (2048, 2048) and (2048, 64), as in attention, take 0.77 ms; `dot_general` takes 1.02 ms,
    because it splits each product along k as if it ran alone (2026-11).
    """
    return dot_general(lhs, rhs, dimension_numbers, None, None, None, for_batch=True)


def _as_matrices(
    x: jax.Array, batch: Sequence[int], contract: Sequence[int], *, keeps_rows: bool = False
) -> tuple[jax.Array | None, tuple[Any, ...], bool]:
    """`x` as (batch..., free, contracted), or (batch..., contracted, free) if it is stored so.

    The contracted dimensions are merged in the order of `contract`. With `keeps_rows`, several free
    dimensions before them are not merged, because the merged one could not keep their shardings.

    Returns:
        The matrices, or None if explicitly sharded dimensions would have to be merged; the sizes of the
        free dimensions; and whether the contracted dimension comes first.
    """
    batch = [d % x.ndim for d in batch]
    contract = [d % x.ndim for d in contract]
    free = [d for d in range(x.ndim) if d not in batch and d not in contract]
    contracted_first = [*batch, *contract, *free] == list(range(x.ndim))
    first, second = (contract, free) if contracted_first else (free, contract)
    moved = jnp.transpose(x, [*batch, *first, *second])
    groups = [len(first), len(second)]
    spec = compat.explicit_spec(moved)[len(batch) :]
    merged = [spec[: groups[0]], spec[groups[0] :]]
    if any(len(g) != 1 and any(axis is not None for axis in g) for g in merged):
        return None, (), contracted_first
    sizes = moved.shape[len(batch) :]
    rows = sizes[: groups[0]]
    if contracted_first or not keeps_rows or not rows:
        rows = (math.prod(rows),)
    matrices = moved.reshape(*moved.shape[: len(batch)], *rows, math.prod(sizes[groups[0] :]))
    free_sizes = sizes[groups[0] :] if contracted_first else sizes[: groups[0]]
    return matrices, tuple(free_sizes), contracted_first
