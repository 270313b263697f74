"""What is measured: column counts, cases and the record of one measurement. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from jaxkernels.typing import Tier

DIRECTIONS = ("fwd", "grad")
DTYPES = ("float32", "bfloat16", "float16")
TIERS = ("auto", *get_args(Tier))

# Powers of two, model widths, vocabularies, and odd lengths beside their even neighbours.
GPU_COLS = (
    *(32, 64, 128, 256, 512, 768, 1000, 1001, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384),
    *(24576, 32768, 50256, 50257, 65536, 131072, 151935, 151936, 262144, 524288, 1048576),
)
CPU_COLS = (64, 1024, 4096, 32768, 50257)
GPU_ELEMENTS = 2**28
CPU_ELEMENTS = 2**24

# The last column count of the first region, whose rows a warp can hold.
SHORT_COLS = 4096
# "" is the only region where no plan applies (CPU).
REGIONS = ("short", "shared", "cluster", "filling", "uncached", "")
FEW_ROWS_SHAPES = (
    *((1, 32768), (1, 131072), (8, 131072), (64, 128256)),
    *((256, 256), (4096, 128)),
)

_SM_BYTES = 227 * 1024  # of shared memory, on an H200
_CLUSTER_BYTES = 16 * _SM_BYTES
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Arrays of the size of x that each direction must move.
_STREAMS = {"fwd": 2, "grad": 3}


@dataclass(frozen=True)
class Measurement:
    """Times of every contender on one (dtype, direction, rows, cols).

    Attributes:
        dtype: storage type.
        direction: "fwd" or "grad".
        rows: number of rows.
        cols: row length.
        tier: the tier that the plan chooses by itself; empty where no plan applies (CPU).
        seconds: median time of one call, by contender: "copy", "xla", "auto" and forced tiers.
        samples: the samples behind each median.
        refused: for each contender without a time, the reason.
    """

    dtype: str
    direction: str
    rows: int
    cols: int
    tier: str
    seconds: dict[str, float]
    samples: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def throughput(self, name: str) -> float | None:
        """Returns the model bytes per second of a contender; None if it has no time."""
        if name not in self.seconds:
            return None
        direction = "fwd" if name == "copy" else self.direction
        return model_bytes(direction, self.dtype, self.rows, self.cols) / self.seconds[name]

    def fraction_of_copy(self, name: str = "auto") -> float | None:
        """Returns a contender's throughput as a fraction of the copy's in this very case."""
        copy, own = self.throughput("copy"), self.throughput(name)
        return None if copy is None or own is None else own / copy

    def speedup(self, name: str = "auto") -> float | None:
        """Returns how many times faster than XLA a contender is."""
        if name not in self.seconds or "xla" not in self.seconds:
            return None
        return self.seconds["xla"] / self.seconds[name]

    @property
    def region(self) -> str:
        """The region that tables sum up, one of REGIONS."""
        if not self.tier:
            return ""
        if self.cols <= SHORT_COLS:
            return "short"
        if self.tier == "block_uncached":
            return "uncached"
        # Rows of clusters count as shared where the memory of an SM would hold them, and as a
        # region of their own where an SM has room for one part of a row only.
        read = (_STREAMS[self.direction] - 1) * self.cols * _ITEM_BYTES[self.dtype]
        if self.tier != "cluster" or read <= _SM_BYTES:
            return "shared"
        return "cluster" if read <= _CLUSTER_BYTES / 2 else "filling"


@dataclass(frozen=True)
class FewRows:
    """Seconds per call on a small input, inside one jitted chain of calls, by contender."""

    dtype: str
    rows: int
    cols: int
    seconds: dict[str, float]
    refused: dict[str, str] = field(default_factory=dict)


def model_bytes(direction: str, dtype: str, rows: int, cols: int) -> int:
    """Returns the bytes that a direction cannot help moving: each array once.

    Example:
        >>> model_bytes("fwd", "bfloat16", 4, 8), model_bytes("grad", "float32", 4, 8)
        (128, 384)
    """
    return _STREAMS[direction] * rows * cols * _ITEM_BYTES[dtype]


def rows_for(elements: int, cols: int) -> int:
    """Returns how many rows of ``cols`` fit ``elements``, at least one."""
    return max(1, elements // cols)


def even_neighbour(cols: int, measured: set[int]) -> int | None:
    """Returns the even column count next to an odd one, if it was measured.

    Example:
        >>> even_neighbour(50257, {50256, 50257}), even_neighbour(1000, {1000, 1001})
        (50256, None)
    """
    if cols % 2 == 0:
        return None
    return next((other for other in (cols - 1, cols + 1) if other in measured), None)
