"""How operands reach the function under test: alone, mapped, in a loop, or as slices of larger arrays at any offset.

The delivery "shared" maps a function over some operands and shares the others, derivatives outside; "turns" calls it outside of
jit for one member after another; each operand may be JAX's, NumPy's or a number.

A delivery makes arguments of a program from the operands of its members, and the function that takes them. XLA hands
slices of buffers to a kernel where it can, so that what the kernel sees begins at any element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkernels.verify.problem import Arrays, Problem

Core = Callable[[dict[str, jax.Array]], dict[str, jax.Array]]
DELIVERIES = (
    "plain", "donated", "transposed", "concatenated", "vmap", "shared", "scan", "slices", "rows", "dynamic", "eager",
    "turns",
)  # fmt: skip
EAGER = ("eager", "turns")  # outside of jit
DONATED = ("x", "scores", "q", "c")  # operands that have the shape and dtype of a result
ALONE = ("plain", "donated", "transposed", "concatenated", "eager")  # deliveries of one member


def arguments(problem: Problem, members: Arrays, rng: np.random.Generator) -> Any:
    """The arguments of the program, arrays by name.

    Args:
        problem: how they are delivered.
        members: operands, each with the members first.
        rng: what stands between slices, and where they begin if the program learns it as it runs.
    """
    kind = problem.delivery
    if kind in ("plain", "donated", "eager"):
        return {name: x[0] for name, x in members.items()}
    if kind == "transposed":
        return {name: np.array(x[0].T, order="C") for name, x in members.items()}
    if kind == "concatenated":
        return {name: _cut(problem, x[0]) for name, x in members.items()}
    if kind == "vmap":
        axes = {name: _axis(problem, name, x.ndim) for name, x in members.items()}
        return {
            name: x[0] if (axis := axes[name]) is None else np.moveaxis(x, 0, axis)
            for name, x in members.items()
        }
    if kind == "shared":
        return {name: x[0] if problem.shares(name) else x for name, x in members.items()}
    if kind in ("scan", "turns"):
        return members
    if kind == "rows":
        return {name: _stacked(x, rng) for name, x in members.items()}
    flat = {name: _flat(problem, name, x, rng) for name, x in members.items()}
    if kind == "slices":
        return flat
    starts = {name: np.asarray(_starts(problem, name, x), np.int32) for name, x in members.items()}
    return {"buffers": flat, "starts": starts}


def program(problem: Problem, core: Core, shapes: dict[str, tuple[int, ...]]) -> Callable[..., Any]:
    """The function of the arguments; its results have the members first.

    Args:
        problem: how operands are delivered.
        core: the function under test.
        shapes: of the operands of a member.
    """
    kind, count = problem.delivery, problem.members
    if kind in ("plain", "donated", "eager"):
        return lambda given: _stack([core(given)])
    if kind == "transposed":
        return lambda given: _stack([core({name: x.T for name, x in given.items()})])
    if kind == "concatenated":
        return lambda given: _stack([core({n: _joined(x) for n, x in given.items()})])
    if kind == "vmap":
        axes = {name: _axis(problem, name, len(shape) + 1) for name, shape in shapes.items()}
        last = problem.seed[-1] % 2 == 0

        def mapped(given: dict[str, jax.Array]) -> dict[str, jax.Array]:
            results = jax.vmap(core, in_axes=(axes,), out_axes=-1 if last else 0)(given)
            return {name: jnp.moveaxis(x, -1 if last else 0, 0) for name, x in results.items()}

        return mapped
    if kind == "shared":
        return core
    if kind == "turns":
        return lambda given: _stack(
            [
                core({n: _turned(problem, n, x[i], i) for n, x in given.items()})
                for i in range(count)
            ]
        )
    if kind == "scan":
        return lambda given: lax.scan(lambda carry, x: (carry, core(x)), None, given)[1]
    if kind == "rows":
        return lambda given: _stack(
            [core({n: _row_slice(x, shapes[n], i) for n, x in given.items()}) for i in range(count)]
        )

    def place(name: str, i: int) -> int:
        return _starts(problem, name, np.empty((count, *shapes[name]), bool))[i]

    def size(name: str) -> int:
        return int(np.prod(shapes[name], dtype=int))

    if kind == "slices":

        def cut(given: dict[str, Any], name: str, i: int) -> jax.Array:
            begin = place(name, i)
            return given[name][begin : begin + size(name)]
    else:

        def cut(given: dict[str, Any], name: str, i: int) -> jax.Array:
            return lax.dynamic_slice_in_dim(
                given["buffers"][name], given["starts"][name][i], size(name)
            )

    return lambda given: _stack(
        [core({n: cut(given, n, i).reshape(s) for n, s in shapes.items()}) for i in range(count)]
    )


def _stack(results: list[dict[str, jax.Array]]) -> dict[str, jax.Array]:
    return {name: jnp.stack([r[name] for r in results]) for name in results[0]}


def _number(problem: Problem, name: str) -> int:
    """An arbitrary number for an operand of a problem."""
    return sum(problem.seed) + 31 * sum(map(ord, name))


def _turned(problem: Problem, name: str, x: jax.Array, i: int) -> Any:
    """An operand as JAX's array, or as the host has it; one without dimensions changes from call to call."""
    is_scalar = x.ndim == 0
    if problem.tosses(name, *[i] * is_scalar):
        return x
    is_number = is_scalar and jnp.issubdtype(x.dtype, jnp.floating)
    return float(x) if is_number else np.asarray(x)


def _axis(problem: Problem, name: str, rank: int) -> int | None:
    return None if problem.shares(name) else _number(problem, name) % rank


def _cut(problem: Problem, x: np.ndarray) -> Any:
    """Two parts, or a whole that has no dimension to cut."""
    if x.ndim == 0:
        return (x,)
    where = sum(problem.seed) % (x.shape[0] + 1)
    return x[:where], x[where:]


def _joined(parts: tuple[jax.Array, ...]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _noise(shape: Any, dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """What must not be read: NaN, or what an offset would turn into a wrong result."""
    if dtype.kind not in "fV":
        return rng.integers(0, 2, shape).astype(dtype)
    return np.where(rng.random(shape) < 0.5, np.nan, 100.0).astype(dtype)


def _starts(problem: Problem, name: str, members: np.ndarray) -> list[int]:
    """Where slices begin in their buffer: gaps of 0 to 18 elements, others for every operand."""
    starts, begin = [], 0
    for i in range(len(members)):
        begin += (_number(problem, name) * (i + 7)) % 19
        starts.append(begin)
        begin += members[0].size
    return starts


def _flat(problem: Problem, name: str, members: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    starts = _starts(problem, name, members)
    buffer = _noise(starts[-1] + members[0].size + 5, members.dtype, rng)
    for begin, x in zip(starts, members, strict=True):
        buffer[begin : begin + x.size] = x.reshape(-1)
    return buffer


def _stacked(members: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One array with all members along the first dimension, a line of noise before each."""
    lines = members if members.ndim > 1 else members[:, None]
    noise = _noise((len(members), 1, *lines.shape[2:]), members.dtype, rng)
    both = np.concatenate([noise, lines], axis=1)
    return both.reshape(both.shape[0] * both.shape[1], *lines.shape[2:])


def _row_slice(x: jax.Array, shape: tuple[int, ...], i: int) -> jax.Array:
    size = shape[0] if shape else 1
    begin = i * (size + 1) + 1
    return x[begin : begin + size].reshape(shape)
