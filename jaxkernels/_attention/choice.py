"""Chooses the implementation of attention: cuDNN, our flash kernels, or our softmax.

`why_not_cudnn` and `why_not_kernels` exclude the calls that cuDNN and our flash kernels cannot serve as
documented, and `_is_faster_in_cudnn` and `_is_large` those for which they are slower. To tune these, run
`python -m jaxkernels.bench attention --drawn 60 --seed 1`, and use another seed for published figures.

Owns: every rule of the choice. Must not know: primitives, or how a program is made.
"""

import dataclasses
import functools
import math
import numbers
from typing import Any, NamedTuple

from jaxkernels._attention import cudnn, tensor_cores
from jaxkernels._attention.problem import MOVING, Call, Operands
from jaxkernels._core import compat, devices
from jaxkernels._cpu import DeviceLimits
from jaxkernels._rows.masked_kernels import Band
from jaxkernels.typing import AttentionImplementation, Device, DeviceName, EmptyRows


class Machine(NamedTuple):
    """The properties of a machine that decide the choice."""

    limits: DeviceLimits  # of the GPU
    cudnn: int | None  # the version of cuDNN, 91002 for 9.10.2; None without cuDNN


@dataclasses.dataclass(frozen=True)
class Problem:
    """The properties of a call that decide the choice."""

    shape: tuple[Any, ...]  # `Operands.sizes`; symbolic dimensions are not integers
    dtype: str  # of q, k and v
    bias: str | None = None  # the dtype of the bias
    has_mask: bool = False
    has_lengths: bool = False  # of queries or keys
    band: Band = Band(from_end=False)  # noqa: RUF009 (it is frozen)
    scale: float | None = 1.0  # None if it is an array or not positive
    has_residual: bool = False  # the log-sum-exps are a result too
    empty_rows: EmptyRows = "zero"


TYPES_OF_CUDNN = ("bfloat16", "float16")
# The minimum cuDNN version of the oldest JAX that we support.
LEAST_CUDNN = 90800
_LEAST_CAPABILITY = 80
# CUDA's limit for the last two grid dimensions, which cuDNN uses for heads and batch.
MOST_BLOCKS = 65535
_HOPPER = 90
_CUDNN_OF_103 = 91100
# The least number of scores with which our flash kernels run. The scores count times the part of the tiles
# of 128 queries that T fills: T / (128 ceil(T / 128)). 2^22 lies between the first two shapes. Times in ms, the kernels
# first, then our softmax: H200, 2026-11-26, shapes as below, forward only or with gradients "(g)", for the
# kernels the sum of two timings. Each timing includes 0.045 ms of dispatch by the host.
# (8, 128 x 128, 8, 64): 0.049, 0.050; (g) 0.108, 0.095
# (2, 1024 x 1024, 4, 64): 0.058, 0.103; (g) 0.174, 0.233
# (8, 512 x 512, 8, 64): 0.059, 0.189; (g) 0.222, 0.421
# (4, 2048 x 2048, 16, 64): 0.400, 2.255; (g) 1.900, 5.306
LEAST_SCORES = 2**22


def this_machine() -> Machine | None:
    """The first CUDA device and its cuDNN; None without a device, or without kernels for it."""
    return _machine_of(devices.default_device())


@functools.cache  # eager calls ask each time
def _machine_of(device: DeviceName | Device) -> Machine | None:
    if isinstance(device, str):
        return None
    limits = devices.limits_of(device)
    return Machine(limits, cudnn.version())


