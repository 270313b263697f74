"""Defines a problem, which fits on a command line, and the interface of a family of problems."""

import abc
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels._core import validate
from jaxkernels.verify import values
from jaxkernels.verify.row_layout import RowLayout
from jaxkernels.verify.truth.bounded import Bounded
from jaxkernels.verify.truth.compare import ratios, storage

# The operands of one call, by name.
Array = np.ndarray
Arrays = dict[str, Array]
Traced = dict[str, jax.Array]
Core = Callable[[Traced], Traced]  # from operands to results
Truths = dict[str, Bounded]  # of results
Rng = np.random.Generator
Choice = tuple[dict[str, Any], str | None]  # options, and a tier or rung to force
FIRST = ("x", "scores", "q", "a")  # the operand that one of the outer maps always maps


@dataclasses.dataclass(frozen=True)
class Problem:
    """One function with its options, how it is called, and where its numbers come from."""

    operation: str  # a public function of the package
    dtype: str  # storage type
    how: str | None  # a tier, rung or implementation to force, or None
    derivative: str  # "value", "vjp", "jvp", or "remat" (vjp of a checkpointed function)
    delivery: str  # how operands reach the function; see `delivery`
    members: int  # calls of the function in the program
    draws: int  # how many sets of numbers it is run with
    seed: list[int]  # of all its numbers
    options: dict[str, Any]  # what the family needs, in JSON's types: shapes, keyword arguments

    def generator(self, draw: int, *more: int) -> Rng:
        """The random numbers of one draw."""
        return np.random.default_rng([*self.seed, draw, *more])

    def number(self, name: str) -> int:
        """An arbitrary number for an operand, the same each time."""
        return sum(self.seed) + 31 * sum(map(ord, name))

    def tosses(self, name: str, *more: int) -> bool:
        """One of two arbitrary answers, the same each time."""
        return bool(np.random.default_rng([*self.seed, *map(ord, name), *more]).random() < 0.5)

    @property
    def maps(self) -> tuple[int, ...]:
        """The sizes of the maps around the function, the outermost first."""
        one = (self.members,)
        return {"vmap": one, "shared": one, "nested": (2, self.members // 2)}.get(self.delivery, ())

    @property
    def outer_maps(self) -> int:
        """The number of maps outside of the derivative; the others are inside of it."""
        return {"vmap": 1, "nested": self.number("maps") % 3}.get(self.delivery, 0)

    def mapped(self, name: str) -> tuple[bool, ...]:
        """For each of the maps, whether it maps an operand, or shares it among its members."""
        of_result = self.wants_gradient and name[:2] in ("t", "t_")
        first = self.number(name) % max(self.outer_maps, 1) if name in FIRST else None
        return tuple(
            level == first or self.tosses(name, level)
            if level < self.outer_maps
            else of_result or self.tosses(name.removeprefix("t_"), level)
            for level in range(len(self.maps))
        )

    def shares(self, name: str) -> bool:
        """Whether an operand is the same for all members, and not mapped."""
        return bool(self.maps) and not any(self.mapped(name))

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments among the options; JSON has lists for their tuples."""
        given = self.options["arguments"]
        return {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}

    @property
    def forced(self) -> dict[str, Any]:
        """The keyword argument of a function of rows that forces a tier or plain JAX."""
        return {"implementation" if self.how == "xla" else "tier": self.how}

    @property
    def wants_gradient(self) -> bool:
        """Whether the results are y and the cotangents of the operands."""
        return self.derivative in ("vjp", "remat")

    @property
    def has_elements(self) -> bool:
        """Whether results have several elements."""
        o = self.options
        sizes = o.get("shape") or o.get("sizes") or [n for x in o["shapes"] for n in x]
        return min(sizes) > 0 and max(sizes) > 4

    @property
    def wide(self) -> bool:
        """Whether the program needs JAX's 64-bit types."""
        return self.dtype == "float64"


def to_spec(problem: Problem, draw: int) -> str:
    """One line that determines a program and its data.

    Example:
        >>> p = Problem("softmax", "float32", None, "value", "plain", 1, 1, [0], {"shape": [2, 3]})
        >>> from_spec(to_spec(p, 5)) == (p, 5)
        True
    """
    return json.dumps({**dataclasses.asdict(problem), "draw": draw}, separators=(",", ":"))


def from_spec(spec: str) -> tuple[Problem, int]:
    """The problem of a line of `to_spec`, and the draw; raises ValueError for any other line."""
    try:
        fields = json.loads(spec)
        draw = fields.pop("draw")
        return Problem(**fields), int(draw)
    except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not the line of a problem: {error}") from error


class WrongTypeError(Exception):
    """Raised for a result of the wrong dtype or shape."""


class Family(abc.ABC):
    """The functions that one kind of truth serves."""

    operations: tuple[str, ...]  # names of public functions
    derivatives: tuple[str, ...] = ("value", "vjp", "jvp", "remat")  # those that have a truth
    cotangents: tuple[str, ...] = ("normal",)  # kinds of `values.cotangents`

    def dtypes(self, operation: str) -> tuple[str, ...]:
        """The storage types that it serves: all that have kernels."""
        return validate.DTYPES

    @abc.abstractmethod
    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        """Options with at most about `most` elements an operand, and a tier or rung to force."""

    @abc.abstractmethod
    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        """The operands of one call, and whether its sums are `alike` (see `sum_error`).

        Cotangents and tangents that it leaves out are drawn by `operands`.
        """

    def operands(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        """As `member`, with the cotangent of each result, or the tangent of each active operand."""
        operands, alike = self.member(problem, rng)
        some, like = self.active(problem), dict[str, tuple[Sequence[int], Any]]()
        if problem.derivative == "jvp":
            like = {f"t_{name}": (operands[name].shape, operands[name].dtype) for name in some}
        elif problem.wants_gradient:
            for name, shape in self.result_shapes(problem).items():
                like["t" if name == "y" else f"t_{name}"] = shape, self.result_dtype(problem)
        kind = str(rng.choice(self.cotangents))
        for name, (shape, dtype) in like.items():
            if name in operands:
                continue
            if list(shape) == problem.options.get("shape"):
                layout = RowLayout(problem.options)
                t = values.cotangents(kind, layout.count, layout.cols, dtype, rng)
                operands[name] = layout.to_shape(t, 1)[0]
            else:
                operands[name] = np.asarray(rng.standard_normal(shape)).astype(dtype)
        return operands, bool(alike or (like and kind in values.ALIKE))

    @abc.abstractmethod
    def call(self, problem: Problem, operands: Traced) -> Any:
        """The function under test: its result, or all of them in the order of `result_shapes`."""

    @abc.abstractmethod
    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        """The truth and bounds of the results of many members, by name, in the element order of `results`."""

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        """The shapes of the results by name; the first is "y"."""
        return {"y": problem.options["shape"]}

    def result_dtype(self, problem: Problem) -> np.dtype:
        """The dtype of the results."""
        return storage(problem.dtype)

    def active(self, problem: Problem) -> tuple[str, ...]:
        """The operands that are differentiated."""
        return ("x",)

    def core(self, problem: Problem) -> Core:
        """The function under test, from operands to results, with its derivatives."""
        names = tuple(self.result_shapes(problem))

        def function(operands: Traced) -> Traced:
            found = self.call(problem, operands)
            some = found if isinstance(found, tuple) else (found,)
            return dict(zip(names, some, strict=True))

        return lambda operands: differentiated(problem, function, operands, self.active(problem))

    def judge(
        self, problem: Problem, operands: Arrays, results: Arrays, alike: Array
    ) -> dict[str, Array]:
        """The largest error of each member's results, in units of its bound.

        Raises WrongTypeError for a result whose shape (without members) or dtype is wrong.
        """
        dtype = self.result_dtype(problem)
        like = {name: (shape, dtype) for name, shape in self.result_shapes(problem).items()}
        if problem.derivative == "jvp":
            like |= {f"d{name}": x for name, x in like.items()}
        elif problem.wants_gradient:
            some = {name: operands[name] for name in self.active(problem)}
            like |= {f"d{name}": (x.shape[1:], x.dtype) for name, x in some.items()}
        for name, (shape, dtype) in like.items():
            got = results[name]
            if got.shape[1:] != tuple(shape) or got.dtype != dtype:
                text = f"{name} is {got.dtype}{list(got.shape[1:])}, not {dtype}{list(shape)}"
                raise WrongTypeError(text)
        truth, found = self.truth(problem, operands, results, alike), {}
        for name in like:
            got = results[name]
            ratio = ratios(got, *(a.reshape(got.shape) for a in truth[name]))
            found[name] = ratio.reshape(len(got), -1).max(-1, initial=0)
        return found


def differentiated(
    problem: Problem, function: Core, operands: Traced, active: tuple[str, ...]
) -> Traced:
    """The results of a function of named operands, and what the problem wants of its derivative.

    Operands of maps within the derivative are shared or have the members first. The gradient of a shared operand is
    a sum over members, so each member is pulled back by itself, with cotangents of 0 for the others.

    Operands include "t", the cotangent of "y", and "t_" with the name of each other result; or "t_"
    with the name of each active operand, its tangent. "d" with the name of an operand is its
    cotangent, with that of a result its tangent.
    """
    outer, whole = problem.outer_maps, function
    sizes = problem.maps[outer:]
    for level in reversed(range(outer, len(problem.maps))):
        axes = {name: 0 if problem.mapped(name)[level] else None for name in operands}
        whole = jax.vmap(whole, (axes,), axis_size=problem.maps[level])

    def of_active(some: Traced) -> Traced:
        return whole(operands | some)

    chosen = {name: operands[name] for name in active}
    if problem.derivative == "value":
        return of_active(chosen)
    if problem.derivative == "jvp":
        tangents = {name: operands[f"t_{name}"] for name in active}
        results, moved = jax.jvp(of_active, (chosen,), (tangents,))
        return results | {f"d{name}": x for name, x in moved.items()}
    checked = jax.checkpoint(of_active) if problem.derivative == "remat" else of_active
    results, pull = jax.vjp(checked, chosen)
    given = {name: operands["t" if name == "y" else f"t_{name}"] for name in results}
    if not sizes:
        return results | {f"d{name}": x for name, x in pull(given)[0].items()}
    found: dict[str, list[jax.Array]] = {name: [] for name in active}
    for member in np.ndindex(sizes):
        alone = {name: jnp.zeros_like(t).at[member].set(t[member]) for name, t in given.items()}
        for name, x in pull(alone)[0].items():
            own = zip(member, problem.mapped(name)[outer:], strict=True)
            found[name].append(x[tuple(i for i, is_mapped in own if is_mapped)])
    stacked = {name: jnp.stack(some) for name, some in found.items()}
    return results | {f"d{n}": x.reshape(*sizes, *x.shape[1:]) for n, x in stacked.items()}
