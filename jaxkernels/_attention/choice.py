"""Who computes attention where the user names nobody: one table, and what cuDNN can serve.

The table is tried from the top; the first rule that holds decides. What it says is the fastest of
those that give what is documented: `why_not_cudnn` comes first, and what it refuses cuDNN never gets.
To tune it, run `python -m jaxkernels.bench attention --drawn 60 --seed 1`, and keep another seed for
what is published.

Owns: the table. Must not know: primitives, or how a program is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxkernels._attention.problem import Operands
from jaxkernels._rows.masked_kernels import Band
from jaxkernels.typing import AttentionImplementation


class Machine(NamedTuple):
    """What of a machine matters.

    Attributes:
        device: the name of its GPU, as plans have it.
        capability: the compute capability, 90 for 9.0.
        cudnn: the version of cuDNN, 91002 for 9.10.2; None without one.
    """

    device: str
    capability: int
    cudnn: int | None


@dataclasses.dataclass(frozen=True)
class Problem:
    """What of a call matters.

    Attributes:
        shape: (B, T, S, N, K, H), as `dot_product_attention` names them. Dimensions that jax.export
            leaves open are no integers.
        dtype: of q, k and v.
        bias: the dtype of the bias, or None.
        has_mask: whether there is a mask.
        has_lengths: whether there are lengths of queries or keys.
        band: which keys a query sees by its index.
        scale: None if it is an array, or not positive.
        is_drop_in: all else is what cuDNN has: zero for queries without keys, and no residual.
        with_gradients: whether reverse mode asks for gradients of q, k and v.
    """

    shape: tuple[Any, ...]
    dtype: str
    bias: str | None = None
    has_mask: bool = False
    has_lengths: bool = False
    band: Band = Band(from_end=False)  # noqa: RUF009 (it is frozen)
    scale: float | None = 1.0
    is_drop_in: bool = True
    with_gradients: bool = True

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key in each head."""
        return self.shape[1] * self.shape[2]

    @property
    def is_causal(self) -> bool:
        """Whether queries see no later keys."""
        return self.band.right is not None and self.band.right <= 0


class Choice(NamedTuple):
    """Who computes a problem, and why."""

    implementation: AttentionImplementation
    why: str


class Rule(NamedTuple):
    holds: Callable[[Problem], bool]
    choice: Choice


# Fewer pairs of a query and a key than these go past cuDNN.
PAIRS_FOR_CUDNN = 512 * 512

_OURS, _XLA, _CUDNN = "ffi", "xla", "cudnn"
# One measurement a line: H200, bfloat16, (B, length, heads, H); ms forward / with gradients.
TABLE = (
    # (4, 2048, 16, 64) causal: cuDNN 0.12 / 0.47, XLA 1.50 / 4.23, ours 1.33 / 3.15.
    # (4, 2048, 16, 64): cuDNN 0.21 / 0.72, XLA 0.98 / 3.05, ours 1.57 / 3.42.
    # (4, 1024, 16, 64): cuDNN 0.12 / 0.23, XLA 0.29 / 0.86, ours 0.43 / 0.91.
    Rule(
        lambda p: p.pairs >= PAIRS_FOR_CUDNN,
        Choice(_CUDNN, "cuDNN's flash attention keeps no scores in memory"),
    ),
    # (4, 2048, 16, 64) causal, without cuDNN: the kernel reads half of the scores.
    Rule(lambda p: p.is_causal, Choice(_OURS, "our softmax reads only what a causal row sees")),
    # (8, 384, 8, 32): XLA 0.06 / 0.17, cuDNN 0.07 / 0.13, ours 0.09 / 0.16.
    Rule(lambda p: True, Choice(_XLA, "XLA fuses the softmax of short rows that see all keys")),
)

TYPES_OF_CUDNN = ("bfloat16", "float16")
# The oldest that the oldest JAX which we support asks for.
LEAST_CUDNN = 90800
_LEAST_CAPABILITY = 80
# A grid of CUDA blocks is no larger in its last two dimensions, which are heads and members.
MOST_BLOCKS = 65535
_HOPPER = 90
_CUDNN_OF_103 = 91100


