"""The suite ``rungs``: whether the plan chooses the fastest rung (algorithm), on random products that a seed draws.

Each product runs by the plan (``auto``), by each rung that the plan could choose, and by XLA at the highest
precision. ``regret`` is the planned time over that of the fastest rung: above 1, the plan's model of times
is wrong. ``best of cuBLAS`` is the speed of the fastest rung: below 1, a faster kernel is missing.
``--algorithms`` selects other rungs, which the plan never chooses.

m, n and k are log-uniform from 1 to 32768, and the batch from 1 to 64. On a GPU, five of eight products have 0.2 to
500 GFLOP, and the others 1 to 200 MFLOP. The operands of one in four are slices x[1:] with rows of odd length.
Products of at most 16 rows or columns, which memory bandwidth bounds, have a table of their own.

    python -m jaxkernels.bench rungs --products 160 --seed 1 --limit 180 --json rungs.json
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

import jax
import numpy as np

from jaxkernels.bench import sgemm
from jaxkernels.bench import sgemm_products as products
from jaxkernels.bench import tables as t
from jaxkernels.bench.options import count, seeded
from jaxkernels.bench.programs import rotations
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.sgemm import AUTO
from jaxkernels.bench.suite import Options, Program, Suite
from jaxkernels.typing import Algorithm

PLANNED: tuple[Algorithm, ...] = ("pipelined", "thin", "tensor")
FEW_LINES = 16
_LONGEST, _MOST_MEMBERS = 2**15, 64
_SMALL, _SLICED = 3 / 8, 1 / 4  # probabilities
# Operations: the least and the most of small products, and the most of others. Then the most bytes.
_LIMITS = {"gpu": (1e6, 2e8, 5e11, 6e9), "cpu": (1e4, 1e6, 1e7, 2**24)}
# The most bytes of inputs of the products that are sampled in turn.
_PART_BYTES = 16e9
# Notes count regrets above the first, and keep products apart that XLA computes in less than the second (seconds).
_HIGH_REGRET, _SHORT = 1.2, 30e-6


def drawn(number: int, seed: int, platform: str) -> list[Case]:
    """Random products; a larger number of the same seed starts with the same products."""
    least, small, most, most_bytes = _LIMITS["cpu" if platform == "cpu" else "gpu"]
    rng = np.random.default_rng(seed)
    found: list[Case] = []
    while len(found) < number:
        low, high = (least, small) if rng.uniform() < _SMALL else (small, most)
        is_sliced = rng.uniform() < _SLICED
        while True:
            longest = np.log2([_LONGEST] * 3 + [_MOST_MEMBERS])
            m, n, k, batch = (round(2**x) for x in rng.uniform(0, longest))
            kind = ("NN", "NT", "TN", "TT")[rng.integers(4)]
            if is_sliced:  # the lengths of rows in memory
                m, n, k = m | (kind[0] == "T"), n | (kind[1] == "N"), k | (kind != "TN")
            case = products.product("", batch, m, n, k, kind)
            if low <= products.flops(case) <= high and products.touched_bytes(case) <= most_bytes:
                break
        case["group"] = "few_lines" if min(m, n) <= FEW_LINES else "many_lines"
        found.append({**case, "operands": "sliced"} if is_sliced else case)
    return found


def _cases(options: Options) -> Iterable[Case]:
    platform = jax.default_backend()
    part, held = 0, 0.0
    for case in drawn(options.products, options.seed, platform):
        size = sgemm.products_per_call(case, platform) * products.touched_bytes(case)
        size *= rotations(size)
        if held + size > _PART_BYTES:
            part, held = part + 1, 0.0
        held += size
        yield {**case, "part": part}


def names(case: Case, options: Options) -> Iterable[str]:
    """XLA, the plan, and the rungs that serve the product."""
    rungs = options.algorithms or PLANNED
    return ("xla", AUTO, *(rung for rung in rungs if sgemm.rung_of(case, rung) == rung))


def program(case: Case, name: str) -> Program:
    """A contender's program; errors, which ``sgemm`` measures, would take longer than times."""
    look = {"rung": lambda *_: sgemm.rung_of(case)} if name == AUTO else {}
    return replace(sgemm.program(case, name), inspect=look)


def _best(m: Measured) -> str:
    """The fastest rung; empty if none was timed."""
    timed = {name: m.seconds(name) for name in m.records if name not in ("xla", AUTO)}
    found = {name: seconds for name, seconds in timed.items() if seconds is not None}
    return min(found, key=found.__getitem__, default="")


def regret(m: Measured) -> float | None:
    """The planned time over that of the fastest rung."""
    return m.ratio(AUTO, _best(m))


def _label(m: Measured) -> str:
    return products.size(m.case)


def _views(run: Run) -> list[t.View]:
    """A table for products of few rows or columns, and one for the others, by regret."""
    peer = "cuBLAS" if run.platform == "gpu" else "XLA"
    ratios = {"auto": lambda m: m.ratio("xla", AUTO), "best": lambda m: m.ratio("xla", _best(m))}
    columns = [
        t.Column("product", _label),
        t.extra("planned", "rung", contender=AUTO),
        t.Column("best", lambda m: _best(m) or None),
        t.time("planned us", AUTO, "us", 1),
        t.Column("best us", lambda m: m.seconds(_best(m)), lambda s: f"{s * 1e6:.1f}"),
        t.time(f"{peer} us", "xla", "us", 1),
        t.Column("regret", regret, "{:.3f}"),
        *(t.Column(f"{name} of {peer}", of_xla, "{:.3f}") for name, of_xla in ratios.items()),
    ]

    def notes(members: Sequence[Measured]) -> list[str]:
        found = sorted(((r, _label(m)) for m in members if (r := regret(m))), reverse=True)
        said = [] if run.platform == "gpu" else ["on a CPU every contender is XLA's own product"]
        if found:
            regrets = [r for r, _ in found]
            high = sum(r > _HIGH_REGRET for r in regrets)
            said.append(
                f"regret of {len(found)} cases: geometric mean "
                f"{statistics.geometric_mean(regrets):.3f}, worst {found[0][0]:.3f} "
                f"({found[0][1]}), {high} above {_HIGH_REGRET}"
            )
        timed = [m for m in members if m.seconds("xla")]
        for is_short, some in t.group_by(timed, lambda m: m.seconds("xla") < _SHORT).items():
            what = f"over {peer} {'below' if is_short else 'from'} {_SHORT * 1e6:.0f} us"
            said += [t.Sweep(f"{n} {what}", f, _label).summary(some) for n, f in ratios.items()]
        return said

    titles = {
        "many_lines": "more rows and columns",
        "few_lines": f"at most {FEW_LINES} rows or columns",
    }

    order = lambda m: -(regret(m) or 0)  # noqa: E731
    return [
        t.View(f"products of {text}", columns, (group,), notes=notes, order=order)
        for group, text in titles.items()
    ]


_ALGORITHMS_HELP = f"rungs to compare (default: {' '.join(PLANNED)})"
SUITE = Suite(
    name="rungs",
    summary="random float32 products: the planned rung, compared with the others and with XLA",
    cases=_cases,
    names=names,
    program=program,
    label=lambda case: f"product {products.size(case)}",
    views=_views,
    ours=AUTO,
    options={
        "--products": {"type": count, "default": 160, "metavar": "N", "help": "how many to draw"},
        "--seed": seeded("draws the products", tuning=1, published=3),
        "--algorithms": {"nargs": "+", "choices": sgemm.RUNGS, "help": _ALGORITHMS_HELP},
    },
    defaults={"repeats": 3, "min_sample_ms": 5.0},
)
