"""Tables and picture of the suite ``scaling``. Pure: from records alone."""

from __future__ import annotations

from dataclasses import replace

from jaxkernels.bench import plot
from jaxkernels.bench import tables as t
from jaxkernels.bench.records import Case, Measured, Run

CONTENDERS = {"gathered": "gathered", "xla": "XLA", "ours": "ours"}
DIRECTIONS = {"fwd": "forward", "both": "forward and backward"}
_COLOURS = {("softmax", "float32"): plot.OURS, ("softmax", "bfloat16"): "#0d9488"}
# Solid forward, dashed with the gradient.
_DASHES = {"fwd": "-", "both": "--"}


def size(m: Measured) -> str:
    """The shape as tables name it."""
    return "x".join(map(str, m["shape"]))


def efficiency(m: Measured) -> float | None:
    """The time on 1 device over that on the devices that a line is about."""
    return m.ratio("1")


def label(case: Case) -> str:
    """The case in one line."""
    devices = f" on {case['devices']}" if "devices" in case else ""
    shape = "x".join(map(str, case["shape"]))
    return f"{case['group']} {case['dtype']} {case['direction']} {shape}{devices}"


def is_weak(m: Measured) -> bool:
    """Whether the data grows with the number of devices."""
    return m["group"] != "vocabulary"


def _collectives(head: str, name: str = "") -> t.Column:
    def text(found: dict[str, int]) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in found.items()) or "none"

    return t.Column(head, lambda m: m.extra(name, "collectives"), text)


def views(run: Run, markdown: bool) -> list[t.View]:
    """Weak scaling by direction, a vocabulary by direction, and the vocabulary's collectives."""
    del markdown  # the tables are narrow as they are
    notes = []
    if not any(name not in ("1", *CONTENDERS) for m in run.measured for name in m.records) and all(
        m["devices"] in (None, 1) for m in run.measured
    ):
        notes.append("one device: there is nothing to compare")
    if run.platform == "cpu":
        notes.append("simulated devices share the cores of the CPU")
    weak = t.View(
        title=lambda m: f"rows and batches over devices, {DIRECTIONS[m['direction']]}",
        by=lambda m: m["direction"],
        labels=(
            t.Column("on each device", lambda m: f"{m['group']} {m['dtype']} {size(m)}"),
            t.Column("devices", lambda m: m.contender),
        ),
        columns=(
            t.milliseconds("ms"),
            t.Column("efficiency", efficiency, "{:.3f}"),
            _collectives("collectives"),
        ),
        lines=t.each_contender(),
        select=is_weak,
        notes=(
            "weak scaling: the shape is what each device has, whatever their number",
            "efficiency: the time on 1 device over the time on n",
            *notes,
        ),
    )
    vocabulary = t.View(
        title=lambda m: (
            f"log_softmax over a vocabulary cut over devices, {DIRECTIONS[m['direction']]}"
        ),
        by=lambda m: m["direction"],
        labels=(
            t.Column("whole array", lambda m: f"{m['dtype']} {size(m)}"),
            t.field("devices"),
        ),
        columns=(
            *(t.milliseconds(f"{text} ms", name) for name, text in CONTENDERS.items()),
            t.times_faster("x gathered", "gathered", "ours"),
            t.times_faster("x XLA", "xla", "ours"),
        ),
        select=lambda m: not is_weak(m),
        notes=("strong scaling: one array, whatever the number of devices", *notes),
    )
    collectives = t.View(
        title=lambda m: "collectives of the compiled programs",
        labels=(t.Column("program", lambda m: label({**m.case, "group": "log_softmax"})),),
        columns=[_collectives(text, name) for name, text in CONTENDERS.items()],
        select=lambda m: not is_weak(m),
        notes=notes,
        refusals=False,
    )
    return [weak, vocabulary, collectives]


def figure(run: Run) -> plot.Figure:
    """Efficiencies of weak scaling, then gains on a vocabulary that is cut."""
    weak = list(filter(is_weak, run.measured))
    cut = [m for m in run.measured if not is_weak(m)]
    counts = sorted(
        {*(int(name) for m in weak for name in m.records), *(m["devices"] for m in cut)}
    )
    curves = []
    for m in weak:
        points = [
            (int(name), e) for name in m.records if (e := efficiency(replace(m, contender=name)))
        ]
        colour = _COLOURS.get((m["group"], m["dtype"]), plot.PEER)
        text = f"{m['group']} {m['dtype']} {m['direction']}"
        curves.append(plot.Curve(text, points, colour, 1.5, _DASHES[m["direction"]], "o"))
    gains = []
    for peer, colour in (("gathered", plot.OURS), ("xla", plot.PEER)):
        for direction, dashes in _DASHES.items():
            mine = [m for m in cut if m["direction"] == direction]
            points = [(m["devices"], gain) for m in mine if (gain := m.ratio(peer, "ours"))]
            text = f"over {CONTENDERS[peer]}, {direction}"
            gains.append(plot.Curve(text, points, colour, 1.5, dashes, "o"))

    def panel(title: str, curves: list[plot.Curve], **how) -> list[plot.Panel]:
        drawn = [curve for curve in curves if curve.points]
        return [plot.Lines(title, "devices", "", drawn, counts, **how)] if drawn else []

    # What is at stake in efficiency lies between 0.9 and 1; where more is lost, the axis goes on down.
    panels = panel("weak scaling: efficiency", curves, ylim=(0.9, 1.01))
    panels += panel("log_softmax of a vocabulary cut over devices: times faster", gains, log_y=True)
    return plot.Figure("scaling over devices", [panels], (6.0, 4.0))
