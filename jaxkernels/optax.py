"""optax's softmax cross-entropies on this package's kernels, under optax's names.

`softmax_cross_entropy_with_integer_labels`, `softmax_cross_entropy` and `safe_softmax_cross_entropy` have
the arguments, shapes and dtypes of optax's functions, and `jaxkernels.patch_optax` replaces those.
`jaxkernels.cross_entropy` has more options: reductions, weights, smoothing, ignored rows.

Owns: the differences between optax's semantics and ours. Must not know: kernels. optax itself is not
needed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import eager as _eager
from jaxkernels._core import validate as _validate
from jaxkernels._rows import cross_entropy as _cross_entropy
from jaxkernels._rows import cross_entropy_kernels as _cross_entropy_kernels
from jaxkernels._rows import last_axis as _last_axis
from jaxkernels._rows import loss_arguments as _loss_arguments
from jaxkernels._rows.reference import LogitOptions as _LogitOptions

__all__ = [
    "safe_softmax_cross_entropy",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
]

_Axis = int | tuple[int, ...] | None


def __dir__() -> list[str]:
    return __all__


@_eager.jit_when_eager(
    *("logits", "labels", "where"),
    check=lambda logits, labels, *args, **kwargs: _loss_arguments.fit_32_bits(labels),
)
def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike,
    labels: ArrayLike,
    axis: int | tuple[int, ...] = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """As `optax.softmax_cross_entropy_with_integer_labels`: log sum_j exp(x_j) - x_label.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels.optax
        >>> logits = jnp.array([[0.0, 0.0], [0.0, -jnp.inf]])
        >>> labels = jnp.array([1, 0])
        >>> print(jaxkernels.optax.softmax_cross_entropy_with_integer_labels(logits, labels))
        [0.6931472 0.       ]

    Args:
        logits: floating array of shape (..., V), or with the classes along `axis`.
        labels: integers of the shape of logits without `axis`; a negative one counts from the last
            class.
        axis: the axis of the classes, or several; a label is then an index into their product.
        where: mask of bool, of the shape of logits or of the loss, that selects the classes of the sum. A
            fully masked row has the loss 0. The label always counts, whatever its mask.

    Returns:
        Array of the shape of logits without `axis`, of the dtype of logits.

    Raises:
        TypeError: logits are not floating, or labels are not integers.
        ValueError: `axis` is out of bounds or has duplicates, shapes do not fit, or `where` is not bool.

    Notes:
        A label that is out of range gives NaN. Values are computed in float32 or wider and rounded once.
        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    name = "softmax_cross_entropy_with_integer_labels"
    x = _floating(name, logits)
    ids = _loss_arguments.as_labels(name, "labels", labels)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(
            f"{name}: labels must be integers; got {ids.dtype}. For probabilities use softmax_cross_entropy"
        )
    rows, mask = _merged(name, x, axis, where)
    _loss_arguments.check_fits(name, "labels", ids, "logits without axis have", rows.shape[:-1])
    classes = rows.shape[-1]
    if ids.dtype.itemsize < 4:  # wide enough for the number of classes
        ids = ids.astype(jnp.int32)
    ids = jnp.where(ids < 0, ids + classes, ids)
    ids = jnp.where((ids >= 0) & (ids < classes), ids, classes)
    if mask is None:
        # `cross_entropy` raises for a concrete label that is too large; optax returns NaN.
        calls = _cross_entropy_kernels.Calls("auto", None, all_sums=False)
        measures, _ = calls.measures(
            rows, jnp.expand_dims(ids, -1).astype(jnp.int32), _LogitOptions()
        )
        return measures[..., 0].astype(x.dtype)
    # The label's logit counts even if it is masked. A fully masked row has the loss 0.
    no_label = jnp.full(rows.shape[:-1], -1, jnp.int32)
    _, lse, *_ = _cross_entropy.cross_entropy(rows, no_label, where=mask, return_lse=True)
    is_seen = jnp.any(mask, axis=-1)
    at_label = jnp.take_along_axis(rows, jnp.expand_dims(ids, -1), axis=-1)
    loss = jnp.where(is_seen, lse, 0) - jnp.squeeze(at_label, -1).astype(lse.dtype)
    return jnp.where(is_seen, loss, 0).astype(x.dtype)


