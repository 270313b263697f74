"""Checks users' arguments of dot_product_attention, before anything is traced.

Owns: its errors about shapes, dtypes and choices. Must not know: how attention is computed.
"""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

import jax
import jax.numpy as jnp

from jaxkernels._attention import heads
from jaxkernels._attention.problem import Operands
from jaxkernels._core import validate
from jaxkernels._rows import masked
from jaxkernels.typing import AttentionImplementation

NAME = "dot_product_attention"
# The implementations that jax.nn has too.
PEERS = ("xla", "cudnn")
Shape: TypeAlias = tuple[Any, ...]
_HEADS_FIRST = (
    ". For arrays of shape (batch, heads, length, depth) write query.swapaxes(-3, -2), and so for key, "
    "value and the result"
)


def as_array(argument: str, x: Any) -> jax.Array:
    """`x` as an array; accepts everything that jax.nn's attention accepts, such as lists."""
    return validate.as_array(NAME, argument, x, nested=True)


def as_4d(argument: str, x: Any) -> jax.Array:
    """`x` as an array of at least four dimensions, with leading ones added."""
    x = as_array(argument, x)
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def as_operands(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    query_seq_lengths: Any,
    key_value_seq_lengths: Any,
) -> Operands:
    """The operands as checked 4D arrays, and the lengths as arrays."""
    others = {
        "bias": bias,
        "mask": mask,
        "query_seq_lengths": query_seq_lengths,
        "key_value_seq_lengths": key_value_seq_lengths,
    }
    given = Operands(
        *(as_4d("query", query), as_4d("key", key), as_4d("value", value)),
        *(None if x is None else as_array(name, x) for name, x in others.items()),
    )
    check_operands(*given)
    sides = {"bias": given.bias, "mask": given.mask}
    return given._replace(**{n: as_4d(n, x) for n, x in sides.items() if x is not None})


def check_choices(implementation: str | None, empty_rows: str | None) -> None:
    """Raises ValueError for an unknown `implementation`, or an `empty_rows` that it does not support."""
    validate.check_choice("implementation", implementation, get_args(AttentionImplementation))
    validate.check_choice("empty_rows", empty_rows, masked.EMPTY_ROWS)
    if implementation in PEERS:
        _check_peer_has(empty_rows, f"implementation={implementation!r}", implementation == "xla")


def check_no_kernel_is_forced(
    dtype: Any, implementation: str | None, empty_rows: str | None
) -> None:
    """Raises for options that need our kernels, for a dtype that they do not support."""
    if implementation == "ffi":
        raise NotImplementedError(
            f'{NAME}: implementation="ffi", but kernels exist for '
            f"{', '.join(validate.DTYPES)}; got {dtype.name}"
        )
    _check_peer_has(empty_rows, f"the dtype {dtype.name}, which has no kernel", True)


def _check_peer_has(empty_rows: str | None, why: str, has_mean: bool) -> None:
    if empty_rows is not None and not (has_mean and empty_rows == "mean"):
        raise ValueError(
            f"{NAME}: jax.nn decides what a query without keys gives with {why}; "
            f"got empty_rows={empty_rows!r}"
        )


def check_operands(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    q_lengths: jax.Array | None,
    k_lengths: jax.Array | None,
) -> None:
    """Raises jax.nn's classes of errors for arrays whose shapes or dtypes do not fit."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 4:
            raise ValueError(f"{NAME}: {name} must have 3 or 4 dimensions; got shape {x.shape}")
    batch, _, _, depth = key.shape
    if value.shape != key.shape or (query.shape[0], query.shape[3]) != (batch, depth):
        raise ValueError(
            f"{NAME}: value must have the shape of key, and query its batch size and depth; "
            f"got query {query.shape}, key {key.shape}, value {value.shape}"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"{NAME}: query, key and value must have one dtype; "
            f"got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    if mask is not None:
        validate.as_mask(NAME, "mask", mask)
    sides = {name: x for name, x in (("bias", bias), ("mask", mask)) if x is not None}
    try:
        _check_scores(query.shape, key.shape, sides)
    except ValueError as error:
        if _fit_with_heads_first(query.shape, key.shape, sides):
            raise ValueError(f"{error}{_HEADS_FIRST}") from None
        raise
    for name, x in (("query_seq_lengths", q_lengths), ("key_value_seq_lengths", k_lengths)):
        if x is not None and (x.shape != (batch,) or x.dtype != jnp.int32):
            raise ValueError(
                f"{NAME}: {name} must be an int32 array of shape ({batch},); "
                f"got {x.dtype} of shape {x.shape}"
            )


def _check_scores(query: Shape, key: Shape, sides: dict[str, jax.Array]) -> None:
    """Raises ValueError unless N is a multiple of K, and bias and mask broadcast to the scores."""
    heads.check_groups(NAME, query[2], key[2])
    scores = (query[0], query[2], query[1], key[1])
    for name, x in sides.items():
        heads.check_fits(NAME, name, x, scores)
        heads.check_means_no_batch(NAME, name, x.shape, scores)


def _fit_with_heads_first(query: Shape, key: Shape, sides: dict[str, jax.Array]) -> bool:
    """Whether the operands fit if they are (batch, heads, length, depth) arrays."""
    try:
        q, k = ((x[0], x[2], x[1], x[3]) for x in (query, key))
        _check_scores(q, k, sides)
    except ValueError:
        return False
    return True
