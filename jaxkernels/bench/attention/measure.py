"""Measures attention: hands the contenders of every case to ``bench.timing``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import jax

from jaxkernels.bench.attention import cases, contenders
from jaxkernels.bench.attention.contenders import Arguments, Function
from jaxkernels.bench.timing import REFUSALS, Contender, Timing, first_line, measure_together


@dataclass(frozen=True)
class Settings:
    """Everything that decides what is measured.

    Attributes:
        scores: shapes whose softmax of scores is measured.
        layers: shapes whose layers are measured.
        dtypes: of "bfloat16", "float32".
        variants: of "plain", "mask", "causal"; layers have no "mask".
        directions: of "fwd", "both".
        repeats: samples per median.
        min_sample_seconds: least duration of a sample.
    """

    scores: tuple[cases.Shape, ...]
    layers: tuple[cases.Shape, ...]
    dtypes: tuple[str, ...]
    variants: tuple[str, ...]
    directions: tuple[str, ...]
    repeats: int
    min_sample_seconds: float

    @property
    def layer_variants(self) -> tuple[str, ...]:
        """The variants that are measured of layers."""
        return tuple(variant for variant in self.variants if variant != "mask")

    @property
    def steps(self) -> int:
        """How many times `measure_scores` and `measure_layers` announce a step."""
        kinds = len(self.scores) * len(self.variants) + len(self.layers) * len(self.layer_variants)
        return kinds * len(self.dtypes) * len(self.directions)


def _make(name: str, function: Function, arguments: Arguments) -> Function:
    """The function under jit.

    Raises:
        NotImplementedError: cuDNN is not there, which JAX says by a bare RuntimeError when it
            traces. From anything else that is a bug.
    """
    if name == "cudnn":
        try:
            jax.eval_shape(function, *arguments)
        except RuntimeError as error:
            raise NotImplementedError(first_line(error)) from error
    return jax.jit(function)


def _time(
    settings: Settings, functions: dict[str, Function], arguments: Sequence[Arguments]
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Times functions on the same arguments, in turn."""
    return measure_together(
        [
            Contender(name, partial(_make, name, function, arguments[0]), arguments)
            for name, function in functions.items()
        ],
        repeats=settings.repeats,
        min_sample_seconds=settings.min_sample_seconds,
    )


def _temp_bytes(
    functions: dict[str, Function], arguments: Arguments, names: Iterable[str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Temporary memory of the compiled programs, beyond arguments and results; who has none."""
    found, refused = {}, {}
    for name in names:
        try:
            analysis = jax.jit(functions[name]).lower(*arguments).compile().memory_analysis()
        except REFUSALS as error:
            refused[name] = f"memory not measured: {first_line(error)}"
            continue
        if analysis is None:
            refused[name] = "memory not measured: this backend does not tell"
        else:
            found[name] = int(analysis.temp_size_in_bytes)
    return found, refused


def _kernels(function: Function, arguments: Arguments) -> list[str]:
    """Our kernels in the compiled program."""
    text = jax.jit(function).lower(*arguments).compile().as_text() or ""
    return sorted(set(re.findall(r'custom_call_target="jaxkernels_(\w+)"', text)))


def _measure_scores(
    settings: Settings, dtype: str, shape: cases.Shape, variant: str, direction: str
) -> cases.Scores:
    """Measures one case; inputs that do not fit the memory are a refusal of all contenders."""
    wrap = contenders.forward if direction == "fwd" else partial(contenders.both, differentiated=1)
    functions = {name: wrap(function, variant) for name, function in contenders.SCORES.items()}
    functions = {"copy": contenders.copy, **functions}
    timings: dict[str, Timing] = {}
    temp: dict[str, int] = {}
    try:
        arguments = contenders.score_arguments(shape, dtype, variant)
    except REFUSALS as error:
        refused = dict.fromkeys(functions, first_line(error))
    else:
        timings, refused = _time(settings, functions, arguments)
        if direction == "both":
            names = [name for name in contenders.SCORES if name in timings]
            temp, without = _temp_bytes(functions, arguments[0], names)
            refused = {**without, **refused}
    return cases.Scores(
        dtype=dtype,
        variant=variant,
        direction=direction,
        batch=shape.batch,
        heads=shape.heads,
        length=shape.length,
        seconds={name: timing.seconds for name, timing in timings.items()},
        samples={name: list(timing.samples) for name, timing in timings.items()},
        temp_bytes=temp,
        refused=refused,
    )


def measure_scores(settings: Settings, announce: Callable[[str], None]) -> list[cases.Scores]:
    """Measures the softmax of scores.

    Args:
        settings: what to measure.
        announce: called with a description when a case begins.
    """
    results = []
    for dtype in settings.dtypes:
        for shape in settings.scores:
            for variant in settings.variants:
                for direction in settings.directions:
                    announce(f"scores {dtype} {direction} {variant} {shape.scores}")
                    results.append(_measure_scores(settings, dtype, shape, variant, direction))
    return results


def _measure_layer(
    settings: Settings, dtype: str, shape: cases.Shape, variant: str, direction: str
) -> cases.Layer:
    wrap = contenders.forward if direction == "fwd" else partial(contenders.both, differentiated=3)
    peers = (
        contenders.LAYERS
        if dtype == "float32"
        else {**contenders.LAYERS, "cudnn": contenders.CUDNN}
    )
    functions = {name: wrap(function, variant) for name, function in peers.items()}
    arguments = contenders.layer_arguments(shape, dtype)
    timings, refused = _time(settings, functions, arguments)
    return cases.Layer(
        dtype=dtype,
        causal=variant == "causal",
        direction=direction,
        batch=shape.batch,
        heads=shape.heads,
        length=shape.length,
        depth=shape.depth,
        seconds={name: timing.seconds for name, timing in timings.items()},
        samples={name: list(timing.samples) for name, timing in timings.items()},
        kernels=_kernels(functions["ours"], arguments[0]) if "ours" in timings else [],
        refused=refused,
    )


def measure_layers(settings: Settings, announce: Callable[[str], None]) -> list[cases.Layer]:
    """Measures whole layers; arguments as `measure_scores` has them."""
    results = []
    for dtype in settings.dtypes:
        for shape in settings.layers:
            for variant in settings.layer_variants:
                for direction in settings.directions:
                    announce(f"layer {dtype} {direction} {variant} {shape.layer}")
                    results.append(_measure_layer(settings, dtype, shape, variant, direction))
    return results
