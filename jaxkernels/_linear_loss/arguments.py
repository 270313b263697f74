"""Checks the arguments of losses of a linear layer and converts them to operands of the primitives.

Owns: the checks of x, w, bias and their ids, and the errors. `name` is the public function that the errors
name, and `argument` its argument with the ids. Must not know: how a loss is computed.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxkernels._core import validate
from jaxkernels._linear_loss import plan
from jaxkernels._linear_loss.chunks import Arrays, Options
from jaxkernels._rows import loss_arguments
from jaxkernels._sgemm import default_algorithm


def are_fit(
    name: str, argument: str, x: Any, w: Any, ids: Any, trans_w: bool = False, **options: Any
) -> bool:
    """As `loss_arguments.are_fit`, but leaves ids unchecked if the shapes of x and w do not fit."""
    classes, depth = (loss_arguments.size_of(w, i if trans_w else 1 - i) for i in (0, 1))
    fits = depth == loss_arguments.size_of(x, -1)
    return loss_arguments.are_fit(name, argument, ids, classes if fits else None, **options)


def checked(
    name: str,
    argument: str,
    x: Any,
    w: Any,
    ids: Any,
    bias: Any,
    where: Any,
    logit_soft_cap: Any,
    temperature: Any,
    dtype: Any,
    *,
    trans_w: Any,
    all_sums: bool,
    logits_dtype: Any,
    max_bytes: Any,
    implementation: Any,
) -> tuple[Arrays, Options, jax.ShapeDtypeStruct]:
    """The operands of `chunks` by name, the options, and the logits' shape and dtype.

    A vector x becomes one row.
    """
    validate.check_choice("implementation", implementation, validate.IMPLEMENTATIONS)
    logits_dtype = plan.logits_dtype_name(logits_dtype)
    validate.check_static(trans_w=trans_w, max_bytes=max_bytes)
    max_bytes = plan.as_bytes(name, max_bytes)
    options = Options(
        trans_w=bool(trans_w),
        all_sums=all_sums,
        logits_dtype=logits_dtype,
        max_bytes=max_bytes,
        implementation=implementation,
        algorithm=default_algorithm.current(),
    )
    label = loss_arguments.as_labels(name, argument, ids)
    x, w = validate.as_array(name, "x", x), validate.as_array(name, "w", w)
    x, w = _of_one_dtype(name, x, w, dtype, label)
    if logits_dtype is not None and x.dtype == jnp.float64:
        raise ValueError(
            f"{name}: logits_dtype={logits_dtype!r} is narrower than x, float64. Drop logits_dtype="
        )
    if (
        (x.ndim, label.ndim) == (2, w.ndim - 1)  # only a matrix x can be a swapped w
        and label.shape == w.shape[:-1]
        and w.shape[-1] in x.shape
        and not validate.fits(label.shape, x.shape[:-1])
    ):
        raise ValueError(
            f"{name}: {argument} of shape {label.shape} fit w, {w.shape}, and not x, {x.shape}. The order "
            f"is {name}(x, w, {argument})"
        )
    names = ("x.shape", "w.shape")
    *_, classes = plan.sizes_of(name, names, x.shape, w.shape, options.trans_w)
    given = {"x": x if x.ndim > 1 else x[None], "w": w}
    if bias is not None:
        given["bias"] = validate.as_array(name, "bias", bias)
        if not jnp.issubdtype(given["bias"].dtype, jnp.floating):
            raise TypeError(f"{name}: bias must be floating; got {given['bias'].dtype}")
    if where is not None:
        given["where"] = validate.as_mask(name, "where", where)
    for of_classes in ("bias", "where"):
        if of_classes in given and given[of_classes].shape != (classes,):
            raise ValueError(
                f"{name}: {of_classes} must have shape {(classes,)}; got {given[of_classes].shape}"
            )
    logits = jax.ShapeDtypeStruct((*given["x"].shape[:-1], classes), logits_dtype or x.dtype)
    is_loss = argument == "labels"
    loss_arguments.check_are_labels(name, argument, label, logits, takes_classes_only=not is_loss)
    if not jnp.issubdtype(label.dtype, jnp.integer):
        remedy = (
            "For probabilities use jaxkernels.cross_entropy"
            if is_loss
            else f"Write {argument}.astype(jnp.int32)"
        )
        raise TypeError(f"{name}: {argument} must be integers; got {label.dtype}. {remedy}")
    given["label"] = loss_arguments.ids(name, argument, ids, label, logits)
    scales = loss_arguments.scales_of_rows(name, logit_soft_cap, temperature, logits)
    if scales is not None:
        given["scales"] = scales
    return given, options, logits


def _of_one_dtype(
    name: str, x: jax.Array, w: jax.Array, dtype: Any, label: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Casts x and w to `dtype`, or to the dtype to which they promote."""
    if not {x.dtype.name, w.dtype.name} <= set(validate.DTYPES):
        is_integer = jnp.issubdtype(w.dtype, jnp.integer)
        is_swapped = is_integer and jnp.issubdtype(label.dtype, jnp.floating)
        remedy = f". The order is {name}(x, w, labels)" if is_swapped else ""
        raise TypeError(
            f"{name}: x and w must have dtypes of {', '.join(validate.DTYPES)}; got {x.dtype} and "
            f"{w.dtype}{remedy}"
        )
    if dtype is None:
        dtype = jnp.promote_types(x.dtype, w.dtype)
    dtype = jnp.dtype(validate.row_dtype(name, dtype))
    return x.astype(dtype), w.astype(dtype)
