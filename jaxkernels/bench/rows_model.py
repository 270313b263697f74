"""What a row operation must move, what that is compared with, and regions of row lengths. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxkernels.bench.records import Measured

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DTYPES = tuple(_ITEM_BYTES)


@dataclass(frozen=True)
class Traffic:
    """What a pass over the rows of x cannot but move.

    Attributes:
        reads: arrays of the size of x that are read.
        writes: arrays of that size that are written.
        scalars: elements besides, for each row.
        ceiling: the pass over memory that it is compared with, of `CEILINGS`.
    """

    reads: int
    writes: int = 0
    scalars: int = 0
    ceiling: str = ""

    def size(self, m: Measured) -> int:
        """Bytes in a case."""
        row = (self.reads + self.writes) * m["cols"] + self.scalars
        return m["rows"] * row * _ITEM_BYTES[m["dtype"]]


# Passes over memory: the contenders that make them, of which the fastest one counts.
CEILINGS = {
    "copy": {"copy": Traffic(reads=1, writes=1)},
    "read": {
        "row_max": Traffic(reads=1, scalars=1),
        "sum": Traffic(reads=1),
        "piece_max": Traffic(reads=1),
    },
}

# The last column count of the first region, whose rows a warp can hold.
_SHORT_COLS = 4096
_SM_BYTES = 227 * 1024  # of shared memory, on an H200
_CLUSTER_BYTES = 16 * _SM_BYTES
REGIONS = {
    "short": "up to 4096 columns",
    "shared": "larger, while an SM could hold them",
    "cluster": "larger still, held by a cluster",
    "filling": "one row fills a cluster",
    "uncached": "beyond shared memory",
    "all": "all",
}


def over_xla(m: Measured) -> float | None:
    """How many times faster than XLA ours is."""
    return m.ratio("xla", "auto")


def is_rows(m: Measured) -> bool:
    """Whether a case is one of throughput, and not of few rows."""
    return m["group"] == "rows"


def kind(m: Measured) -> tuple[str, str]:
    """The dtype and the direction."""
    return m["dtype"], m["direction"]


def odd_pairs(members: Sequence[Measured]) -> list[Sequence[Measured]]:
    """Each case of an odd column count with that of its even neighbour, where both were measured."""
    found = {(*kind(m), m["cols"]): m for m in members if is_rows(m)}
    pairs = []
    for (dtype, direction, cols), m in found.items():
        neighbours = [(dtype, direction, cols + step) for step in (-1, 1)]
        even = [found[key] for key in neighbours if key in found]
        if cols % 2 and even:
            pairs.append([m, even[0]])
    return pairs


@dataclass(frozen=True)
class RowModel:
    """What is known of a row operation before it is measured.

    Attributes:
        traffic: of each of its directions.
    """

    traffic: Mapping[str, Traffic]

    def rate(self, m: Measured, name: str = "auto") -> float | None:
        """The model bytes per second of a contender, or of the fastest one of a ceiling."""
        passes = CEILINGS.get(name) or {name: self.traffic[m["direction"]]}
        rates = (m.rate(moved.size(m), contender) for contender, moved in passes.items())
        return max((rate for rate in rates if rate is not None), default=None)

    def ceiling(self, m: Measured) -> str:
        """The pass over memory that a case is compared with."""
        return self.traffic[m["direction"]].ceiling

    def of_ceiling(self, m: Measured) -> float | None:
        """The rate of ours as a fraction of the ceiling's in this very case."""
        ceiling, own = self.rate(m, self.ceiling(m)), self.rate(m)
        return None if ceiling is None or own is None else own / ceiling

    def region(self, m: Measured) -> str:
        """The region of row lengths of a case, of `REGIONS`; "all" without a plan."""
        if not m["tier"]:
            return "all"
        if m["cols"] <= _SHORT_COLS:
            return "short"
        if m["tier"] == "block_uncached":
            return "uncached"
        # Rows of clusters count as shared where the memory of an SM would hold them, and as a
        # region of their own where an SM has room for one part of a row only.
        read = self.traffic[m["direction"]].reads * m["cols"] * _ITEM_BYTES[m["dtype"]]
        if m["tier"] != "cluster" or read <= _SM_BYTES:
            return "shared"
        return "cluster" if read <= _CLUSTER_BYTES / 2 else "filling"
