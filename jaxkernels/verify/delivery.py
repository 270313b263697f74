"""Passes operands to the function under test: alone, mapped, in a loop, or as slices of larger arrays at any offset.

A delivery makes the arguments of a program from the operands of its members (calls of the function), and the function
that takes them. XLA passes slices to a kernel in place where it can, so the kernel's operands begin at any element.
The delivery "shared" differentiates a map over some operands, which shares the others. "nested" is a map of a map, each
over some operands; the derivative is outside, between or inside. "turns" calls the function outside of jit for one
member after another; an operand may be a JAX array, a NumPy array or a Python number.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkernels.verify.problem import Arrays, Core, Problem, Rng, Traced

DELIVERIES = (
    *("plain", "donated", "transposed", "vmap", "shared", "nested"),
    *("scan", "slices", "dynamic", "eager", "turns"),
)
EAGER = ("eager", "turns")  # outside of jit
DONATED = ("x", "scores", "q", "c")  # operands that have the shape and dtype of a result
ALONE = ("plain", "donated", "transposed", "eager")  # deliveries of one member


def arguments(problem: Problem, members: Arrays, rng: Rng) -> Any:
    """The arguments of the program, by name; operands have the members first."""
    return {name: _argument(problem, name, x, rng) for name, x in members.items()}


def _argument(problem: Problem, name: str, x: np.ndarray, rng: Rng) -> Any:
    kind = problem.delivery
    if kind in ("plain", "donated", "eager"):
        return x[0]
    if kind == "transposed":
        return np.array(x[0].T, order="C")
    if problem.maps:
        x = x.reshape(*problem.maps, *x.shape[1:])
        for level in reversed(range(len(problem.maps))):
            axis = _axis(problem, name, x.ndim - level, level)
            x = x.take(0, level) if axis is None else np.moveaxis(x, level, level + axis)
        return x
    if kind in ("scan", "turns"):
        return x
    starts = _starts(problem, name, x.shape[1:])
    buffer = _noise(starts[-1] + x[0].size + 5, x.dtype, rng)
    for begin, one in zip(starts, x, strict=True):
        buffer[begin : begin + one.size] = one.reshape(-1)
    return buffer if kind == "slices" else (buffer, np.asarray(starts, np.int32))


def _operand(problem: Problem, name: str, x: Any, shape: tuple[int, ...], i: int) -> Any:
    """Extracts the operand of one member from the argument."""
    kind = problem.delivery
    if kind == "transposed":
        return x.T
    if kind == "turns":
        # A JAX array or its copy on the host; for a scalar each call draws which.
        x, is_scalar = x[i], not shape
        if problem.tosses(name, *[i] * is_scalar):
            return x
        return float(x) if is_scalar and jnp.issubdtype(x.dtype, jnp.floating) else np.asarray(x)
    size = math.prod(shape)
    if kind == "slices":
        begin = _starts(problem, name, shape)[i]
        return x[begin : begin + size].reshape(shape)
    if kind == "dynamic":
        return lax.dynamic_slice_in_dim(x[0], x[1][i], size).reshape(shape)
    return x


def program(problem: Problem, core: Core, shapes: dict[str, tuple[int, ...]]) -> Callable[..., Any]:
    """Makes the function of the arguments; its results have the members first.

    `core` is the function under test, and `shapes` are those of one member's operands.
    """
    kind = problem.delivery
    if problem.maps:
        return _mapped(problem, core, shapes)
    if kind == "scan":
        return lambda given: lax.scan(lambda carry, x: (carry, core(x)), None, given)[1]

    def one_by_one(given: dict[str, Any]) -> Traced:
        results = [
            core({name: _operand(problem, name, x, shapes[name], i) for name, x in given.items()})
            for i in range(problem.members)
        ]
        return {name: jnp.stack([r[name] for r in results]) for name in results[0]}

    return one_by_one


def _mapped(problem: Problem, function: Core, shapes: dict[str, tuple[int, ...]]) -> Core:
    """The function under the maps that are outside of the derivative."""
    out = -1 if problem.seed[-1] % 2 == 0 else 0

    def map_of(function: Core, level: int) -> Core:
        ranks = {name: len(x) + sum(problem.mapped(name)[level:]) for name, x in shapes.items()}
        axes = {name: _axis(problem, name, rank, level) for name, rank in ranks.items()}
        size = problem.maps[level]
        mapped = jax.vmap(function, in_axes=(axes,), out_axes=out, axis_size=size)
        return lambda given: {name: jnp.moveaxis(x, out, 0) for name, x in mapped(given).items()}

    for level in reversed(range(problem.outer_maps)):
        function = map_of(function, level)
    levels = len(problem.maps)
    return lambda given: {
        name: x.reshape(problem.members, *x.shape[levels:]) for name, x in function(given).items()
    }


def _axis(problem: Problem, name: str, rank: int, level: int) -> int | None:
    """The axis of an operand that a map goes over, None if members share it; within the derivative the first axis."""
    if not problem.mapped(name)[level]:
        return None
    return problem.number(name) % rank if level < problem.outer_maps else 0


def _noise(size: int, dtype: np.dtype, rng: Rng) -> np.ndarray:
    """Values that a kernel must not use: NaN, and numbers that would spoil a result."""
    if dtype.kind not in "fV":
        return rng.integers(0, 2, size).astype(dtype)
    return np.where(rng.random(size) < 0.5, np.nan, 100.0).astype(dtype)


def _starts(problem: Problem, name: str, shape: tuple[int, ...]) -> list[int]:
    """The offsets of slices in their buffer; gaps have 0 to 18 elements and differ by operand."""
    gaps = [problem.number(name) * (i + 7) % 19 for i in range(problem.members)]
    return [sum(gaps[: i + 1]) + i * math.prod(shape) for i in range(problem.members)]
