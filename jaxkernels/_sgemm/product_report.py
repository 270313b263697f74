"""The report of `float32_matmuls`: which products of a program jaxkernels computes.

Owns: the report's classes, and where a product is in a program. Must not know: how jaxprs are rewritten.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.extend.core as jex
from jax.extend import source_info_util

from jaxkernels._sgemm.rewriting import KERNELS, why_left

_PACKAGE = f"{Path(__file__).parents[1]}/"


class Product(NamedTuple):
    """A product in a program.

    Attributes:
        operation: name of the primitive, such as "dot_general".
        operands: types of the first two operands, such as "float32[8,16]"; empty for kernels.
        where: the functions and loops around it, and the line of its source.
        reason: why the product is unchanged; empty if jaxkernels computes it.
    """

    operation: str
    operands: tuple[str, ...]
    where: str
    reason: str

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{' '.join((self.operation, *self.operands))} in {self.where}{reason}"


@dataclasses.dataclass(frozen=True)
class ProductReport:
    """The products of a program, from `float32_matmuls.report`. It prints as a list.

    Attributes:
        taken: products that jaxkernels computes, with counts.
        left: products that jaxkernels does not compute, and solvers, kernels and custom calls, with counts.
    """

    taken: dict[Product, int]
    left: dict[Product, int]

    def __str__(self) -> str:
        lines = []
        for title, products in {"products by jaxkernels": self.taken, "left": self.left}.items():
            lines.append(f"{sum(products.values())} {title}")
            lines += [f"  {count} x {product}" for product, count in products.items()]
        return "\n".join(lines)


def report_of(jaxpr: Any) -> ProductReport:
    """The products of a jaxpr."""
    counts = collections.Counter(_products(jaxpr, ()))
    return ProductReport(
        {product: count for product, count in counts.items() if not product.reason},
        {product: count for product, count in counts.items() if product.reason},
    )


def _products(jaxpr: Any, path: tuple[str, ...], place: str = "") -> Iterator[Product]:
    """The products of a jaxpr in its order; `path` and the line `place` are around it."""
    for eqn in jaxpr.eqns:
        name, reason = eqn.primitive.name, why_left(eqn)
        if reason is None:
            inside = (*path, " ".join([name, *filter(None, [eqn.params.get("name")])]))
            for inner in jex.jaxprs_in_params(eqn.params):
                yield from _products(inner, inside, _line(eqn) or place)
            continue
        line = _line(eqn) or place
        operands = [v.aval.str_short() for v in eqn.invars[:2] if name not in KERNELS]
        yield Product(name, tuple(operands), " / ".join((*path, line)), reason)


def _line(eqn: Any) -> str:
    """The user's line of an equation; empty if JAX does not know it."""
    lines = source_info_util.summarize(eqn.source_info, num_frames=100).splitlines()
    return next((line for line in reversed(lines) if not line.startswith(_PACKAGE)), "")
