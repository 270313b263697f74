"""The suite ``attention``: softmax of attention scores, and whole attention layers.

Compared in one run, timed as written down in ``jaxkernels.bench.timing``:

* Scores (batch, heads, q, k): scale and softmax alone ("plain"), under a boolean mask of padding
  (batch, 1, q, k) ("mask"), and causal ("causal"). ``xla`` is what Flax's layers do, in the
  scores' own type under jit: ``softmax(where(mask, scores * scale, finfo.min))``; the causal mask
  is made inside, in the form most favourable to XLA. ``copy`` is a jitted copy of the scores.

  - ``fwd``: y from the scores.
  - ``both``: y and the gradient, from the scores and a given cotangent, by ``jax.vjp``.
* Layers (batch, length, heads, depth): ``jaxkernels.dot_product_attention`` beside
  ``jax.nn.dot_product_attention``: in float32 at the highest precision, in bfloat16 as it is and
  by cuDNN's fused kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import attention_report
from jaxkernels.bench.attention_report import DIRECTIONS, DTYPES, layer_shape, scores_shape
from jaxkernels.bench.options import several, sizes
from jaxkernels.bench.programs import SCALE, draw_normal, forward, rotations, with_gradient
from jaxkernels.bench.records import Case
from jaxkernels.bench.suite import Arguments, Axis, Function, Options, Program, Suite, Watched
from jaxkernels.bench.timing import first_line

GROUPS = ("scores", "layers")
VARIANTS = ("plain", "mask", "causal")
# (batch, heads, length), and the depth of a head, which scores do not depend on.
GPU_SCORES = ((64, 16, 512), (16, 16, 1024), (4, 16, 2048), (1, 16, 4096), (1, 16, 8192))
GPU_LAYERS = ((4, 16, 2048, 64),)
# Where the GPU's shapes are too large: the CPU gets this part of their batch x heads.
CPU_PART = 16
_DEPTH = 64


def part(shape: Sequence[int], divisor: int = CPU_PART) -> tuple[int, ...]:
    """The shape with batch * heads divided: the batch as far as it goes, then the heads.

    Example:
        >>> part((64, 16, 512)), part((4, 16, 2048))
        ((4, 16, 512), (1, 4, 2048))
    """
    batch, heads, *rest = shape
    of_batch = math.gcd(batch, divisor)
    return (batch // of_batch, heads // math.gcd(heads, divisor // of_batch), *rest)


def heads_case(group: str, dtype: str, variant: str, direction: str, shape: Sequence[int]) -> Case:
    """A case of (batch, heads, length), for layers with a depth."""
    names = (
        ("batch", "heads", "length", "depth") if group == "layers" else ("batch", "heads", "length")
    )
    kind = {"group": group, "dtype": dtype, "variant": variant, "direction": direction}
    return kind | dict(zip(names, (*shape, _DEPTH), strict=False))


def cases(options: Options) -> Iterable[Case]:
    """Every dtype, shape, variant and direction; layers have no mask."""
    on_cpu = jax.default_backend() == "cpu"
    default = {"scores": GPU_SCORES, "layers": GPU_LAYERS}
    asked = {"scores": options.shapes, "layers": options.layer_shapes}
    for group in GROUPS:
        shapes = asked[group] or [part(s) if on_cpu else s for s in default[group]]
        variants = [v for v in VARIANTS if group == "scores" or v != "mask"]
        for dtype, shape, variant, direction in product(DTYPES, shapes, variants, DIRECTIONS):
            yield heads_case(group, dtype, variant, direction, shape)


@partial(jax.jit, static_argnums=(0, 1))
def padding(batch: int, length: int) -> jax.Array:
    """A mask (batch, 1, length, length) of sequences of random lengths, a quarter at least."""
    least = max(1, length // 4)
    kept = jax.random.randint(jax.random.key(0), (batch, 1, 1, 1), least, length + 1)
    return jnp.broadcast_to(jnp.arange(length) < kept, (batch, 1, length, length))


def draw(case: Case) -> list[Arguments]:
    """(cotangent, scores), and the mask if there is one; or (cotangent, queries, keys, values)."""
    is_scores = case["group"] == "scores"
    shape, arrays = (scores_shape(case), 2) if is_scores else (layer_shape(case), 4)
    touched = arrays * math.prod(shape) * jnp.dtype(case["dtype"]).itemsize
    mask = (padding(case["batch"], case["length"]),) if case["variant"] == "mask" else ()
    drawn = draw_normal(shape, case["dtype"], arrays, rotations(touched))
    return [(*arguments, *mask) for arguments in drawn]


def _our_softmax(variant: str, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Ours; it refuses instead of falling back to XLA."""
    return jk.scaled_masked_softmax(
        x, mask, scale=SCALE, causal=variant == "causal", implementation="ffi"
    )