def flash_call(
    given: Operands,
    scale: Any,
    band: Band,
    *,
    has_residual: bool = False,
    empty_rows: EmptyRows = "zero",
    pinned: str | None = None,
) -> Call | None:
    """The parameters of the flash attention primitive if it serves 4D operands; else None.

    `pinned` is an implementation that the user asks for, even if it is slower.

    Raises:
        NotImplementedError: the user asks for our flash kernels, and they do not serve the call.
    """
    dtype = given.q.dtype.name
    if dtype not in (*TYPES_OF_CUDNN, "float32") and pinned is None:
        return None
    is_positive = isinstance(scale, numbers.Real) and 0 < float(scale) < math.inf
    problem = Problem(
        given.sizes(),
        dtype,
        bias=None if given.bias is None else given.bias.dtype.name,
        has_mask=given.mask is not None,
        has_lengths=given.q_lengths is not None or given.k_lengths is not None,
        band=band,
        scale=float(scale) if is_positive else None,
        has_residual=has_residual,
        empty_rows=empty_rows,
    )
    is_split = _is_split_by_rows(given)
    if pinned == "ffi_flash":
        why = why_not_kernels(problem, devices.limits_of(None))
        why = why or (
            "" if is_split else "explicit shardings of other dimensions than batch and heads"
        )
        if why:
            raise NotImplementedError(f'dot_product_attention: implementation="ffi_flash": {why}')
    elif pinned == "cudnn":
        is_split = is_split and not why_not_cudnn(problem, this_machine())
    else:
        is_split = is_split and choose(problem, this_machine())[0] != "ffi"
    factor = problem.scale or 1.0
    return Call(given.names(), factor, band, has_residual, pinned) if is_split else None


def _is_split_by_rows(given: Operands) -> bool:
    """Whether explicit shardings use only batch and heads, and agree between all operands."""
    specs = {name: compat.explicit_spec(getattr(given, name)) for name in given.names()}
    batch, _, heads, _ = specs["q"]
    for name, spec in specs.items():
        if name in MOVING:
            fits = tuple(spec) == (batch, None, heads, None)
        elif name in ("bias", "mask"):
            fits = spec[0] in (batch, None) and spec[1] in (heads, None) and not any(spec[2:])
        else:
            fits = spec[0] in (batch, None)
        if not fits:
            return False
    return True


def choose(problem: Problem, machine: Machine | None) -> tuple[AttentionImplementation, str]:
    """The implementation of a call that names none, and the reason.

    `machine` is None without a known NVIDIA GPU.
    """
    if problem.dtype == "float32":
        why = why_not_kernels(problem, machine and machine.limits)
        if not why and not _is_large(problem):
            why = "few scores, or few queries: our softmax between products"
        chosen, reason = "ffi_flash", "our flash kernels keep no scores in memory"
    else:
        why = why_not_cudnn(problem, machine)
        if not why and not _is_faster_in_cudnn(problem):
            why = "few scores or blocks, a bias, or a float16 mask: our softmax between products"
        chosen, reason = "cudnn", "cuDNN's flash attention keeps no scores in memory"
    return ("ffi", why) if why else (chosen, reason)


