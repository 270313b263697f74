"""The bfloat16 products of attention: by a dot algorithm and, on a CPU, in the layouts of XLA's kernels.

W has the shape (..., heads, q, k), X (..., q, heads, depth) and Y (..., k, heads, depth). Each product is
the gradient of sum(W[q, k] X[q] Y[k]) with respect to one of the three:

    W: the scores, and the gradient of the weights
    X: the weighted values, and the gradient of the queries
    Y: the gradients of the keys and of the values

Derivatives of every order are therefore such products. XLA's kernels contract the last dimension of the
left operand, and need no transpose of the heads. For other layouts XLA widens the operands to float32 or
takes ten times as long, and JAX's derivatives of `lax.dot_general` have such layouts.

Owns: these products. Must not know: which of them a caller needs, or what scores are.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from jaxkernels._core import compat, sharding

Lacking: TypeAlias = Literal["W", "X", "Y"]
_ALL: tuple[Lacking, ...] = ("W", "X", "Y")

product_p = Primitive("jaxkernels_cpu_product")


def wide_dot(lhs: jax.Array, rhs: jax.Array, numbers: Any) -> jax.Array:
    """The product for JAX's dimension numbers.

    Like jax.nn, it names the dot algorithm BF16_BF16_F32, so that derivatives use it too. (jax.nn also
    names one for float16, which rounds cotangents to float16 and does not compile on CPUs.) For a matrix
    and a vector no algorithm is named, because XLA then rounds each product of two elements to bfloat16.
    Largest error of the scores of one query, depth 64, on an H200: 0.076 with it, 2.2e-6 without.

    A derivative multiplies a float32 cotangent by an operand. Under strict promotion JAX does not lower
    a product with an algorithm and two dtypes, so operands are widened first. On a CPU this gives the
    same bits; the derivative's residuals become float32.
    """
    free = [
        [size for d, size in enumerate(x.shape) if d not in (*contracted, *batched)]
        for x, contracted, batched in zip((lhs, rhs), *numbers, strict=True)
    ]
    if any(all(size == 1 for size in sizes) for sizes in free):  # a vector for each batch index
        return lax.dot_general(lhs, rhs, numbers, preferred_element_type=jnp.float32)
    if jax.config.jax_numpy_dtype_promotion == "strict":  # pyright: ignore[reportAttributeAccessIssue]
        lhs, rhs = lhs.astype(jnp.float32), rhs.astype(jnp.float32)
    algorithm = lax.DotAlgorithmPreset.BF16_BF16_F32
    return lax.dot_general(
        lhs, rhs, numbers, precision=algorithm, preferred_element_type=jnp.float32
    )


def narrow_dot(lhs: jax.Array, rhs: jax.Array, numbers: Any) -> jax.Array:
    """`wide_dot` rounded to bfloat16."""
    return lax.dot_general(lhs, rhs, numbers)


# The products that `product_p` computes on a CPU, and the dtypes of their results.
RESULT_DTYPES = {wide_dot: jnp.float32, narrow_dot: jnp.bfloat16}


def serves(dot: Callable[..., jax.Array], *operands: jax.Array) -> bool:
    """Whether a product by `dot` will probably run on XLA's bfloat16 CPU kernels.

    A wrong guess is harmless: on another platform the lowering uses the products of that platform. One
    difference remains: if vmap maps only some of the operands, the products name no dot algorithm.
    """
    return (
        dot in RESULT_DTYPES
        and jax.default_backend() == "cpu"
        and all(x.dtype == jnp.bfloat16 for x in operands)
        and not compat.is_explicitly_sharded(*operands)
    )


def product(lacking: Lacking, left: jax.Array, right: jax.Array, dtype: Any) -> jax.Array:
    """The product with the shape of `lacking`, from bfloat16 arrays with the shapes of the other two in order.

    Sums are float32. Cotangents are rounded to bfloat16; our softmax already returns that of the scores
    in bfloat16.
    """
    left, right = sharding.equalize_varying([left, right])
    return product_p.bind(left, right, lacking=lacking, dtype=jnp.dtype(dtype))


def _dot(left: jax.Array, right: jax.Array, numbers: Any, dtype: Any) -> jax.Array:
    precision = lax.Precision.DEFAULT
    return lax.dot_general(left, right, numbers, precision, preferred_element_type=dtype)


def _dot_elsewhere(left: jax.Array, right: jax.Array, numbers: Any, dtype: Any) -> jax.Array:
    is_wide = dtype == jnp.float32
    return wide_dot(left, right, numbers) if is_wide else _dot(left, right, numbers, dtype)


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
    # X or Y is the left operand, because it is smaller to transpose for the kernels than W.
    found = dot(hold(right), left, (((lines,), (rank - 2,)), (of_lines, of_w)), dtype)
    return jnp.moveaxis(hold(found), -1, -3)


# On a CPU optimization barriers keep XLA from fusing transposes into the product. A fused transpose changes
# the layout to one without a bfloat16 kernel. Gradients of a sum of squares on a Xeon with AMX,
# (4, 256, 8, 64): 9.2 ms with barriers, 95 ms without. With heads first: 9.9 ms and 172 ms.
_on_cpu = functools.partial(_reference, hold=lax.optimization_barrier)
_elsewhere = functools.partial(_reference, dot=_dot_elsewhere)


def _abstract_eval(left: Any, right: Any, *, lacking: Lacking, dtype: Any) -> Any:
    if lacking == "W":
        shape = (*left.shape[:-3], left.shape[-2], left.shape[-3], right.shape[-3])
    else:
        lines = left.shape[-2 if lacking == "X" else -1]
        shape = (*left.shape[:-3], lines, *right.shape[-2:])
    batch = compat.aval_spec(left)[:-3]  # a mapped dimension may be sharded
    like = compat.with_shape_and_spec(left, shape, (*batch, None, None, None))
    return like.update(dtype=dtype)


def _cotangent(
    moving: int, ct: Any, left: Any, right: Any, *, lacking: Lacking, dtype: Any
) -> jax.Array:
    """The cotangent of the operand `moving`, as the product that lacks it."""
    del dtype
    others: list[Lacking] = [x for x in _ALL if x != lacking]
    known = {lacking: ct.astype(jnp.bfloat16), others[1 - moving]: (right, left)[moving]}
    operands = [known[x] for x in _ALL if x in known]
    return product(others[moving], *operands, dtype=(left, right)[moving].aval.dtype)


def _batch(
    axis_data: Any, operands: Sequence[jax.Array], dims: Sequence[int | None], **params: Any
) -> tuple[jax.Array, int | None]:
    """A mapped dimension becomes a batch dimension. If one operand is unmapped, XLA's product runs."""
    del axis_data
    pairs = zip(operands, dims, strict=True)
    moved = [jnp.moveaxis(x, d, 0) for x, d in pairs if d is not None]
    if not moved:
        return product_p.bind(*operands, **params), None
    if len(moved) == 1:
        return jax.vmap(functools.partial(_reference, **params), dims)(*operands), 0
    return product_p.bind(*moved, **params), 0


compat.define(product_p, _abstract_eval, _batch)
ad.defbilinear(product_p, functools.partial(_cotangent, 0), functools.partial(_cotangent, 1))
mlir.register_lowering(product_p, mlir.lower_fun(_elsewhere, multiple_results=False))
mlir.register_lowering(product_p, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu")