def _xla_softmax(variant: str, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """What Flax's layers do with scores, all in the type of the scores."""
    scaled = x * SCALE
    if variant == "causal":
        row, col = (jax.lax.broadcasted_iota(jnp.int32, x.shape[-2:], axis) for axis in (0, 1))
        mask = col <= row
    if mask is not None:
        scaled = jnp.where(mask, scaled, jnp.finfo(x.dtype).min)
    return jax.nn.softmax(scaled)


def _xla_layer(
    variant: str, q: jax.Array, k: jax.Array, v: jax.Array, *, implementation: str = "xla"
) -> jax.Array:
    """jax.nn's layer; float32 at the highest precision, for its default is TF32."""
    precision = "highest" if q.dtype == jnp.float32 else "default"
    causal = variant == "causal"
    with jax.default_matmul_precision(precision):
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            is_causal=causal,
            implementation=implementation,  # type: ignore[arg-type]
        )


def _our_layer(variant: str, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Ours, as a user gets it."""
    return jk.dot_product_attention(q, k, v, is_causal=variant == "causal")


_SCORES = {
    "copy": lambda variant, x, mask=None: jnp.copy(x),  # read and written once, whatever else
    "xla": _xla_softmax,
    "ours": _our_softmax,
}
_LAYERS = {
    "xla": _xla_layer,
    "ours": _our_layer,
    "cudnn": partial(_xla_layer, implementation="cudnn"),
}


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


def _temp_bytes(function: Function, arguments: Arguments) -> int:
    """Temporary memory of the compiled program, beyond arguments and results."""
    analysis = function.lower(*arguments).compile().memory_analysis()
    if analysis is None:
        raise NotImplementedError("this backend does not tell")
    return int(analysis.temp_size_in_bytes)


def _kernels(function: Function, arguments: Arguments) -> list[str]:
    """Our kernels in the compiled program, row operations by their names; none where it is XLA's own."""
    text = function.lower(*arguments).compile().as_text() or ""
    found = re.findall(
        r'custom_call_target="jaxkernels_(\w+)"(?:.*? operation = \\*"(\w+?)\\*")?', text
    )
    return sorted({operation or target for target, operation in found})


def contenders(case: Case, options: Options | None = None) -> Mapping[str, Program]:
    """Copy, XLA and ours on scores; XLA, ours and, in bfloat16, cuDNN on layers."""
    is_scores, is_both = case["group"] == "scores", case["direction"] == "both"
    drawn = partial(draw, case)
    programs = {}
    for name, function in (_SCORES if is_scores else _LAYERS).items():
        if name == "cudnn" and case["dtype"] == "float32":
            continue
        look: dict[str, Callable] = {}
        if is_scores and is_both and name != "copy":
            look["temp_bytes"] = _temp_bytes
        if not is_scores and name == "ours":
            look["kernels"] = _kernels
        of_variant = partial(function, case["variant"])
        copies = name == "copy" or not is_both
        whole = forward(of_variant) if copies else with_gradient(of_variant, 1 if is_scores else 3)
        programs[name] = Program(partial(_make, name, whole), drawn, inspect=look)
    return programs


def watched(platform: str) -> Iterable[Watched]:
    """Ours of scores and layers of one shape."""
    on_cpu = platform == "cpu"
    kinds = {
        "scores": (VARIANTS, (1, 4, 256) if on_cpu else (4, 16, 1024)),
        "layers": (("causal",), (1, 4, 128, 32))
        if on_cpu
        else (("plain", "causal"), (4, 16, 1024)),
    }
    for group, (variants, shape) in kinds.items():
        for dtype, direction, variant in product(("float32", "bfloat16"), DIRECTIONS, variants):
            case = heads_case(group, dtype, variant, direction, shape)
            program = contenders(case)["ours"]
            yield Watched(group, case, Program(program.make, program.draw))


def _option(of: str) -> dict[str, Any]:
    form = "batchxheadsxlength or batchxheadsxlengthxdepth"
    default = f"a CPU's default has 1/{CPU_PART} of a GPU's batch x heads"
    return several(sizes(form, 3, 4), "SHAPE", f"{of} as {form}; {default}")


SUITE = Suite(
    name="attention",
    summary="scale, mask and softmax of scores, and attention layers, beside XLA, cuDNN and a copy",
    cases=cases,
    contenders=contenders,
    label=attention_report.label,
    views=attention_report.views,
    figure=attention_report.figure,
    axes=(
        Axis("group", GROUPS),
        Axis("dtype", DTYPES),
        Axis("variant", VARIANTS),
        Axis("direction", tuple(DIRECTIONS)),
    ),
    options={"--shapes": _option("scores"), "--layer-shapes": _option("layers")},
    watched=watched,
)
