"""Checks the arguments of losses over a vocabulary and converts them to kernel operands.

Owns: the checks of shapes, dtypes and ranges, and their errors. `name` is the public function that the
errors name. Must not know: how a loss is computed.
"""

import operator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxkernels._core import validate
from jaxkernels._rows import last_axis
from jaxkernels._rows.reference import LogitOptions, compute_dtype

# Options that accept a number; some accept an array too.
NUMBERS = ("weights", "label_smoothing", "z_loss", "logit_soft_cap", "temperature")
# Logits, or only their shape and dtype if they are never stored.
Logits: TypeAlias = jax.Array | jax.ShapeDtypeStruct


def is_known(value: Any, number: float) -> bool:
    """Whether an option is a Python number equal to `number`; False if it is traced."""
    return isinstance(value, (int, float)) and value == number


def _known(value: Any) -> np.ndarray | None:
    """A concrete number or array, as a NumPy array; None if it is traced, on another host, or neither.

    An array on a device is copied explicitly, which waits for it; a transfer guard allows that.
    """
    if isinstance(value, jax.Array):
        is_here = not isinstance(value, Tracer) and value.is_fully_addressable
        return jax.device_get(value) if is_here else None
    is_number = isinstance(value, (int, float, np.ndarray, np.generic))
    return np.asarray(value) if is_number else None


def _check_number(name: str, argument: str, value: Any) -> None:
    """Raises TypeError or ValueError for an option that is not a scalar."""
    shape = validate.as_array(name, argument, value).shape
    if shape:
        raise ValueError(f"{name}: {argument} must be a number; got an array of the shape {shape}")


def _check_smoothing(name: str, value: Any) -> None:
    """Raises ValueError for a concrete number that is not from 0 to 1."""
    known = _known(value)
    if known is not None and not 0 <= known <= 1:
        raise ValueError(f"{name}: label_smoothing must be from 0.0 to 1.0; got {value}")


def _check_positive(name: str, argument: str, value: Any) -> None:
    """Raises ValueError for concrete numbers that are not all positive."""
    known = _known(value)
    if known is not None and not np.all(known > 0):
        raise ValueError(f"{name}: {argument} must be positive; got {value}")


def check_loss_options(name: str, reduction: Any, label_smoothing: Any, z_loss: Any) -> None:
    """Raises TypeError or ValueError for an unknown reduction or an unsuitable number."""
    if reduction not in validate.REDUCTIONS:
        listed = ", ".join(map(repr, validate.REDUCTIONS))
        raise ValueError(f"{name}: reduction must be one of {listed}; got {reduction!r}")
    _check_number(name, "label_smoothing", label_smoothing)
    _check_number(name, "z_loss", z_loss)
    _check_smoothing(name, label_smoothing)


def rows_of_logits(
    name: str,
    logits: Any,
    axis: Any,
    where: Any,
    soft_cap: Any,
    temperature: Any,
    order: tuple[str, str] = ("logits", "labels"),
) -> tuple[jax.Array, LogitOptions]:
    """Prepares logits for the kernels, with the classes last, and their mask and scales.

    `order` has the names of the function's first two arguments; `logits` are the first.
    """
    argument = order[0]
    x = validate.as_array(name, argument, logits)
    if not jnp.issubdtype(x.dtype, jnp.integer) and not jnp.issubdtype(x.dtype, jnp.floating):
        remedy = f". Write {argument}.astype(jnp.float32)" if x.dtype == jnp.bool_ else ""
        raise TypeError(f"{name}: {argument} must be real numbers; got {x.dtype}{remedy}")
    if x.ndim == 0:
        raise ValueError(
            f"{name}: {argument} must have an axis of classes; got a number. The order is "
            f"{name}({', '.join(order)})"
        )
    x = x.astype(validate.computation_dtype(x))
    if x.dtype.name not in validate.DTYPES:
        x = x.astype(jnp.float32)
    try:
        at = operator.index(axis)
    except TypeError:
        raise TypeError(f"{name}: axis must be an integer; got {axis!r}") from None
    (at,) = validate.canonical_axes(at, x.ndim, x.ndim)
    mask = None
    if where is not None:
        mask = validate.as_mask(name, "where", where)
        hides_rows = mask.shape == (*x.shape[:at], *x.shape[at + 1 :])
        is_kl = "target_logits" in order
        remedy = "the weight 0" if is_kl else f"a negative {order[1].removesuffix('s')}"
        hint = f": where hides classes. To leave rows out, give them {remedy}"
        if mask.ndim > 0:
            _check_fits_logits(name, "where", mask, x.shape, at, hint if hides_rows else "")
        mask = _moved_last(mask, x.ndim, at)
        mask = jnp.broadcast_to(mask, (*mask.shape[:-1], x.shape[at]))
    x = last_axis.moved_last(x, (at,))
    return x, LogitOptions(mask, scales_of_rows(name, soft_cap, temperature, x))


