"""What is measured: shapes and the records of measurements. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

GROUPS = ("softmax", "attention", "vocabulary")
DIRECTIONS = ("fwd", "both")
CONTENDERS = ("gathered", "xla", "ours")

# The dtypes of each group.
DTYPES = {
    "softmax": ("float32", "bfloat16"),
    "attention": ("bfloat16",),
    "vocabulary": ("bfloat16",),
}

# Shapes of each group: (rows, cols) and (batch, heads, q, k) on each device, and the whole
# (rows, vocabulary). At 4 TB/s the shortest call of a device takes 1 ms, so that the host, which
# dispatches calls to all devices one after another, stays ahead of them.
GPU_SHAPES = {
    "softmax": (65536, 16384),
    "attention": (24, 16, 2048, 2048),
    "vocabulary": (8192, 131072),
}
CPU_SHAPES = {
    "softmax": (256, 4096),
    "attention": (1, 4, 512, 512),
    "vocabulary": (64, 32768),
}

Collectives = dict[str, int]


@dataclass(frozen=True)
class Weak:
    """Times of one call whose data grows with the number of devices.

    Attributes:
        group: "softmax" or "attention".
        dtype: of the operands.
        direction: "fwd" or "both".
        shape: what each device has of the input; the first dimension is the one that grows.
        devices: the numbers of devices that were asked for, 1 among them.
        seconds: median time of one call, by number of devices (as text, for JSON's sake).
        samples: the samples behind each median.
        collectives: how many of each kind the compiled program has, by number of devices.
        refused: numbers of devices without a time, and why.
    """

    group: str
    dtype: str
    direction: str
    shape: Sequence[int]
    devices: Sequence[int]
    seconds: dict[str, float]
    samples: dict[str, list[float]] = field(default_factory=dict)
    collectives: dict[str, Collectives] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The case as tables name it."""
        return f"{self.group} {self.dtype} {self.direction} {size(self.shape)}"

    def efficiency(self, devices: int) -> float | None:
        """The time on 1 device over that on `devices`."""
        return ratio(self.seconds, "1", str(devices))


@dataclass(frozen=True)
class Vocabulary:
    """Times of every contender on one log_softmax over a vocabulary that is cut.

    Attributes:
        dtype: of the logits.
        direction: "fwd" or "both".
        rows: of the whole array.
        cols: of the whole array, the vocabulary.
        devices: how many share it.
        seconds: median time of one call, by contender: "gathered", "xla", "ours".
        samples: the samples behind each median.
        collectives: how many of each kind the compiled program has, by contender.
        refused: contenders without a time, and why.
    """

    dtype: str
    direction: str
    rows: int
    cols: int
    devices: int
    seconds: dict[str, float]
    samples: dict[str, list[float]] = field(default_factory=dict)
    collectives: dict[str, Collectives] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The case as tables name it."""
        shape = size((self.rows, self.cols))
        return f"log_softmax {self.dtype} {self.direction} {shape} on {self.devices}"

    def speedup(self, peer: str) -> float | None:
        """How many times faster than a peer ours is."""
        return ratio(self.seconds, peer, "ours")


def is_time(seconds: float | None) -> bool:
    """Whether something was measured."""
    return seconds is not None and 0 < seconds < math.inf


def ratio(seconds: dict[str, float], peer: str, name: str) -> float | None:
    """The time of a peer over that of a contender; None unless both have one."""
    if not (is_time(seconds.get(peer)) and is_time(seconds.get(name))):
        return None
    return seconds[peer] / seconds[name]


def size(shape: Sequence[int]) -> str:
    """A shape as tables name it.

    Example:
        >>> size((8, 128))
        '8x128'
    """
    return "x".join(map(str, shape))


def doublings(most: int) -> tuple[int, ...]:
    """The numbers of devices that are measured by default.

    Example:
        >>> doublings(8), doublings(6), doublings(1)
        ((1, 2, 4, 8), (1, 2, 4), (1,))
    """
    return tuple(2**power for power in range(most.bit_length()))


def parse_shape(text: str, rank: int) -> tuple[int, ...]:
    """Parses sizes joined by "x".

    Raises:
        ValueError: if there are not `rank` of them, or one is not positive.

    Example:
        >>> parse_shape("8192x131072", 2)
        (8192, 131072)
    """
    sizes = tuple(int(part) for part in text.split("x"))
    if len(sizes) != rank or min(sizes) < 1:
        raise ValueError(f"expected {rank} positive sizes joined by x, got {text!r}")
    return sizes
