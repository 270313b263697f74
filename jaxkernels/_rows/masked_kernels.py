"""The row kernels of attention scores, and the causal or window band that a row sees.

Owns: the two operations in plain JAX, and the derivative of the first. Must not know: what users may pass
(`masked`), how a kernel is launched.
"""

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels._core import compat
from jaxkernels._core.registry import UNBOUNDED
from jaxkernels._rows import derivatives, primitive, reference
from jaxkernels._rows.reference import below, compute_dtype, largest_of, row_sum, widen

Window = int | tuple[int, int] | None

# Smallest scale by which the tangent of a bias is divided, so that it shares a kernel call with that of
# the scores.
_LEAST_FOLDED = 2.0**-20


@dataclasses.dataclass(frozen=True)
class Band:
    """The columns that are visible to row i: i + left <= j <= i + right.

    Attributes:
        left: the lower bound; None for no bound.
        right: the upper bound; None for no bound.
        from_end: aligns the last row with the last column, by adding k - q to i. Otherwise the first row
            is aligned with the first column.
    """

    left: int | None = None
    right: int | None = None
    from_end: bool = True

    @property
    def is_open(self) -> bool:
        """Whether every row sees every column."""
        return self.left is None and self.right is None

    def attributes(self) -> dict[str, Any]:
        """The band as attributes of the kernels, with bounds clipped to UNBOUNDED."""
        return {
            "left": -UNBOUNDED if self.left is None else max(self.left, -UNBOUNDED),
            "right": UNBOUNDED if self.right is None else min(self.right, UNBOUNDED),
            "from_end": self.from_end,
        }


def band_of(causal: bool, window: Window, *, from_end: bool) -> Band:
    """The band of a causal structure and a sliding window together.

    Raises:
        TypeError: `window` is not None, an integer or a pair of integers.
        ValueError: `window` is negative, or `causal` is an array.
    """
    if np.ndim(causal) > 0:
        name = "causal" if from_end else "is_causal"
        raise ValueError(
            f"{name} must be True or False; got an array of shape {np.shape(causal)}. A mask of your own "
            "is mask="
        )
    left = right = None
    if window is not None:
        pair = window if isinstance(window, (tuple, list)) else (window, window)
        try:
            before, after = (operator.index(size) for size in pair)
        except (TypeError, ValueError):
            raise TypeError(
                f"window must be None, an integer or a pair of integers; got {window!r}"
            ) from None
        if before < 0 or after < 0:
            raise ValueError(f"window must not be negative; got {window!r}")
        left, right = -before, after
    return Band(left, 0 if causal else right, from_end)


@primitive.of_operation(biased="biased_softmax_fwd")
def masked_softmax_fwd(
    scores: jax.Array,
    *mask_and_bias: jax.Array,
    scale: float,
    left: int,
    right: int,
    from_end: bool,
    has_mask: bool,
    has_bias: bool,
    result_dtype: str | None = None,
) -> jax.Array:
    """Softmax of t = scale * scores + bias over the visible columns; a fully masked row is 0."""
    t = widen(scores) * scale
    if has_bias:
        t = t + widen(mask_and_bias[-1])
    seen = reference.band(scores.shape, left, right, from_end)
    if has_mask:
        seen = seen & mask_and_bias[0]
    t = jnp.where(seen, t, -jnp.inf)
    largest = jax.lax.stop_gradient(largest_of(t))
    unnormalized = jnp.exp(below(t, jnp.where(largest == -jnp.inf, 0, largest)))
    total = row_sum(unnormalized)
    y = unnormalized / jnp.where(total == 0, 1, total)
    return y.astype(result_dtype or scores.dtype)


@primitive.of_operation()
def masked_softmax_grad(
    y: jax.Array, dy: jax.Array, *, scale: float, left: int, right: int, from_end: bool
) -> jax.Array:
    """Gradient of the scores: dx = scale * y * (dy - sum(dy * y)); dy is ignored if y is 0."""
    del left, right, from_end  # y is 0 outside the band
    wide_y = widen(y)
    wide_dy = jnp.where(wide_y == 0, 0, widen(dy))
    difference = jnp.where(wide_y == 0, 0, wide_dy - row_sum(wide_dy * wide_y))
    return (scale * (wide_y * difference)).astype(y.dtype)


def _tangent(
    y: jax.Array,
    operands: Any,
    tangents: Any,
    *,
    scale: float,
    has_mask: bool,
    has_bias: bool,
    result_dtype: str | None = None,
    **params: Any,
) -> jax.Array:
    """The tangent of y: J (scale * dx + db), with J = diag(y) - y y^T.

    If no precision is lost, one kernel call computes it as scale * J (dx + db / scale). The transpose
    gives dx = scale * J dy, and db as dx / scale summed over the broadcast dimensions of the bias. y is
    the only residual with the size of the scores.
    """
    del operands, has_mask, result_dtype
    dx = tangents[0]
    db = tangents[-1] if has_bias else None
    if db is None:
        return masked_softmax_grad(y, dx.astype(y.dtype), scale=scale, **params)
    # float16 is not divided, because the quotient may overflow or underflow. Sums are in float32.
    keeps = y.dtype != jnp.float16 and _LEAST_FOLDED <= scale <= 1 / _LEAST_FOLDED
    folded = scale if keeps else 1.0
    wide = compute_dtype(y)
    total = compat.broadcast_like(db.astype(wide) / folded, y)
    if dx is not None:
        total = total + dx.astype(wide) * (scale / folded)
    return masked_softmax_grad(y, total.astype(y.dtype), scale=folded, **params)


def _params_of_kept(*, result_dtype: str | None = None, **params: Any) -> dict[str, Any]:
    """Reverse mode saves float32 instead of float16, which holds small weights with few bits."""
    return {**params, "result_dtype": None if result_dtype == "float16" else result_dtype}


derivatives.define_jvp(masked_softmax_fwd, _tangent, _params_of_kept)
# J is symmetric, so one kernel computes both JVP and gradient.
derivatives.define_linear(masked_softmax_grad, transpose=masked_softmax_grad)
