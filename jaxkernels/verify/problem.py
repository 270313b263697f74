"""What one problem is, as a value that can be written on a command line, and what a family of problems has to offer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels.verify.truth.compare import ratios

# By name, of one call.
Arrays = dict[str, np.ndarray]
DERIVATIVES = ("value", "vjp", "jvp", "remat")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One function with its options, how it is called, and where its numbers come from.

    Attributes:
        operation: a public function of the package.
        dtype: storage type.
        how: a tier, rung or implementation to force, or None.
        derivative: "value", "vjp", "jvp", or "remat" (vjp of a checkpointed function).
        delivery: how operands reach the function; see `delivery`.
        members: calls of the function in the program.
        draws: how many sets of numbers it is run with.
        seed: of all its numbers.
        options: what the family needs, in JSON's types: shapes, keyword arguments.
    """

    operation: str
    dtype: str
    how: str | None
    derivative: str
    delivery: str
    members: int
    draws: int
    seed: list[int]
    options: dict[str, Any]

    def generator(self, draw: int, *more: int) -> np.random.Generator:
        """The random numbers of one draw."""
        return np.random.default_rng([*self.seed, draw, *more])

    def shares(self, name: str) -> bool:
        """Whether an operand is the same for all members, and not mapped."""
        if self.delivery == "vmap":
            number = sum(self.seed) + 31 * sum(map(ord, name))
            return name not in ("x", "scores", "q", "a") and number % 3 == 0
        if self.delivery != "shared" or (self.wants_gradient and (name == "t" or name[:2] == "t_")):
            return False
        return self.tosses(name.removeprefix("t_"))

    def tosses(self, name: str, *more: int) -> bool:
        """One of two arbitrary answers, the same each time."""
        return bool(np.random.default_rng([*self.seed, *map(ord, name), *more]).random() < 0.5)

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
    def unrepeated(self) -> frozenset[str]:
        """The results that may have other bits the second time: cuDNN adds the parts of dq as they come."""
        return frozenset({"dq"} if self.how == "cudnn" else ())

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
    """The problem of a line, and the draw.

    Raises:
        ValueError: the line is not one that `to_spec` writes.
    """
    try:
        fields = json.loads(spec)
        draw = fields.pop("draw")
        return Problem(**fields), int(draw)
    except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not the line of a problem: {error}") from error


class WrongTypeError(Exception):
    """A result that is wrong without any number being compared: its dtype or shape."""


class Judged(NamedTuple):
    """One result beside its truth; all arrays begin with the member.

    Attributes:
        got: the result.
        want: the truth.
        limit: the bound.
        forgiven: None, or elements that are not compared.
    """

    got: np.ndarray
    want: np.ndarray
    limit: np.ndarray
    forgiven: np.ndarray | None = None

    def worst(self) -> np.ndarray:
        """The largest error of every member in units of the bound."""
        ratio = ratios(self.got, self.want, self.limit)
        if self.forgiven is not None:
            ratio = np.where(self.forgiven, 0, ratio)
        return ratio.reshape(len(ratio), -1).max(-1, initial=0)


class Family(Protocol):
    """The functions that one kind of truth serves."""

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of public functions."""
        ...

    @property
    def derivatives(self) -> tuple[str, ...]:
        """Those of `DERIVATIVES` that there is a truth for."""
        ...

    def dtypes(self, operation: str) -> tuple[str, ...]:
        """The storage types that it serves."""
        ...

    def choose(
        self, operation: str, dtype: str, derivative: str, most: int, rng: np.random.Generator
    ) -> tuple[dict[str, Any], str | None]:
        """Options with at most about `most` elements an operand, and a tier or rung to force."""
        ...

    def member(self, problem: Problem, rng: np.random.Generator) -> tuple[Arrays, bool]:
        """The operands of one call, and whether its sums are of numbers that are alike."""
        ...

    def core(self, problem: Problem) -> Callable[[dict[str, jax.Array]], dict[str, jax.Array]]:
        """The function under test, from operands to results, with its derivatives."""
        ...

    def judge(
        self, problem: Problem, operands: Arrays, results: Arrays, alike: np.ndarray
    ) -> dict[str, Judged]:
        """Results of many members, beside their truth."""
        ...


def expect(results: Arrays, name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """A result, if its shape (without members) and dtype are right.

    Raises:
        WrongTypeError: they are not.
    """
    got = results[name]
    if got.shape[1:] != tuple(shape) or got.dtype != dtype:
        raise WrongTypeError(
            f"{name} is {got.dtype}{list(got.shape[1:])}, not {dtype}{list(shape)}"
        )
    return got


def differentiated(
    problem: Problem,
    function: Callable[[dict[str, jax.Array]], jax.Array | dict[str, jax.Array]],
    operands: dict[str, jax.Array],
    active: tuple[str, ...],
) -> dict[str, jax.Array]:
    """The results of a function of named operands, and what the problem wants of its derivative.

    The delivery "shared" maps the function, of operands that are shared or have the members first. The gradient of a
    shared operand is a sum over members: that of one member has the cotangents of the others 0.

    Args:
        problem: says which.
        function: from operands to an array, which is called "y", or to several by their names.
        operands: with "t", a cotangent of "y", and "t_" and the name of each other result, theirs; or with "t_" and the
            name of each active operand, its tangent.
        active: what is differentiated.

    Returns:
        The results and, by "d" and the name of an operand, cotangents; or by "d" and that of a result, tangents.
    """

    def named(given: dict[str, jax.Array]) -> dict[str, jax.Array]:
        found = function(given)
        return found if isinstance(found, dict) else {"y": found}

    mapped, members = problem.delivery == "shared", problem.members
    whole = named
    if mapped:
        axes = {name: None if problem.shares(name) else 0 for name in operands}
        whole = jax.vmap(named, (axes,), axis_size=members)

    def of_active(some: dict[str, jax.Array]) -> dict[str, jax.Array]:
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
    if not mapped:
        return results | {f"d{name}": x for name, x in pull(given)[0].items()}

    def alone(t: jax.Array, member: int) -> jax.Array:
        return jnp.where(jnp.arange(members).reshape(-1, *[1] * (t.ndim - 1)) == member, t, 0)

    pulled = [pull({n: alone(t, i) for n, t in given.items()})[0] for i in range(members)]
    return results | {
        f"d{n}": jnp.stack([x[n] if problem.shares(n) else x[n][i] for i, x in enumerate(pulled)])
        for n in active
    }
