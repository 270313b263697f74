"""Checks users' arguments of dot_product_attention, ours and that for Flax, before anything is traced.

Owns: their errors about shapes, dtypes and choices. Must not know: how attention is computed.
"""

import math
from typing import Any, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jax import lax

from jaxkernels._attention.problem import Operands
from jaxkernels._core import validate
from jaxkernels._rows import masked
from jaxkernels.typing import AttentionImplementation

NAME = "dot_product_attention"
FLAX_NAME = "jaxkernels.flax.dot_product_attention"
_NAMES = ("query", "key", "value", "bias", "mask", "query_seq_lengths", "key_value_seq_lengths")
Shape: TypeAlias = tuple[Any, ...]
_HEADS_FIRST = (
    ". For arrays of shape (batch, heads, length, depth) write query.swapaxes(-3, -2), and so for key, "
    "value and the result"
)


def as_array(argument: str, x: Any) -> jax.Array:
    """`x` as an array; accepts everything that jax.nn's attention accepts, such as lists."""
    return validate.as_array(NAME, argument, x, nested=True)


def as_operands(*arguments: Any) -> Operands:
    """The operands as checked 4D arrays, and the lengths as arrays; `arguments` has the order of `_NAMES`.

    Raises jax.nn's classes of errors for arrays whose shapes or dtypes do not fit.
    """
    given = dict(zip(_NAMES, arguments, strict=True))
    q, k, v = (_as_4d(as_array(name, given.pop(name))) for name in _NAMES[:3])
    others = {name: as_array(name, x) for name, x in given.items() if x is not None}
    for name, x in zip(_NAMES, (q, k, v), strict=False):
        if x.ndim != 4:
            raise ValueError(f"{NAME}: {name} must have 3 or 4 dimensions; got shape {x.shape}")
    if v.shape != k.shape or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise ValueError(
            f"{NAME}: value must have the shape of key, and query its batch size and depth; "
            f"got query {q.shape}, key {k.shape}, value {v.shape}"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"{NAME}: query, key and value must have one dtype; "
            f"got {q.dtype}, {k.dtype} and {v.dtype}"
        )
    sides = {name: others[name] for name in ("bias", "mask") if name in others}
    if "mask" in sides:
        validate.as_mask(NAME, "mask", sides["mask"])
    try:
        _check_scores(q.shape, k.shape, sides)
    except ValueError as error:
        if _fit_with_heads_first(q.shape, k.shape, sides):
            raise ValueError(f"{error}{_HEADS_FIRST}") from None
        raise
    for name in _NAMES[5:]:
        x = others.get(name)
        if x is not None and (x.shape != k.shape[:1] or x.dtype != jnp.int32):
            raise ValueError(
                f"{NAME}: {name} must be an int32 array of shape ({k.shape[0]},); "
                f"got {x.dtype} of shape {x.shape}"
            )
    others |= {name: _as_4d(x) for name, x in sides.items()}
    return Operands(q, k, v, *map(others.get, _NAMES[3:]))


def _as_4d(x: jax.Array) -> jax.Array:
    """`x` with leading dimensions added, up to four."""
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def scale_of(scale: Any, depth: int) -> Any:
    """The scale; None means 1 / sqrt(depth), or 1 if depth is 0, where all scores are 0."""
    if scale is not None:
        return scale
    return 1.0 / math.sqrt(depth) if depth else 1.0


def check_choices(implementation: str | None, empty_rows: str | None) -> None:
    """Raises ValueError for an unknown `implementation`, or an `empty_rows` that it does not support."""
    validate.check_choice("implementation", implementation, get_args(AttentionImplementation))
    validate.check_choice("empty_rows", empty_rows, masked.EMPTY_ROWS)
    if implementation in ("xla", "cudnn"):
        _check_peer_has(empty_rows, f"implementation={implementation!r}", implementation == "xla")


def check_no_kernel_is_forced(
    dtype: Any, implementation: str | None, empty_rows: str | None
) -> None:
    """Raises for options that need our kernels, for a dtype that they do not support."""
    if implementation in ("ffi", "ffi_flash"):
        raise NotImplementedError(
            f'{NAME}: implementation="{implementation}", but kernels exist for '
            f"{', '.join(validate.DTYPES)}; got {dtype.name}"
        )
    _check_peer_has(empty_rows, f"the dtype {dtype.name}, which has no kernel", True)