@_eager.jit_when_eager("logits", "labels", "where")
def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: _Axis = -1, where: ArrayLike | None = None
) -> jax.Array:
    """As `optax.softmax_cross_entropy`: - sum_j p_j log softmax(x)_j.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels.optax
        >>> print(jaxkernels.optax.softmax_cross_entropy(jnp.zeros(4), jnp.full(4, 0.25)))
        1.3862944

    Args:
        logits: floating array of shape (..., V), or with the classes along `axis`.
        labels: a probability for each class, of the shape of logits or broadcasting against it as in NumPy.
        axis: the axis of the classes, or several; None means all.
        where: mask of bool, of the shape of logits or of the loss, that selects the classes of both sums.

    Returns:
        Array of the shape of logits without `axis`, of the dtype of logits and labels together.

    Raises:
        TypeError: logits are not floating, or labels are classes (integers that do not broadcast).
        ValueError: `axis` is out of bounds or has duplicates, shapes do not fit, or `where` is not bool.

    Notes:
        A label of 0 contributes 0. optax returns NaN for a label of 0 with the logit -inf, except in
        `safe_softmax_cross_entropy`.
        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    name = "softmax_cross_entropy"
    x = _floating(name, logits)
    given = _validate.as_array(name, "labels", labels)
    whole = (1,) * (x.ndim - given.ndim) + given.shape
    if jnp.issubdtype(given.dtype, jnp.integer) and not _validate.fits(whole, x.shape):
        raise TypeError(
            f"{name}: labels must be probabilities of shape {x.shape}; got {given.dtype} of shape "
            f"{given.shape}. For classes use softmax_cross_entropy_with_integer_labels"
        )
    dtype = _validate.promoted_dtype(x, given)
    rows, mask = _merged(name, x, axis, where)
    probabilities, _ = _merged(name, jnp.broadcast_to(given, x.shape), axis, None)
    probabilities = probabilities.astype(jnp.float64 if dtype == jnp.float64 else jnp.float32)
    if mask is not None:
        is_seen = jnp.any(mask, axis=-1, keepdims=True)
        # A fully masked row has the loss 0. Its mask is dropped, so that the kernel computes no NaN.
        probabilities = jnp.where(mask, probabilities, 0)
        mask = mask | ~is_seen
    return _cross_entropy.cross_entropy(rows, probabilities, where=mask).astype(dtype)


@_eager.jit_when_eager("logits", "labels")
def safe_softmax_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> jax.Array:
    """As `optax.safe_softmax_cross_entropy`: `softmax_cross_entropy` where 0 log 0 = 0.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels.optax
        >>> print(jaxkernels.optax.safe_softmax_cross_entropy(jnp.array([0, -jnp.inf]), jnp.array([1, 0])))
        0.0

    Args:
        logits: floating array of shape (..., V).
        labels: a probability for each class, of a shape that broadcasts against that of logits.

    Returns:
        Array of the shape of logits without its last dimension, of the dtype of both together.

    Raises:
        TypeError: logits are not floating.
        ValueError: labels do not broadcast against logits.

    Notes:
        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    return softmax_cross_entropy(logits, labels)


def _floating(name: str, logits: Any) -> jax.Array:
    x = _validate.as_array(name, "logits", logits)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name}: logits must be floating numbers; got {x.dtype}")
    return x


def _merged(name: str, x: jax.Array, axis: _Axis, where: Any) -> tuple[jax.Array, jax.Array | None]:
    """The array and the mask, with the axes of the classes merged into the last one."""
    axes = _validate.canonical_axes(axis, x.ndim, x.ndim)
    order = axes if axis is None or isinstance(axis, int) else tuple(a % x.ndim for a in axis)

    def merged(array: jax.Array) -> jax.Array:
        kept = tuple(d for d in range(x.ndim) if d not in axes)
        return _last_axis.merged(jnp.transpose(array, kept + order), len(axes))

    if where is None:
        return merged(x), None
    mask = _validate.as_mask(name, "where", where)
    if mask.ndim != x.ndim:
        rows = tuple(size for dim, size in enumerate(x.shape) if dim not in axes)
        _loss_arguments.check_fits(name, "where", mask, "logits without axis have", rows)
        mask = jnp.expand_dims(mask, axes)
    return merged(x), merged(jnp.broadcast_to(mask, x.shape))
