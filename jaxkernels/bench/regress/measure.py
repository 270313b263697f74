"""Measures every cell: hands those of a group to ``bench.timing`` together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp

from jaxkernels.bench.attention import contenders
from jaxkernels.bench.regress import cases
from jaxkernels.bench.sgemm import measure as sgemm
from jaxkernels.bench.softmax import measure as softmax
from jaxkernels.bench.timing import (
    REFUSALS,
    Contender,
    first_line,
    last_level_cache_bytes,
    measure_together,
    rotations_for,
)


@dataclass(frozen=True)
class Settings:
    """What is measured, and how.

    Attributes:
        groups: of `cases.GROUPS`.
        repeats: samples of each cell.
        min_sample_seconds: least duration of a sample.
    """

    groups: tuple[str, ...]
    repeats: int
    min_sample_seconds: float


def _row_inputs(cell: cases.Rows, rotations: int) -> list[tuple[jax.Array, ...]]:
    """(x,), or of a gradient (y, dy) for every rotation."""
    arrays = 1 if cell.direction == "fwd" else 2
    size = cell.rows * cell.cols
    inputs = []
    for rotation in range(rotations):
        drawn = (softmax.normal(2 * rotation + i, size, cell.dtype) for i in range(arrays))
        inputs.append(tuple(softmax.as_rows(flat, cell.rows, cell.cols) for flat in drawn))
    return inputs


def _row_function(cell: cases.Rows, x: jax.Array) -> Callable[..., jax.Array]:
    if cell.direction == "fwd":
        return softmax.ours(cell.operation, "auto")
    # What its y holds does not matter for its time: the forward need not run.
    return softmax.our_backward(cell.operation, "auto", x)


def _of_rows(cell: cases.Rows) -> tuple[Contender, int]:
    streams = 2 if cell.direction == "fwd" else 3
    touched = streams * cell.rows * cell.cols * jnp.dtype(cell.dtype).itemsize
    cache = last_level_cache_bytes(jax.default_backend())
    inputs = _row_inputs(cell, rotations_for(touched, cache))

    def make() -> Callable[..., Any]:
        return jax.jit(_row_function(cell, inputs[0][0]))

    return Contender(cell.label, make, inputs), 1


def _of_few_rows(cell: cases.Rows) -> tuple[Contender, int]:
    """A chain of calls, whose latency is what counts."""
    inputs = _row_inputs(cell, 1)

    def make() -> Callable[..., Any]:
        return jax.jit(softmax.chain(_row_function(cell, inputs[0][0])))

    return Contender(cell.label, make, inputs), softmax.CHAIN_CALLS


def _of_heads(cell: cases.Heads) -> tuple[Contender, int]:
    scores = cell.kind == "scores"
    function = (contenders.SCORES if scores else contenders.LAYERS)["ours"]
    if cell.direction == "fwd":
        program = contenders.forward(function, cell.variant)
    else:
        program = contenders.both(function, cell.variant, 1 if scores else 3)
    if scores:
        arguments = contenders.score_arguments(cell.shape, cell.dtype, cell.variant)
    else:
        arguments = contenders.layer_arguments(cell.shape, cell.dtype)
    return Contender(cell.label, partial(jax.jit, program), arguments), 1


_MAKERS: dict[str, Callable[[Any], tuple[Contender, int]]] = {
    "rows": _of_rows,
    "few_rows": _of_few_rows,
    "scores": _of_heads,
    "layers": _of_heads,
}


def _together(group: str, cells: Iterable[Any], settings: Settings) -> Iterator[cases.Measurement]:
    """Measures cells of one group in turn; inputs that do not fit the memory are a refusal."""
    ready: list[Contender] = []
    calls: dict[str, int] = {}
    refused: dict[str, str] = {}
    for cell in cells:
        try:
            contender, calls[cell.label] = _MAKERS[group](cell)
            ready.append(contender)
        except REFUSALS as error:
            refused[cell.label] = first_line(error)
    timings, without = measure_together(
        ready, repeats=settings.repeats, min_sample_seconds=settings.min_sample_seconds
    )
    refused |= without
    for label in (*calls, *(set(refused) - set(calls))):
        samples = [s / calls[label] for s in timings[label].samples] if label in timings else []
        yield cases.Measurement(group, label, samples, refused.get(label, ""))


def _products(products: Sequence[Any], settings: Settings) -> Iterator[cases.Measurement]:
    """As ``bench sgemm`` times them, one after the other."""
    how = sgemm.Settings((), None, settings.repeats, settings.min_sample_seconds)
    for product in products:
        count = sgemm.products_per_call(product, jax.default_backend())
        timings, refused = sgemm.time_products(product, count, ("pipelined",), how)
        samples = [s / count for s in timings["pipelined"].samples] if timings else []
        yield cases.Measurement(
            "products", f"product {product.label}", samples, refused.get("pipelined", "")
        )


def _parts(settings: Settings, cells: cases.Cells) -> list[tuple[str, list[Any]]]:
    """Groups, and within them what has one storage type: so many inputs are in memory at once."""
    parts: list[tuple[str, list[Any]]] = []
    for group in settings.groups:
        members = list(getattr(cells, group))
        if group == "products":
            parts.append((group, members))
        else:
            parts += [(group, list(same)) for _, same in groupby(members, lambda cell: cell.dtype)]
    return parts


def cells_of(platform: str) -> cases.Cells:
    """The cells of a platform."""
    return cases.CPU if platform == "cpu" else cases.GPU


def count_parts(settings: Settings) -> int:
    """How many times ``measure`` announces a step."""
    return len(_parts(settings, cells_of(jax.default_backend())))


def measure(settings: Settings, announce: Callable[[str], None]) -> list[cases.Measurement]:
    """Measures every cell of the groups that were asked for.

    Args:
        settings: what to measure.
        announce: called with a description when some cells begin.
    """
    found: list[cases.Measurement] = []
    for group, members in _parts(settings, cells_of(jax.default_backend())):
        announce(f"{len(members)} cells of {group}")
        measured = (
            _products(members, settings)
            if group == "products"
            else _together(group, members, settings)
        )
        found += measured
    return found
