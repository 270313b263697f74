"""The log-probabilities of tokens, on the row kernels of cross entropy.

Owns: the public function. Must not know: how a primitive works, or how a kernel is launched.
"""

from __future__ import annotations

from typing import Literal, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import eager, validate
from jaxkernels._rows import cross_entropy_kernels as kernels
from jaxkernels._rows import loss_arguments
from jaxkernels.typing import Implementation, Tier


@overload
def token_log_probs(
    logits: ArrayLike,
    ids: ArrayLike,
    *,
    axis: int = -1,
    where: ArrayLike | None = None,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    return_entropy: Literal[False] = ...,
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> jax.Array: ...


@overload
def token_log_probs(
    logits: ArrayLike,
    ids: ArrayLike,
    *,
    axis: int = -1,
    where: ArrayLike | None = None,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    return_entropy: Literal[True],
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def token_log_probs(
    logits: ArrayLike,
    ids: ArrayLike,
    *,
    axis: int = -1,
    where: ArrayLike | None = None,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    return_entropy: bool,
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


@eager.jit_when_eager(
    *("logits", "ids", "where"),
    numbers=loss_arguments.NUMBERS,
    check=lambda logits, ids, axis=-1, **options: loss_arguments.are_fit(
        "token_log_probs", "ids", ids, loss_arguments.size_of(logits, axis), **options
    ),
)
def token_log_probs(
    logits: ArrayLike,
    ids: ArrayLike,
    *,
    axis: int = -1,
    where: ArrayLike | None = None,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    return_entropy: bool = False,
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Log-probabilities of tokens under the softmax of logits: `x_id - log sum_j exp(x_j)`.

    Reinforcement learning needs these, and the entropy of each distribution, which is differentiable and
    comes from the same read of the logits. The only array of the size of the logits is their gradient in
    reverse mode. A mask costs one extra copy of the logits; so does a soft cap or a temperature on a CPU, or
    for derivatives by it, in float32.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> log_probs, entropy = jk.token_log_probs(
        ...     jnp.array([[0.0, 0.0], [9.0, -jnp.inf]]), jnp.array([1, 0]), return_entropy=True
        ... )
        >>> print(log_probs, entropy)
        [-0.6931472  0.       ] [0.6931472 0.       ]

    Args:
        logits: array of shape (..., V, ...), as for `cross_entropy`.
        ids: the token, or action, of each row: integers of any dtype, of the shape of logits without
            `axis` or with sizes of 1, or one number. A negative id leaves its row out: its log-probability,
            its entropy and their gradients are 0, whatever the logits are.
        axis: the axis of the tokens.
        where: mask of bool, as for `cross_entropy`. Tokens where it is False are excluded, and
            have the log-probability -inf.
        logit_soft_cap: as for `cross_entropy`.
        temperature: as for `cross_entropy`.
        return_entropy: also returns the entropy of the softmax of each row.
        tier: as for `softmax`.
        implementation: as for `cross_entropy`.

    Returns:
        The log-probabilities, of the shape of logits without `axis`; float32, or float64 of float64.
        With `return_entropy` a pair of such arrays: the log-probabilities and the entropies.

    Raises:
        TypeError: as `cross_entropy`.
        ValueError: as `cross_entropy`.

    Notes:
        The notes of `cross_entropy` with the reduction "none" apply.
        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    name = "token_log_probs"
    validate.check_row_options(implementation, tier)
    validate.check_static(axis=axis, return_entropy=return_entropy)
    given = loss_arguments.as_labels(name, "ids", ids)
    loss_arguments.check_are_labels(name, "ids", given, logits, axis, takes_classes_only=True)
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise TypeError(
            f"{name}: ids must be integers; got {given.dtype}. Write ids.astype(jnp.int32)"
        )
    x, scales = loss_arguments.rows_of_logits(
        name, logits, axis, where, logit_soft_cap, temperature
    )
    label = loss_arguments.ids(name, "ids", ids, given, x)
    calls = kernels.Calls(tier or "auto", implementation, return_entropy)
    x, scales = calls.prepared(x, scales, label < 0)
    measures, _ = calls.measures(x, label, scales)
    # Excluded rows become 0, even if they hold NaN.
    shown = jnp.where(label >= 0, measures, 0)
    log_probs = 0 - shown[..., 0]  # 0 - 0 is 0; negation would give -0
    return (log_probs, shown[..., 2]) if return_entropy else log_probs
