"""Calls outside of any trace as one compiled program each, instead of one for every operation.

A function of this package checks its operands, reshapes them and applies a primitive. Traced once,
all this costs a call no more than a jitted function of JAX does.

Owns: when a call may take this way. Must not know: what is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import NoneType
from typing import Any

import jax
import numpy as np

from jaxkernels._core import compat

Function = Callable[..., jax.Array]

# NumPy's own dtypes, in this machine's byte order, of arrays that a jitted function takes as jnp.asarray
# does. Other arrays and objects are left to the function, whose errors name the argument.
_NUMPY_DTYPES = frozenset(map(np.dtype, "?bhilqBHILQefdFD"))


def jit_when_eager(operands: int, traced: int | None = None) -> Callable[[Function], Function]:
    """Decorates a function of positional arguments, which is jitted where nothing is being traced.

    Within a trace the function is called as it is: a nested jit would hide its primitives from the
    policies of `jax.checkpoint`.

    Args:
        operands: the number of the first arguments that are arrays or None.
        traced: the number of the first arguments that may be JAX arrays; None means `operands`. A
            program depends on the values of all others.
    """
    may_be_arrays = operands if traced is None else traced

    def decorate(function: Function) -> Function:
        @functools.cache
        def program(*kinds: Any) -> Function:
            arrays = [_is_array(kind) for kind in kinds]
            for i, kind in enumerate(kinds):
                left_out = kind is NoneType or i >= operands
                if not (i < may_be_arrays if arrays[i] else left_out):
                    return function
            return jitted(tuple(i for i, is_array in enumerate(arrays) if not is_array))

        @functools.cache
        def jitted(static: tuple[int, ...]) -> Function:
            # A function of its own: JAX finds programs by the function, the types of traced arguments
            # and the values of static ones, whichever positions they have.
            @functools.wraps(function)
            def with_static(*arguments: Any) -> jax.Array:
                return function(*arguments)

            return jax.jit(with_static, static_argnums=static)

        @functools.wraps(function)
        def call(*arguments: Any) -> jax.Array:
            if not compat.outside_of_traces():
                return function(*arguments)
            kinds = [x.dtype if type(x) is np.ndarray else type(x) for x in arguments]
            try:
                hash(tuple(x for x in arguments[operands:] if not isinstance(x, jax.Array)))
            except TypeError:
                return function(*arguments)
            return program(*kinds)(*arguments)

        return call

    return decorate


def _is_array(kind: Any) -> bool:
    """Whether it is the dtype of a NumPy array, or the type of an array, that a program can take."""
    if isinstance(kind, np.dtype):
        return kind in _NUMPY_DTYPES
    return issubclass(kind, jax.Array)
