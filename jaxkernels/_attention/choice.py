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
    """

    shape: tuple[Any, ...]
    dtype: str
    bias: str | None = None
    has_mask: bool = False
    has_lengths: bool = False
    band: Band = Band(from_end=False)  # noqa: RUF009 (it is frozen)
    scale: float | None = 1.0
    is_drop_in: bool = True

    @property
    def scores(self) -> int:
        """Pairs of a query and a key, of all heads."""
        batch, t, s, heads, _, _ = self.shape
        return batch * heads * t * s

    @property
    def blocks(self) -> int:
        """Blocks of 128 queries that cuDNN's forward pass has, or of 128 keys its backward pass, the fewer."""
        batch, t, s, heads, _, _ = self.shape
        return batch * heads * -(-min(t, s) // _LINES_OF_BLOCK)


class Choice(NamedTuple):
    """Who computes a problem, and why."""

    implementation: AttentionImplementation
    why: str


class Rule(NamedTuple):
    holds: Callable[[Problem], bool]
    choice: Choice


_OURS, _CUDNN = "ffi", "cudnn"
_LINES_OF_BLOCK = 128
# Measured on an H200, 2026-11-24, in 16 bits, (B, T x S, N, H), ms forward, or with gradients "(g)": cuDNN, ours.
# Of 23 layers measured XLA's own softmax between its products was nowhere faster than ours by more than 6 % from 0.1 ms on.
TABLE = (
    Rule(
        # Fewer scores take ours no longer than cuDNN takes to begin.
        # (1, 1664 x 1664, 2, 128) causal: 0.073, 0.052
        # (8, 384 x 384, 8, 32): 0.072, 0.052; (g) 0.187, 0.108
        # (2, 427 x 1280, 31, 40) causal: 0.086, 0.128
        # (16, 512 x 512, 8, 64) mask: 0.091, 0.172; (g) 0.216, 0.319
        # (4, 1024 x 1024, 16, 64): 0.089, 0.279; (g) 0.233, 0.534
        # (4, 2048 x 2048, 16, 64): 0.181, 0.948; (g) 0.679, 1.791
        # Fewer blocks leave most of the GPU idle.
        # (2, 7296 x 1024, 2, 128) bias, 32 blocks: (g) 0.660, 0.367
        # (16, 3520 x 320, 1, 128) bias, 48 blocks: (g) 0.359, 0.240
        # (4, 2624 x 6784, 2, 64) causal, 168 blocks: 0.067, 0.402
        # A row whose whole bias is near -1e9 has gradients of its own in cuDNN, whose logarithms of
        # sums have steps of 64 there; and in float16 a mask subtracts 32768, which scores may exceed.
        lambda p: (
            p.scores >= 2**24
            and p.blocks >= 64
            and p.bias is None
            and not (p.has_mask and p.dtype == "float16")
        ),
        Choice(_CUDNN, "cuDNN's flash attention keeps no scores in memory"),
    ),
    Rule(
        lambda p: True,
        Choice(
            _OURS, "few scores or blocks, a bias, or a float16 mask: our softmax between products"
        ),
    ),
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
    if why_not:
        return Choice(_OURS, f"cuDNN: {why_not}")
    return next(rule.choice for rule in TABLE if rule.holds(problem))


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
        (t == s == 1, "it has no rows of one key for one query"),
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
