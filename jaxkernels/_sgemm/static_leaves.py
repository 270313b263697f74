"""Arguments and results that are no arrays, as `float32_matmuls` passes them through JAX.

Owns: which leaves of a pytree are static, and their errors. Must not know: products, jaxprs.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from jaxkernels._core import compat


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Static:
    """A leaf that is no array, as a pytree without leaves."""

    kind: Any  # its type; a number's text, because 1 equals 1.0, and 0.0 equals -0.0
    value: Any


def _is_static(x: Any) -> bool:
    return isinstance(x, _Static)


def mark(tree: Any, *, keeps_numbers: bool) -> Any:
    """A pytree with `_Static` in place of leaves that are no arrays, or only of those that jit refuses."""

    def mark(leaf: Any) -> Any:
        if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
            return leaf
        is_number = isinstance(leaf, (int, float, complex)) and not isinstance(leaf, np.generic)
        if keeps_numbers and is_number:
            return _Static(repr(leaf), leaf)
        return leaf if jex.valid_jaxtype(leaf) else _Static(type(leaf), leaf)

    leaves, structure = jax.tree.flatten(tree)
    marked = [mark(leaf) for leaf in leaves]
    return tree if list(map(id, marked)) == list(map(id, leaves)) else structure.unflatten(marked)


def unmark(tree: Any) -> Any:
    """The pytree that `mark` marked."""
    return jax.tree.map(lambda x: x.value if _is_static(x) else x, tree, is_leaf=_is_static)


def named_as(f: Callable[..., Any], function: Any) -> Any:
    """The function with f's name, signature and file, which JAX's errors show."""
    named = functools.wraps(f)(function)
    while isinstance(f, functools.partial):
        f = f.func
    named.__name__ = named.__qualname__ = getattr(f, "__name__", type(f).__name__)
    return named


def of_marked(f: Callable[..., Any], *, keeps_numbers: bool = False) -> Callable[..., Any]:
    """The function of marked arguments; it marks its results."""

    def of_marked(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = unmark((args, kwargs))
        return mark(f(*args, **kwargs), keeps_numbers=keeps_numbers)

    return named_as(f, of_marked)


def mark_arguments(f: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Marks Python's numbers too if a jit around the call, or f's own, chooses which are traced."""
    if isinstance(f, jax.stages.Wrapped):
        return mark((args, kwargs), keeps_numbers=True)
    marked = mark((args, kwargs), keeps_numbers=not compat.runs_at_once())
    try:
        hash(tuple(filter(_is_static, jax.tree.leaves(marked, is_leaf=_is_static))))
    except TypeError:
        _check_static(f, args, kwargs)
        raise
    return marked


def _check_static(f: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raises if an argument that is no array cannot be hashed."""
    arguments = inspect.signature(f).bind(*args, **kwargs).arguments
    marked = mark(dict(arguments), keeps_numbers=False)
    for (name, *path), leaf in jax.tree.leaves_with_path(marked, is_leaf=_is_static):
        try:
            hash(_is_static(leaf) and leaf)
        except TypeError as error:
            place, kind = jax.tree_util.keystr(tuple(path)), type(leaf.value).__name__
            raise TypeError(
                f"float32_matmuls: argument {name.key}{place} of type {kind} is static and must be "
                "hashable"
            ) from error
