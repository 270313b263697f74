"""linear_cross_entropy and linear_token_log_probs, which do not store the logits.

Owns: the public functions. Must not know: how its operands are checked, or how a chunk is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, TypedDict, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import eager, validate
from jaxkernels._linear_loss import arguments, primitive
from jaxkernels._rows import loss_arguments, loss_measures
from jaxkernels.typing import Dtype, Implementation, LogitsDtype, Reduction

_Flag = TypeVar("_Flag", bound=bool)  # the type of the arguments that add results


class _Options(TypedDict, Generic[_Flag], total=False):
    """Arguments by name of `linear_token_log_probs`, for its overloads."""

    bias: ArrayLike | None
    trans_w: bool
    where: ArrayLike | None
    logit_soft_cap: ArrayLike | None
    temperature: ArrayLike
    return_entropy: _Flag
    dtype: Dtype | None
    logits_dtype: LogitsDtype | None
    max_bytes: int | None
    implementation: Implementation | None


class _LossOptions(_Options[_Flag], total=False):
    """Arguments by name of `linear_cross_entropy`, for its overloads."""

    weights: ArrayLike | None
    label_smoothing: ArrayLike
    z_loss: ArrayLike
    reduction: Reduction
    return_lse: _Flag


# beartype knows no generic TypedDict.
if TYPE_CHECKING:

    @overload
    def linear_cross_entropy(
        x: ArrayLike,
        w: ArrayLike,
        labels: ArrayLike,
        **options: Unpack[_LossOptions[Literal[False]]],
    ) -> jax.Array: ...

    @overload
    def linear_cross_entropy(
        x: ArrayLike, w: ArrayLike, labels: ArrayLike, **options: Unpack[_LossOptions[bool]]
    ) -> jax.Array | tuple[jax.Array, ...]: ...


@eager.jit_when_eager(
    *("x", "w", "labels", "bias", "where"),
    numbers=loss_arguments.NUMBERS,
    check=lambda x, w, labels, **options: arguments.are_fit(
        "linear_cross_entropy", "labels", x, w, labels, **options
    ),
)
def linear_cross_entropy(
    x: ArrayLike,
    w: ArrayLike,
    labels: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    trans_w: bool = False,
    where: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    label_smoothing: ArrayLike = 0.0,
    z_loss: ArrayLike = 0.0,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    reduction: Reduction = "none",
    return_lse: bool = False,
    return_entropy: bool = False,
    dtype: Dtype | None = None,
    logits_dtype: LogitsDtype | None = None,
    max_bytes: int | None = None,
    implementation: Implementation | None = None,
) -> jax.Array | tuple[jax.Array, ...]:
    r"""The cross-entropy of labels for `logits = x @ w + bias`, computed in chunks of rows.

    The logits are computed for some rows at a time, a chunk, and overwritten with their gradient.
    `plan_linear_cross_entropy` returns the size of the chunks. It works with jit, vmap, scan, remat,
    shard_map and derivatives of every order and mode.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> x, w = jnp.ones((5, 3)), jnp.zeros((3, 8))
        >>> mean = lambda w: jk.linear_cross_entropy(x, w, jnp.arange(5), reduction="mean")
        >>> loss, dw = jax.value_and_grad(mean)(w)
        >>> print(loss, dw[0])  # log 8
        2.0794415 [-0.075 -0.075 -0.075 -0.075 -0.075  0.125  0.125  0.125]

    Args:
        x: array of shape (..., H), float32, bfloat16, float16 or float64.
        w: array of shape (H, V), or (V, H) with `trans_w`, of one of these dtypes.
        labels: the class of each row: integers of any dtype, of shape (...) or with sizes of 1,
            or one number. A negative label leaves its row out: loss and gradient are 0, whatever x is.
        bias: None, or an array of shape (V,) of any floating dtype. It is added to the product in
            float32. -inf hides a class that pads the vocabulary, but not with a soft cap.
        trans_w: w has the shape (V, H), like a table of embeddings.
        where: None, or a mask of bool, of shape (V,). Classes where it is False are hidden, as in
            `cross_entropy`.
        weights: as for `cross_entropy`: a number, or an array of shape (...) or with sizes of 1.
        label_smoothing: as for `cross_entropy`.
        z_loss: as for `cross_entropy`.
        logit_soft_cap: as for `cross_entropy`.
        temperature: as for `cross_entropy`: a number, or an array of shape (...) or with sizes of 1.
        reduction: as for `cross_entropy`.
        return_lse: also returns the log-sum-exp of each row.
        return_entropy: also returns the entropy of the softmax of each row.
        dtype: the dtype in which x and w are multiplied, as in Flax's layers. None promotes them:
            bfloat16 x and float32 w are multiplied in float32, and `dtype="bfloat16"` avoids that.
            Gradients have the dtypes of x and w.
        logits_dtype: None rounds the logits, and their gradient, to the dtype of the product. float32
            keeps them in float32 until the gradient is multiplied, for more memory.
        max_bytes: bound on the memory of the loss and its gradients on one device, not counting
            operands, results and copies of x and w in `dtype`. None allows 1 GiB for the logits of a
            chunk, plus the sums over chunks, the scratch of products and padded copies of w. Forward mode
            of "none" takes more, see below.
        implementation: as for `cross_entropy`, for the row kernels. float32 products are those of
            `matmul`, with the algorithm "pipelined" if a bound leaves too little room for the scratch
            of "tensor"; others are XLA's. With "xla" all products are XLA's at highest precision.

    Returns:
        The loss, an array of shape (...), or a number; float32, or float64 of float64. With `return_lse`
        or `return_entropy` a tuple: the loss, then the log-sum-exp, then the entropy.

    Raises:
        TypeError: an argument is not an array or number, x, w or `dtype` has a dtype without kernels, or
            labels are not integers. (For probabilities, which are as large as the logits, use
            `cross_entropy`.)
        ValueError: shapes do not fit, an option is out of its range or unknown, a concrete label is V
            or larger, or one row does not fit into `max_bytes` when the program is lowered.
        NotImplementedError: `implementation="ffi"` and there is no kernel, when the program is lowered.

    Notes:
        * A traced label of V or larger gives NaN, in the loss and in the gradients.
        * "mean" and "sum" compute their gradients with the loss, with three products. They round them to
          the dtypes of x, w and bias, and then multiply by the cotangent of the loss. "none" stores seven
          numbers per row and computes the logits of a chunk again, with four products. float16 and calls
          with extra outputs use the path of "none".
        * The gradient of the logits is rounded to the dtype of the product before it is multiplied. The gradient
          of w is summed in float32 over chunks and rounded once; a single chunk needs no sum.
        * Under vmap, rows of all members share chunks if they share w, and so does the gradient of a sum
          of their losses.
        * Concrete labels and options are checked, as in `cross_entropy`.
        * Forward mode of "none" stores up to five float32 arrays of the size of a chunk's logits, which
          can be several times `max_bytes`.
        * Second derivatives store the logits of all rows.
        * If rows are sharded, the sums of the gradients of w and bias cross the network. If classes are
          sharded, devices exchange one maximum and three sums per row (six sums with smoothing or
          entropy), and the sum of the gradient of x. Forward mode gathers w.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

    References:
        Wijmans et al., "Cut your losses in large-vocabulary language models", 2024, arXiv:2411.09009,
        and Hsu et al., "Liger kernel", 2024, arXiv:2410.10989, for the chunks of rows.
    """
    validate.check_static(
        reduction=reduction, return_lse=return_lse, return_entropy=return_entropy, dtype=dtype
    )
    name = "linear_cross_entropy"
    loss_arguments.check_loss_options(name, reduction, label_smoothing, z_loss)
    smooths = not loss_arguments.is_known(label_smoothing, 0.0)
    given, options, logits = arguments.checked(
        *(name, "labels", x, w, labels, bias, where, logit_soft_cap, temperature, dtype),
        trans_w=trans_w,
        all_sums=smooths or bool(return_entropy),
        logits_dtype=logits_dtype,
        max_bytes=max_bytes,
        implementation=implementation,
    )
    label = given["label"]
    weight = loss_arguments.weights_of_rows(name, weights, label >= 0, logits)
    numbers = loss_measures.coefficients_of(weight, reduction, label_smoothing, z_loss)
    alone = not (return_lse or return_entropy)
    is_vector = jnp.ndim(x) == 1
    # float16 takes the path of "none", because a mean's gradient can leave its range.
    if reduction != "none" and alone and given["x"].dtype != jnp.float16:
        return primitive.loss(given | {"numbers": numbers}, options)

    measures, largest = primitive.measures(given, options)
    loss = loss_measures.loss_of(label >= 0, measures, largest, numbers)
    results = loss_measures.results_of(
        loss, measures, largest, reduction, return_lse, return_entropy
    )
    results = [jnp.squeeze(y, 0) if is_vector and y.ndim else y for y in results]
    return results[0] if alone else tuple(results)


if TYPE_CHECKING:

    @overload
    def linear_token_log_probs(
        x: ArrayLike, w: ArrayLike, ids: ArrayLike, **options: Unpack[_Options[Literal[False]]]
    ) -> jax.Array: ...

    @overload
    def linear_token_log_probs(
        x: ArrayLike, w: ArrayLike, ids: ArrayLike, **options: Unpack[_Options[Literal[True]]]
    ) -> tuple[jax.Array, jax.Array]: ...

    @overload
    def linear_token_log_probs(
        x: ArrayLike, w: ArrayLike, ids: ArrayLike, **options: Unpack[_Options[bool]]
    ) -> jax.Array | tuple[jax.Array, jax.Array]: ...


@eager.jit_when_eager(
    *("x", "w", "ids", "bias", "where"),
    numbers=loss_arguments.NUMBERS,
    check=lambda x, w, ids, **options: arguments.are_fit(
        "linear_token_log_probs", "ids", x, w, ids, **options
    ),
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
    it computes the logits of a chunk again: four products in all. It works with jit, vmap, scan, remat,
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
    name = "linear_token_log_probs"
    given, options, _ = arguments.checked(
        *(name, "ids", x, w, ids, bias, where, logit_soft_cap, temperature, dtype),
        trans_w=trans_w,
        all_sums=bool(return_entropy),
        logits_dtype=logits_dtype,
        max_bytes=max_bytes,
        implementation=implementation,
    )
    measures, _ = primitive.measures(given, options)
    # Excluded rows become 0, even if they hold NaN.
    shown = jnp.where(given["label"] >= 0, measures, 0)
    shown = shown if jnp.ndim(x) > 1 else shown[0]
    log_probs = 0 - shown[..., 0]  # 0 - 0 is 0; negation would give -0
    return (log_probs, shown[..., 2]) if return_entropy else log_probs
