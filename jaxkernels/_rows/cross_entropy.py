"""cross_entropy and token_log_probs, on the row kernels of cross entropy.

Owns: the public functions, and the conversion of labels, weights and options to kernel operands. Must not
know: how a primitive works, or how a kernel is launched.

A kernel reads the logits once and returns seven numbers per row. If the loss is reduced to a scalar, its
gradient is known up to a factor, and the kernel writes both in one read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, TypedDict, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import eager, validate
from jaxkernels._rows import cross_entropy_kernels as kernels
from jaxkernels._rows import loss_arguments, loss_measures
from jaxkernels.typing import Implementation, Reduction, Tier

_Flag = TypeVar("_Flag", bound=bool)  # the type of the arguments that add results


class _Options(TypedDict, Generic[_Flag], total=False):
    """Arguments by name of `token_log_probs`, for its overloads."""

    axis: int
    where: ArrayLike | None
    logit_soft_cap: ArrayLike | None
    temperature: ArrayLike
    return_entropy: _Flag
    tier: Tier | None
    implementation: Implementation | None


class _LossOptions(_Options[_Flag], total=False):
    """Arguments by name of `cross_entropy`, for its overloads."""

    weights: ArrayLike | None
    label_smoothing: ArrayLike
    z_loss: ArrayLike
    reduction: Reduction
    return_lse: _Flag


# beartype knows no generic TypedDict.
if TYPE_CHECKING:

    @overload
    def cross_entropy(
        logits: ArrayLike, labels: ArrayLike, **options: Unpack[_LossOptions[Literal[False]]]
    ) -> jax.Array: ...

    @overload
    def cross_entropy(
        logits: ArrayLike, labels: ArrayLike, **options: Unpack[_LossOptions[bool]]
    ) -> jax.Array | tuple[jax.Array, ...]: ...


@eager.jit_when_eager(
    *("logits", "labels", "where"),
    numbers=loss_arguments.NUMBERS,
    check=lambda logits, labels, axis=-1, **options: loss_arguments.are_fit(
        "cross_entropy", "labels", labels, loss_arguments.size_of(logits, axis), **options
    ),
)
def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    axis: int = -1,
    where: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    label_smoothing: ArrayLike = 0.0,
    z_loss: ArrayLike = 0.0,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    reduction: Reduction = "none",
    return_lse: bool = False,
    return_entropy: bool = False,
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> jax.Array | tuple[jax.Array, ...]:
    r"""Cross-entropy of labels and the softmax of logits: `log sum_j exp(x_j) - x_label`.

    Replaces optax's softmax cross-entropies. With `reduction="mean"`, loss and gradient come from a single
    read of the logits. With smoothing e over V classes and a z-loss of weight z the loss is:

        lse = log sum_j exp(x_j)
        loss = (1 - e) (lse - x_label) + e mean_j (lse - x_j) + z lse^2

    The mean goes over the classes whose logits are not -inf, so that padded classes change nothing.

    It runs this package's kernels on CPUs and NVIDIA GPUs, and plain JAX elsewhere. It works with jit,
    vmap, scan, remat, shard_map and derivatives of every order and mode.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> logits = jnp.array([[2.0, 2.0], [0.0, -jnp.inf], [1.0, 5.0]])
        >>> print(jk.cross_entropy(logits, jnp.array([0, 0, -1])))
        [0.6931472 0.        0.       ]
        >>> mean = lambda x: jk.cross_entropy(x, jnp.array([0, 0, -1]), reduction="mean")
        >>> print(jax.grad(mean)(logits))
        [[-0.25  0.25]
         [ 0.    0.  ]
         [ 0.    0.  ]]

    Args:
        logits: array of shape (..., V, ...), the V classes along `axis`; kernels serve float32,
            bfloat16, float16 and float64. Integers are converted to a floating type, float8 to float32.
        labels: the class of each row: integers of any dtype, of the shape of logits without `axis` or
            with sizes of 1, or one number. A negative label leaves its row out: loss and gradient are 0,
            whatever the logits are. Or a probability for each class: floating numbers of the shape of
            logits or with sizes of 1, or of shape (V,) if the classes are last. A probability of 0
            contributes 0.
        axis: the axis of the classes. The last axis is fastest; others are transposed to it.
        where: mask of bool of the shape of logits or with sizes of 1, or of shape (V,) if the classes are
            last. Classes where it is False are excluded. A row whose label is excluded has the loss inf.
        weights: a factor for the loss of each row: a number, or of the shape of the loss or with sizes of 1.
            A row with the weight 0 has the loss 0 and the gradient 0.
        label_smoothing: e above, a number from 0 to 1. Classes with the logit -inf, such as those that
            `where` excludes, do not count. With `label_smoothing=1` a masked label contributes nothing.
        z_loss: z above, a number.
        logit_soft_cap: None, or a number t > 0: logits x become `t tanh(x / t)`, before anything else. A
            logit of -inf stays -inf.
        temperature: divides the logits, after the cap: a number, or an array of the shape of the loss
            or with sizes of 1.
        reduction: "none" returns the loss of each row, "sum" their sum. "mean" divides the sum by the
            number of rows that have a label or, with `weights`, by the sum of their weights. A mean of
            no rows is 0, and so is a mean whose weights sum to 0.
        return_lse: also returns the log-sum-exp of each row.
        return_entropy: also returns the entropy of the softmax of each row; -inf if all its logits are -inf.
        tier: as for `softmax`.
        implementation: None uses a kernel if there is one, "ffi" raises an error if there is none,
            "xla" runs plain JAX.

    Returns:
        The loss, an array of the shape of logits without `axis`, or a number; float32, or float64 of
        float64. With `return_lse` or `return_entropy` a tuple: the loss, then the log-sum-exp, then the
        entropy. Reductions, weights and negative labels do not change the last two.

    Raises:
        TypeError: an argument is not an array or number, logits are bool or complex, labels are bool,
            or `axis` is not an integer.
        ValueError: `axis` is out of bounds, a shape does not fit, `where` is not of type bool, a
            label that is known is V or larger, an option is out of its range, or `reduction`, `tier`
            or `implementation` is not one of the above.
        NotImplementedError: `implementation="ffi"` and there is no kernel, when the program is lowered.

    Notes:
        * A traced label of V or larger gives a NaN loss. Its gradient is NaN too, except with
          `implementation="xla"` and in forward mode.
        * A label with probability 1 - 1e-9 has the loss 1e-9, accurate to nearly all digits.
        * "none" in reverse mode reads the logits twice and writes their gradient. "mean" and "sum" read
          them once. They round the gradient to the dtype of the logits and then multiply it by the
          cotangent of the loss, which is exact for a power of two (`jax.value_and_grad` has 1). float16
          (whose range a mean's gradient can leave) uses the two-read path of "none". So do calls with a
          log-sum-exp or entropy that is differentiated; if it is only returned, as by `has_aux`, the
          logits are read once.
        * Concrete labels and options are checked. If they are on a device, `jax.device_get` copies them
          to the host, which waits for them. Traced ones are not checked.
        * Logits donated to `jax.jit` become their gradient in place if the argument itself reaches the
          kernel with whole rows. This excludes loops, reshaped logits, axes other than the last, sharded
          classes, and on a GPU `where` together with a soft cap.
        * The kernels apply `where`, a temperature and a soft cap as they read the logits, the last two in the
          compute type. A float32 logit is then within 4 units in the last place. For 16-bit logits a GPU's
          tanh has an absolute error of 2^-20, and at the label a relative one of 2^-15. For labels that are
          probabilities, and for derivatives by temperature or cap, XLA applies them in a copy of the logits
          in the compute type. On a GPU, if there is a cap too, XLA applies `where` before and after the
          kernel.
        * If `axis` is sharded, devices exchange one maximum and three sums per row (six sums with
          smoothing or entropy), and nothing in the gradient.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

    References:
        Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv:1805.02867.
        Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016, for
        smoothing. Chowdhery et al., "PaLM", 2022, arXiv:2204.02311, for the z-loss.
    """
    name = "cross_entropy"
    validate.check_row_options(implementation, tier)
    validate.check_static(
        axis=axis, reduction=reduction, return_lse=return_lse, return_entropy=return_entropy
    )
    loss_arguments.check_loss_options(name, reduction, label_smoothing, z_loss)
    x, options = loss_arguments.rows_of_logits(
        name, logits, axis, where, logit_soft_cap, temperature
    )
    given = loss_arguments.as_labels(name, "labels", labels)
    loss_arguments.check_are_labels(name, "labels", given, logits, axis)
    smooths = not loss_arguments.is_known(label_smoothing, 0.0)
    calls = kernels.Calls(tier or "auto", implementation, smooths or return_entropy)

    has_ids = jnp.issubdtype(given.dtype, jnp.integer)
    if has_ids:
        label = loss_arguments.ids(name, "labels", labels, given, x)
        is_counted = label >= 0
    else:
        label = jnp.full((*x.shape[:-1], 1), -1, jnp.int32)
        is_counted = jnp.ones_like(label, bool)
    weight = loss_arguments.weights_of_rows(name, weights, is_counted, x)
    numbers = loss_measures.coefficients_of(weight, reduction, label_smoothing, z_loss)
    x, options = calls.prepared(x, options, numbers[..., :1] == 0)
    # float16 takes the two-read path, because a mean's gradient can leave its range.
    if reduction != "none" and has_ids and x.dtype != jnp.float16:
        loss, measures, largest = calls.weighted_loss(x, label, numbers, options)
    else:
        measures, largest = calls.measures(x, label, options)
        if not has_ids:
            p = loss_arguments.probabilities(name, given, x, axis)
            nll = _of_probabilities(options.applied(x), p, measures, largest)
            measures = jnp.concatenate([nll, measures[..., 1:]], axis=-1)
        loss = loss_measures.loss_of(is_counted, measures, largest, numbers)
    results = loss_measures.results_of(
        loss, measures, largest, reduction, return_lse, return_entropy
    )
    return tuple(results) if return_lse or return_entropy else results[0]


def _of_probabilities(
    x: jax.Array, probabilities: jax.Array, measures: jax.Array, largest: jax.Array
) -> jax.Array:
    """Sum_j p_j (lse - x_j) of each row; a term with p_j = 0 is 0, even if lse - x_j is infinite."""
    # Halves cannot overflow when they are subtracted.
    distance = (largest / 2 - x.astype(largest.dtype) / 2) + measures[..., 1:2] / 2
    is_nothing = (probabilities == 0) & ~jnp.isfinite(distance)
    distance = jnp.where(is_nothing, 0, distance)
    return jnp.sum(2 * (probabilities * distance), axis=-1, keepdims=True)


if TYPE_CHECKING:

    @overload
    def token_log_probs(
        logits: ArrayLike, ids: ArrayLike, **options: Unpack[_Options[Literal[False]]]
    ) -> jax.Array: ...

    @overload
    def token_log_probs(
        logits: ArrayLike, ids: ArrayLike, **options: Unpack[_Options[Literal[True]]]
    ) -> tuple[jax.Array, jax.Array]: ...

    @overload
    def token_log_probs(
        logits: ArrayLike, ids: ArrayLike, **options: Unpack[_Options[bool]]
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
    reverse mode. On a GPU, a mask together with a soft cap costs one extra copy of the logits; so does a
    derivative by a soft cap or a temperature, in float32.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> log_probs, entropy = jk.token_log_probs(
        ...     jnp.array([[0.0, 0.0], [9.0, -jnp.inf]]), jnp.array([1, 0]), return_entropy=True
        ... )
        >>> print(log_probs, entropy)
        [-0.6931472  0.       ] [0.6931472 0.       ]
        >>> print(jk.token_log_probs(jnp.zeros((1, 4)), jnp.array([[2, 0, -1]])))  # three of a row
        [[-1.3862944 -1.3862944  0.       ]]

    Args:
        logits: array of shape (..., V, ...), as for `cross_entropy`.
        ids: the token, or action, of each row: integers of any dtype, of the shape of logits without
            `axis` or with sizes of 1, or one number. A negative id leaves its row out: its log-probability,
            its entropy and their gradients are 0, whatever the logits are. Alternatively, integers
            with the dimensions of logits: K tokens of each row along `axis`, as in `jnp.take_along_axis`;
            other sizes are those of logits, or 1. A negative id then has the log-probability 0 and no
            gradient, and a row of negative ids alone is left out. Equal ids add their gradients.
        axis: the axis of the tokens.
        where: mask of bool, as for `cross_entropy`. Tokens where it is False are excluded, and
            have the log-probability -inf.
        logit_soft_cap: as for `cross_entropy`.
        temperature: as for `cross_entropy`.
        return_entropy: also returns the entropy of the softmax of each row.
        tier: as for `softmax`.
        implementation: as for `cross_entropy`.

    Returns:
        The log-probabilities, of the shape of logits without `axis`, or with the size K there; float32,
        or float64 of float64. With `return_entropy` a pair: the log-probabilities and the entropies, which
        have the shape of logits without `axis`.

    Raises:
        TypeError: as `cross_entropy`, and if ids are not integers.
        ValueError: as `cross_entropy`.

    Notes:
        The notes of `cross_entropy` with the reduction "none" apply. With K ids per row the logits are read
        as often as with one; the ids are sorted, and K elements of each row of the gradient overwritten.
        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    name = "token_log_probs"
    validate.check_row_options(implementation, tier)
    validate.check_static(axis=axis, return_entropy=return_entropy)
    given = loss_arguments.as_labels(name, "ids", ids)
    is_integer = jnp.issubdtype(given.dtype, jnp.integer)
    has_several = is_integer and given.ndim == jnp.ndim(logits)
    if not has_several:
        loss_arguments.check_are_labels(name, "ids", given, logits, axis, takes_classes_only=True)
    if not is_integer:
        raise TypeError(
            f"{name}: ids must be integers; got {given.dtype}. Write ids.astype(jnp.int32)"
        )
    order = ("logits", "ids")
    x, options = loss_arguments.rows_of_logits(
        name, logits, axis, where, logit_soft_cap, temperature, order
    )
    label = loss_arguments.ids(name, "ids", ids, given, x, axis)
    number = label.shape[-1]
    if number == 0:  # such rows are left out
        label = jnp.full((*label.shape[:-1], 1), -1, label.dtype)
    calls = kernels.Calls(tier or "auto", implementation, return_entropy)
    is_left_out = jnp.all(label < 0, axis=-1, keepdims=True)
    x, options = calls.prepared(x, options, is_left_out)
    measures, _ = calls.measures(x, label, options)
    # Excluded ids and rows become 0, even if they hold NaN. 0 - 0 is 0; negation would give -0.
    count = label.shape[-1]
    log_probs = 0 - jnp.where(label >= 0, measures[..., :count], 0)[..., :number]
    log_probs = jnp.moveaxis(log_probs, -1, axis) if has_several else jnp.squeeze(log_probs, -1)
    if not return_entropy:
        return log_probs
    return log_probs, jnp.where(is_left_out[..., 0], 0, measures[..., count + 1])
