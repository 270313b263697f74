"""Checks users' arguments before anything is traced.

Owns: the errors of the public functions. Each has the class that jax.nn raises for the same input, and
its text contains the offending value. Must not know: primitives, devices.
"""

import itertools
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxkernels.typing import Algorithm, DtypeName, Implementation, OtherDtypes, Reduction, Tier

DTYPES: tuple[DtypeName, ...] = get_args(DtypeName)
TIERS: tuple[Tier, ...] = get_args(Tier)
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
OTHER_DTYPES: tuple[OtherDtypes, ...] = get_args(OtherDtypes)

_AXIS_TYPE = "axis must be an integer, a tuple of integers or None"


class TracerBoolConversionError(jax.errors.TracerBoolConversionError):
    """JAX's error for a Python branch on a traced bool, with our own message."""

    def __init__(self, tracer: Tracer, text: str) -> None:
        jax.errors.ConcretizationTypeError.__init__(self, tracer, text)


def check_static(**arguments: Any) -> None:
    """Raises ConcretizationTypeError for an argument that is or contains a tracer."""
    for name, value in arguments.items():
        for part in jax.tree.leaves(value):
            if not isinstance(part, Tracer):
                continue
            text = (
                f"{name} must be a static Python value; it was traced. "
                "Pass a value inside the transformed function, or mark it as static: "
                f"jax.jit(..., static_argnames={name!r})."
            )
            if part.dtype == jnp.bool_:
                raise TracerBoolConversionError(part, text)
            raise jax.errors.ConcretizationTypeError(part, text)


