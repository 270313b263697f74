"""The primitive of the matrix product, with its rules for JAX's transformations.

It computes out = alpha * op(a) op(b) + beta * c. The operands have equal rank, and their leading
dimensions broadcast (equal, or 1 in one of them). If a factor is 0, its term and the tangent of that term
are 0, even if the operands are NaN. Transposes are flags, never copies, so derivatives of every order are
products of the same form. Reverse mode saves only a and b, so that c can be overwritten.

If dC is the cotangent of C = alpha op(A) op(B) + beta C_in:
    d op(A) = alpha dC op(B)^T,   d op(B) = alpha op(A)^T dC,   d C_in = beta dC.

Owns: the transformation rules. Must not know: what users call it with.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.sharding import PartitionSpec

from jaxkernels._core import compat, partitioned_calls, registry, sharding
from jaxkernels._sgemm import partitioning
from jaxkernels._sgemm.calls import ffi_multiply, reference, with_tall_rows
from jaxkernels._sgemm.options import Options, matrix_dims

sgemm_p = Primitive("jaxkernels_sgemm")


def multiply(
    a: jax.Array, b: jax.Array, c: jax.Array | None = None, options: Options | None = None
) -> jax.Array:
    """Applies the primitive; see the module's docstring.

    a has the shape (*batch_a, m, k), or (*batch_a, k, m) with `trans_a`; b of the same rank (*batch_b, k, n),
    or (*batch_b, n, k) with `trans_b`; c the shape of the result.
    """
    operands = sharding.equalize_varying([a, b] if c is None else [a, b, c])
    return sgemm_p.bind(*operands, options=options or Options())


def _abstract_eval(a: Any, b: Any, c: Any = None, *, options: Options) -> Any:
    operands = {"a": a, "b": b} | ({} if c is None else {"c": c})
    for name, aval in operands.items():
        if aval.dtype != jnp.float32:
            raise TypeError(f"sgemm: {name} must be float32, got {aval.dtype.name}")
        if aval.ndim != a.ndim or aval.ndim < 2:
            shapes = ", ".join(f"{name} {aval.shape}" for name, aval in operands.items())
            raise ValueError(f"sgemm: operands must have equal ranks of at least 2, got {shapes}")
    (m, k), (k_of_b, n) = matrix_dims(options)
    if a.shape[k] != b.shape[k_of_b]:
        raise ValueError(
            f"sgemm: the contracted dimensions differ: a {a.shape} with trans_a={options.trans_a}, "
            f"b {b.shape} with trans_b={options.trans_b}"
        )
    for size_a, size_b in zip(a.shape[:-2], b.shape[:-2], strict=True):
        if size_a != size_b and size_a != 1 and size_b != 1:
            raise ValueError(f"sgemm: batch dimensions do not broadcast: a {a.shape}, b {b.shape}")
    if c is None and options.beta != 0:
        raise ValueError(f"sgemm: beta={options.beta!r} needs a c to multiply")
    batch = [y if is_one(x) else x for x, y in zip(a.shape[:-2], b.shape[:-2], strict=True)]
    shape = (*batch, a.shape[m], b.shape[n])
    if c is not None and c.shape != shape:
        raise ValueError(
            f"sgemm: c has shape {c.shape}, but op(a) op(b) has shape {shape} "
            f"(a {a.shape}, b {b.shape})"
        )
    return compat.with_shape_and_spec(compat.with_mesh(a, b), shape, _result_spec(a, b, options))


def is_one(size: Any) -> bool:
    """Whether a size is the integer 1; a symbolic size is not."""
    return isinstance(size, int) and size == 1


def _result_spec(a: Any, b: Any, options: Options) -> list[Any]:
    """The explicit sharding of the result; raises if the contracted dimension is explicitly sharded."""
    spec_a, spec_b = list(compat.aval_spec(a)), list(compat.aval_spec(b))
    (m, k), (k_of_b, n) = matrix_dims(options)
    if spec_a[k] is not None or spec_b[k_of_b] is not None:
        raise ValueError(
            "sgemm: a contracted dimension is sharded over an explicit mesh axis, so that the "
            f"sharding of the result is ambiguous: a {spec_a}, b {spec_b}. Reshard the operands, "
            "or give matmul or dot_general an out_sharding."
        )
    batch = [x if x is not None else y for x, y in zip(spec_a[:-2], spec_b[:-2], strict=True)]
    return [*batch, spec_a[m], spec_b[n]]


def _batch(
    axis_data: Any, operands: Sequence[jax.Array], batch_dims: Sequence[int | None], *, options: Any
) -> tuple[jax.Array, int | None]:
    """A mapped dimension becomes a further batch dimension; an unmapped operand broadcasts, uncopied."""
    if all(d is None for d in batch_dims):
        return multiply(*operands, options=options), None
    # c must have the mapped dimension of the result, so a or b must have it too.
    needed = (2,) if batch_dims[0] is not None or batch_dims[1] is not None else (0, 2)
    moved = [
        jnp.expand_dims(x, 0)
        if d is None and i not in needed
        else compat.batch_at_front(axis_data, x, d)
        for i, (x, d) in enumerate(zip(operands, batch_dims, strict=True))
    ]
    return multiply(*moved, options=options), 0


def _lower_reference(ctx: mlir.LoweringRuleContext, *operands: Any, options: Options) -> Any:
    platforms = compat.lowering_platforms(ctx)
    if options.require_kernel:
        why = "; ".join(
            registry.why_not_live(registry.SGEMM_TARGET, platform) for platform in platforms
        )
        raise NotImplementedError(
            f'implementation="ffi": no kernel of {sgemm_p.name} for platform '
            f"{', '.join(map(repr, platforms))}: {why}"
        )
    if "cuda" in platforms:
        registry.warn_missing_cuda()
    function = functools.partial(reference, options=options)
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def _lower_kernel(
    kernel: Callable[..., jax.Array],
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    options: Options,
) -> Any:
    """Lowers to `kernel(a, b, c=None, options=...)`, a custom call, partitioned if XLA partitions."""
    local = functools.partial(with_tall_rows, kernel)
    if partitioned_calls.partitions_custom_calls(ctx):
        shapes = [aval.shape for aval in ctx.avals_in]  # pyright: ignore[reportAttributeAccessIssue]
        function = partitioning.partitioned(local, shapes, options)
        name = f"{kernel.__module__}.{kernel.__qualname__} {options} {registry.fingerprint()}"
        return partitioned_calls.lower_partitioned(function, ctx, operands, name)
    function = functools.partial(local, options=options)
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def _lower_cuda(ctx: mlir.LoweringRuleContext, *operands: Any, options: Options) -> Any:
    """Lowers to our kernel, or to XLA's product on a GPU for which no kernel was compiled."""
    if not registry.has_kernels("cuda"):
        return _lower_reference(ctx, *operands, options=options)
    return _lower_kernel(ffi_multiply, ctx, *operands, options=options)