def choose(problem: Problem, machine: Machine | None) -> Choice:
    """Who computes a problem on a machine.

    Args:
        problem: the problem.
        machine: None for one without an NVIDIA GPU, or with one that is not known.
    """
    if problem.dtype not in TYPES_OF_CUDNN:
        return Choice(_OURS, f"{problem.dtype} products are ours, in full precision")
    if machine is None:
        return Choice(_OURS, "the platform has no cuDNN")
    if not all(isinstance(size, int) for size in problem.shape):
        return Choice(_OURS, "sizes are not known")
    if not problem.is_drop_in:
        return Choice(_OURS, "only ours has what the arguments ask for")
    why_not = why_not_cudnn(problem, machine)
    rules = (rule for rule in TABLE if rule.holds(problem))
    if not why_not:
        return next(rules).choice
    found = next(rule.choice for rule in rules if rule.choice.implementation != _CUDNN)
    return Choice(found.implementation, f"{found.why}; cuDNN: {why_not}")


def choose_both(problem: Problem, machine: Machine | None) -> tuple[Choice, Choice]:
    """Who computes a problem of which nobody knows whether it will be differentiated.

    Returns:
        Who does, and who does where it is not. The two differ where reverse mode takes cuDNN alone: only
        its primitive can still be lowered to another.
    """
    both = choose(dataclasses.replace(problem, with_gradients=True), machine)
    if both.implementation != _CUDNN:
        return both, both
    return both, choose(dataclasses.replace(problem, with_gradients=False), machine)


def why_not_cudnn(problem: Problem, machine: Machine) -> str:
    """The reason why cuDNN cannot serve, or not as documented; empty if it can."""
    if not all(isinstance(size, int) for size in problem.shape):
        return "sizes are not known"
    batch, t, s, heads, _, depth = problem.shape
    deepest = 256 if machine.capability >= _HOPPER else 128
    has_sides = problem.has_mask or problem.bias is not None
    band = problem.band
    has_window = band.left is not None
    reasons = (
        (machine.cudnn is None, "there is none"),
        ((machine.cudnn or 0) < LEAST_CUDNN, f"{machine.cudnn} is older than {LEAST_CUDNN}"),
        (machine.capability < _LEAST_CAPABILITY, "it has no kernels for such a GPU"),
        (
            machine.capability == 103 and (machine.cudnn or 0) < _CUDNN_OF_103,
            f"such a GPU needs {_CUDNN_OF_103}",
        ),
        (problem.dtype not in TYPES_OF_CUDNN, f"it has no {problem.dtype}"),
        (0 in problem.shape, "there is nothing to compute"),
        (max(batch, heads) > MOST_BLOCKS, f"it takes up to {MOST_BLOCKS} members and heads"),
        (
            depth % 8 != 0 or depth > deepest,
            f"a depth of {depth} is not one of 8, 16, ... {deepest}",
        ),
        (problem.scale is None, "the scale is no positive number"),
        (
            problem.bias not in (None, problem.dtype),
            f"a bias of {problem.bias} would be rounded to {problem.dtype}",
        ),
        (
            has_sides and (t % 2 != 0 or s % 2 != 0),
            "it takes masks and biases of even lengths alone",
        ),
        (not band.is_open and band.right != 0, "it has no such window"),
        (
            has_window and (has_sides or problem.has_lengths or t > s),
            "a query might see no key, of which it makes NaN",
        ),
    )
    return next((why for refused, why in reasons if refused), "")


def problem_of(given: Operands, band: Band, **others: Any) -> Problem:
    """The problem of operands, or of their types."""
    (batch, t, heads, depth), (_, s, key_heads, _) = given.q.shape, given.k.shape
    return Problem(
        (batch, t, s, heads, key_heads, depth),
        given.q.dtype.name,
        bias=None if given.bias is None else given.bias.dtype.name,
        has_mask=given.mask is not None,
        has_lengths=given.q_lengths is not None or given.k_lengths is not None,
        band=band,
        **others,
    )
