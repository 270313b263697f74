"""Tables and picture of the suite ``attention``. Pure: from records alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxkernels.bench import plot
from jaxkernels.bench import tables as t
from jaxkernels.bench.records import Case, Measured, Run

DTYPES = ("bfloat16", "float32")
DIRECTIONS = {"fwd": "forward", "both": "forward and backward"}
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


def scores_shape(case: Case) -> tuple[int, int, int, int]:
    """Shape of the scores."""
    return (case["batch"], case["heads"], case["length"], case["length"])


def layer_shape(case: Case) -> tuple[int, int, int, int]:
    """Shape of queries, keys and values."""
    return (case["batch"], case["length"], case["heads"], case["depth"])


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
    elements = math.prod(scores_shape(case))
    seen = elements
    if case["variant"] == "causal":
        seen = elements // case["length"] * (case["length"] + 1) // 2
    size = _ITEM_BYTES[case["dtype"]]
    total = size * (seen + elements)
    if case["variant"] == "mask":
        total += elements // case["heads"]
    if case["direction"] == "both":
        total += size * (2 * seen + elements)
    return total


def copy_rate(m: Measured) -> float | None:
    """Bytes per second of the copy: read once, written once."""
    return m.rate(2 * math.prod(scores_shape(m.case)) * _ITEM_BYTES[m["dtype"]], "copy")


def of_model(m: Measured, name: str = "ours") -> float | None:
    """A contender's time over that of its model bytes at the rate of the copy."""
    seconds, rate = m.seconds(name), copy_rate(m)
    return None if seconds is None or rate is None else seconds * rate / model_bytes(m.case)


def over_xla(m: Measured) -> float | None:
    """How many times faster than XLA ours is."""
    return m.ratio("xla", "ours")


def label(case: Case) -> str:
    """The case in one line."""
    names = ("batch", "heads", "length", "depth")
    size = "x".join(str(case[name]) for name in names if name in case)
    return f"{case['group']} {case['variant']} {case['direction']} {case['dtype']} {size}"


def _scores(m: Measured) -> str:
    return f"{m['length']} x{m['batch']}x{m['heads']} {m['variant']}"


def _layer(m: Measured) -> str:
    kind = " causal" if m["variant"] == "causal" else ""
    return f"{m['dtype']} {m['direction']}{kind} {layer_shape(m.case)}"


def views(run: Run, markdown: bool) -> list[t.View]:
    """Scores, a table for each dtype and direction, and all layers."""
    del markdown  # the tables are narrow as they are
    unit, scale = t.unit(run.platform)
    names = {"xla": "XLA", "ours": "ours"}
    times = [t.milliseconds(f"{text} ms", name) for name, text in names.items()]
    gain = t.times_faster("x XLA", "xla", "ours")
    model = [
        t.Column(f"{text} of model", lambda m, name=name: of_model(m, name), "{:.2f}")
        for name, text in names.items()
    ]
    memory = [
        t.Column(
            f"{text} temp MiB", lambda m, name=name: m.extra(name, "temp_bytes"), "{:.1f}", 2**-20
        )
        for name, text in names.items()
    ]
    copy = t.Column(f"copy {unit}", copy_rate, t.rate, scale)

    def columns(members: Sequence[Measured]) -> list[t.Column]:
        is_both = members[0]["direction"] == "both"
        return [copy, *times, gain, *model, *(memory if is_both else ())]

    scores = t.View(
        title=lambda m: f"scale, mask and softmax, {DIRECTIONS[m['direction']]}, {m['dtype']}",
        by=lambda m: (m["dtype"], m["direction"]),
        labels=(t.Column("length xbatchxheads", _scores),),
        columns=columns,
        select=lambda m: m["group"] == "scores",
        notes=("of model: time over that of the model bytes at the rate of the copy",),
    )
    kernels = sorted({name for m in run.measured for name in m.extra("ours", "kernels") or ()})
    layers = t.View(
        title=lambda m: "attention layers (batch, length, heads, depth)",
        labels=(t.Column("layer", _layer),),
        columns=(
            times[0],
            t.milliseconds("cuDNN ms", "cudnn"),
            times[1],
            gain,
            t.times_faster("x cuDNN", "cudnn", "ours"),
        ),
        select=lambda m: m["group"] == "layers",
        notes=(
            "XLA's float32 at the highest precision; cuDNN has no float32",
            f"our kernels in our programs: {', '.join(kernels) or 'none'}",
        ),
    )
    return [scores, layers]


def figure(run: Run) -> plot.Figure:
    """The forward beside its model bytes, and all other gains over XLA."""
    forward, others = [], []
    for m in run.measured:
        is_forward = m["group"] == "scores" and m["direction"] == "fwd"
        (forward if is_forward else others).append(m)
    panels: list[plot.Panel] = []
    if forward:
        series = {
            "XLA": (plot.PEER, [of_model(m, "xla") for m in forward]),
            "ours": (plot.OURS, [of_model(m) for m in forward]),
        }
        title = "forward: time over that of the model bytes"
        panels.append(plot.Dots(title, [f"{m['dtype']} {_scores(m)}" for m in forward], series))
    if others:
        gains = {"ours": (plot.OURS, [over_xla(m) for m in others])}
        labels = [label(m.case) for m in others]
        panels.append(plot.Dots("times faster than XLA", labels, gains, stems=True))
    most = max(map(len, (forward, others)))
    return plot.Figure("attention: scores and layers", [panels], (6.5, 1.0 + 0.18 * most))
