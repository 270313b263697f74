"""The suite ``attention``: softmax of attention scores, and whole attention layers.

* Scores (batch, heads, q, k): scale and softmax ("plain"), with a boolean padding mask (batch, 1, q, k)
  ("mask"), and causal ("causal"). ``xla`` computes what Flax's layers do, in the dtype of the scores
  under jit: ``softmax(where(mask, scores * scale, finfo.min))``. It builds the causal mask inside, in the
  form most favourable to XLA. ``copy`` is a jitted copy of the scores. ``fwd`` is y from the scores, and
  ``both`` y and the gradient, from the scores and a given cotangent, by ``jax.vjp``.
* Layers (batch, length, heads, depth): ``jaxkernels.dot_product_attention`` and
  ``jax.nn.dot_product_attention``. float32 runs at the highest precision; bfloat16 runs at the default
  one, and by cuDNN's fused kernel. On a GPU with torch, float32 also runs by torch's memory-efficient kernel.
* With ``--drawn N``, instead of these: layers of random sizes (``attention_sizes``), to see whether
  the default is the fastest choice. ``default`` names no implementation; ``cudnn``, ``ffi``, ``ffi_flash`` and
  ``xla`` name one. float32 layers also have shorter lengths and smaller depths.
"""

import importlib.util
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import programs
from jaxkernels.bench import tables as t
from jaxkernels.bench.attention_sizes import DRAWN_SIZES, drawn_cases
from jaxkernels.bench.options import seeded, several, sizes
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite

GROUPS = ("layers", "scores")
DTYPES = ("bfloat16", "float32")
VARIANTS = ("plain", "mask", "causal")
DIRECTIONS = ("fwd", "both")
_Shapes = Mapping[str, Sequence[tuple[int, ...]]]
# (batch, heads, length) of scores, and (batch, heads, length, depth) of layers.
GPU_SHAPES: _Shapes = {
    "scores": ((64, 16, 512), (16, 16, 1024), (4, 16, 2048), (1, 16, 4096), (1, 16, 8192)),
    "layers": ((4, 16, 2048, 64),),
}
# CPU shapes have a sixteenth of a GPU's batch x heads.
CPU_SHAPES: _Shapes = {
    "scores": ((4, 16, 512), (1, 16, 1024), (1, 4, 2048), (1, 1, 4096), (1, 1, 8192)),
    "layers": ((1, 4, 2048, 64),),
}
_DEPTH = 64
SIZES = ("batch", "heads", "length", "depth")
# Implementations of drawn layers.
NAMED = ("cudnn", "ffi", "ffi_flash", "xla")
# The default counts as too slow above this multiple of the best time.
TOLERANCE = 1.03


def heads_case(group: str, dtype: str, variant: str, direction: str, shape: Sequence[int]) -> Case:
    """A case of (batch, heads, length), and of a depth for layers."""
    kind = {"group": group, "dtype": dtype, "variant": variant, "direction": direction}
    return kind | dict(zip(SIZES[: 4 if group == "layers" else 3], (*shape, _DEPTH), strict=False))


def _cases(options: Options) -> Iterable[Case]:
    """Every dtype, shape, variant and direction; layers have no mask. With ``--drawn``, random layers."""
    if options.drawn:
        yield from drawn_cases(options.drawn, options.seed)
        return
    default = CPU_SHAPES if jax.default_backend() == "cpu" else GPU_SHAPES
    asked = {"scores": options.shapes, "layers": options.layer_shapes}
    for group in GROUPS:
        shapes = asked[group] or default[group]
        variants = [v for v in VARIANTS if group == "scores" or v != "mask"]
        for dtype, shape, variant, direction in product(DTYPES, shapes, variants, DIRECTIONS):
            yield heads_case(group, dtype, variant, direction, shape)


def _kind(case: Case) -> str:
    """The mask, bias or lengths of a case."""
    return case["kind"] if case["group"] == "drawn" else case["variant"]


