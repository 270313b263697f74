"""What the suite ``attention`` measures: softmax of attention scores, and whole attention layers.

* Scores (batch, heads, q, k): scale and softmax alone ("plain"), under a boolean mask of padding
  (batch, 1, q, k) ("mask"), and causal ("causal"). ``xla`` is what Flax's layers do, in the
  scores' own type under jit: ``softmax(where(mask, scores * scale, finfo.min))``; the causal mask
  is made inside, in the form most favourable to XLA. ``copy`` is a jitted copy of the scores.

  - ``fwd``: y from the scores.
  - ``both``: y and the gradient, from the scores and a given cotangent, by ``jax.vjp``.
* Layers (batch, length, heads, depth): ``jaxkernels.dot_product_attention`` beside
  ``jax.nn.dot_product_attention``: in float32 at the highest precision, in bfloat16 as it is and
  by cuDNN's fused kernel.
* With ``--drawn N``, in place of these, layers in 16 bits of sizes that a seed draws
  (``jaxkernels.bench.attention_drawn``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import attention_drawn
from jaxkernels.bench.programs import (
    SCALE,
    draw_normal,
    forward,
    rotations,
    temp_bytes,
    with_gradient,
)
from jaxkernels.bench.records import Case
from jaxkernels.bench.suite import Arguments, Function, Options, Program
from jaxkernels.bench.timing import first_line

GROUPS = ("layers", "scores")
DTYPES = ("bfloat16", "float32")
VARIANTS = ("plain", "mask", "causal")
DIRECTIONS = ("fwd", "both")
# (batch, heads, length), and the depth of a head, which scores do not depend on.
GPU_SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "scores": ((64, 16, 512), (16, 16, 1024), (4, 16, 2048), (1, 16, 4096), (1, 16, 8192)),
    "layers": ((4, 16, 2048, 64),),
}
# A sixteenth of the batch x heads of a GPU.
CPU_SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "scores": ((4, 16, 512), (1, 16, 1024), (1, 4, 2048), (1, 1, 4096), (1, 1, 8192)),
    "layers": ((1, 4, 2048, 64),),
}
_DEPTH = 64
SIZES = ("batch", "heads", "length", "depth")


def heads_case(group: str, dtype: str, variant: str, direction: str, shape: Sequence[int]) -> Case:
    """A case of (batch, heads, length), for layers with a depth."""
    kind = {"group": group, "dtype": dtype, "variant": variant, "direction": direction}
    return kind | dict(zip(SIZES[: 4 if group == "layers" else 3], (*shape, _DEPTH), strict=False))


def cases(options: Options) -> Iterable[Case]:
    """Every dtype, shape, variant and direction; layers have no mask. Or drawn layers alone."""
    if options.drawn:
        yield from attention_drawn.cases(options.drawn, options.seed)
        return
    default = CPU_SHAPES if jax.default_backend() == "cpu" else GPU_SHAPES
    asked = {"scores": options.shapes, "layers": options.layer_shapes}
    for group in GROUPS:
        shapes = asked[group] or default[group]
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
    batch, heads, length = (case[name] for name in SIZES[:3])
    shape, arrays = (batch, heads, length, length), 2
    if case["group"] == "layers":
        shape, arrays = (batch, length, heads, case["depth"]), 4
    touched = arrays * math.prod(shape) * jnp.dtype(case["dtype"]).itemsize
    mask = (padding(batch, length),) if case["variant"] == "mask" else ()
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


def _xla_layer(variant: str, *qkv: jax.Array, implementation: str = "xla") -> jax.Array:
    """jax.nn's layer; float32 at the highest precision, for its default is TF32."""
    precision = "highest" if qkv[0].dtype == jnp.float32 else "default"
    how: dict = {"is_causal": variant == "causal", "implementation": implementation}
    with jax.default_matmul_precision(precision):
        return jax.nn.dot_product_attention(*qkv, **how)


def _our_layer(variant: str, *qkv: jax.Array) -> jax.Array:
    """Ours, as a user gets it."""
    return jk.dot_product_attention(*qkv, is_causal=variant == "causal")


# The copy reads the scores and writes as much, whatever else.
_COPY = lambda variant, x, mask=None: jnp.copy(x)  # noqa: E731
_CUDNN = partial(_xla_layer, implementation="cudnn")
_SCORES = {"copy": _COPY, "xla": _xla_softmax, "ours": _our_softmax}
_LAYERS = {"xla": _xla_layer, "ours": _our_layer, "cudnn": _CUDNN}


def _make(name: str, function: Function, arguments: Arguments) -> Function:
    """The function under jit; where cuDNN is not there, JAX says so by a bare RuntimeError."""
    if name == "cudnn":
        try:
            jax.eval_shape(function, *arguments)
        except RuntimeError as error:
            raise NotImplementedError(first_line(error)) from error
    return jax.jit(function)


def _kernels(function: Function, arguments: Arguments) -> list[str]:
    """Our kernels in the compiled program, row operations by their names; none where it is XLA's own."""
    text = function.lower(*arguments).compile().as_text() or ""
    found = re.findall(
        r'custom_call_target="jaxkernels_(\w+)"(?:.*? operation = \\*"(\w+?)\\*")?', text
    )
    return sorted({operation or target for target, operation in found})


def contenders(case: Case, options: Options | None = None) -> Mapping[str, Program]:
    """Copy, XLA and ours on scores; XLA, ours and, in bfloat16, cuDNN on layers."""
    if case["group"] == attention_drawn.GROUP:
        return attention_drawn.contenders(case)
    is_scores, is_both = case["group"] == "scores", case["direction"] == "both"
    drawn = partial(draw, case)
    programs = {}
    for name, function in (_SCORES if is_scores else _LAYERS).items():
        if name == "cudnn" and case["dtype"] == "float32":
            continue
        look = {"temp_bytes": temp_bytes} if is_scores and is_both and name != "copy" else {}
        look |= {"kernels": _kernels} if not is_scores and name == "ours" else {}
        of_variant = partial(function, case["variant"])
        copies = name == "copy" or not is_both
        whole = forward(of_variant) if copies else with_gradient(of_variant, 1 if is_scores else 3)
        programs[name] = Program(partial(_make, name, whole), drawn, inspect=look)
    return programs


def watched(platform: str) -> Iterable[tuple[str, Case, Program]]:
    """Scores and layers of one shape."""
    kinds = {"scores": (VARIANTS, (4, 16, 1024)), "layers": (("plain", "causal"), (4, 16, 1024))}
    if platform == "cpu":
        kinds = {"scores": (VARIANTS, (1, 4, 256)), "layers": (("causal",), (1, 4, 128, 32))}
    for group, (variants, shape) in kinds.items():
        for dtype, direction, variant in product(("float32", "bfloat16"), DIRECTIONS, variants):
            case = heads_case(group, dtype, variant, direction, shape)
            yield group, case, contenders(case)["ours"]
