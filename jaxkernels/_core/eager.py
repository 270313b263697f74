"""Runs a call outside of jit as one compiled program, instead of one program per operation.

A public function checks its operands, reshapes them and applies a primitive. jit does this once per
signature, so a later call costs no more than a call of a jitted JAX function.

Owns: which calls are jitted. Must not know: what the functions compute.
"""

import functools
import inspect
from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from jaxkernels._core import compat

P = ParamSpec("P")
R = TypeVar("R")
Function = Callable[..., Any]

# NumPy dtypes, in native byte order, that jit converts like jnp.asarray. Other arrays and objects go to
# the unjitted function, whose errors name the argument.
_NUMPY_DTYPES = frozenset(map(np.dtype, "?bhilqBHILQefdFD"))
# Types whose values are always hashable.
_PLAIN = (NoneType, bool, int, float, str)


class _Program(NamedTuple):
    """Runs calls whose arguments have one combination of types."""

    run: Function  # the jitted function, or the function itself if it cannot be jitted
    is_jitted: bool = False
    to_put: tuple[str, ...] = ()  # names of the numbers to copy to the device


def jit_when_eager(
    *operands: str,
    factors: tuple[str, ...] = (),
    numbers: tuple[str, ...] = (),
    check: Callable[..., bool] = lambda *args, **kwargs: True,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator that jits a function when it is called outside of a trace.

    Within jit, scan, `jax.checkpoint` or shard_map the function runs unjitted: a nested jit would hide
    its primitives from the policies of `jax.checkpoint`. grad, jvp and vmap outside of jit transform the
    jitted function.

    Args:
        operands: names of arguments that are arrays, numbers or None. A number is traced.
        factors: names of arguments that are arrays or numbers. A number is a static argument.
        numbers: names of arguments that are arrays or numbers. A number passed by name is traced
            unless it equals the default. JAX copies it to the device explicitly, which a transfer guard
            allows.
        check: called with the function's arguments before the jitted call. It raises the errors that
            depend on concrete values, which a trace cannot see. If it returns False, the function runs
            unjitted.

    All other arguments are static. If one is not hashable, the function runs unjitted. After an error,
    except one of the device, it runs again unjitted: the error then has no notes of jit, and debug_nans
    finds only the NaNs that the function reports.
    """
    may_be_arrays = {*operands, *factors, *numbers}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        parameters = list(signature.parameters)
        found: dict[tuple[Any, ...], _Program] = {}

        @functools.cache
        def jitted(static: tuple[tuple[int | str, Any], ...]) -> Function:
            # Each set of static arguments has its own function, because JAX's cache key omits their
            # positions and 1 equals True.
            @functools.wraps(function)
            def with_static(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            positions = [place for place, _ in static if isinstance(place, int)]
            names = [place for place, _ in static if isinstance(place, str)]
            return jax.jit(with_static, static_argnums=positions, static_argnames=names)

        @functools.cache
        def program(names: tuple[str, ...], kinds: tuple[Any, ...]) -> _Program:
            count = len(kinds) - len(names)
            try:
                signature.bind(*kinds[:count], **dict(zip(names, kinds[count:], strict=True)))
            except TypeError:
                return _Program(function)
            static, to_put = [], []
            places = [*range(count), *names]
            for place, name, kind in zip(places, [*parameters[:count], *names], kinds, strict=True):
                is_number = kind in (int, float) or _is_of(kind, np.number)
                if _is_array(kind):
                    if name not in may_be_arrays:
                        return _Program(function)
                elif name in numbers and is_number and isinstance(place, str):
                    to_put.append(name)
                elif name not in operands or kind is NoneType:
                    static.append((place, kind))
                elif not is_number:
                    return _Program(function)
            return _Program(jitted(tuple(static)), True, tuple(to_put))

        def look_up(args: tuple[Any, ...], kwargs: dict[str, Any], types: Any) -> _Program:
            values = (*args, *kwargs.values())
            kinds = tuple(map(_kind, values))
            chosen = program(tuple(kwargs), kinds)
            some = [x for x, kind in zip(values, kinds, strict=True) if not _is_array(kind)]
            if all(type(x) in _PLAIN for x in some):
                if np.ndarray not in types:
                    found[types] = chosen
                return chosen
            try:
                hash(tuple(some))
            except TypeError:
                return _Program(function)
            return chosen

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not compat.runs_at_once():
                return function(*args, **kwargs)
            types = (*map(type, args), *kwargs, *map(type, kwargs.values()))
            run, is_jitted, to_put = found.get(types) or look_up(args, kwargs, types)
            if not is_jitted or not check(*args, **kwargs):
                return function(*args, **kwargs)
            given: dict[str, Any] = kwargs
            for name in to_put:
                given = dict(given)
                value = given.pop(name)
                if value != signature.parameters[name].default:
                    given[name] = jax.device_put(value)
            try:
                return run(*args, **given)
            except Exception as error:
                if isinstance(error, jax.errors.JaxRuntimeError):
                    raise
            return function(*args, **kwargs)

        return call

    return decorate


def is_not_xlas(*args: Any, implementation: str | None = None, **kwargs: Any) -> bool:
    """Whether the call does not reach jax.nn's function, whose bits depend on whether it is jitted."""
    del kwargs
    dtype = getattr(args[0] if args else None, "dtype", None)
    return implementation != "xla" and _has_kernel(dtype)


@functools.cache  # NumPy computes the name of a dtype in Python
def _has_kernel(dtype: Any) -> bool:
    return not getattr(dtype, "name", "").startswith(("float8", "complex"))


def _kind(value: Any) -> Any:
    """The type of a value: of a NumPy array its dtype, of a tuple the types of its items."""
    if type(value) is tuple:
        return (tuple, *map(_kind, value))
    return value.dtype if type(value) is np.ndarray else type(value)


def _is_array(kind: Any) -> bool:
    """Whether `kind` is the dtype of a NumPy array, or a type of JAX arrays, that jit accepts."""
    if isinstance(kind, np.dtype):
        return kind in _NUMPY_DTYPES
    return _is_of(kind, jax.Array) or _is_of(kind, Tracer)


def _is_of(kind: Any, parent: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, parent)