def _jvp(primals: Any, tangents: Any, *, options: Options) -> tuple[jax.Array, Any]:
    a, b = primals[:2]
    a_dot, b_dot, *c_dot = tangents
    product = dataclasses.replace(options, beta=0.0)
    terms = []
    if options.alpha and type(a_dot) is not ad.Zero:
        terms.append(multiply(a_dot, b, options=product))
    if options.alpha and type(b_dot) is not ad.Zero:
        terms.append(multiply(a, b_dot, options=product))
    if options.beta and c_dot and type(c_dot[0]) is not ad.Zero:
        terms.append(options.beta * c_dot[0])
    out = multiply(*primals, options=options)
    return out, functools.reduce(jnp.add, terms) if terms else ad.Zero(jax.typeof(out))


def _transpose(ct: Any, a: Any, b: Any, c: Any = None, *, options: Options) -> Any:
    cotangents: list[Any] = [None, None] if c is None else [None, None, None]
    if type(ct) is ad.Zero:
        return cotangents

    def product(x: Any, y: Any, trans_x: bool, trans_y: bool, target: Any, is_flipped: bool) -> Any:
        """op(x) op(y), or its transpose if the target is stored transposed."""
        if is_flipped:
            x, y, trans_x, trans_y = y, x, not trans_y, not trans_x
        flags = dataclasses.replace(options, beta=0.0, trans_a=trans_x, trans_b=trans_y)
        return _multiply_and_sum(x, y, target, flags)

    trans_a, trans_b = options.trans_a, options.trans_b
    if ad.is_undefined_primal(a):
        cotangents[0] = product(ct, b, False, not trans_b, a.aval, trans_a)
    if ad.is_undefined_primal(b):
        cotangents[1] = product(a, ct, not trans_a, False, b.aval, trans_b)
    if c is not None and ad.is_undefined_primal(c):
        cotangents[2] = options.beta * ct if options.beta else ad.Zero(c.aval)
    return cotangents


