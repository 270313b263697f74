"""Computes a matrix product on one device: by the SGEMM kernels' custom call, or by XLA.

Owns: the conversion of operands to those of the call. Must not know: primitives, derivatives, devices.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels._core import registry
from jaxkernels._core.registry import MAX_BATCH_DIMS
from jaxkernels._sgemm import plan
from jaxkernels._sgemm.options import Options, matrix_dims


def reference(
    a: jax.Array,
    b: jax.Array,
    c: jax.Array | None = None,
    *,
    options: Options,
    out_sharding: Any = None,
) -> jax.Array:
    """Computes alpha * op(a) op(b) + beta * c in plain JAX, with XLA's product at highest precision."""
    subscripts = (
        f"...{'km' if options.trans_a else 'mk'},...{'nk' if options.trans_b else 'kn'}->...mn"
    )
    product = jnp.einsum(
        subscripts, a, b, precision=jax.lax.Precision.HIGHEST, out_sharding=out_sharding
    )
    if options.alpha == 0.0:
        scaled = jnp.zeros_like(product)
    else:
        scaled = product if options.alpha == 1.0 else options.alpha * product
    return scaled if c is None or options.beta == 0.0 else scaled + options.beta * c


def ffi_multiply(
    a: jax.Array, b: jax.Array, c: jax.Array | None = None, *, options: Options
) -> jax.Array:
    """`reference` by the CUDA kernels; only for lowering rules, because it has no derivatives."""
    if options.alpha == 0.0:
        return reference(a, b, c, options=options)  # XLA removes the unused product
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # NumPy rejects symbolic sizes
    # Adjacent batch dimensions that broadcast alike count as one in the kernels.
    if len(batch) > MAX_BATCH_DIMS:
        a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    scheme = plan.scheme_of_sgemm(a.shape, b.shape, options)
    (m, _), (_, n) = matrix_dims(options)
    results = (
        jax.ShapeDtypeStruct((*batch, a.shape[m], b.shape[n]), jnp.float32),
        jax.ShapeDtypeStruct((scheme.partial_elements,), jnp.float32),
    )
    a, b = _pad_rows(a, scheme.pad_a), _pad_rows(b, scheme.pad_b)
    operands = [a, b] if c is None else [a, b, c]
    call = jax.ffi.ffi_call(
        registry.SGEMM_TARGET, results, input_output_aliases={} if c is None else {2: 0}
    )
    return call(
        *operands,
        trans_a=options.trans_a,
        trans_b=options.trans_b,
        alpha=np.float32(options.alpha),
        beta=np.float32(options.beta),
        algorithm=scheme.algorithm,
        for_batch=options.for_batch,
        split_k=scheme.split_k,
        pad_a=scheme.pad_a,
        pad_b=scheme.pad_b,
    )[0]


def _pad_rows(x: jax.Array, elements: int) -> jax.Array:
    """Pads every stored row; XLA can fuse this copy into the operation that makes the operand."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, elements)]) if elements else x


def with_tall_rows(
    local: Callable[..., jax.Array],
    a: jax.Array,
    b: jax.Array,
    c: jax.Array | None = None,
    *,
    options: Options,
) -> jax.Array:
    """Merges the row dimensions of a (`Options.row_dims`) into one tall matrix, and calls `local`."""
    if options.row_dims == 0:
        return local(a, b, c, options=options)
    lead = a.ndim - 2 - options.row_dims
    rows = a.shape[lead:-1]

    def tall(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:lead], math.prod(rows), x.shape[-1])

    narrow = b.reshape(*b.shape[:lead], *b.shape[-2:])
    plain = dataclasses.replace(options, row_dims=0)
    product = local(tall(a), narrow, None if c is None else tall(c), options=plain)
    return product.reshape(*product.shape[:lead], *rows, product.shape[-1])