def check_choice(argument: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises ValueError unless `value` is None or one of `choices`."""
    check_static(**{argument: value})
    if value is not None and value not in choices:
        listed = ("one of " if len(choices) > 1 else "") + ", ".join(map(repr, choices))
        raise ValueError(f"{argument} must be None or {listed}; got {value!r}")


def check_row_options(implementation: Any, tier: Any) -> None:
    """Raises ValueError for an unknown option, and for a tier with `implementation="xla"`."""
    check_choice("implementation", implementation, IMPLEMENTATIONS)
    check_choice("tier", tier, TIERS)
    if implementation == "xla" and tier is not None:
        raise ValueError(f'implementation="xla" has no tiers; got tier={tier!r}')


def why_no_row_kernel(dtype: Any, axis: Any) -> str:
    """The reason why no platform has a row kernel for this call; empty if one may."""
    if dtype.name not in DTYPES:
        return f"kernels exist for {', '.join(DTYPES)}; got {dtype.name}"
    if names_mapped_axis(axis):
        return f"kernels reduce over positional axes; got axis={axis!r}"
    return ""


def check_needs_no_kernel(function: str, why_not: str, implementation: Any, tier: Any) -> None:
    """Raises NotImplementedError if the caller requires a kernel; `why_not` says why there is none."""
    if implementation == "ffi" or tier is not None:
        wanted = 'implementation="ffi"' if implementation == "ffi" else f"tier={tier!r}"
        raise NotImplementedError(f"{function}: {wanted}, but {why_not}")


def as_array(function: str, argument: str, value: Any, *, nested: bool = False) -> jax.Array:
    """An array or a number as a JAX array; with `nested`, anything that `jnp.asarray` takes.

    `function` and `argument` are names for the TypeError of other values, and of dtypes unknown to JAX.
    """
    convert = getattr(value, "__jax_array__", None)
    try:
        value = convert() if callable(convert) else value
        if not nested:
            jax.typeof(value)
        return jnp.asarray(value)
    except TypeError as error:
        if isinstance(value, (np.ndarray, np.generic)):
            raise TypeError(_no_such_dtype(function, argument, value.dtype)) from error
        raise TypeError(
            f"{function}: {argument} must be an array or a number; "
            f"got {type(value).__name__}: {repr(value)[:80]}"
        ) from error


def _no_such_dtype(function: str, argument: str, dtype: np.dtype) -> str:
    text = f"{function}: {argument} has the dtype {dtype.str}, which JAX does not have"
    if dtype.isnative:
        return text
    native = dtype.newbyteorder("=").name
    return f'{text}: its bytes are swapped. astype("{native}") puts them into the native order'


def computation_dtype(x: jax.Array | jax.ShapeDtypeStruct) -> Any:
    """The result dtype: float32 for integers, float64 for 64-bit integers, otherwise that of x."""
    if x.dtype.name in ("int64", "uint64"):
        return jnp.dtype("float64")
    if x.dtype.name in ("int8", "int16", "int32", "uint8", "uint16", "uint32"):
        return jnp.dtype("float32")
    return x.dtype


def promoted_dtype(*arrays: jax.Array) -> Any:
    """The promoted dtype of the arrays, even under strict dtype promotion."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arrays)


def names_mapped_axis(axis: Any) -> bool:
    """Whether `axis` is, or contains, the name of an axis of vmap or shard_map."""
    return isinstance(axis, str) or (
        isinstance(axis, (tuple, list)) and any(isinstance(item, str) for item in axis)
    )


def canonical_axes(axis: Any, x_ndim: int, result_ndim: int) -> tuple[int, ...]:
    """The reduced dimensions of the result, in ascending order; all if `axis` is None.

    `where` may have more dimensions than x, and so has the result. As in jax.nn, `axis` must be valid
    for x, but indexes the dimensions of the result.
    """
    if axis is None:
        return tuple(range(result_ndim))
    axes = tuple(_axis_index(axis, item) for item in _axis_items(axis))
    for item in axes:
        if not -x_ndim <= item < x_ndim:
            raise ValueError(f"axis {item} is out of bounds for array of dimension {x_ndim}")
    if len({item % x_ndim for item in axes}) != len(axes):
        raise ValueError(f"duplicate value in 'axis': {axes}")
    return tuple(sorted({item % result_ndim for item in axes}))


def _axis_items(axis: Any) -> tuple[Any, ...]:
    try:
        return (operator.index(axis),)
    except TypeError:
        if isinstance(axis, Iterable):
            return tuple(axis)
        raise TypeError(f"{_AXIS_TYPE}; got {axis!r}") from None


def _axis_index(axis: Any, item: Any) -> int:
    try:
        return operator.index(item)
    except TypeError:
        raise TypeError(f"{_AXIS_TYPE}; got {axis!r}, which contains {item!r}") from None


def as_mask(function: str, argument: str, value: Any) -> jax.Array:
    """`value` as a boolean array; raises ValueError for other dtypes."""
    mask = as_array(function, argument, value)
    if mask.dtype != jnp.bool_:
        remedy = f"Write {argument} != 0."
        if argument == "mask":
            remedy += " Numbers to add are bias=" if mask.ndim else " A factor of scores is scale="
        raise ValueError(
            f"{function}: {argument} must be None or a boolean array; got {mask.dtype}. {remedy}"
        )
    return mask


def row_dtype(function: str, dtype: Any) -> str:
    """The name of a dtype with row kernels; raises TypeError for other dtypes."""
    try:
        name = "None" if dtype is None else jnp.dtype(dtype).name
    except TypeError:
        name = repr(dtype)
    if name not in DTYPES:
        raise TypeError(f"{function}: dtype must be one of {', '.join(DTYPES)}; got {name}")
    return name


def as_shape(function: str, argument: str, shape: Any) -> tuple[int, ...]:
    """`shape` as a tuple of integers; raises TypeError for anything else."""
    try:
        return tuple(operator.index(size) for size in shape)
    except TypeError:
        hint = f"; write ({shape},) for one dimension" if isinstance(shape, int) else ""
        raise TypeError(
            f"{function}: {argument} must be a sequence of integers; got {shape!r}{hint}"
        ) from None


def fits(shape: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Whether a shape has the rank of `whole`, and in each dimension its size or 1."""
    return len(shape) == len(whole) and all(
        a == 1 or a == b for a, b in zip(shape, whole, strict=True)
    )


def reshapes(argument: str, shape: Sequence[Any], whole: Sequence[Any]) -> str:
    """Error advice: an expression that makes the array broadcast to `whole`; empty if there is none."""
    for dim in reversed(range(len(shape))):
        if shape[dim] == 1 and fits((*shape[:dim], *shape[dim + 1 :]), whole):
            return f": write {argument}.squeeze({-1 if dim == len(shape) - 1 else dim})"
    found = dict[tuple[Any, ...], str]()
    for kept in itertools.combinations(range(len(whole)), len(shape)):
        full = [1] * len(whole)
        for dim, size in zip(kept, shape, strict=True):
            full[dim] = size
        if kept and fits(full, whole):
            index = ", ".join(":" if d in kept else "None" for d in range(len(whole)))
            found[tuple(full)] = f"{argument}[{re.sub('(, :)+$', '', index)}]"
    return f": write {' or '.join(reversed(found.values()))}" if found else ""


def side_advice(argument: str, shape: Sequence[Any], scores: Sequence[Any]) -> str:
    """Error advice for a bias or mask of lower rank; prefers the batch first and the keys last."""
    found = [
        dims
        for dims in itertools.combinations(range(len(scores)), len(shape))
        if fits(shape, [scores[d] for d in dims])
    ]
    if not found:
        return ""
    dims = min(found, key=lambda dims: (dims[0], [-d for d in reversed(dims)]))
    return f": write {side_written(argument, dims, len(scores))}"


def side_written(argument: str, dims: Sequence[int], rank: int) -> str:
    """The expression that puts the dimensions of a bias or mask at `dims` of scores (..., q, k)."""
    lead = ["batch"] * (rank - 3) + ["heads" if rank > 3 else "batch or heads"]
    names = (*lead, "queries", "keys")[-rank:]
    index = ", ".join(":" if d in dims else "None" for d in range(rank))
    return f"{argument}[{index}] for ({', '.join(names[d] for d in dims)})"


def broadcast_all(function: str, **arrays: jax.Array | None) -> tuple[Any, ...]:
    """The broadcast shape of the arguments; None is skipped. Raises ValueError if there is none."""
    given = {name: array.shape for name, array in arrays.items() if array is not None}
    try:
        return jax.lax.broadcast_shapes(*given.values())
    except (TypeError, ValueError) as error:
        (first, shape), *others = given.items()
        listed = " and ".join(f"{name} has shape {other}" for name, other in others)
        raise ValueError(
            f"{function}: {listed}, which does not broadcast against the shape {shape} of {first}"
        ) from error