def _moved_last(array: jax.Array, ndim: int, axis: int) -> jax.Array:
    """Gives an array `ndim` dimensions by adding leading ones, then moves `axis` last."""
    whole = array.reshape((1,) * (ndim - array.ndim) + array.shape)
    return last_axis.moved_last(whole, (axis,))


def check_fits(
    name: str, argument: str, array: jax.Array, to: str, shape: tuple[int, ...], advice: str = ""
) -> None:
    """Raises ValueError unless an array has the rank of `shape`, and in each dimension its size or 1."""
    if not validate.fits(array.shape, shape):
        advice = advice or validate.reshapes(argument, array.shape, shape)
        advice = advice or ": sizes must be equal, or 1"
        raise ValueError(f"{name}: {argument} has shape {array.shape}, {to} {shape}{advice}")


def _check_fits_logits(
    name: str, argument: str, array: jax.Array, shape: tuple[int, ...], axis: int, advice: str = ""
) -> None:
    """As `check_fits` for per-class arrays, which may also have the shape (V,) if classes are last."""
    if axis != len(shape) - 1 or not validate.fits(array.shape, shape[-1:]):
        check_fits(name, argument, array, "logits have", shape, advice)


def scales_of_rows(name: str, soft_cap: Any, temperature: Any, x: Logits) -> jax.Array | None:
    """The temperature and the optional cap of each row, concatenated; None if neither is given."""
    if soft_cap is not None:
        _check_number(name, "logit_soft_cap", soft_cap)
    _check_positive(name, "logit_soft_cap", soft_cap)
    _check_positive(name, "temperature", temperature)
    if soft_cap is None and is_known(temperature, 1.0):
        return None
    given = {"temperature": temperature}
    if soft_cap is not None:
        given["logit_soft_cap"] = soft_cap
    arrays = [
        _of_rows(name, argument, validate.as_array(name, argument, value), x)
        for argument, value in given.items()
    ]
    return jnp.concatenate([array.astype(compute_dtype(x)) for array in arrays], axis=-1)


def _of_rows(name: str, argument: str, array: jax.Array, x: Logits, advice: str = "") -> jax.Array:
    """Broadcasts a scalar or per-row array to the rows of x, with a last dimension of 1."""
    rows = x.shape[:-1]
    if array.ndim > 0:
        is_given = isinstance(x, jax.Array)
        to = "logits without axis have" if is_given else "x without its last axis has"
        check_fits(name, argument, array, to, rows, advice)
    return jnp.expand_dims(jnp.broadcast_to(array, rows), -1)


