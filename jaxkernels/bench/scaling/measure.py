"""Measures scaling: hands the contenders of every case to ``bench.timing``."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxkernels.bench.scaling import cases, contenders
from jaxkernels.bench.scaling.contenders import Arguments, Function
from jaxkernels.bench.timing import (
    REFUSALS,
    Contender,
    Timing,
    first_line,
    last_level_cache_bytes,
    measure_together,
    rotations_for,
)

# An asynchronous collective is a pair, of which the first counts.
_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


@dataclass(frozen=True)
class Settings:
    """Everything that decides what is measured.

    Attributes:
        devices: the numbers of devices, ascending, 1 the first.
        shapes: by group, as `cases.GPU_SHAPES` has them; a group that is not there is not measured.
        directions: of "fwd", "both".
        repeats: samples per median.
        min_sample_seconds: least duration of a sample.
    """

    devices: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]
    directions: tuple[str, ...]
    repeats: int
    min_sample_seconds: float

    def kinds(self, *groups: str) -> list[tuple[str, str, str]]:
        """(group, dtype, direction) of all cases of groups."""
        return [
            (group, dtype, direction)
            for group in groups
            if group in self.shapes
            for dtype in cases.DTYPES[group]
            for direction in self.directions
        ]

    @property
    def steps(self) -> int:
        """How many times `measure_weak` and `measure_vocabulary` announce a step."""
        strong = len(self.kinds("vocabulary")) * len(self.devices)
        return len(self.kinds("softmax", "attention")) + strong


def count_collectives(text: str) -> cases.Collectives:
    """Counts the collectives of an HLO program.

    Example:
        >>> count_collectives("a = f32[8] all-gather-start(x); b = f32[8] all-gather-done(a)")
        {'all-gather': 1}
    """
    return dict(sorted(Counter(_COLLECTIVE.findall(text)).items()))


def _rotations(elements: int, dtype: str, direction: str) -> int:
    """How many inputs push past the cache what one device touches."""
    arrays = 2 if direction == "fwd" else 4
    touched = arrays * elements * jnp.dtype(dtype).itemsize
    return rotations_for(touched, last_level_cache_bytes(jax.default_backend()))


def _waiting(call: Function) -> Function:
    """The call that returns when its result is there."""
    return lambda *arguments: jax.block_until_ready(call(*arguments))


def _time(
    settings: Settings, programs: Mapping[str, tuple[Function, Callable[[], Sequence[Arguments]]]]
) -> dict[str, Any]:
    """Times functions, each on arguments of its own making; returns the fields of a record.

    Arguments that do not fit the memory are a refusal, as is a program that does not show itself.
    """
    collectives: dict[str, cases.Collectives] = {}
    refused: dict[str, str] = {}
    ready: list[Contender] = []

    def make(name: str, function: Function, arguments: Arguments) -> Function:
        program = contenders.compiled(function, arguments)
        text = program.as_text()
        if text is None:
            raise NotImplementedError("this backend does not show the compiled program")
        collectives[name] = count_collectives(text)
        # Several programs in flight starve each other's collectives of the threads of a CPU.
        return _waiting(program) if jax.default_backend() == "cpu" else program

    for name, (function, draw) in programs.items():
        try:
            arguments = draw()
        except REFUSALS as error:
            refused[name] = first_line(error)
            continue
        ready.append(Contender(name, partial(make, name, function, arguments[0]), arguments))
    timings: dict[str, Timing]
    timings, without = measure_together(
        ready, repeats=settings.repeats, min_sample_seconds=settings.min_sample_seconds
    )
    return {
        "seconds": {name: timing.seconds for name, timing in timings.items()},
        "samples": {name: list(timing.samples) for name, timing in timings.items()},
        "collectives": collectives,
        "refused": {**refused, **without},
    }


def measure_weak(settings: Settings, announce: Callable[[str], None]) -> list[cases.Weak]:
    """Measures what grows with the number of devices.

    Args:
        settings: what to measure.
        announce: called with a description when a case begins.
    """
    results = []
    for group, dtype, direction in settings.kinds("softmax", "attention"):
        announce(f"{group} {dtype} {direction}")
        shape = settings.shapes[group]
        rotations = _rotations(math.prod(shape), dtype, direction)
        programs = {}
        for count in settings.devices:
            sharding = contenders.first_dimension(jax.devices()[:count])
            whole = (count * shape[0], *shape[1:])
            programs[str(count)] = (
                contenders.directed(contenders.WEAK[group], direction),
                partial(contenders.arguments, whole, dtype, sharding, direction, rotations),
            )
        measured = _time(settings, programs)
        results.append(
            cases.Weak(
                group=group,
                dtype=dtype,
                direction=direction,
                shape=shape,
                devices=settings.devices,
                **measured,
            )
        )
    return results


def measure_vocabulary(
    settings: Settings, announce: Callable[[str], None]
) -> list[cases.Vocabulary]:
    """Measures a vocabulary that is cut; arguments as `measure_weak` has them."""
    results = []
    for _, dtype, direction in settings.kinds("vocabulary"):
        rows, cols = shape = settings.shapes["vocabulary"]
        for count in settings.devices:
            announce(f"log_softmax {dtype} {direction} on {count}")
            sharding = contenders.last_dimension(jax.devices()[:count])
            rotations = _rotations(math.prod(shape) // count, dtype, direction)
            draw = cache(
                partial(contenders.arguments, shape, dtype, sharding, direction, rotations)
            )
            programs = {
                name: (contenders.directed(function, direction), draw)
                for name, function in contenders.vocabulary(sharding).items()
            }
            measured = _time(settings, programs)
            results.append(
                cases.Vocabulary(
                    dtype=dtype,
                    direction=direction,
                    rows=rows,
                    cols=cols,
                    devices=count,
                    **measured,
                )
            )
    return results
