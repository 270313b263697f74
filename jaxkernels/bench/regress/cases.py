"""The cells that are measured, and the record of one. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from jaxkernels.bench.attention.cases import Shape
from jaxkernels.bench.sgemm.cases import Product
from jaxkernels.bench.softmax.cases import rows_for

GROUPS = ("rows", "few_rows", "scores", "layers", "products")


@dataclass(frozen=True)
class Rows:
    """A softmax of rows: operation, "fwd" or "grad", storage type and shape."""

    operation: str
    direction: str
    dtype: str
    rows: int
    cols: int

    @property
    def label(self) -> str:
        """The cell as tables and comparisons name it."""
        return f"{self.operation} {self.direction} {self.dtype} {self.rows}x{self.cols}"


@dataclass(frozen=True)
class Heads:
    """A softmax of scores or a layer of attention: storage type, variant, "fwd" or "both", shape."""

    kind: str
    dtype: str
    variant: str
    direction: str
    shape: Shape

    @property
    def label(self) -> str:
        """The cell as tables and comparisons name it."""
        s = self.shape
        size = f"{s.batch}x{s.heads}x{s.length}"
        size += f"x{s.depth}" if self.kind == "layers" else ""
        return f"{self.kind} {self.variant} {self.direction} {self.dtype} {size}"


@dataclass(frozen=True)
class Cells:
    """All cells of a platform, by group."""

    rows: tuple[Rows, ...]
    few_rows: tuple[Rows, ...]
    scores: tuple[Heads, ...]
    layers: tuple[Heads, ...]
    products: tuple[Product, ...]

    def __len__(self) -> int:
        return sum(len(getattr(self, group)) for group in GROUPS)


def _rows(operation: str, cols: tuple[int, ...], dtypes: tuple[str, ...], elements: int):
    return tuple(
        Rows(operation, direction, dtype, rows_for(elements, length), length)
        for dtype in dtypes
        for direction in ("fwd", "grad")
        for length in cols
    )


def _heads(kind: str, variants: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[Heads, ...]:
    return tuple(
        Heads(kind, dtype, variant, direction, shape)
        for dtype in ("float32", "bfloat16")
        for direction in ("fwd", "both")
        for variant in variants
        for shape in shapes
    )


_DTYPES = ("float32", "bfloat16")
_GPU_ELEMENTS = 2**26
_FEW = ((1, 32768), (1, 131072), (8, 131072), (64, 128256), (256, 256), (4096, 128))

# Of every tier a length or two, on any GPU: registers of a warp and of a block, shared memory of a
# block and of a cluster, and none.
GPU = Cells(
    rows=(
        *_rows(
            "softmax", (32, 1000, 1001, 4096, 16384, 50257, 131072, 2**20), _DTYPES, _GPU_ELEMENTS
        ),
        *_rows("log_softmax", (257, 8192, 50257, 131072), _DTYPES, _GPU_ELEMENTS),
        *_rows("softmax", (1000, 50257), ("float16",), _GPU_ELEMENTS),
    ),
    few_rows=tuple(
        Rows("softmax", direction, dtype, *shape)
        for dtype in _DTYPES
        for direction, shapes in (("fwd", _FEW), ("grad", _FEW[2:5]))
        for shape in shapes
    ),
    scores=_heads("scores", ("plain", "mask", "causal"), (Shape(4, 16, 1024),)),
    layers=_heads("layers", ("plain", "causal"), (Shape(4, 16, 1024),)),
    products=(
        *(Product("square", 1, n, n, n) for n in (256, 512, 1024, 2048, 4096)),
        Product("other", 1, 4096, 4096, 64),
        Product("other", 1, 64, 4096, 4096),
        Product("other", 1, 128, 128, 65536),
        Product("other", 1, 4097, 4095, 4093),
        Product("other", 1, 50257, 768, 1024),
        Product("other", 64, 512, 512, 64),
        Product("other", 512, 128, 128, 128),
        *(Product("transposed", 1, 1024, 1024, 1024, t) for t in ("NT", "TN", "TT")),
    ),
)
CPU = Cells(
    rows=(
        *_rows("softmax", (64, 1001, 4096), _DTYPES, 2**20),
        *_rows("log_softmax", (1001,), _DTYPES, 2**20),
        *_rows("softmax", (1001,), ("float16",), 2**20),
    ),
    few_rows=tuple(
        Rows("softmax", direction, dtype, 4, 512)
        for dtype in _DTYPES
        for direction in ("fwd", "grad")
    ),
    scores=_heads("scores", ("plain", "mask", "causal"), (Shape(1, 4, 256),)),
    layers=_heads("layers", ("causal",), (Shape(1, 4, 128, 32),)),
    products=(Product("square", 1, 256, 256, 256), Product("other", 4, 96, 80, 64)),
)


@dataclass(frozen=True)
class Measurement:
    """What was measured of one cell.

    Attributes:
        group: of GROUPS.
        label: what it is; the same in every run.
        samples: seconds per call; none where it was refused.
        refused: why there are none; else empty.
    """

    group: str
    label: str
    samples: list[float] = field(default_factory=list)
    refused: str = ""

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile; with one sample, that."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return first, third

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a part of the median."""
        first, third = self.quartiles
        return (third - first) / self.seconds