def label(case: Case) -> str:
    """The case in one line."""
    names = DRAWN_SIZES if case["group"] == "drawn" else SIZES
    size = "x".join(str(case[name]) for name in names if name in case)
    return f"{case['group']} {_kind(case)} {case['direction']} {case['dtype']} {size}"


def _draw(case: Case) -> list[Arguments]:
    """(cotangent, scores) or (cotangent, queries, keys, values), then a bias, a mask or lengths."""
    batch, heads, length, kind = case["batch"], case["heads"], case["length"], _kind(case)
    keys, key_heads = case.get("keys", length), case.get("key_heads", heads)
    # Lengths keep at least a quarter of the keys visible.
    seed, least = jax.random.key(0), max(1, keys // 4)
    lengths = jax.random.randint(seed, (batch,), least, keys + 1)
    also = {"lengths": lengths, "padding": jnp.arange(keys) < lengths[:, None, None, None]}
    if case["group"] == "scores":
        shapes = [(batch, heads, length, length)] * 2
        also = {"mask": jnp.broadcast_to(also["padding"], (batch, 1, length, length))}
    else:
        queries, of_keys = (batch, length, heads), (batch, keys, key_heads)
        shapes = [(*x, case["depth"]) for x in (queries, queries, of_keys, of_keys)]
        if kind == "bias":
            shapes.append((1, heads, length, keys))
        elif kind == "mask":
            also["mask"] = jax.random.uniform(seed, (batch, 1, length, keys)) < 0.7
    types = [jax.ShapeDtypeStruct(shape, case["dtype"]) for shape in shapes]
    return programs.draw(types, also=(also[kind],) if kind in also else ())


def _our_softmax(variant: str, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Our softmax; it raises instead of falling back to XLA."""
    return jk.scaled_masked_softmax(
        x, mask, scale=programs.SCALE, causal=variant == "causal", implementation="ffi"
    )


def _xla_softmax(variant: str, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The softmax of Flax's layers, in the dtype of the scores."""
    scaled = x * programs.SCALE
    if variant == "causal":
        row, col = (jax.lax.broadcasted_iota(jnp.int32, x.shape[-2:], axis) for axis in (0, 1))
        mask = col <= row
    if mask is not None:
        scaled = jnp.where(mask, scaled, jnp.finfo(x.dtype).min)
    return jax.nn.softmax(scaled)


def _xla_layer(variant: str, *qkv: jax.Array, implementation: str = "xla") -> jax.Array:
    """jax.nn's layer; float32 runs at the highest precision, because the default is TF32."""
    precision = "highest" if qkv[0].dtype == jnp.float32 else "default"
    how: dict = {"is_causal": variant == "causal", "implementation": implementation}
    with jax.default_matmul_precision(precision):
        return jax.nn.dot_product_attention(*qkv, **how)


def _our_layer(implementation: Any, kind: str, *arrays: jax.Array) -> jax.Array:
    """Our layer by a named implementation, or by its default."""
    keyword = {"padding": "mask", "lengths": "key_value_seq_lengths"}.get(kind, kind)
    given: dict[str, Any] = dict(zip((keyword,), arrays[3:], strict=False))
    how = {"is_causal": kind == "causal", "implementation": implementation}
    precision = "highest" if arrays[0].dtype == jnp.float32 else "default"  # of jax.nn's products
    with jax.default_matmul_precision(precision):
        return jk.dot_product_attention(*arrays[:3], **how, **given)


def _of_torch(case: Case) -> Function:
    """The memory-efficient layer of torch, of (cotangent, queries, keys, values) and a bias, mask or lengths."""

    def prepare(torch: Any, dy: Any, q: Any, k: Any, v: Any, *side: Any) -> Function:
        batch, length, heads = q.shape[:3]
        keys, groups = k.shape[1], heads // k.shape[2]
        if _kind(case) == "lengths":
            side = (torch.arange(keys, device=q.device) < side[0][:, None, None, None],)
        mask = side[0].expand(batch, heads, length, keys) if side else None
        attention = torch.nn.functional.scaled_dot_product_attention
        kernel = torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION
        is_both = case["direction"] == "both"
        moving = [x.requires_grad_(is_both) for x in (q, k, v)]

        def call() -> Any:
            repeated = [x.repeat_interleave(groups, 2) if groups > 1 else x for x in (k, v)]
            given = (x.transpose(1, 2) for x in (q, *repeated))
            with torch.nn.attention.sdpa_kernel(kernel):
                y = attention(*given, attn_mask=mask, is_causal=_kind(case) == "causal")
                y = y.transpose(1, 2)
                gradients = torch.autograd.grad(y, moving, dy) if is_both else ()
            return y.detach(), *gradients

        return call

    return programs.of_torch(prepare)


_CONTENDERS: Mapping[str, Mapping[str, Function]] = {
    "scores": {"copy": lambda _, x, *mask: jnp.copy(x), "xla": _xla_softmax, "ours": _our_softmax},
    "layers": {
        "xla": _xla_layer,
        "ours": partial(_our_layer, None),
        "cudnn": partial(_xla_layer, implementation="cudnn"),
    },
    "drawn": {name or "default": partial(_our_layer, name) for name in (None, *NAMED)},
}


def _names(case: Case, options: Options) -> Iterable[str]:
    """The contenders of a case; cuDNN serves only 16-bit types, `ffi_flash` and torch's kernel only float32."""
    is_float32 = case["dtype"] == "float32"
    lacks = "cudnn" if is_float32 else "ffi_flash"
    found = [name for name in _CONTENDERS[case["group"]] if name != lacks]
    has_torch = jax.default_backend() == "gpu" and importlib.util.find_spec("torch")
    return [*found, *(["torch"] if is_float32 and has_torch and case["group"] != "scores" else [])]


def _path(function: Function, arguments: Arguments) -> str:
    """The implementation that a program runs."""
    text = programs.compiled_text(function, arguments)
    marks = {"cudnn": "__cudnn$fmha", "ffi_flash": "jaxkernels_attention", "ffi": "jaxkernels_row"}
    return next((name for name, mark in marks.items() if mark in text), "xla")


def program(case: Case, name: str) -> Program:
    """A contender's program; a copy is the same in both directions."""
    is_scores, is_both = case["group"] == "scores", case["direction"] == "both" and name != "copy"
    if name == "torch":
        return Program(_of_torch(case), partial(_draw, case), jit=False)
    look: dict[str, Function] = {"temp_bytes": programs.temp_bytes} if is_scores and is_both else {}
    if not is_scores and name in ("ours", "default"):
        look["path"] = _path
    function = partial(_CONTENDERS[case["group"]][name], _kind(case))
    whole = lambda _, *arguments: function(*arguments)  # noqa: E731
    if is_both:
        whole = programs.with_gradient(function, 1 if is_scores else 3)
    return Program(whole, partial(_draw, case), inspect=look)


def model_bytes(case: Case) -> int:
    """The minimum of bytes moved: each array once; a causal row is read up to its diagonal.

    Forward reads the scores (and the mask, one byte per element, once for all heads) and writes y.
    Backward reads y and dy and writes the gradient. Zeros beyond the diagonal are written, not read.
    Masked scores count as read.
    """
    elements = seen = case["batch"] * case["heads"] * case["length"] ** 2
    if case["variant"] == "causal":
        seen = elements // case["length"] * (case["length"] + 1) // 2
    mask = elements // case["heads"] if case["variant"] == "mask" else 0
    backward = 2 * seen + elements if case["direction"] == "both" else 0
    return jnp.dtype(case["dtype"]).itemsize * (seen + elements + backward) + mask


def copy_rate(m: Measured) -> float | None:
    """Bytes per second of the copy, which reads and writes each score once."""
    return m.rate(model_bytes({**m.case, "variant": "plain", "direction": "fwd"}), "copy")


def of_model(m: Measured, name: str = "ours") -> float | None:
    """A contender's time divided by the time of its model bytes at the copy's rate."""
    seconds, rate = m.seconds(name), copy_rate(m)
    return None if seconds is None or rate is None else seconds * rate / model_bytes(m.case)


def _of_best(m: Measured) -> float | None:
    """The default's speed relative to the fastest; None without both.

    The default and the implementation that it chose run the same program, so the mean of both times is
    used.
    """
    times = {name: seconds for name in NAMED if (seconds := m.seconds(name))}
    own, path = m.seconds("default"), m.extra("default", "path")
    if not own or not times:
        return None
    if path in times:
        own = times[path] = statistics.mean((own, times[path]))
    return min(times.values()) / own


def _views(run: Run) -> list[t.View]:
    """A table of scores for each dtype and direction, and one of all layers; or random layers."""
    torch = ["torch"] if any("torch" in m.records for m in run.measured) else []
    if any(m["group"] == "drawn" for m in run.measured):
        columns = t.fields("kind", "direction", "dtype", *DRAWN_SIZES)
        columns.append(t.extra("path", "path", contender="default"))
        columns += [t.time(f"{name} ms", name) for name in (*_CONTENDERS["drawn"], *torch)]
        columns.append(t.Column("over best", _of_best, lambda ratio: f"{1 / ratio:.3f}"))
        of_case = lambda m: label(m.case)  # noqa: E731
        of_best = t.Sweep("default of the best", _of_best, of_case, 1 / TOLERANCE)
        sweeps = [of_best]
        sweeps += [
            t.Sweep(f"default over {n}", lambda m, n=n: m.ratio(n, "default"), of_case)
            for n in ("ffi", "xla", *torch)
        ]
        view = of_best.view("attention of drawn sizes", columns)
        return [replace(view, notes=lambda some: [sweep.summary(some) for sweep in sweeps])]
    unit, text = t.rates(run.platform)
    xla, ours = t.time("XLA ms", "xla"), t.time("ours ms", "ours")
    gain = t.times_faster("x XLA", "xla", "ours")

    def scores(m: Measured) -> list[t.Column]:
        columns = t.fields("length", "batch", "heads", "variant")
        columns += [t.Column(f"copy {unit}", copy_rate, text), xla, ours, gain]
        heads = {"ours": "ours", "xla": "XLA"}
        for name, head in heads.items():
            columns.append(t.Column(f"{head} of model", partial(of_model, name=name), "{:.2f}"))
        for name, head in heads.items() if m["direction"] == "both" else ():
            columns.append(t.memory(f"{head} temp MiB", 2**20, 1, name))
        return columns

    layers = t.fields("dtype", "direction", "variant", "batch", "length", "heads", "depth")
    layers += [xla, t.time("cuDNN ms", "cudnn"), *(t.time("torch ms", name) for name in torch)]
    layers += [ours, gain, t.times_faster("x cuDNN", "cudnn", "ours")]
    layers += [t.times_faster("x torch", name, "ours") for name in torch]
    layers += [t.extra("path of ours", "path", contender="ours")]
    of_scores = ("of model: time over that of the model bytes at the rate of the copy",)
    of_layers = ("XLA's float32 at the highest precision; cuDNN has no float32",)
    return [
        t.View(
            "scale, mask and softmax, {direction}, {dtype}", scores, ("scores",), notes=of_scores
        ),
        t.View("attention layers", layers, ("layers",), notes=of_layers),
    ]


_HELP = "as batchxheadsxlength[xdepth]; a CPU's default has 1/16 of a GPU's batch x heads"
SUITE = Suite(
    name="attention",
    summary="softmax of attention scores, and layers, compared with XLA, cuDNN and a copy",
    cases=_cases,
    names=_names,
    program=program,
    label=label,
    views=_views,
    axes={
        "group": (*GROUPS, "drawn"),
        "dtype": (*DTYPES, "float16"),
        "variant": VARIANTS,
        "direction": DIRECTIONS,
    },
    options={
        "--drawn": {
            "type": int,
            "metavar": "N",
            "help": "N layers of drawn sizes for 16 bits and float32 each",
        },
        "--seed": seeded("draws them", tuning=1, published=2, metavar="S"),
        "--shapes": several(sizes(3, 4), "SHAPE", f"scores, {_HELP}"),
        "--layer-shapes": several(sizes(3, 4), "SHAPE", f"layers, {_HELP}"),
    },
)
