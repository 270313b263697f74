"""The suite ``attention``: its metrics and tables. What it measures is in ``attention_programs``.

Compared in one run, timed as written down in ``jaxkernels.bench.timing``.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp

from jaxkernels.bench import attention_drawn
from jaxkernels.bench import tables as t
from jaxkernels.bench.attention_programs import (
    DIRECTIONS,
    DTYPES,
    GROUPS,
    SIZES,
    VARIANTS,
    cases,
    contenders,
    watched,
)
from jaxkernels.bench.records import Case, Measured, Run, key_of
from jaxkernels.bench.suite import Suite, several, sizes

_HEADS = {"ours": "ours", "xla": "XLA"}


def model_bytes(case: Case) -> int:
    """The bytes that cannot but move: each array once, where a causal row ends at its diagonal.

    Forward reads the scores (and the mask, a byte an element, once for all heads) and writes y.
    Backward reads y and dy and writes the gradient. Zeros beyond the diagonal are written, not
    read. What lies behind a mask counts as read.

    Example:
        >>> case = {"batch": 1, "heads": 2, "length": 4, "dtype": "float32"}
        >>> model_bytes({**case, "variant": "mask", "direction": "fwd"})
        272
    """
    elements = seen = case["batch"] * case["heads"] * case["length"] ** 2
    if case["variant"] == "causal":
        seen = elements // case["length"] * (case["length"] + 1) // 2
    mask = elements // case["heads"] if case["variant"] == "mask" else 0
    backward = 2 * seen + elements if case["direction"] == "both" else 0
    return jnp.dtype(case["dtype"]).itemsize * (seen + elements + backward) + mask


def copy_rate(m: Measured) -> float | None:
    """Bytes per second of the copy: read once, written once."""
    return m.rate(model_bytes({**m.case, "variant": "plain", "direction": "fwd"}), "copy")


def of_model(m: Measured, name: str = "ours") -> float | None:
    """A contender's time over that of its model bytes at the rate of the copy."""
    seconds, rate = m.seconds(name), copy_rate(m)
    return None if seconds is None or rate is None else seconds * rate / model_bytes(m.case)


def over_xla(m: Measured) -> float | None:
    """How many times faster than XLA ours is."""
    return m.ratio("xla", "ours")


def label(case: Case) -> str:
    """The case in one line."""
    if case["group"] == attention_drawn.GROUP:
        return attention_drawn.label(case)
    size = "x".join(str(case[name]) for name in SIZES if name in case)
    return f"{case['group']} {case['variant']} {case['direction']} {case['dtype']} {size}"


def views(run: Run) -> list[t.View]:
    """Scores, a table for each dtype and direction, and all layers; or drawn layers."""
    if any(m["group"] == attention_drawn.GROUP for m in run.measured):
        return [attention_drawn.view(run.measured)]
    unit, text = t.rates(run.platform)
    xla, ours = t.time("XLA ms", "xla"), t.time("ours ms", "ours")
    gain = t.times_faster("x XLA", "xla", "ours")

    def scores(m: Measured) -> list[t.Column]:
        columns = t.fields("length", "batch", "heads", "variant")
        columns += [t.Column(f"copy {unit}", copy_rate, text), xla, ours, gain]
        for name, head in _HEADS.items():
            columns.append(t.Column(f"{head} of model", partial(of_model, name=name), "{:.2f}"))
        for name, head in _HEADS.items() if m["direction"] == "both" else ():
            memory = partial(Measured.extra, contender=name, name="temp_bytes")
            columns.append(t.Column(f"{head} temp MiB", memory, lambda b: f"{b / 2**20:.1f}"))
        return columns

    layers = t.fields("dtype", "direction", "variant", "batch", "length", "heads", "depth")
    layers += [xla, t.time("cuDNN ms", "cudnn"), ours, gain]
    layers += [t.times_faster("x cuDNN", "cudnn", "ours")]
    kernels = sorted({name for m in run.measured for name in m.extra("ours", "kernels") or ()})
    return [
        t.View(
            "scale, mask and softmax, {direction}, {dtype}",
            scores,
            lambda m: m["group"] == "scores",
            by=("dtype", "direction"),
            notes=("of model: time over that of the model bytes at the rate of the copy",),
        ),
        t.View(
            "attention layers",
            layers,
            lambda m: m["group"] == "layers",
            notes=(
                "XLA's float32 at the highest precision; cuDNN has no float32",
                f"our kernels in our programs: {', '.join(kernels) or 'none'}",
            ),
        ),
    ]


_HELP = "as batchxheadsxlength[xdepth]; a CPU's default has 1/16 of a GPU's batch x heads"
SUITE = Suite(
    name="attention",
    summary="scale, mask and softmax of scores, and attention layers, beside XLA, cuDNN and a copy",
    cases=cases,
    contenders=contenders,
    label=label,
    views=views,
    axes={
        "group": (*GROUPS, attention_drawn.GROUP),
        "dtype": (*DTYPES, "float16"),
        "variant": VARIANTS,
        "direction": DIRECTIONS,
    },
    options={
        **attention_drawn.OPTIONS,
        "--shapes": several(sizes(3, 4), "SHAPE", f"scores, {_HELP}"),
        "--layer-shapes": several(sizes(3, 4), "SHAPE", f"layers, {_HELP}"),
    },
    watched=watched,
    together=lambda case: case.get("part", key_of(case)),
    said=attention_drawn.said,
)
