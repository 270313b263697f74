"""Times calls, with the same method for every contender.

* A sample is the host time of K asynchronous dispatches of a compiled function and one
  ``block_until_ready``, divided by K. K is chosen so that a sample lasts at least
  ``min_sample_seconds`` (by default 20 ms), which makes the cost of starting and ending it negligible.
* Contenders of one case are compiled and warmed up first, then sampled in turn, for several rounds. A
  drift of the machine's clocks therefore affects all of them, including the copy. The reported time is
  the median over the rounds.
* Inputs are random normal numbers, never zeros, because a device runs faster on data that toggles no
  bits. If the data of one call is smaller than four times the last-level cache, successive calls rotate
  through several copies of the inputs, so that none is in the cache (``bench sgemm`` describes its
  exceptions).
* Nothing is donated. Each call writes a new output, into memory that earlier calls of the sample freed.
"""

import math
import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

# A bound on the L2 of current GPUs (H200: 50 MiB, B200: 126 MiB).
_GPU_CACHE_BYTES = 128 * 2**20
# The default for a CPU whose cache size is unknown.
_CPU_CACHE_BYTES = 32 * 2**20
# Errors by which a kernel, a device or a missing package refuses a case; any other error must surface. RuntimeError
# is raised by JAX, for example without cuDNN.
REFUSALS = (ValueError, RuntimeError, ModuleNotFoundError)


def last_level_cache_bytes(platform: str) -> int:
    """An upper bound on the last-level cache of a platform, in bytes."""
    if platform != "cpu":
        return _GPU_CACHE_BYTES
    entries = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    found = (re.match(r"(\d+)K$", entry.read_text()) for entry in entries)
    return max((1024 * int(size[1]) for size in found if size), default=_CPU_CACHE_BYTES)


def _sample(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], calls: int) -> float:
    """The seconds per call of one sample of ``calls`` dispatches."""
    result = None
    start = time.perf_counter()
    for index in range(calls):
        result = None  # frees its memory for this call, so that a CUDA graph sees the same address
        result = call(*arguments[index % len(arguments)])
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def first_line(error: Exception) -> str:
    """The first line of an error, for a table's footnote."""
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

    A function may refuse when it is called. Its call i takes ``arguments[i % len]``. Returns the samples
    in seconds per call, by contender, and the reasons of those that refused.
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
        calls[name] = max(1, math.ceil(min_sample_seconds / max(estimate, 1e-7)))
        samples[name] = []
    for _ in range(repeats):
        for name in list(samples):
            try:
                samples[name].append(_sample(functions[name], arguments[name], calls[name]))
            except REFUSALS as error:
                refused[name] = first_line(error)
                del samples[name]
    return samples, refused
