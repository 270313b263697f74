"""The log-probabilities of tokens of a linear layer, without storing the logits.

Owns: the public function. Must not know: how its operands are checked, or how a chunk is computed.
"""

from __future__ import annotations

from typing import Literal, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import eager, validate
from jaxkernels._linear_loss import arguments, primitive
from jaxkernels._rows import loss_arguments
from jaxkernels.typing import Dtype, Implementation, LogitsDtype

_NAME = "linear_token_log_probs"


@overload
def linear_token_log_probs(
    x: ArrayLike,
    w: ArrayLike,
    ids: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    trans_w: bool = False,
    where: ArrayLike | None = None,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    return_entropy: Literal[False] = ...,
    dtype: Dtype | None = None,
    logits_dtype: LogitsDtype | None = None,
    max_bytes: int | None = None,
    implementation: Implementation | None = None,
) -> jax.Array: ...


@overload
def linear_token_log_probs(
    x: ArrayLike,
    w: ArrayLike,
    ids: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    trans_w: bool = False,
    where: ArrayLike | None = None,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    return_entropy: Literal[True],
    dtype: Dtype | None = None,
    logits_dtype: LogitsDtype | None = None,
    max_bytes: int | None = None,
    implementation: Implementation | None = None,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def linear_token_log_probs(
    x: ArrayLike,
    w: ArrayLike,
    ids: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    trans_w: bool = False,
    where: ArrayLike | None = None,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    return_entropy: bool,
    dtype: Dtype | None = None,
    logits_dtype: LogitsDtype | None = None,
    max_bytes: int | None = None,
    implementation: Implementation | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


@eager.jit_when_eager(
    *("x", "w", "ids", "bias", "where"),
    numbers=loss_arguments.NUMBERS,
    check=lambda x, w, ids, **options: arguments.are_fit(_NAME, "ids", x, w, ids, **options),
)
def linear_token_log_probs(
    x: ArrayLike,
    w: ArrayLike,
    ids: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    trans_w: bool = False,
    where: ArrayLike | None = None,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    return_entropy: bool = False,
    dtype: Dtype | None = None,
    logits_dtype: LogitsDtype | None = None,
    max_bytes: int | None = None,
    implementation: Implementation | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Log-probabilities of tokens for `logits = x @ w + bias`, computed in chunks of rows.

    Reinforcement learning of language models needs these, and the entropies. As in
    `linear_cross_entropy`, only the logits of a chunk are stored. Reverse mode accepts any cotangents, so
    it computes the logits of a chunk again: four products in all. Works with jit, vmap, scan, remat,
    shard_map and derivatives of every order and mode.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> x, w = jnp.ones((3, 2)), jnp.zeros((2, 4))
        >>> log_probs, entropy = jk.linear_token_log_probs(
        ...     x, w, jnp.array([0, 3, -1]), return_entropy=True
        ... )
        >>> print(log_probs, entropy)  # -log 4 and log 4; the last row is left out
        [-1.3862944 -1.3862944  0.       ] [1.3862944 1.3862944 0.       ]

    Args:
        x: as for `linear_cross_entropy`, of shape (..., H).
        w: as for `linear_cross_entropy`, of shape (H, V), or (V, H) with `trans_w`.
        ids: the token of each row: integers of any dtype, of shape (...) or with sizes of 1, or one
            number. A negative id leaves its row out: its log-probability, its entropy and their
            gradients are 0, whatever x is.
        bias: as for `linear_cross_entropy`.
        trans_w: as for `linear_cross_entropy`.
        where: as for `linear_cross_entropy`. A hidden token has the log-probability -inf.
        logit_soft_cap: as for `cross_entropy`.
        temperature: as for `linear_cross_entropy`.
        return_entropy: also returns the entropy of the softmax of each row.
        dtype: as for `linear_cross_entropy`.
        logits_dtype: as for `linear_cross_entropy`.
        max_bytes: as for `linear_cross_entropy`. The forward pass needs the memory of a plan with
            `w_is_constant`.
        implementation: as for `linear_cross_entropy`.

    Returns:
        The log-probabilities, of shape (...); float32, or float64 of float64. With `return_entropy` a pair
        of such arrays: the log-probabilities and the entropies.

    Raises:
        TypeError: as `linear_cross_entropy`.
        ValueError: as `linear_cross_entropy`.
        NotImplementedError: as `linear_cross_entropy`.

    Notes:
        The notes of `linear_cross_entropy` with the reduction "none" apply.
        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    validate.check_static(return_entropy=return_entropy, dtype=dtype)
    options = arguments.options_of(
        _NAME,
        trans_w=trans_w,
        all_sums=bool(return_entropy),
        logits_dtype=logits_dtype,
        max_bytes=max_bytes,
        implementation=implementation,
    )
    given, _ = arguments.operands(
        *(_NAME, "ids", x, w, ids, bias, where, logit_soft_cap, temperature, dtype, options)
    )
    measures, _ = primitive.measures(given, options)
    # Excluded rows become 0, even if they hold NaN.
    shown = jnp.where(given["label"] >= 0, measures, 0)
    shown = shown if jnp.ndim(x) > 1 else shown[0]
    log_probs = 0 - shown[..., 0]  # 0 - 0 is 0; negation would give -0
    return (log_probs, shown[..., 2]) if return_entropy else log_probs
