"""The implementation that a call of attention runs on this machine.

Owns: the machine's description, and the exclusion of calls that the flash attention primitives cannot
represent. Must not know: the table (`choice`), or how anything is computed.
"""

from __future__ import annotations

import functools
import math
import numbers
from typing import Any, NamedTuple

from jaxkernels._attention import choice, cudnn
from jaxkernels._attention.choice import Machine
from jaxkernels._attention.problem import MOVING, Call, Operands, names_of, present
from jaxkernels._core import compat, devices
from jaxkernels._rows.masked_kernels import Band
from jaxkernels.typing import AttentionImplementation, Device, DeviceName


class Path(NamedTuple):
    """The implementation of a call on CUDA.

    Attributes:
        implementation: the implementation.
        call: the parameters of the primitive, for cuDNN; otherwise None.
    """

    implementation: AttentionImplementation
    call: Call | None = None


def this_machine() -> Machine | None:
    """The first CUDA device and its cuDNN; None without a device, or without kernels for it."""
    return _machine_of(devices.default_device())


@functools.cache  # eager calls ask each time
def _machine_of(device: DeviceName | Device) -> Machine | None:
    if isinstance(device, str):
        return None
    limits = devices.limits_of(device)
    return Machine(limits.name, limits.compute_capability, cudnn.version())


def path_of(
    given: Operands, scale: Any, band: Band, *, is_drop_in: bool, is_pinned: bool = False
) -> Path:
    """The implementation of a call.

    Args:
        given: the operands, of four dimensions.
        scale: factor of the scores: a number or a scalar array.
        band: the causal or window band of the scores.
        is_drop_in: see `choice.Problem`.
        is_pinned: the user asks for cuDNN; the path is "xla" if our primitives cannot call it.
    """
    if given.q.dtype.name not in choice.TYPES_OF_CUDNN:
        return Path("xla" if is_pinned else "ffi")
    factor = _positive(scale)
    problem = choice.problem_of(given, band, scale=factor, is_drop_in=is_drop_in)
    machine = this_machine()
    serves = is_drop_in and _is_split_by_rows(given)
    chosen: AttentionImplementation = "xla"
    if not is_pinned:
        chosen = choice.choose(problem, machine).implementation
    elif serves and machine is not None and not choice.why_not_cudnn(problem, machine):
        chosen = "cudnn"
    if chosen != "cudnn" or factor is None:
        return Path(chosen)
    if not serves:
        return Path("ffi")
    return Path("cudnn", Call(names_of(given), factor, band, is_pinned=is_pinned))


def _positive(scale: Any) -> float | None:
    """The scale as a float if it is a finite positive number, otherwise None."""
    if isinstance(scale, numbers.Real) and 0 < float(scale) < math.inf:
        return float(scale)
    return None


def _is_split_by_rows(given: Operands) -> bool:
    """Whether explicit shardings use only batch and heads, and agree between all operands."""
    if not compat.is_explicitly_sharded(*present(given)):
        return True
    specs = dict(zip(names_of(given), map(compat.explicit_spec, present(given)), strict=True))
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