def _check_peer_has(empty_rows: str | None, why: str, has_mean: bool) -> None:
    if empty_rows is not None and not (has_mean and empty_rows == "mean"):
        raise ValueError(
            f"{NAME}: jax.nn decides what a query without keys gives with {why}; "
            f"got empty_rows={empty_rows!r}"
        )


def _check_scores(query: Shape, key: Shape, sides: dict[str, jax.Array]) -> None:
    """Raises ValueError unless N is a multiple of K, and bias and mask broadcast to the scores."""
    check_groups(NAME, query[2], key[2])
    scores = (query[0], query[2], query[1], key[1])
    for name, x in sides.items():
        check_fits(NAME, name, x.shape, scores)
        if 1 < x.ndim < 4 and x.shape[0] == scores[0] != 1:
            aligned = tuple(range(4 - x.ndim, 4))  # NumPy aligns the last dimensions
            raise ValueError(
                f"{NAME}: {name} has shape {x.shape}, whose first dimension may be the batch"
                f"{validate.side_advice(name, x.shape, scores)}, or "
                f"{validate.side_written(name, aligned, 4)}"
            )


def _fit_with_heads_first(query: Shape, key: Shape, sides: dict[str, jax.Array]) -> bool:
    """Whether the operands fit if they are (batch, heads, length, depth) arrays."""
    try:
        q, k = ((x[0], x[2], x[1], x[3]) for x in (query, key))
        _check_scores(q, k, sides)
    except ValueError:
        return False
    return True


def check_groups(function: str, heads: int, key_heads: int) -> None:
    """Raises ValueError unless every key head serves the same number of query heads."""
    if heads != key_heads and (key_heads == 0 or heads % key_heads != 0):
        raise ValueError(
            f"{function}: the number of query heads must be a multiple of the number of key/value "
            f"heads; got {heads} and {key_heads}"
        )


def check_fits(function: str, argument: str, shape: Shape, scores: Shape) -> None:
    """Raises ValueError unless a bias or mask broadcasts to the shape of the scores."""
    try:
        fits = lax.broadcast_shapes(shape, scores) == scores
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            f"{function}: {argument} must broadcast to the shape {scores} of the scores "
            f"(batch, heads, queries, keys); got {shape}"
            f"{validate.side_advice(argument, shape, scores)}"
        )


def check_flax_hooks(precision: Any, einsum_dot_general: Any, qk: Any, weights_value: Any) -> None:
    """Raises Flax's errors for hooks that exclude each other."""
    if (qk is None) != (weights_value is None):
        raise ValueError(
            f"{FLAX_NAME}: qk_attn_weights_einsum and attn_weights_value_einsum must be given together"
        )
    if qk is not None and (precision is not None or einsum_dot_general is not None):
        raise ValueError(
            f"{FLAX_NAME}: precision or einsum_dot_general, and qk_attn_weights_einsum or "
            "attn_weights_value_einsum, exclude each other"
        )


def check_flax_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    """Raises for shapes that do not fit each other, and for a dtype without kernels."""
    shapes = f"got query {query.shape}, key {key.shape}, value {value.shape}"
    if not query.ndim == key.ndim == value.ndim or query.ndim < 3:
        raise ValueError(
            f"{FLAX_NAME}: query, key and value must have equal ranks of at least 3; {shapes}"
        )
    if not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        raise ValueError(f"{FLAX_NAME}: batch dimensions must be equal; {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"{FLAX_NAME}: query and key must have one depth; {shapes}")
    if key.shape[-3:-1] != value.shape[-3:-1]:
        raise ValueError(
            f"{FLAX_NAME}: key and value must have one length and number of heads; {shapes}"
        )
    check_groups(FLAX_NAME, query.shape[-2], key.shape[-2])
    if query.dtype.name not in validate.DTYPES:
        raise TypeError(
            f"{FLAX_NAME}: kernels exist for {', '.join(validate.DTYPES)}; got {query.dtype}"
        )


def check_equal_heads(query: jax.Array, key: jax.Array) -> None:
    """Raises for heads that share keys, which the einsum hooks do not support."""
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"{FLAX_NAME}: the einsum hooks need one key head for each query head; "
            f"got {key.shape[-2]} and {query.shape[-2]}"
        )
