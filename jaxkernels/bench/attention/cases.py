"""What is measured: shapes, model bytes and the records of measurements. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

GROUPS = ("scores", "layers")
DTYPES = ("bfloat16", "float32")
VARIANTS = ("plain", "mask", "causal")
DIRECTIONS = ("fwd", "both")

# Where the GPU's shapes are too large: the CPU gets this part of their elements.
CPU_PART = 16

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Shape:
    """Attention of `heads` heads over sequences of `length`: scores (batch, heads, length, length).

    Attributes:
        batch: sequences.
        heads: of the layer.
        length: of a sequence, for queries and keys alike.
        depth: of a head; scores do not depend on it.
    """

    batch: int
    heads: int
    length: int
    depth: int = 64

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """Shape of the scores."""
        return (self.batch, self.heads, self.length, self.length)

    @property
    def layer(self) -> tuple[int, int, int, int]:
        """Shape of queries, keys and values."""
        return (self.batch, self.length, self.heads, self.depth)

    def part(self, divisor: int) -> Shape:
        """The same with batch * heads divided: the batch as far as it goes, then the heads.

        Example:
            >>> Shape(64, 16, 512).part(16), Shape(4, 16, 2048).part(16)
            (Shape(batch=4, heads=16, length=512, depth=64), Shape(batch=1, heads=4, length=2048, depth=64))
        """
        of_batch = math.gcd(self.batch, divisor)
        of_heads = math.gcd(self.heads, divisor // of_batch)
        return Shape(self.batch // of_batch, self.heads // of_heads, self.length, self.depth)


GPU_SCORES = (
    Shape(64, 16, 512),
    Shape(16, 16, 1024),
    Shape(4, 16, 2048),
    Shape(1, 16, 4096),
    Shape(1, 16, 8192),
)
GPU_LAYERS = (Shape(4, 16, 2048),)
CPU_SCORES = tuple(shape.part(CPU_PART) for shape in GPU_SCORES)
CPU_LAYERS = tuple(shape.part(CPU_PART) for shape in GPU_LAYERS)


@dataclass(frozen=True)
class Scores:
    """Times of every contender on one softmax of scores.

    Attributes:
        dtype: of the scores.
        variant: "plain", "mask" or "causal".
        direction: "fwd" or "both".
        batch: see `Shape`, as are the two that follow.
        heads: see `Shape`.
        length: see `Shape`.
        seconds: median time of one call, by contender: "copy", "xla", "ours".
        samples: the samples behind each median.
        temp_bytes: temporary memory of the compiled program, by contender; of "both" alone.
        refused: contenders without a time or memory, and why.
    """

    dtype: str
    variant: str
    direction: str
    batch: int
    heads: int
    length: int
    seconds: dict[str, float]
    samples: dict[str, list[float]] = field(default_factory=dict)
    temp_bytes: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """The shape that was measured."""
        return Shape(self.batch, self.heads, self.length)

    @property
    def label(self) -> str:
        """The case as tables name it."""
        return f"{self.dtype} {self.direction} {self.variant} {self.size}"

    @property
    def size(self) -> str:
        """The shape as tables name it."""
        return f"{self.length} x{self.batch}x{self.heads}"

    def copy_rate(self) -> float | None:
        """Bytes per second of the copy: read once, written once."""
        seconds = self.seconds.get("copy")
        elements = math.prod(self.shape.scores)
        return None if seconds is None else 2 * elements * _ITEM_BYTES[self.dtype] / seconds

    def of_model(self, name: str = "ours") -> float | None:
        """A contender's time over that of its model bytes at the rate of the copy."""
        seconds, rate = self.seconds.get(name), self.copy_rate()
        if seconds is None or rate is None:
            return None
        return seconds * rate / model_bytes(self.shape, self.dtype, self.variant, self.direction)

    def speedup(self) -> float | None:
        """How many times faster than XLA ours is."""
        return ratio(self.seconds, "xla", "ours")


@dataclass(frozen=True)
class Layer:
    """Times of every contender on one attention layer.

    Attributes:
        dtype: of queries, keys and values.
        causal: whether a query sees only the keys up to its own position.
        direction: "fwd" or "both".
        batch: see `Shape`, as are the three that follow.
        heads: see `Shape`.
        length: see `Shape`.
        depth: see `Shape`.
        seconds: median time of one call, by contender: "xla", "ours", and "cudnn" in bfloat16.
        samples: the samples behind each median.
        kernels: our kernels in the program of "ours"; none where it is XLA's own.
        refused: contenders without a time, and why.
    """

    dtype: str
    causal: bool
    direction: str
    batch: int
    heads: int
    length: int
    depth: int
    seconds: dict[str, float]
    samples: dict[str, list[float]] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The case as tables name it."""
        kind = " causal" if self.causal else ""
        layer = Shape(self.batch, self.heads, self.length, self.depth).layer
        return f"{self.dtype} {self.direction}{kind} {layer}"

    def speedup(self, peer: str = "xla") -> float | None:
        """How many times faster than a peer ours is."""
        return ratio(self.seconds, peer, "ours")


def ratio(seconds: dict[str, float], peer: str, name: str) -> float | None:
    """The time of a peer over that of a contender; None unless both have one."""
    if peer not in seconds or name not in seconds:
        return None
    return seconds[peer] / seconds[name]


def model_bytes(shape: Shape, dtype: str, variant: str, direction: str) -> int:
    """The bytes that cannot but move: each array once, where a causal row ends at its diagonal.

    Forward reads the scores (and the mask, a byte an element, once for all heads) and writes y.
    Backward reads y and dy and writes the gradient. Zeros beyond the diagonal are written, not
    read. What lies behind a mask counts as read.

    Example:
        >>> model_bytes(Shape(1, 2, 4), "float32", "mask", "fwd")
        272
        >>> model_bytes(Shape(1, 1, 4), "bfloat16", "causal", "both")
        124
    """
    elements = math.prod(shape.scores)
    seen = elements
    if variant == "causal":
        seen = elements // shape.length * (shape.length + 1) // 2
    size = _ITEM_BYTES[dtype]
    total = size * (seen + elements)
    if variant == "mask":
        total += elements // shape.heads
    if direction == "both":
        total += size * (2 * seen + elements)
    return total


def parse_shape(text: str) -> Shape:
    """Parses "4x16x2048" (batch, heads, length), or with a depth behind it.

    Raises:
        ValueError: if the text is neither.

    Example:
        >>> parse_shape("4x16x2048").scores, parse_shape("1x2x32x8").layer
        ((4, 16, 2048, 2048), (1, 32, 2, 8))
    """
    sizes = [int(part) for part in text.split("x")]
    if len(sizes) not in (3, 4) or min(sizes) < 1:
        raise ValueError(f"expected batchxheadsxlength or batchxheadsxlengthxdepth, got {text!r}")
    return Shape(*sizes)