def as_labels(name: str, argument: str, value: Any) -> jax.Array:
    """`value` as a JAX array. 64-bit NumPy integers are clipped to 32 bits, so that none wraps around."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype in (np.int64, np.uint64):
        limits = jnp.iinfo(jnp.int32)
        value = np.clip(value, limits.min if value.dtype == np.int64 else 0, limits.max)
    return validate.as_array(name, argument, value)


def check_are_labels(
    name: str,
    argument: str,
    given: jax.Array,
    logits: Any,
    axis: Any = -1,
    *,
    takes_classes_only: bool = False,
) -> None:
    """Raises if the labels are one-hot, ids of a floating dtype, or the logits (swapped arguments).

    With `takes_classes_only` it also raises for probabilities, which are floating and shaped as logits.
    Other functions check the shapes.
    """
    shape, is_integer = np.shape(logits), jnp.issubdtype(given.dtype, jnp.integer)
    found = (
        f"{name}: {argument} are {given.dtype} of shape {given.shape}, logits have shape {shape}. "
    )
    is_floating = jnp.issubdtype(given.dtype, jnp.floating)
    is_class = is_integer or given.dtype == jnp.bool_ or (takes_classes_only and is_floating)
    if is_class and given.ndim and given.shape == shape:
        error = ValueError if is_integer else TypeError
        raise error(f"{found}For one-hot {argument} write {argument}.argmax({axis})")
    if not is_floating:
        return
    if given.ndim > len(shape) and jnp.issubdtype(jnp.result_type(logits), jnp.integer):
        raise ValueError(f"{found}The logits come first")
    of_rows = given.shape in [(*shape[:i], *shape[i + 1 :]) for i in range(len(shape))]
    if of_rows and given.ndim > 0 and given.shape != shape[1:]:  # shape[1:] fits probabilities
        raise TypeError(f"{found}Classes are integers: write {argument}.astype(jnp.int32)")


def ids(
    name: str, argument: str, value: Any, given: jax.Array, x: Logits, axis: Any = None
) -> jax.Array:
    """Labels for the kernels: int32, negative for no label, clipped to the number of classes.

    `given` is `value` as a JAX array. A NumPy `value` is concrete even under jit, and needs no copy from
    a device. With `axis`, the axis of the classes, labels may have the dimensions of logits: several labels
    of each row.
    """
    classes = x.shape[-1]
    known = _known(value)
    _check_are_classes(name, argument, _known(given) if known is None else known, classes)
    limits = jnp.iinfo(given.dtype)
    if limits.max > jnp.iinfo(jnp.int32).max:
        given = jnp.clip(given, max(limits.min, -1), classes)
    given = given.astype(jnp.int32)
    has_several = given.ndim == len(x.shape)
    if axis is None or not has_several:
        advice = ""
        if argument == "ids" and has_several and given.shape[-1] != 1:
            advice = ". For several ids of each row write token_log_probs(x @ w, ids)"
        return _of_rows(name, argument, given, x, advice)
    at, count = operator.index(axis) % given.ndim, given.shape[axis]
    shape = (*x.shape[:at], count, *x.shape[at:-1])
    check_fits(name, argument, given, f"{count} ids of each row of logits have", shape)
    return jnp.broadcast_to(last_axis.moved_last(given, (at,)), (*x.shape[:-1], count))


def _check_are_classes(name: str, argument: str, known: np.ndarray | None, classes: int) -> None:
    if known is not None and known.size and int(np.max(known)) >= classes:
        raise ValueError(
            f"{name}: {argument} must be smaller than {classes}, the number of classes; "
            f"got {np.max(known)}"
        )


def size_of(x: Any, axis: Any) -> int | None:
    """The size of an axis; None if x has no such axis."""
    try:
        return x.shape[operator.index(axis)]
    except (AttributeError, TypeError, IndexError):
        return None


def are_fit(name: str, argument: str, labels: Any, classes: int | None, **options: Any) -> bool:
    """Whether a jitted call may take these labels. Raises ValueError for concrete values out of range."""
    smoothing = options.get("label_smoothing", 0.0)
    if np.ndim(smoothing) == 0:
        _check_smoothing(name, smoothing)
    for option in ("logit_soft_cap", "temperature"):
        _check_positive(name, option, options.get(option))
    dtype = int if type(labels) is int else getattr(labels, "dtype", bool)
    if classes is not None and jnp.issubdtype(dtype, jnp.integer):
        _check_are_classes(name, argument, _known(labels), classes)
    return fit_32_bits(labels)


def fit_32_bits(labels: Any) -> bool:
    """Whether 64-bit NumPy labels fit the 32 bits to which jit would truncate them."""
    if getattr(labels, "dtype", None) not in (np.int64, np.uint64) or not np.size(labels):
        return True
    known = _known(labels)
    limits = np.iinfo(np.int32)
    return known is None or (limits.min <= np.min(known) and np.max(known) <= limits.max)


def probabilities(name: str, given: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    """The probability of each class, in the compute dtype, with the classes last."""
    if not jnp.issubdtype(given.dtype, jnp.floating):
        raise TypeError(
            f"{name}: labels must be integers or probabilities; got {given.dtype}. Write "
            "labels.astype(jnp.int32)"
        )
    at = operator.index(axis) % x.ndim
    shape = (*x.shape[:at], x.shape[-1], *x.shape[at:-1])
    _check_fits_logits(name, "labels", given, shape, at)
    return _moved_last(given, x.ndim, at).astype(compute_dtype(x))


def weights_of_rows(name: str, weights: Any, is_counted: jax.Array, x: Logits) -> jax.Array:
    """The weight of each row, of shape (..., 1) in the compute dtype; 0 for rows that do not count."""
    wide = compute_dtype(x)
    if weights is None:
        return is_counted.astype(wide)
    given = validate.as_array(name, "weights", weights)
    is_of_classes = given.shape == x.shape[-1:]
    advice = ". For a weight of each class write weights[labels]" if is_of_classes else ""
    return jnp.where(is_counted, _of_rows(name, "weights", given, x, advice).astype(wide), 0)
