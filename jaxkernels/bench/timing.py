"""How a call is timed.

Method, the same for every contender:

* One sample is the host clock around K asynchronous dispatches of a compiled function followed by
  one ``block_until_ready``, divided by K. K is chosen so that a sample lasts at least 20 ms
  (``min_sample_seconds``), so that the cost of starting and ending a sample vanishes.
* Contenders of one case are compiled and warmed first, then sampled in turn, round after round;
  a drift of the machine's clocks therefore meets all of them, the copy included. The reported time
  is the median over the rounds.
* Inputs are random normal numbers, never zeros (a device runs faster on data that toggles no
  bits). Where the data that one call touches is smaller than four times the last-level cache,
  successive calls rotate through several copies of the inputs so that none is served from cache
  (``bench sgemm`` says where it has another way).
* Nothing is donated: each call writes an output of its own, but into memory that earlier calls of
  the sample have given back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

# Larger than the L2 of any GPU in use (H200: 50 MiB, B200: 126 MiB).
_GPU_CACHE_BYTES = 128 * 2**20
# Taken for a CPU whose cache size the system does not tell.
_CPU_CACHE_BYTES = 32 * 2**20
_MAX_ROTATIONS = 16
# Errors by which a kernel or a device refuses; any other is a bug and must surface.
REFUSALS = (ValueError, NotImplementedError, jax.errors.JaxRuntimeError)


def last_level_cache_bytes(platform: str) -> int:
    """A size no smaller than the last-level cache of a platform, in bytes."""
    if platform != "cpu":
        return _GPU_CACHE_BYTES
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=_CPU_CACHE_BYTES)


def rotations_for(working_set_bytes: int, cache_bytes: int) -> int:
    """How many copies of what one call reads and writes are more than four times the cache.

    Example:
        >>> rotations_for(2 << 30, 50 << 20), rotations_for(64 << 20, 32 << 20)
        (1, 2)
    """
    wanted = math.ceil(4 * cache_bytes / max(1, working_set_bytes))
    return min(max(1, wanted), _MAX_ROTATIONS)


def calls_per_sample(seconds_per_call: float, min_sample_seconds: float) -> int:
    """The K of a sample that lasts at least ``min_sample_seconds``.

    Example:
        >>> calls_per_sample(0.0005, 0.02)
        40
    """
    return max(1, math.ceil(round(min_sample_seconds / max(seconds_per_call, 1e-7), 6)))


def _sample(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], calls: int) -> float:
    """The seconds per call of one sample of ``calls`` dispatches."""
    result = None
    start = time.perf_counter()
    for index in range(calls):
        result = None  # so that its memory, which a CUDA graph knows, is this call's again
        result = call(*arguments[index % len(arguments)])
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def first_line(error: Exception) -> str:
    """A short reason, fit for a table's footnote."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def measure_together(
    functions: Mapping[Hashable, Callable[..., Any]],
    arguments: Mapping[Hashable, Sequence[tuple[Any, ...]]],
    *,
    repeats: int,
    min_sample_seconds: float,
) -> tuple[dict[Hashable, list[float]], dict[Hashable, str]]:
    """Times contenders in turn; see the module's docstring for the method.

    Args:
        functions: by contender, the function to time. It may refuse when it is called.
        arguments: by contender, a tuple for each rotation; call i takes ``arguments[i % len]``.
        repeats: samples per contender.
        min_sample_seconds: the least duration of one sample.

    Returns:
        By contender the samples, seconds per call, or why there are none.
    """
    calls: dict[Hashable, int] = {}
    samples: dict[Hashable, list[float]] = {}
    refused: dict[Hashable, str] = {}
    for name, call in functions.items():
        try:
            _sample(call, arguments[name], len(arguments[name]))  # compiles
            estimate = min(_sample(call, arguments[name], 1) for _ in range(2))
        except REFUSALS as error:
            refused[name] = first_line(error)
            continue
        calls[name], samples[name] = calls_per_sample(estimate, min_sample_seconds), []
    for _ in range(repeats):
        for name in list(samples):
            try:
                samples[name].append(_sample(functions[name], arguments[name], calls[name]))
            except REFUSALS as error:
                refused[name] = first_line(error)
                del samples[name]
    return samples, refused
