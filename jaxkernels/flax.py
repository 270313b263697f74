"""dot_product_attention for Flax: one attention_fn for flax.linen and flax.nnx.

Owns: the arguments of Flax's two functions of that name, with Flax's meaning. Must not know: how a
softmax or a product is computed. Importing jaxkernels alone does not import Flax.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random

try:
    from flax import linen, nnx
    from flax.nnx.nn import dtypes
except ModuleNotFoundError as error:
    if error.name != "flax":
        raise
    raise ModuleNotFoundError(
        "jaxkernels.flax needs Flax, which is not installed: pip install flax", name="flax"
    ) from error

from jaxkernels._attention import checks, flash, products
from jaxkernels._attention.checks import FLAX_NAME as _NAME
from jaxkernels._attention.problem import Operands
from jaxkernels._core import compat, validate
from jaxkernels._rows import masked, masked_kernels
from jaxkernels.typing import EmptyRows, Implementation

__all__ = ["dot_product_attention"]

Einsum = Callable[..., jax.Array]


def __dir__() -> list[str]:
    return __all__


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    *,
    force_fp32_for_softmax: bool | None = None,
    einsum_dot_general: Callable[..., jax.Array] | None = None,
    qk_attn_weights_einsum: Einsum | None = None,
    attn_weights_value_einsum: Einsum | None = None,
    promote_dtype: Callable[..., Any] | None = None,
    is_causal: bool = False,
    scale: float | jax.Array | None = None,
    window: int | tuple[int, int] | None = None,
    empty_rows: EmptyRows = "zero",
    implementation: Implementation | None = None,
) -> jax.Array:
    """Attention with the arguments of Flax, for `attention_fn=` of its layers.

    It works in `flax.linen.MultiHeadDotProductAttention` and `flax.nnx.MultiHeadAttention`. The arguments are
    the union of those of `flax.linen.dot_product_attention` and `flax.nnx.dot_product_attention`, and the
    last four are ours. Set these with `functools.partial(dot_product_attention, empty_rows="mean")`,
    which both layers accept.

    Example:
        >>> import jax
        >>> from flax import linen
        >>> from jaxkernels.flax import dot_product_attention
        >>> layer = linen.MultiHeadDotProductAttention(2, attention_fn=dot_product_attention)
        >>> x = jax.numpy.ones((1, 4, 8))
        >>> mask = linen.make_causal_mask(x[..., 0])
        >>> y, parameters = layer.init_with_output(jax.random.key(0), x, mask=mask)
        >>> y.shape
        (1, 4, 8)

    Args:
        query: array of shape (..., q, heads, depth), with any number of leading dimensions.
        key: array of shape (..., k, key_heads, depth); heads is a multiple of key_heads.
        value: array of shape (..., k, key_heads, value_depth).
        bias: None, or an array that is added to the scores; it broadcasts to (..., heads, q, k).
        mask: None, or an array that broadcasts to (..., heads, q, k); a query sees a key where it is
            not 0 (or True).
        broadcast_dropout: draw one (q, k) pattern of dropout for all leading dimensions and heads.
        dropout_rng: the random key of the pattern, which equals Flax's pattern for the same key.
        dropout_rate: the probability of dropping a weight.
        deterministic: no dropout.
        dtype: None, or the dtype of the computation and of the result.
        precision: None computes float32 products in float32, whatever `jax_default_matmul_precision`
            says. Any other value is passed to XLA's products.
        module: None, or the linen or nnx module into which the weights are sown, under
            "attention_weights" and before dropout, as in Flax.
        force_fp32_for_softmax: for 16-bit computations. False: the scores are rounded to 16 bits,
            which saves memory; the softmax still computes in float32, and cuDNN stores and rounds no
            scores. True: scores, weights and result are float32, as in linen. None: float32 scores and
            softmax, 16-bit weights and result, as in nnx. linen's layer passes False or True, nnx's
            layer nothing.
        einsum_dot_general: None, or a function like `jax.lax.dot_general` for both products.
        qk_attn_weights_einsum: None, or a function like `jnp.einsum` for queries and keys.
        attn_weights_value_einsum: the same for weights and values; both or none.
        promote_dtype: None, or a function of ((query, key, value), dtype=dtype) that gives them one
            dtype.
        is_causal: query i sees the keys j <= i, both counted from the first, as in nnx.
        scale: factor of the scores; None means 1 / sqrt(depth).
        window: None, or (left, right), or an integer for both: query i sees the keys
            i - left <= j <= i + right, counted from the first.
        empty_rows: the result for a query that sees no key: "zero", or "mean" for the mean of all
            values, as in Flax.
        implementation: None chooses: on a GPU, cuDNN can compute 16-bit calls, and our flash kernels can
            compute float32 calls, as in `jaxkernels.dot_product_attention`. "ffi" runs our softmax, and
            raises an error if it has no kernel. "xla" runs plain JAX.

    Returns:
        Array of shape (..., q, heads, value_depth) and the dtype of the computation.

    Raises:
        TypeError: the dtype of the computation has no kernel, `module` is not a module, or the window
            contains a value that is not an integer.
        ValueError: shapes do not fit, hooks exclude each other, einsum hooks are given with heads that
            share keys, dropout has no `dropout_rng`, the window is negative, or `empty_rows` or
            `implementation` is unknown.
        NotImplementedError: `implementation="ffi"` and the softmax has no kernel.

    Notes:
        * Flax divides the queries by sqrt(depth) in the dtype of the computation. Here the softmax
          multiplies the scores in float32, which rounds once less. With one of the hooks the queries are
          scaled as in Flax, because a hook can quantise its operands.
        * linen's layer passes only the arguments whose names it finds in the signature. A wrapper that
          takes `**kwargs` gets none of them, not even the mask: use `functools.wraps` or
          `functools.partial`.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

    References:
        Signatures and meaning: Flax 0.12, flax/linen/attention.py and flax/nnx/nn/attention.py.
    """
    checks.check_flax_hooks(
        precision, einsum_dot_general, qk_attn_weights_einsum, attn_weights_value_einsum
    )
    validate.check_choice("implementation", implementation, validate.IMPLEMENTATIONS)
    validate.check_static(
        is_causal=is_causal,
        window=window,
        empty_rows=empty_rows,
        deterministic=deterministic,
        dropout_rate=dropout_rate,
        force_fp32_for_softmax=force_fp32_for_softmax,
    )
    if empty_rows not in masked.EMPTY_ROWS:
        raise ValueError(f"{_NAME}: empty_rows must be 'zero' or 'mean'; got {empty_rows!r}")
    band = masked_kernels.band_of(is_causal, window, from_end=False)
    promote = dtypes.promote_dtype if promote_dtype is None else promote_dtype
    query, key, value = promote((query, key, value), dtype=dtype)
    checks.check_flax_shapes(query, key, value)
    dtype = query.dtype
    shape = (*query.shape[:-3], query.shape[-2], query.shape[-3], key.shape[-3])
    bias, mask = _side("bias", bias, shape), _side("mask", mask, shape)
    mask = mask if mask is None or mask.dtype == jnp.bool_ else mask != 0
    factor = checks.scale_of(scale, query.shape[-1])

    hooked = einsum_dot_general is not None or qk_attn_weights_einsum is not None
    drops = not deterministic and dropout_rate > 0.0
    widens = bool(force_fp32_for_softmax) and dtype.name != "float32"
    asks_more = hooked or drops or widens or module is not None
    if not asks_more and implementation is precision is None:
        given = Operands(query, key, value, bias, mask)
        result = _flash_attention(given, factor, band, empty_rows)
        if result is not None:
            return result
    if hooked:  # scales as Flax does
        if scale is None:
            query = query / jnp.sqrt(query.shape[-1]).astype(query.dtype)
        else:
            query = query * jnp.asarray(scale, query.dtype)
        factor = 1.0
    if qk_attn_weights_einsum is not None:
        checks.check_equal_heads(query, key)
        scores = qk_attn_weights_einsum("...qhd,...khd->...hqk", query, key)
    else:
        wide = force_fp32_for_softmax is not False
        scores = products.scores(query, key, _dot(dtype, precision, einsum_dot_general, wide))
    if force_fp32_for_softmax:
        scores = scores.astype(jnp.float32)
    weights = masked.apply(
        _NAME,
        scores,
        mask,
        bias,
        scale=factor,
        band=band,
        empty_rows=empty_rows,
        implementation=implementation,
        result_dtype=None if force_fp32_for_softmax else dtype,
    )
    _sow(module, weights)
    if drops:
        weights = _dropout(weights, dropout_rng, dropout_rate, broadcast_dropout, dtype)

    if attn_weights_value_einsum is not None:
        return attn_weights_value_einsum("...hqk,...khd->...qhd", weights, value)
    common = validate.promoted_dtype(weights, value)
    dot = _dot(common, precision, einsum_dot_general)
    is_softmax = not drops and einsum_dot_general is None
    product = products.softmax_weighted_values if is_softmax else products.weighted_values
    return product(weights.astype(common), value.astype(common), dot)


def _flash_attention(
    given: Operands, scale: Any, band: masked_kernels.Band, empty_rows: EmptyRows
) -> jax.Array | None:
    """The result of flash attention, with all leading dimensions as one; None if it does not serve."""
    query, key, value = given.q, given.k, given.v
    batch = query.shape[:-3]
    sizes = (*query.shape, *value.shape)
    fits = key.shape == value.shape or query.dtype.name == "float32"
    if not (fits and query.dtype == key.dtype == value.dtype):
        return None
    if any(not isinstance(size, int) or size == 0 for size in sizes):
        return None
    if len(batch) > 1 and compat.is_explicitly_sharded(query, key, value):
        return None  # reshape cannot fold explicitly sharded dimensions
    q, k, v = (x.reshape(math.prod(batch), *x.shape[-3:]) for x in (query, key, value))
    given = Operands(q, k, v, _folded(given.bias, batch), _folded(given.mask, batch))
    found = flash.attention(given, scale, band, empty_rows=empty_rows)
    return None if found is None else found[0].reshape(*query.shape[:-1], value.shape[-1])


def _folded(x: jax.Array | None, batch: tuple[int, ...]) -> jax.Array | None:
    """Folds the batch dimensions of a bias or mask; one that the whole batch shares is not copied."""
    if x is None:
        return None
    x = x.reshape(*(1,) * (len(batch) + 3 - x.ndim), *x.shape)
    if math.prod(x.shape[:-3]) == 1:
        return x.reshape(1, *x.shape[-3:])
    x = jnp.broadcast_to(x, (*batch, *x.shape[-3:]))
    return x.reshape(math.prod(batch), *x.shape[-3:])


def _dot(dtype: Any, precision: Any, hook: Any, wide: bool = False) -> products.Dot:
    if hook is not None:
        return functools.partial(hook, precision=precision)
    return products.dot_of(dtype, precision, wide=wide)


def _side(name: str, x: Any, scores: tuple[int, ...]) -> jax.Array | None:
    """A bias or mask as an array that broadcasts to the scores."""
    if x is None:
        return None
    x = jnp.asarray(x)
    checks.check_fits(_NAME, name, x.shape, scores)
    return x


def _sow(module: Any, weights: jax.Array) -> None:
    if module is None:
        return
    if isinstance(module, nnx.Module):
        module.sow(nnx.Intermediate, "attention_weights", weights)
    elif isinstance(module, linen.Module):
        module.sow("intermediates", "attention_weights", weights)
    else:
        raise TypeError(
            f"{_NAME}: module must be None or a module of flax.linen or flax.nnx; "
            f"got {type(module).__name__}"
        )


def _dropout(
    weights: jax.Array, rng: jax.Array | None, rate: float, broadcast: bool, dtype: Any
) -> jax.Array:
    """Dropout with the bits of Flax: drops some weights and enlarges the others."""
    if rng is None:
        raise ValueError(f"{_NAME}: dropout_rate={rate} needs a dropout_rng, or deterministic=True")
    keep_probability = 1.0 - rate
    shape = weights.shape
    if broadcast:
        shape = (1,) * (len(shape) - 2) + shape[-2:]
    keep = random.bernoulli(rng, keep_probability, shape)
    return weights * (keep.astype(dtype) / jnp.asarray(keep_probability, dtype=dtype))