def _is_large(problem: Problem) -> bool:
    """Whether our flash kernels are faster than our softmax between products."""
    batch, t, s, heads, _, _ = problem.shape
    filled = t / (128 * -(-t // 128))
    return batch * heads * t * s * filled >= LEAST_SCORES


def _is_faster_in_cudnn(problem: Problem) -> bool:
    """Whether cuDNN is faster, and as accurate, for a call that it serves.

    Times in ms, cuDNN first, then ours: H200, 2026-11, 16-bit dtypes, shapes (B, T x S, N, H), forward
    only or with gradients "(g)". XLA's own softmax between its products was at most 6 % faster than ours,
    in those of 23 measured layers that take 0.1 ms or more.
    """
    # Below this number of scores ours takes no longer than cuDNN takes to start. In 20 forward layers and
    # layers with gradients, of 4 to 14 million scores, the choice takes 1.06 times as long as the better
    # one (geometric mean; 1.6 times at most). With a limit of 2^24 at every depth it takes 1.31 times as long
    # as the better one. Decoding was not measured with fewer than 2^24 scores.
    # (16, 128 x 128, 16, 128): 0.056, 0.054; (g) 0.116, 0.152
    # (8, 256 x 256, 8, 128): 0.065, 0.040; (g) 0.116, 0.107
    # (16, 128 x 128, 16, 64): 0.054, 0.041; (g) 0.112, 0.116
    # (32, 128 x 128, 16, 64): 0.061, 0.071; (g) 0.123, 0.202
    # (4, 512 x 512, 8, 64): 0.067, 0.045; (g) 0.127, 0.121
    # (30, 128 x 128, 28, 128): 0.058, 0.177; (g) 0.247, 0.466
    # (1, 1664 x 1664, 2, 128) causal: 0.073, 0.052
    # (8, 384 x 384, 8, 32): 0.072, 0.052; (g) 0.187, 0.108
    # (2, 427 x 1280, 31, 40) causal: 0.086, 0.128
    # (16, 512 x 512, 8, 64) mask: 0.091, 0.172; (g) 0.216, 0.319
    # (4, 1024 x 1024, 16, 64): 0.089, 0.279; (g) 0.233, 0.534
    # (4, 2048 x 2048, 16, 64): 0.181, 0.948; (g) 0.679, 1.791
    batch, t, s, heads, _, depth = problem.shape
    least = 2**24 if min(t, s) < 128 else 2**29 // min(max(depth, 32), 128)
    is_large = batch * heads * t * s >= least
    # With fewer than 64 blocks, cuDNN leaves most of the GPU idle. It has one block per 128 queries
    # forward, and per 128 keys backward.
    # (2, 7296 x 1024, 2, 128) bias, 32 blocks: (g) 0.660, 0.367
    # (16, 3520 x 320, 1, 128) bias, 48 blocks: (g) 0.359, 0.240
    # (4, 2624 x 6784, 2, 64) causal, 168 blocks: 0.067, 0.402
    fills_gpu = batch * heads * -(-min(t, s) // 128) >= 64
    # A bias excludes cuDNN: if a whole row of it is near -1e9, cuDNN's log-sums have steps of 64, so its
    # gradients differ. A float16 mask excludes it too: it subtracts 32768, which scores may exceed.
    is_exact = problem.bias is None and not (problem.has_mask and problem.dtype == "float16")
    return is_large and fills_gpu and is_exact


def why_not_kernels(problem: Problem, limits: DeviceLimits | None) -> str:
    """The reason why our flash kernels cannot serve a problem; empty if they can."""
    if problem.dtype != "float32":
        return f"our flash kernels multiply float32, not {problem.dtype}"
    if limits is None:
        return "the platform has no flash kernels"
    if problem.bias == "float64":
        return "a bias of float64 would be rounded to float32"
    if problem.bias not in (None, *TYPES_OF_CUDNN, "float32"):
        return f"our flash kernels take no bias of {problem.bias}"
    if problem.empty_rows != "zero":
        return "our flash kernels give 0 for queries without keys"
    return tensor_cores.why_not(problem.shape, limits)


def why_not_cudnn(problem: Problem, machine: Machine | None) -> str:
    """The reason why cuDNN cannot serve a problem as documented; empty if it can."""
    if problem.dtype not in TYPES_OF_CUDNN:
        return f"cuDNN multiplies bfloat16 and float16, not {problem.dtype}"
    if machine is None:
        return "the platform has no cuDNN"
    if not all(isinstance(size, int) for size in problem.shape):
        return "sizes are not known"
    if problem.has_residual or problem.empty_rows != "zero":
        return "cuDNN returns no residual, and no mean of v for queries without keys"
    batch, t, s, heads, _, depth = problem.shape
    capability = machine.limits.compute_capability
    deepest = 256 if capability >= _HOPPER else 128
    has_sides = problem.has_mask or problem.bias is not None
    band = problem.band
    has_window = band.left is not None
    reasons = (
        (machine.cudnn is None, "it is not installed"),
        ((machine.cudnn or 0) < LEAST_CUDNN, f"{machine.cudnn} is older than {LEAST_CUDNN}"),
        (capability < _LEAST_CAPABILITY, "it has no kernels for such a GPU"),
        (
            capability == 103 and (machine.cudnn or 0) < _CUDNN_OF_103,
            f"such a GPU needs {_CUDNN_OF_103}",
        ),
        (0 in problem.shape, "there is nothing to compute"),
        (t == s == 1, "it does not take one query with one key"),
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
            "it takes masks and biases only if both lengths are even",
        ),
        (not band.is_open and band.right != 0, "its windows end at the query's own key"),
        (
            has_window and (has_sides or problem.has_lengths or t > s),
            "a query might see no key, and its result would be NaN",
        ),
    )
    return next((f"cuDNN: {why}" for refused, why in reasons if refused), "")