def _multiply_and_sum(x: jax.Array, y: jax.Array, target: Any, options: Options) -> jax.Array:
    """op(x) op(y), summed over the batch dimensions that are 1 in `target` but not in the product."""
    shape = target.shape
    if options.row_dims > 0 and options.trans_a:
        # Both operands have the row dimensions; they are merged into the contracted dimension.
        lead = x.ndim - 2 - options.row_dims
        x, y = (
            z.reshape(*z.shape[:lead], math.prod(z.shape[lead:-1]), z.shape[-1]) for z in (x, y)
        )
        narrow = (*shape[:lead], *shape[-2:])
        spec = compat.aval_spec(target)
        target = compat.with_shape_and_spec(target, narrow, (*spec[:lead], *spec[-2:]))
        plain = dataclasses.replace(options, row_dims=0)
        return _multiply_and_sum(x, y, target, plain).reshape(shape)
    shared = all(is_one(size) for size in shape[:-2])
    folds = options.trans_a and not options.trans_b and x.shape[:-2] == y.shape[:-2]
    if shared and folds and not compat.is_explicitly_sharded(x, y):
        # The summed batch dimensions precede the contracted one in memory. Merged with it, they make
        # one product, for example for weights that the whole batch shares.
        depth = (1,) * len(shape[:-2])
        x, y = (z.reshape(*depth, math.prod(z.shape[:-1]), z.shape[-1]) for z in (x, y))
        return multiply(x, y, options=options)
    (_, k), (k_of_y, _) = matrix_dims(options)
    spec_x, spec_y = compat.explicit_spec(x), compat.explicit_spec(y)
    if spec_x[k] is None and spec_y[k_of_y] is None:
        product = multiply(x, y, options=options)
    else:
        # XLA's product takes the gradient's sharding from the operand, because the result of a
        # contraction that is sharded over explicit axes is ambiguous.
        batch = [u if u is not None else v for u, v in zip(spec_x[:-2], spec_y[:-2], strict=True)]
        out = PartitionSpec(*batch, *compat.aval_spec(target)[-2:])
        on_mesh = compat.sharding_like(out, x, y)
        product = reference(x, y, options=options, out_sharding=on_mesh)
    summed = [
        d for d, size in enumerate(shape[:-2]) if is_one(size) and not is_one(product.shape[d])
    ]
    return jnp.sum(product, axis=summed, keepdims=True) if summed else product


compat.define(sgemm_p, _abstract_eval, _batch)
ad.primitive_jvps[sgemm_p] = _jvp
ad.primitive_transposes[sgemm_p] = _transpose
mlir.register_lowering(sgemm_p, _lower_reference)
if registry.has_cuda_module():
    mlir.register_lowering(sgemm_p, _lower_cuda, platform="cuda")
partitioned_calls.needs_devices_for_lowering(sgemm_p)
