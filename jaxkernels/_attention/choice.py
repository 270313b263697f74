"""Chooses the implementation of attention for calls that name none: cuDNN or ours.

`why_not_cudnn` first excludes calls that cuDNN cannot serve as documented. The first rule of the table
that holds then names the faster implementation. To tune the table, run
`python -m jaxkernels.bench attention --drawn 60 --seed 1`, and use another seed for published figures.

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
    """The properties of a machine that decide the choice.

    Attributes:
        device: the name of the GPU, as in plans.
        capability: the compute capability, 90 for 9.0.
        cudnn: the version of cuDNN, 91002 for 9.10.2; None without cuDNN.
    """

    device: str
    capability: int
    cudnn: int | None


@dataclasses.dataclass(frozen=True)
class Problem:
    """The properties of a call that decide the choice.

    Attributes:
        shape: (B, T, S, N, K, H), as in `dot_product_attention`. Symbolic dimensions (jax.export) are
            not integers.
        dtype: the dtype of q, k and v.
        bias: the dtype of the bias, or None.
        has_mask: whether there is a mask.
        has_lengths: whether there are lengths of queries or keys.
        band: the causal or window band of the scores.
        scale: factor of the scores; None if it is an array or not positive.
        is_drop_in: whether cuDNN supports the other options: no residual, and zero for fully masked
            queries.
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
        """The number of scores over batch and heads."""
        batch, t, s, heads, _, _ = self.shape
        return batch * heads * t * s

    @property
    def blocks(self) -> int:
        """Thread blocks of cuDNN, by 128 queries forward and 128 keys backward; the smaller number."""
        batch, t, s, heads, _, _ = self.shape
        return batch * heads * -(-min(t, s) // _LINES_OF_BLOCK)


class Choice(NamedTuple):
    """The chosen implementation, and the reason."""

    implementation: AttentionImplementation
    why: str


class Rule(NamedTuple):
    holds: Callable[[Problem], bool]
    choice: Choice


_OURS, _CUDNN = "ffi", "cudnn"
_LINES_OF_BLOCK = 128
# Comments in the table give times in ms, cuDNN first, then ours: H200, 2026-11-24, 16-bit dtypes, shapes
# (B, T x S, N, H), forward only or with gradients "(g)". XLA's own softmax between its products was at most
# 6 % faster than ours, in those of 23 measured layers that take 0.1 ms or more.
TABLE = (
    Rule(
        # Below 2^24 scores ours takes no longer than cuDNN takes to start.
        # (1, 1664 x 1664, 2, 128) causal: 0.073, 0.052
        # (8, 384 x 384, 8, 32): 0.072, 0.052; (g) 0.187, 0.108
        # (2, 427 x 1280, 31, 40) causal: 0.086, 0.128
        # (16, 512 x 512, 8, 64) mask: 0.091, 0.172; (g) 0.216, 0.319
        # (4, 1024 x 1024, 16, 64): 0.089, 0.279; (g) 0.233, 0.534
        # (4, 2048 x 2048, 16, 64): 0.181, 0.948; (g) 0.679, 1.791
        # With fewer than 64 blocks, cuDNN leaves most of the GPU idle.
        # (2, 7296 x 1024, 2, 128) bias, 32 blocks: (g) 0.660, 0.367
        # (16, 3520 x 320, 1, 128) bias, 48 blocks: (g) 0.359, 0.240
        # (4, 2624 x 6784, 2, 64) causal, 168 blocks: 0.067, 0.402
        # A bias excludes cuDNN: if a whole row of it is near -1e9, cuDNN's log-sums have steps of 64, so
        # its gradients differ. A float16 mask excludes it too: it subtracts 32768, which scores may exceed.
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
# The minimum cuDNN version of the oldest JAX that we support.
LEAST_CUDNN = 90800
_LEAST_CAPABILITY = 80
# CUDA's limit for the last two grid dimensions, which cuDNN uses for heads and batch.
MOST_BLOCKS = 65535
_HOPPER = 90
_CUDNN_OF_103 = 91100


def choose(problem: Problem, machine: Machine | None) -> Choice:
    """The implementation that a machine runs for a problem.

    Args:
        problem: the problem.
        machine: None without an NVIDIA GPU, or with an unknown one.
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
    """The reason why cuDNN cannot serve a problem as documented; empty if it can."""
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
    """The problem of operands, which may be arrays or abstract values."""
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
