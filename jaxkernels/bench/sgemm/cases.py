"""The products that are measured, and the record of a measurement. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from jaxkernels.typing import Algorithm

RUNGS: tuple[Algorithm, ...] = get_args(Algorithm)
# The size at which the rungs are compared.
LADDER_SIZE = 4096
TRANSPOSES = ("NN", "NT", "TN", "TT")

# Multiply-adds of an SM in a cycle, times 2, SMs and the highest clock: the FP32 peak by data sheet.
_PEAKS = {"NVIDIA H200": 66.9e12, "NVIDIA H100 80GB HBM3": 66.9e12, "NVIDIA A100": 19.5e12}


@dataclass(frozen=True)
class Product:
    """One product, or a batch of them.

    Attributes:
        group: "square", "other", "transposed" or "ladder".
        batch: members; 1 is a plain product.
        m: rows of the result.
        n: columns of the result.
        k: the contracted dimension.
        transposes: "NN", "NT", "TN" or "TT": how a and b lie in memory.
    """

    group: str
    batch: int
    m: int
    n: int
    k: int
    transposes: str = "NN"

    @property
    def flops(self) -> float:
        """Operations of the product: a multiplication and an addition for each of m n k."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Size of the operands and the result."""
        return 4 * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def is_square(self) -> bool:
        """Whether all matrices have one shape, and there is one product."""
        return self.m == self.n == self.k and self.batch == 1

    @property
    def label(self) -> str:
        """The product as tables name it."""
        if self.is_square:
            size = f"{self.m}^3"
        else:
            size = f"({self.m}, {self.n}, {self.k})"
            size = size if self.batch == 1 else f"{self.batch} x {size}"
        return size if self.transposes == "NN" else f"{size} {self.transposes}"


def _squares(*sizes: int) -> tuple[Product, ...]:
    return tuple(Product("square", 1, n, n, n) for n in sizes)


GPU_PRODUCTS = (
    *_squares(256, 512, 1024, 2048, 4096, 8192),
    Product("other", 1, 4096, 4096, 64),
    Product("other", 1, 64, 4096, 4096),
    Product("other", 1, 8192, 128, 8192),
    Product("other", 1, 128, 128, 65536),
    Product("other", 1, 4097, 4095, 4093),
    Product("other", 1, 1000, 1000, 1000),
    Product("other", 1, 50257, 768, 1024),
    Product("other", 64, 512, 512, 64),
    Product("other", 512, 128, 128, 128),
    *(Product("transposed", 1, n, n, n, t) for n in (1024, 4096) for t in TRANSPOSES),
    Product("ladder", 1, LADDER_SIZE, LADDER_SIZE, LADDER_SIZE),
)
CPU_PRODUCTS = (*_squares(256, 512), Product("other", 4, 96, 80, 64))


@dataclass(frozen=True)
class Measurement:
    """What was measured of one product.

    Attributes:
        group: of the product, as are the five that follow.
        batch: see `Product`.
        m: see `Product`.
        n: see `Product`.
        k: see `Product`.
        transposes: see `Product`.
        plan: the plan of the kernel that "pipelined" runs; empty on a CPU.
        products_per_call: products in the program that was timed.
        seconds: median seconds per product by contender: "xla" and rungs.
        samples: all of them.
        relative_errors: ||C - C64|| / ||C64|| by contender, over sampled rows.
        bound_ratios: largest |C - C64| / (k eps |A| |B|) by contender.
        refused: contenders without a time or an error, and why.
    """

    group: str
    batch: int
    m: int
    n: int
    k: int
    transposes: str
    plan: str
    products_per_call: int
    seconds: dict[str, float]
    samples: dict[str, list[float]]
    relative_errors: dict[str, float]
    bound_ratios: dict[str, float]
    refused: dict[str, str]

    @property
    def is_ladder(self) -> bool:
        """Whether rungs are compared with one another, and not the fastest one with XLA."""
        rungs = {*self.seconds, *self.refused} - {"xla"}
        return self.group == "ladder" or rungs != {"pipelined"}

    @property
    def product(self) -> Product:
        """What was measured."""
        return Product(self.group, self.batch, self.m, self.n, self.k, self.transposes)

    def rate(self, name: str) -> float | None:
        """Operations per second of a contender; None without a time."""
        seconds = self.seconds.get(name)
        return None if seconds is None else self.product.flops / seconds

    def speedup(self, name: str = "pipelined") -> float | None:
        """How many times XLA's rate a contender's is; None unless both have a time."""
        ours, xla = self.seconds.get(name), self.seconds.get("xla")
        return None if ours is None or xla is None else xla / ours


def name_of_xla(platform: str) -> str:
    """What serves XLA's float32 product at the highest precision on a platform, as tables name it.

    Example:
        >>> name_of_xla("gpu"), name_of_xla("cpu")
        ('cuBLAS', 'XLA')
    """
    return "cuBLAS" if platform == "gpu" else "XLA"


def peak_of(device: str) -> float | None:
    """FP32 operations per second of a device, by its name; None where it is not known."""
    if " MIG " in device:  # a part of the device that the name begins with
        return None
    return next((peak for name, peak in _PEAKS.items() if device.startswith(name)), None)


def parse_product(text: str) -> Product:
    """Parses "4096", "64x4096x4096" (m, n, k) or "64x512x512x64" (batch, m, n, k).

    Raises:
        ValueError: if the text is none of these.

    Example:
        >>> parse_product("8x64x32").label, parse_product("256").label
        ('(8, 64, 32)', '256^3')
    """
    sizes = [int(part) for part in text.split("x")]
    if len(sizes) == 1:
        sizes *= 3
    if len(sizes) == 3:
        sizes = [1, *sizes]
    if len(sizes) != 4 or min(sizes) < 1:
        raise ValueError(f"expected n, mxnxk or batchxmxnxk, got {text!r}")
    batch, m, n, k = sizes
    return Product("square" if batch == 1 and m == n == k else "other", batch, m, n, k)
