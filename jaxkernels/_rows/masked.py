"""Scaled, biased and masked softmax of attention scores, as one row operation.

Owns: the public function, and the conversion of masks, biases and windows of any shape to kernel
operands. Must not know: how a kernel is made (`masked_kernels`) or launched, or layouts of queries and
keys.

The kernel applies scale, mask and bias while it loads a row, as OneFlow's LOAD functor does.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxkernels._core import eager, validate
from jaxkernels._rows import reference
from jaxkernels._rows.masked_kernels import Band, Window, band_of, masked_softmax_fwd
from jaxkernels.typing import EmptyRows, Implementation, Tier

EMPTY_ROWS: tuple[EmptyRows, ...] = get_args(EmptyRows)


@eager.jit_when_eager("scores", "mask", "bias", factors=("scale",))
def scaled_masked_softmax(
    scores: ArrayLike,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    causal: bool = False,
    window: Window = None,
    empty_rows: EmptyRows = "zero",
    tier: Tier | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    r"""Softmax of `scale * scores + bias` along the last axis, over the columns that each row may attend to.

    It takes one pass over the scores. The kernel applies scale, bias, mask, causal structure and window when
    it loads a row. Masks and biases that broadcast are not copied, and columns outside of the causal
    structure or the window are not read. All sizes work. It works with jit, vmap, scan, remat, shard_map
    and derivatives of every order and mode.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> print(jk.scaled_masked_softmax(jnp.zeros((3, 4)), causal=True))
        [[0.5        0.5        0.         0.        ]
         [0.33333334 0.33333334 0.33333334 0.        ]
         [0.25       0.25       0.25       0.25      ]]

    Args:
        scores: array of shape (..., q, k), float32, bfloat16, float16 or float64.
        mask: array of bool that broadcasts against the scores as in NumPy; True keeps an element. (In
            TransformerEngine 1 removes it.) A mask with one column is broadcast first.
        bias: array that broadcasts against the scores and is added to scale * scores, such as ALiBi
            or a relative position bias. A bias in the dtype of the scores is fused. Another dtype
            promotes the scores first, so no precision is lost.
        scale: a number. A positive Python or NumPy number is fused. Any other scalar (traced, negative,
            zero) is multiplied with the scores first, and has a gradient.
        causal: row i sees column j if j <= i + (k - q), so the last row sees all columns ("bottom
            right", for autoregressive decoding). `jax.nn.dot_product_attention` and
            `jk.dot_product_attention` align to the top left, which differs if q != k.
        window: a sliding window, by distance from the column i + (k - q) of row i: (before, after), or
            one integer for both. With `causal` no later column is visible.
        empty_rows: the result of a fully masked row: "zero", or "mean" for 1 / k in each column, as in
            jax.nn and flax, which mask with large negative numbers. Its gradient is 0 either way. "mean"
            costs another pass.
        tier: as for `softmax`.
        implementation: as in `softmax`; "xla" runs plain JAX.

    Returns:
        Array of the shape of the scores (broadcast against mask and bias) and of their dtype. Masked
        columns are 0, unless the row is NaN.

    Raises:
        TypeError: an operand is not an array or number, the scores have another dtype, the bias is bool
            or complex, `window` contains a value that is not an integer, or a static argument is
            traced.
        ValueError: the scores have fewer than two dimensions, mask or bias do not broadcast, the
            mask is not bool, the bias is a scalar, scale is no scalar, or `window`, `empty_rows`, `tier` or
            `implementation` is not one of the above.
        NotImplementedError: `implementation="ffi"` on a platform without kernels, when the program
            is lowered.

    Notes:
        * scale * x is rounded once, to float32 for the 16-bit types. The maximum and the exponent use the
          same value.
        * A NaN under the mask or outside of the window has no effect on results and gradients, nor has one
          in the cotangent there. Elsewhere it makes its row NaN. The gradient of a traced scale is the
          exception, because it is a sum over all scores.
        * A row whose visible scores are all -inf, as with an additive mask, is 0; `softmax` returns NaN.
        * Reverse mode stores only the result y: `dx = scale * y * (dy - sum(dy * y))`. The gradient of the
          bias is dx / scale, summed over the dimensions in which it broadcasts, in float32 for 16-bit
          types. (In float16, or with a tiny or huge scale, dx = scale * J dy costs another pass.)
        * Scores sharded over any dimensions but the last need no communication. If the last one is
          sharded, devices exchange one maximum and one sum per row (docs/sharding.md).
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

    References:
        OneFlow, "How to implement an efficient softmax CUDA kernel": scale and mask as load
        functors. Vaswani et al., "Attention is all you need", 2017, arXiv:1706.03762.
    """
    validate.check_static(causal=causal, window=window)
    if bias is not None:
        bias = validate.as_array("scaled_masked_softmax", "bias", bias)
        if bias.ndim == 0 and bias.dtype != jnp.bool_:
            raise ValueError(
                "scaled_masked_softmax: bias must be an array with dimensions; got a number, which "
                "would shift all scores of a row alike. A factor of the scores is scale="
            )
    return apply(
        "scaled_masked_softmax",
        scores,
        mask,
        bias,
        scale=scale,
        band=band_of(causal, window, from_end=True),
        empty_rows=empty_rows,
        tier=tier,
        implementation=implementation,
    )


def apply(
    function: str,
    scores: Any,
    mask: Any,
    bias: Any,
    *,
    scale: Any,
    band: Band,
    empty_rows: EmptyRows = "zero",
    tier: Tier | None = None,
    implementation: Implementation | None = None,
    result_dtype: Any = None,
) -> jax.Array:
    """`scaled_masked_softmax` with any band; `function` is the caller's name for errors.

    For float32 scores `result_dtype` may be a 16-bit dtype, to which the kernel rounds the result.
    """
    validate.check_row_options(implementation, tier)
    validate.check_static(empty_rows=empty_rows)
    if empty_rows not in EMPTY_ROWS:
        raise ValueError(f"empty_rows must be 'zero' or 'mean'; got {empty_rows!r}")

    x = validate.as_array(function, "scores", scores)
    dtype = x.dtype
    if dtype.name not in validate.DTYPES:
        is_whole = dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.integer)
        raise TypeError(
            f"{function}: scores must be {', '.join(validate.DTYPES)}; got {dtype.name}"
            f"{'. Write scores.astype(jnp.float32)' if is_whole else ''}"
        )
    if x.ndim < 2:
        raise ValueError(f"{function}: scores must be of shape (..., q, k); got {x.shape}")
    mask = None if mask is None else validate.as_mask(function, "mask", mask)
    bias = None if bias is None else bias_array(function, bias, x)
    for name, side in (("mask", mask), ("bias", bias)):
        if side is None:
            continue
        try:
            validate.broadcast_all(function, scores=x, **{name: side})
        except ValueError as error:
            advice = validate.side_advice(name, side.shape, x.shape)
            raise ValueError(f"{error}{advice}") from None
    shape = validate.broadcast_all(function, scores=x, mask=mask, bias=bias)

    if bias is not None:
        x = x.astype(bias.dtype)
    x, factor = fused_scale(function, x, scale)
    sides = [
        _with_rank_and_columns(side.astype(x.dtype) if side is bias else side, shape)
        for side in (mask, bias)
        if side is not None
    ]
    attributes = {
        "scale": factor,
        "has_mask": mask is not None,
        "has_bias": bias is not None,
        **band.attributes(),
    }
    if result_dtype is not None:
        dtype = jnp.dtype(result_dtype)
        if x.dtype == jnp.float32 and dtype.itemsize == 2:
            attributes["result_dtype"] = dtype.name
    x = _broadcast(x, shape)
    if implementation == "xla":
        y = masked_softmax_fwd.reference(x, *sides, **attributes)
    else:
        y = masked_softmax_fwd(
            x, *sides, tier=tier or "auto", require_kernel=implementation == "ffi", **attributes
        )
    if empty_rows == "mean" and (mask is not None or not band.is_open):
        mean = 1 / jnp.asarray(shape[-1], reference.compute_dtype(y))
        seen = reference.band(shape, **band.attributes())
        seen = seen if mask is None else seen & sides[0]
        y = jnp.where(jnp.any(seen, axis=-1, keepdims=True), y, mean.astype(y.dtype))
    return y.astype(dtype)


def bias_array(function: str, bias: Any, x: jax.Array) -> jax.Array:
    """The bias in the promoted dtype of scores and bias."""
    bias = validate.as_array(function, "bias", bias)
    if bias.dtype == jnp.bool_:
        raise TypeError(f"{function}: bias must not be bool; is it meant as mask=?")
    promoted = validate.promoted_dtype(x, bias)
    if promoted.name not in validate.DTYPES:
        raise TypeError(f"{function}: bias must be real; got {bias.dtype.name}")
    return bias.astype(promoted)


def fused_scale(function: str, x: jax.Array, scale: Any) -> tuple[jax.Array, float]:
    """Returns (x, factor) for the kernel to fuse; a scale that it cannot fuse is multiplied into x.

    A negative factor would reverse the order of the elements. A factor that is zero in the kernel's
    compute dtype would turn the -inf of masked elements into NaN.
    """
    wide = reference.compute_dtype(x)
    if np.ndim(scale) != 0:
        raise ValueError(f"{function}: scale must be a scalar; got shape {np.shape(scale)}")
    if isinstance(scale, (numbers.Real, np.floating, np.integer)):
        with np.errstate(over="ignore"):
            held = float(np.dtype(wide).type(scale))
        if 0 < held < math.inf:
            return x, float(scale)
    factor = validate.as_array(function, "scale", scale)
    if jnp.iscomplexobj(factor):
        raise TypeError(f"{function}: scale must be real; got {factor.dtype.name}")
    return x.astype(wide) * factor.astype(wide), 1.0


def _with_rank_and_columns(side: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Broadcasts a mask or bias to the rank and the columns of the scores."""
    leading = (1,) * (len(shape) - side.ndim)
    side = side.reshape(*leading, *side.shape)
    return _broadcast(side, (*side.shape[:-1], shape[-1]))


def _broadcast(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Broadcasts an array. Gradients of 16-bit arrays are summed in float32, as `jnp.sum` does."""
    if x.shape == shape or x.dtype == jnp.bool_:
        return jnp.broadcast_to(x, shape)
    return jnp.broadcast_to(reference.widen(x), shape).astype(x.dtype)
