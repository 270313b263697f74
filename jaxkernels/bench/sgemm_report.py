"""Tables and picture of the suite ``sgemm``. Pure: from records alone."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from jaxkernels.bench import plot
from jaxkernels.bench import tables as t
from jaxkernels.bench.records import Case, Measured, Run, key_of
from jaxkernels.typing import Algorithm

RUNGS: tuple[Algorithm, ...] = get_args(Algorithm)
GROUPS = {
    "square": "squares",
    "other": "other shapes (m, n, k), batch x (m, n, k)",
    "transposed": "transposes: N as it is, T transposed in memory",
    "ladder": "the rungs at one size",
}
# Multiply-adds of an SM in a cycle, times 2, SMs and the highest clock: the FP32 peak by data sheet.
_PEAKS = {"NVIDIA H200": 66.9e12, "NVIDIA H100 80GB HBM3": 66.9e12, "NVIDIA A100": 19.5e12}


def is_square(case: Case) -> bool:
    """Whether all matrices have one shape, and there is one product: those make a chain."""
    return case["m"] == case["n"] == case["k"] and case["batch"] == 1


def flops(case: Case) -> float:
    """Operations of the product: a multiplication and an addition for each of m n k."""
    return 2.0 * case["batch"] * case["m"] * case["n"] * case["k"]


def size(case: Case) -> str:
    """The product as tables name it."""
    if is_square(case):
        text = f"{case['m']}^3"
    else:
        text = f"({case['m']}, {case['n']}, {case['k']})"
        text = text if case["batch"] == 1 else f"{case['batch']} x {text}"
    return text if case["transposes"] == "NN" else f"{text} {case['transposes']}"


def name_of_xla(platform: str) -> str:
    """What serves XLA's float32 product at the highest precision on a platform, as tables name it.

    Example:
        >>> name_of_xla("gpu"), name_of_xla("cpu")
        ('cuBLAS', 'XLA')
    """
    return "cuBLAS" if platform == "gpu" else "XLA"


def peak_of(device: str) -> float | None:
    """FP32 operations per second of a device, by its name; None where it is not known."""
    if " MIG " in device:  # a part of the device that the name begins with
        return None
    return next((peak for name, peak in _PEAKS.items() if device.startswith(name)), None)


def over_xla(m: Measured, name: str = "pipelined") -> float | None:
    """How many times XLA's rate a rung's is."""
    return m.ratio("xla", name)


def is_ladder(m: Measured) -> bool:
    """Whether rungs are compared with one another, and not the fastest one with XLA."""
    return m["group"] == "ladder" or set(m.records) != {"xla", "pipelined"}


def kind(m: Measured) -> str:
    """What a product counts as in the summary; empty for none."""
    if m["group"] == "square":
        return "squares from 1024" if m["n"] >= 1024 else "squares below 1024"
    return "other shapes" if m["group"] == "other" else ""


def rate(m: Measured, name: str) -> float | None:
    """Operations per second of a contender; None without a time."""
    return m.rate(flops(m.case), name)


def error(m: Measured, name: str, what: str) -> float | None:
    """An error of a contender, "relF" or "of_bound"; None if it was not measured."""
    return (m.extra(name, "errors") or {}).get(what)


def label(case: Case) -> str:
    """The case in one line."""
    return f"product {size(case)}"


def views(run: Run, markdown: bool) -> list[t.View]:
    """Ours beside XLA's for each group of products, the rungs of a ladder, and means."""
    del markdown  # the tables are narrow as they are
    unit, scale = t.unit(run.platform, "FLOP")
    peak, peer = peak_of(run.environment["device"]), name_of_xla(run.platform)
    on_cpu = ("on a CPU both are XLA's own product",) if run.platform == "cpu" else ()
    assumed = () if peak is None else (f"of peak: of {peak / 1e12:.1f} TFLOP/s, by data sheet",)

    def of_peak(m: Measured, name: str) -> float | None:
        found = rate(m, name)
        return None if found is None or peak is None else found / peak

    def columns(name: str = "") -> list[t.Column]:
        """The columns of a contender; without a name, of the line's own."""
        return [
            t.microseconds("us", name),
            t.Column(unit, lambda m: rate(m, name), "{:.2f}", scale),
            t.Column(f"of {peer}", lambda m: over_xla(m, name), "{:.3f}"),
            t.Column("of peak", lambda m: of_peak(m, name), "{:.3f}"),
            t.Column("relF", lambda m: error(m, name, "relF"), "{:.1e}"),
            t.Column("of bound", lambda m: error(m, name, "of_bound"), "{:.3f}"),
        ]

    xla, ours = columns("xla"), columns("pipelined")
    side_by_side = [(f"{peer} us", xla[0]), ("ours us", ours[0]), (f"{peer} {unit}", xla[1])]
    side_by_side += [("ours", ours[1]), *((c.head, c) for c in ours[2:4])]
    side_by_side += [(f"{peer} relF", xla[4]), ("ours", ours[4]), ("of bound", ours[5])]
    groups = t.View(
        title=lambda m: GROUPS[m["group"]],
        by=lambda m: m["group"],
        labels=(t.Column("product", lambda m: size(m.case)),),
        columns=[replace(column, head=head) for head, column in side_by_side],
        select=lambda m: not is_ladder(m),
        notes=(*assumed, *on_cpu),
    )
    ladder = t.View(
        title=lambda m: f"the ladder at {size(m.case)}",
        by=lambda m: key_of(m.case),
        labels=(t.Column("rung", lambda m: peer if m.contender == "xla" else m.contender),),
        columns=columns(),
        lines=t.each_contender(*RUNGS, "xla"),
        select=is_ladder,
        notes=(*assumed, *on_cpu),
    )
    summary = t.View(
        title=lambda m: f"ours, of {peer}",
        labels=(t.Column("products", kind),),
        lines=t.same(kind),
        columns=(
            t.Column("geometric mean", over_xla, "{:.3f}", reduce=t.geometric_mean),
            t.Column("least", over_xla, "{:.3f}", reduce=t.least, at=lambda m: size(m.case)),
        ),
        select=lambda m: bool(kind(m)) and over_xla(m) is not None,
        notes=on_cpu,
        refusals=False,
    )
    return [groups, ladder, summary]


def figure(run: Run) -> plot.Figure:
    """The rungs at one size (where they were measured), and all products beside XLA's."""
    peer, peak = name_of_xla(run.platform), peak_of(run.environment["device"])
    panels: list[plot.Panel] = []
    ladder = next((m for m in run.measured if m["group"] == "ladder"), None)
    if ladder is not None:
        rates = {name: r / 1e12 for name in (*RUNGS, "xla") if (r := rate(ladder, name))}
        levels = {peer: (rates.pop("xla"), plot.PEER)} if "xla" in rates else {}
        levels |= {"FP32 peak": (peak / 1e12, plot.MUTED)} if peak else {}
        panels.append(plot.Bars(f"The ladder at {size(ladder.case)}", "TFLOP/s", rates, levels))
    found = {size(m.case): r for m in run.measured if m["group"] != "ladder" and (r := over_xla(m))}
    if found:
        series = {"ours": (plot.OURS, list(found.values()))}
        title = f"pipelined, times {peer}'s rate"
        panels.append(plot.Dots(title, list(found), series, stems=True))
    return plot.Figure("sgemm: float32 products", [panels], (6.0, 4.2))
