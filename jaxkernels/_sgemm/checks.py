"""Checks users' arguments of matrix products, before anything is traced.

Owns: the errors of matmul, dot_general and sgemm about dtypes, factors, flags and algorithms. Must not
know: primitives, shapes of operands, devices.
"""

import functools
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels._core import validate

_HALVES = ("float32", "bfloat16", "float16")


def as_operands(function: str, a: Any, b: Any) -> tuple[jax.Array, jax.Array]:
    """Both operands as arrays; errors use the names in the function's signature."""
    names = _names(function)
    return validate.as_array(function, names[0], a), validate.as_array(function, names[1], b)


def _names(function: str) -> tuple[str, str]:
    return ("lhs", "rhs") if function == "dot_general" else ("a", "b")


def as_float32(
    function: str, a: jax.Array, b: jax.Array, preferred_element_type: Any, widens: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The operands in float32; raises TypeError if they are not, unless the caller allows their dtypes.

    `preferred_element_type=float32` allows 16-bit dtypes. `widens` means that the caller has already
    checked that the dtypes promote to float32.
    """
    if widens:
        return a.astype(jnp.float32), b.astype(jnp.float32)
    preferred = None if preferred_element_type is None else jnp.dtype(preferred_element_type)
    if preferred is not None and preferred != jnp.float32:
        raise TypeError(
            f"{function}: preferred_element_type must be None or float32; got {preferred.name}. Pass "
            f"float32, and write .astype(jnp.{preferred.name}) after the product"
        )
    dtypes = (a.dtype.name, b.dtype.name)
    if not all(name in (("float32",) if preferred is None else _HALVES) for name in dtypes):
        other = 'other_dtypes="xla" for XLA\'s product of these dtypes'
        if any("complex" in name for name in dtypes):
            remedy = f"Pass {other}"
        elif all(name in _HALVES for name in dtypes):
            remedy = f"Pass preferred_element_type=jnp.float32, or {other}"
        else:
            names = _names(function)
            given = zip(names, dtypes, strict=True)
            casts = [f"{name}.astype(jnp.float32)" for name, of in given if of != "float32"]
            remedy = f"Write {' and '.join(casts)}, or pass {other}"
        raise TypeError(
            f"{function}: operands must be float32; got {dtypes[0]} and {dtypes[1]}. {remedy}"
        )
    return a.astype(jnp.float32), b.astype(jnp.float32)


def are_xlas(a: jax.Array, b: jax.Array, preferred_element_type: Any) -> bool:
    """Whether XLA computes the product of operands of these dtypes.

    The kernels compute it if the promoted dtype is float32, or has 16 bits and
    `preferred_element_type` is float32.
    """
    try:
        with jax.numpy_dtype_promotion("standard"):
            promoted = jnp.promote_types(a.dtype, b.dtype)
    except ValueError:  # JAX does not promote float8 or int4; XLA may multiply them
        return True
    wanted = promoted
    if preferred_element_type is not None:
        wanted = jax.dtypes.canonicalize_dtype(preferred_element_type)
    widens = promoted in (jnp.float32, jnp.bfloat16, jnp.float16)
    return wanted != jnp.float32 or not widens


def xlas_precision(a: jax.Array, b: jax.Array, precision: Any) -> Any:
    """The precision of XLA's product: HIGHEST if both operands are float32, otherwise the user's."""
    both = a.dtype == jnp.float32 and b.dtype == jnp.float32
    return jax.lax.Precision.HIGHEST if both else precision


def check_float32(function: str, argument: str, x: jax.Array) -> None:
    """Raises TypeError unless the array is float32."""
    if x.dtype != jnp.float32:
        remedy = f"Write {argument}.astype(jnp.float32), or use jnp.matmul"
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            remedy = "For complex products use jnp.matmul"
        raise TypeError(f"{function}: {argument} must be float32; got {x.dtype.name}. {remedy}")


def as_factor(name: str, value: Any) -> float | jax.Array:
    """Alpha or beta of sgemm: a number is rounded to float32; a JAX array of shape () is unchanged.

    Raises:
        TypeError: the factor is not a real number.
        ValueError: the factor has dimensions.
    """
    if type(value) is float or isinstance(value, numbers.Real):  # the first test is faster
        return float(np.float32(value))
    convert = getattr(value, "__jax_array__", None)
    value = convert() if callable(convert) else value
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        raise TypeError(f"sgemm: {name} must be a real number; got {value!r}")
    if value.shape != ():
        raise ValueError(f"sgemm: {name} must have no dimensions; got shape {value.shape}")
    if not _is_real(value.dtype):
        raise TypeError(f"sgemm: {name} must be a real number; got {value!r}")
    return value if isinstance(value, jax.Array) else float(np.float32(value))


@functools.cache
def _is_real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def flag(name: str, value: Any) -> bool:
    """A transpose flag of sgemm: a bool, or BLAS's 0, 1 (transpose) or 2 (conjugate transpose)."""
    validate.check_static(**{name: value})
    if value not in (0, 1, 2):
        raise ValueError(f"sgemm: {name} must be 0, 1 or 2, or a bool; got {value!r}")
    return bool(value)


def asks_for_xla(algorithm: str | None, implementation: str | None) -> bool:
    """Whether `implementation="xla"`; raises ValueError for an unknown or contradictory option."""
    validate.check_choice("implementation", implementation, validate.IMPLEMENTATIONS)
    validate.check_choice("algorithm", algorithm, validate.ALGORITHMS)
    if implementation == "xla" and algorithm is not None:
        raise ValueError(f'implementation="xla" has no algorithms; got algorithm={algorithm!r}')
    return implementation == "xla"


def check_no_kernel_is_forced(algorithm: str | None, implementation: str | None) -> None:
    """Raises NotImplementedError if the caller requires a kernel; for products that only XLA serves."""
    if implementation == "ffi" or algorithm is not None:
        raise NotImplementedError(
            "only XLA's product supports out_sharding, and operands whose dimensions are sharded over "
            "explicit mesh axes and must be merged; drop implementation= and algorithm="
        )
