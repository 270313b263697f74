"""Cross entropy of a linear layer whose logits are never kept.

Owns: the public function, and how its arguments become operands of the primitives. Must not know: how a
chunk is computed.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import validate
from jaxkernels._linear_loss import primitive
from jaxkernels._linear_loss.chunks import Arrays
from jaxkernels._linear_loss.options import Options
from jaxkernels._rows import cross_entropy_reference as reference
from jaxkernels._rows import loss_arguments
from jaxkernels.typing import Implementation, LogitsDtype, Reduction

_NAME = "linear_cross_entropy"


@overload
def linear_cross_entropy(
    x: ArrayLike,
    w: ArrayLike,
    labels: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    trans_w: bool = False,
    weights: ArrayLike | None = None,
    label_smoothing: ArrayLike = 0.0,
    z_loss: ArrayLike = 0.0,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    reduction: Reduction = "none",
    return_lse: Literal[False] = ...,
    return_entropy: Literal[False] = ...,
    logits_dtype: LogitsDtype | None = None,
    max_bytes: int | None = None,
    implementation: Implementation | None = None,
) -> jax.Array: ...


@overload
def linear_cross_entropy(
    x: ArrayLike,
    w: ArrayLike,
    labels: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    trans_w: bool = False,
    weights: ArrayLike | None = None,
    label_smoothing: ArrayLike = 0.0,
    z_loss: ArrayLike = 0.0,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    reduction: Reduction = "none",
    return_lse: bool = False,
    return_entropy: bool = False,
    logits_dtype: LogitsDtype | None = None,
    max_bytes: int | None = None,
    implementation: Implementation | None = None,
) -> jax.Array | tuple[jax.Array, ...]: ...


def linear_cross_entropy(
    x: ArrayLike,
    w: ArrayLike,
    labels: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    trans_w: bool = False,
    weights: ArrayLike | None = None,
    label_smoothing: ArrayLike = 0.0,
    z_loss: ArrayLike = 0.0,
    logit_soft_cap: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    reduction: Reduction = "none",
    return_lse: bool = False,
    return_entropy: bool = False,
    logits_dtype: LogitsDtype | None = None,
    max_bytes: int | None = None,
    implementation: Implementation | None = None,
) -> jax.Array | tuple[jax.Array, ...]:
    r"""Cross entropy of labels against the softmax of the logits x w + bias, which are never kept.

    The logits of V classes are made for some rows at a time, a chunk, and their gradient takes their
    place. `plan_linear_cross_entropy` tells how many rows that are. It composes with jit, vmap, scan,
    remat, shard_map and derivatives of every order and mode.

    Args:
        x: array of shape (..., H), float32, bfloat16, float16 or float64.
        w: array of shape (H, V), or (V, H) with `trans_w`, of the dtype of x.
        labels: integers of any dtype, of shape (...) or broadcasting against it: the class of each row.
            A negative one leaves its row out: loss 0, gradient 0, whatever x is there.
        bias: None, or an array of shape (V,) of any floating dtype. It is added to the product in
            float32. -inf hides a class, such as one that pads the vocabulary; not under a soft cap.
        trans_w: w is stored as (V, H), as a table of embeddings is.
        weights: as for `cross_entropy`, against the shape (...).
        label_smoothing: as for `cross_entropy`.
        z_loss: as for `cross_entropy`.
        logit_soft_cap: as for `cross_entropy`.
        temperature: as for `cross_entropy`, a number or an array that broadcasts against (...).
        reduction: as for `cross_entropy`.
        return_lse: returns the log-sum-exp of each row as well.
        return_entropy: returns the entropy of the softmax of each row as well.
        logits_dtype: None rounds the logits, and their gradient, to the dtype of x. "float32" keeps
            them in float32 until the gradient is multiplied, for more memory.
        max_bytes: bound of the memory that the loss and its gradients take on one device beyond
            operands and results. None: 1 GiB for the logits of a chunk, and what has to be beside it.
            Forward mode of "none" takes more, see below.
        implementation: as for `cross_entropy`. It is about the row kernels; products are XLA's, or of
            float32 those of `matmul` on the rung "pipelined" (the scratch of "tensor" would not
            fit the bound), or with "xla" XLA's own at the highest precision.

    Returns:
        The loss, an array of shape (...), or a number; float32, or float64 of float64. With `return_lse`
        or `return_entropy` a tuple: the loss, and the one or both of them.

    Raises:
        TypeError: an argument is not an array or number, x and w have different dtypes or no kernels,
            or labels are no integers. Probabilities would have as many elements as the logits:
            `cross_entropy` takes them.
        ValueError: shapes do not fit, an option is out of its range or unknown, a label that is known
            is V or larger, or, when the program is lowered, one row does not fit into `max_bytes`.
        NotImplementedError: `implementation="ffi"` where there is no kernel, when the program is
            lowered.

    Notes:
        * Of traced labels, one that is V or larger gives NaN, in the loss and in the gradients.
        * "mean" and "sum" make their gradients with the loss, by three products in all; they are
          rounded to the dtypes of x, w and bias, and then multiplied by the cotangent of the loss. "none"
          keeps seven numbers of each row and makes the logits of a chunk again, four products in all.
          float16, and what returns more than the loss, go the way of "none".
        * The gradient of the logits is rounded to the dtype of x before it is multiplied. The gradient
          of w is summed in float32 over chunks, and rounded once; of one chunk it is the product.
        * Under vmap, rows of all members share chunks, as long as they share w; and so does the
          gradient of a sum of their losses.
        * Labels and options that are known are checked, as those of `cross_entropy` are.
        * Forward mode of "none" has the chunks of its loss, and makes up to five arrays of the size of a
          chunk's logits, in float32: it may take several times `max_bytes`.
        * Derivatives of the second order keep the logits of all rows.
        * Rows sharded: the sums of the gradients of w and bias cross the network. Classes sharded: a
          maximum and three sums a row (with smoothing or entropy six), and the sum of the gradient of x.
          Forward mode gathers w.

    References:
        Wijmans et al., "Cut your losses in large-vocabulary language models", 2024, arXiv:2411.09009,
        and Hsu et al., "Liger kernel", 2024, arXiv:2410.10989, whose chunks of rows these are.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> x, w = jnp.ones((5, 3)), jnp.zeros((3, 8))
        >>> mean = lambda w: jk.linear_cross_entropy(x, w, jnp.arange(5), reduction="mean")
        >>> loss, dw = jax.value_and_grad(mean)(w)
        >>> print(loss, dw[0])  # log 8
        2.0794415 [-0.075 -0.075 -0.075 -0.075 -0.075  0.125  0.125  0.125]
    """
    validate.check_choice("implementation", implementation, validate.IMPLEMENTATIONS)
    validate.check_choice("logits_dtype", logits_dtype, get_args(LogitsDtype))
    validate.check_static(
        trans_w=trans_w,
        reduction=reduction,
        return_lse=return_lse,
        return_entropy=return_entropy,
        max_bytes=max_bytes,
    )
    loss_arguments.check_reduction(reduction)
    loss_arguments.check_numbers(_NAME, label_smoothing=label_smoothing, z_loss=z_loss)
    loss_arguments.check_range("label_smoothing", label_smoothing, 0.0, 1.0)
    given, logits = _operands(x, w, bias, trans_w, logits_dtype)
    label_array = loss_arguments.as_labels(_NAME, "labels", labels)
    if not jnp.issubdtype(label_array.dtype, jnp.integer):
        raise TypeError(
            f"{_NAME}: labels must be integers; got {label_array.dtype}. Probabilities have as many "
            "elements as the logits: jaxkernels.cross_entropy takes them"
        )
    label = given["label"] = loss_arguments.ids(_NAME, "labels", labels, label_array, logits)
    scales = loss_arguments.scales_of_rows(_NAME, logit_soft_cap, temperature, logits)
    if scales is not None:
        given["scales"] = scales
    weight = loss_arguments.weights_of_rows(_NAME, weights, label >= 0, logits)
    numbers = reference.numbers_of_rows(
        reference.reducing(weight, reduction), label_smoothing, z_loss
    )
    smooths = not loss_arguments.is_known(label_smoothing, 0.0)
    options = Options(
        trans_w=bool(trans_w),
        all_sums=smooths or bool(return_entropy),
        logits_dtype=logits_dtype,
        max_bytes=max_bytes,
        implementation=implementation,
    )
    alone = not (return_lse or return_entropy)
    is_vector = jnp.ndim(x) == 1
    # A mean leaves the range of float16 soon: there the gradient waits for the cotangent.
    if reduction != "none" and alone and given["x"].dtype != jnp.float16:
        return primitive.loss(given | {"numbers": numbers}, options)

    measures, largest = primitive.measures(given, options)
    results = reference.results_of(
        label >= 0,
        measures,
        largest,
        numbers,
        reduction,
        return_lse=return_lse,
        return_entropy=return_entropy,
    )
    results = [jnp.squeeze(y, 0) if is_vector and y.ndim else y for y in results]
    return results[0] if alone else tuple(results)


def _operands(
    x: Any, w: Any, bias: Any, trans_w: bool, logits_dtype: str | None
) -> tuple[Arrays, jax.ShapeDtypeStruct]:
    """The operands that make logits, by name, and the type of these. A vector x is a matrix of one row."""
    x, w = validate.as_array(_NAME, "x", x), validate.as_array(_NAME, "w", w)
    if x.dtype != w.dtype or x.dtype.name not in validate.DTYPES:
        raise TypeError(
            f"{_NAME}: x and w must have one dtype of {', '.join(validate.DTYPES)}; got {x.dtype} and "
            f"{w.dtype}"
        )
    if logits_dtype is not None and x.dtype == jnp.float64:
        raise ValueError(f"{_NAME}: logits_dtype={logits_dtype!r} is narrower than x, float64")
    stored = "(V, H) with trans_w" if trans_w else "(H, V)"
    if x.ndim == 0 or w.ndim != 2 or x.shape[-1] != w.shape[1 if trans_w else 0]:
        raise ValueError(
            f"{_NAME}: x must have shape (..., H) and w {stored}; got {x.shape} and {w.shape}"
        )
    classes = w.shape[0 if trans_w else 1]
    given = {"x": x if x.ndim > 1 else x[None], "w": w}
    if bias is not None:
        given["bias"] = validate.as_array(_NAME, "bias", bias)
        if not jnp.issubdtype(given["bias"].dtype, jnp.floating):
            raise TypeError(f"{_NAME}: bias must be floating; got {given['bias'].dtype}")
        if given["bias"].shape != (classes,):
            raise ValueError(
                f"{_NAME}: bias must have shape {(classes,)}; got {given['bias'].shape}"
            )
    dtype = logits_dtype or x.dtype
    return given, jax.ShapeDtypeStruct((*given["x"].shape[:-1], classes), dtype)
