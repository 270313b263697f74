"""Measures softmax: builds inputs and contenders, hands them to ``bench.timing``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench.softmax import cases
from jaxkernels.bench.timing import (
    Contender,
    last_level_cache_bytes,
    measure_together,
    rotations_for,
)
from jaxkernels.typing import Operation

# Calls in the jitted chain of the few-rows section: enough to hide the dispatch of the chain.
CHAIN_CALLS = 64

_OURS: dict[str, Callable[..., jax.Array]] = {"softmax": jk.softmax, "log_softmax": jk.log_softmax}
_XLA = {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}


@dataclass(frozen=True)
class Settings:
    """Everything that decides what is measured.

    Attributes:
        operation: "softmax" or "log_softmax".
        cols: column counts.
        dtypes: storage types.
        directions: of "fwd", "grad".
        tiers: of "auto" and the forced tiers.
        elements: size of every input; rows = elements // cols.
        repeats: samples per median.
        min_sample_seconds: least duration of a sample.
        few_rows: whether to measure the small shapes as well.
    """

    operation: str
    cols: tuple[int, ...]
    dtypes: tuple[str, ...]
    directions: tuple[str, ...]
    tiers: tuple[str, ...]
    elements: int
    repeats: int
    min_sample_seconds: float
    few_rows: bool

    @property
    def steps(self) -> int:
        """How many times ``measure`` and ``measure_few_rows`` announce a step."""
        few = len(cases.FEW_ROWS_SHAPES) if self.few_rows else 0
        return len(self.dtypes) * (len(self.cols) * len(self.directions) + few)


@partial(jax.jit, static_argnums=(1, 2))
def normal(seed: int, elements: int, dtype: str) -> jax.Array:
    """Returns random normal numbers, drawn in float32, rounded to ``dtype``."""
    return jax.random.normal(jax.random.key(seed), (elements,), jnp.float32).astype(dtype)


@partial(jax.jit, static_argnums=(1, 2))
def as_rows(flat: jax.Array, rows: int, cols: int) -> jax.Array:
    """Returns the first ``rows * cols`` numbers as a matrix."""
    return flat[: rows * cols].reshape(rows, cols)


def ours(operation: str, tier: str) -> Callable[[jax.Array], jax.Array]:
    """Returns our function; it refuses instead of falling back to XLA."""
    forced = None if tier == "auto" else tier
    return partial(_OURS[operation], tier=forced, implementation="ffi")


def our_backward(operation: str, tier: str, x: jax.Array) -> Callable[..., jax.Array]:
    """Returns (y, dy) -> dx: our vjp as a function of its only residual, y.

    ``jax.vjp`` returns a pytree whose leaves are the residuals. Its structure comes from an
    abstract evaluation, and y takes the place of the leaf, so the forward runs nowhere.

    Raises:
        RuntimeError: if the backward pass keeps anything besides y.
    """
    forward = ours(operation, tier)
    pullback = jax.eval_shape(lambda primal: jax.vjp(forward, primal)[1], x)
    residuals, structure = jax.tree.flatten(pullback)
    kept = [(leaf.shape, leaf.dtype) for leaf in residuals]
    if kept != [(x.shape, x.dtype)]:
        raise RuntimeError(f"the backward pass must keep y alone, it keeps {kept}")
    return jax.jit(lambda y, dy: jax.tree.unflatten(structure, [y])(dy)[0])


def _xla_backward(operation: str) -> Callable[..., jax.Array]:
    """Returns (y, dy) -> dx as XLA compiles the autodiff of ``jax.nn``, from y."""
    if operation == "softmax":
        return lambda y, dy: y * (dy - jnp.sum(dy * y, axis=-1, keepdims=True))
    return lambda y, dy: dy - jnp.exp(y) * jnp.sum(dy, axis=-1, keepdims=True)


def _planned_tier(settings: Settings, dtype: str, direction: str, rows: int, cols: int) -> str:
    """Returns the tier that would be chosen on this GPU; empty on other platforms."""
    if jax.default_backend() != "gpu":
        return ""
    operation = cast(Operation, f"{settings.operation}_{direction}")
    return str(jk.plan_softmax((rows, cols), jnp.dtype(dtype), operation=operation).tier)


def _contenders(
    settings: Settings, direction: str, inputs: Sequence[tuple[jax.Array, jax.Array]]
) -> list[Contender]:
    """Returns copy, XLA and ours for one case.

    Args:
        settings: what to measure.
        direction: "fwd" or "grad".
        inputs: (x, dy) per rotation.
    """
    operation = settings.operation
    xs = [(x,) for x, _ in inputs]
    contenders = [Contender("copy", lambda: jax.jit(jnp.copy), xs)]
    if direction == "fwd":
        contenders.append(Contender("xla", lambda: jax.jit(_XLA[operation]), xs))
        for tier in settings.tiers:
            contenders.append(Contender(tier, partial(jax.jit, ours(operation, tier)), xs))
        return contenders
    forward = jax.jit(_XLA[operation])
    pairs = [(forward(x), dy) for x, dy in inputs]
    shape = inputs[0][0]
    contenders.append(Contender("xla", lambda: jax.jit(_xla_backward(operation)), pairs))
    for tier in settings.tiers:
        contenders.append(Contender(tier, partial(our_backward, operation, tier, shape), pairs))
    return contenders


def measure(settings: Settings, announce: Callable[[str], None]) -> list[cases.Measurement]:
    """Measures every (dtype, cols, direction).

    Args:
        settings: what to measure.
        announce: called with a description when a case begins.

    Raises:
        RuntimeError: if not even the copy runs, for then no ratio means anything.
    """
    cache = last_level_cache_bytes(jax.default_backend())
    results = []
    for dtype in settings.dtypes:
        working_set = cases.model_bytes("fwd", dtype, 1, settings.elements)
        count = rotations_for(working_set, cache)
        elements = max(settings.elements, *settings.cols)
        flats = [
            (normal(2 * i, elements, dtype), normal(2 * i + 1, elements, dtype))
            for i in range(count)
        ]
        for cols in settings.cols:
            rows = cases.rows_for(settings.elements, cols)
            inputs = [(as_rows(x, rows, cols), as_rows(dy, rows, cols)) for x, dy in flats]
            for direction in settings.directions:
                announce(f"{dtype} {direction} {rows} x {cols}")
                timings, refused = measure_together(
                    _contenders(settings, direction, inputs),
                    repeats=settings.repeats,
                    min_sample_seconds=settings.min_sample_seconds,
                )
                if "copy" in refused:
                    raise RuntimeError(f"the plain copy failed: {refused['copy']}")
                results.append(
                    cases.Measurement(
                        dtype=dtype,
                        direction=direction,
                        rows=rows,
                        cols=cols,
                        tier=_planned_tier(settings, dtype, direction, rows, cols),
                        seconds={name: timing.seconds for name, timing in timings.items()},
                        samples={name: list(timing.samples) for name, timing in timings.items()},
                        refused=refused,
                    )
                )
    return results


def chain(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Returns a function that applies ``function`` again and again to its own result.

    The result takes the place of the last argument; the others stay as they are.

    The calls depend on one another, so they cannot overlap; the barrier keeps XLA from fusing the
    end of one call with the beginning of the next. The chain is unrolled, because each turn of a
    jitted loop would cost more than these kernels take.
    """

    def chained(*arguments: jax.Array) -> jax.Array:
        *others, x = arguments
        for _ in range(CHAIN_CALLS):
            x = function(*others, jax.lax.optimization_barrier(x))
        return x

    return chained


def measure_few_rows(settings: Settings, announce: Callable[[str], None]) -> list[cases.FewRows]:
    """Measures the forward on inputs so small that the latency of a call is what counts."""
    results = []
    for dtype in settings.dtypes:
        for rows, cols in cases.FEW_ROWS_SHAPES:
            announce(f"{dtype} few rows {rows} x {cols}")
            x = as_rows(normal(0, rows * cols, dtype), rows, cols)
            functions = {"xla": _XLA[settings.operation], "auto": ours(settings.operation, "auto")}
            timings, refused = measure_together(
                [
                    Contender(name, partial(jax.jit, chain(function)), [(x,)])
                    for name, function in functions.items()
                ],
                repeats=settings.repeats,
                min_sample_seconds=settings.min_sample_seconds,
            )
            seconds = {name: timing.seconds / CHAIN_CALLS for name, timing in timings.items()}
            results.append(cases.FewRows(dtype, rows, cols, seconds, refused))
    return results
