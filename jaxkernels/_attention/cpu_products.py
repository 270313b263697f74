"""The products of attention in bfloat16, in forms for which XLA has bfloat16 kernels on a CPU.

Of W with shape (..., heads, q, k), of queries' lines X (..., q, heads, depth) and keys' lines Y (..., k,
heads, depth), each product is the gradient of sum(W[q, k] X[q] Y[k]) by the one that it lacks:

    W: the scores, and the gradient of the weights
    X: the weighted values, and the gradient of the queries
    Y: the gradients of the keys and of the values

So derivatives of every order are these products. The kernels contract the last dimension of the left
operand, and heads may lie where they are. Of other forms XLA widens operands to float32, or takes ten
times as long: JAX's own derivatives of `lax.dot_general` have such forms.

Owns: these products. Must not know: which of them a caller makes, or what scores are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jaxkernels._attention.wide_dot import wide_dot
from jaxkernels._core import compat, sharding

Lacking: TypeAlias = Literal["W", "X", "Y"]
_ALL: tuple[Lacking, ...] = ("W", "X", "Y")

product_p = Primitive("jaxkernels_cpu_product")


def are_likely(*operands: jax.Array) -> bool:
    """Whether a program of these operands will probably run on such kernels.

    A guess is good enough: lowered for another platform, the products are what attention has there. Only
    where vmap maps some of the operands they name no algorithm.
    """
    return (
        jax.default_backend() == "cpu"
        and all(x.dtype == jnp.bfloat16 for x in operands)
        and not compat.is_explicitly_sharded(*operands)
    )


def product(lacking: Lacking, left: jax.Array, right: jax.Array, dtype: Any) -> jax.Array:
    """The product that lacks W, X or Y, of the two others in this order.

    Args:
        lacking: what the result is like.
        left: bfloat16 array of a shape as above.
        right: the same.
        dtype: of the result; sums are float32. Cotangents are rounded to bfloat16: that of the scores,
            which our softmax gives, is bfloat16 already.
    """
    left, right = sharding.equalize_varying([left, right])
    return product_p.bind(left, right, lacking=lacking, dtype=jnp.dtype(dtype))


def _dot(left: jax.Array, right: jax.Array, numbers: Any, dtype: Any) -> jax.Array:
    precision = lax.Precision.DEFAULT
    return lax.dot_general(left, right, numbers, precision, preferred_element_type=dtype)


def _dot_elsewhere(left: jax.Array, right: jax.Array, numbers: Any, dtype: Any) -> jax.Array:
    if dtype == jnp.float32:
        return wide_dot(left, right, numbers)
    return _dot(left, right, numbers, dtype)


def _reference(
    left: jax.Array,
    right: jax.Array,
    *,
    lacking: Lacking,
    dtype: Any,
    dot: Callable[..., jax.Array] = _dot,
    hold: Callable[[jax.Array], jax.Array] = lambda x: x,
) -> jax.Array:
    rank = left.ndim
    of_w, of_lines = tuple(range(rank - 2)), (*range(rank - 3), rank - 2)  # batch and heads
    lines, last = rank - 3, rank - 1
    if lacking == "W":
        return dot(left, right, (((last,), (last,)), (of_lines, of_lines)), dtype)
    if lacking == "X":
        found = dot(left, right, (((last,), (lines,)), (of_w, of_lines)), dtype)
        return jnp.moveaxis(found, -2, -3)
    # The lines on the left: they are fewer to bring into the form of the kernels.
    found = dot(hold(right), left, (((lines,), (rank - 2,)), (of_lines, of_w)), dtype)
    return jnp.moveaxis(hold(found), -1, -3)


def _on_cpu(*operands: jax.Array, **params: Any) -> jax.Array:
    """XLA would let transposes beside a product become part of it, and give up the kernel's form.

    Xeon with AMX, (4, 256, 8, 64), gradients of a sum of squares, ms: held 9.2, not held 95
    The same of arrays whose heads come first: 9.9, 172
    """
    return _reference(*operands, **params, hold=lax.optimization_barrier)


def _elsewhere(*operands: jax.Array, **params: Any) -> jax.Array:
    return _reference(*operands, **params, dot=_dot_elsewhere)


def _abstract_eval(left: Any, right: Any, *, lacking: Lacking, dtype: Any) -> Any:
    if lacking == "W":
        shape = (*left.shape[:-3], left.shape[-2], left.shape[-3], right.shape[-3])
    else:
        lines = left.shape[-2 if lacking == "X" else -1]
        shape = (*left.shape[:-3], lines, *right.shape[-2:])
    batch = compat.aval_spec(left)[:-3]  # a mapped dimension may be sharded
    like = compat.with_shape_and_spec(left, shape, (*batch, None, None, None))
    return like.update(dtype=dtype)


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[jax.Array, jax.Array]:
    pairs = [(tangents[0], primals[1]), (primals[0], tangents[1])]
    terms = [product_p.bind(*x, **params) for x in pairs if ad.Zero not in map(type, x)]
    return product_p.bind(*primals, **params), functools.reduce(jnp.add, terms)


def _transpose(ct: Any, left: Any, right: Any, *, lacking: Lacking, dtype: Any) -> list[Any]:
    del dtype
    if type(ct) is ad.Zero:
        return [None, None]
    others: list[Lacking] = [x for x in _ALL if x != lacking]
    moving = 0 if ad.is_undefined_primal(left) else 1
    known = {lacking: ct.astype(jnp.bfloat16), others[1 - moving]: (right, left)[moving]}
    operands = [known[x] for x in _ALL if x in known]
    target = (left, right)[moving].aval
    found = product(others[moving], *operands, dtype=target.dtype)
    return [found, None] if moving == 0 else [None, found]


def _batch(
    operands: Sequence[jax.Array], dims: Sequence[int | None], **params: Any
) -> tuple[jax.Array, int]:
    """A mapped dimension is one more of the batch. Operands that are not all mapped are XLA's."""
    pairs = zip(operands, dims, strict=True)
    moved = [jnp.moveaxis(x, d, 0) for x, d in pairs if d is not None]
    if len(moved) < len(operands):
        return jax.vmap(functools.partial(_reference, **params), dims)(*operands), 0
    return product_p.bind(*moved, **params), 0


product_p.def_impl(functools.partial(xla.apply_primitive, product_p))
product_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[product_p] = _jvp
ad.primitive_transposes[product_p] = _transpose
batching.primitive_batchers[product_p] = _batch
mlir.register_lowering(product_p, mlir.lower_fun(_elsewhere, multiple_results=False))
mlir.register_lowering(product_p, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu")
compat.register_nan_check(product_p)
