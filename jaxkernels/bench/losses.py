"""The suite ``losses``: cross entropy over vocabularies, known ones or lengths that a seed draws.

Compared in one run: a plain pass over memory, optax's loss under XLA (``xla``), ours, ``-log_softmax[label]``
of ours, and torch's ``cross_entropy``, eager and compiled, where torch is installed. How a call is timed is
written down in ``jaxkernels.bench.timing``, the passes over memory in ``jaxkernels.bench.rows``; what is timed:

* ``loss``: the mean of the losses of all rows. Model bytes: read x. Its ceiling is ``read``.
* ``mean``: the mean and its gradient. Model bytes: read x, write dx. Its ceiling is ``copy``.
* ``none``: the loss of each row and the gradient for a cotangent of each, an argument. Model bytes: read x
  twice, write dx: three streams at the rate of ``copy``.
* ``log_probs``: the log-probability and the entropy of each row. Model bytes: read x. Its ceiling is ``read``.

XLA's peers widen half types to float32 in the same program, for ours computes in float32. In ``few_rows`` a
call is so small that its latency counts; calls are chained in one program: gradients one after the other in
place of x, and losses in place of its first element.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import rows, torch_losses
from jaxkernels.bench import tables as t
from jaxkernels.bench.programs import CHAIN_CALLS, chain, normal
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.rows import DTYPES, draw, row_case
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite, count, several

TUNING, PUBLISHED = 1, 3
VOCABULARIES = (32000, 50257, 50304, 128256, 151936, 262144)
SIZES = (2**28, 2**30)
FEW_ROWS = ((1, 128256), (8, 128256), (64, 128256))
PEERS = {
    "xla": "optax",
    "log_softmax": "log_softmax",
    "torch": "torch",
    "compiled": "torch.compile",
}
_CPU_COLS, _CPU_SIZES = (1000, 32000), (2**22,)


def lengths(count: int, seed: int) -> list[int]:
    """Lengths between the vocabularies, that a seed draws.

    Example:
        >>> len(lengths(10, seed=2)), lengths(10, seed=1) == lengths(10, seed=2)
        (10, False)
    """
    return random.Random(seed).sample(range(VOCABULARIES[0], VOCABULARIES[-1]), count)


def cases(options: Options) -> Iterable[Case]:
    """Every size, dtype, direction and length, then few rows."""
    on_cpu = jax.default_backend() == "cpu"
    known = _CPU_COLS if on_cpu else VOCABULARIES
    if options.drawn:
        known = lengths(options.drawn, options.seed)
    elif options.short:
        known = (VOCABULARIES[3], *lengths(1, options.seed))
    default = _CPU_SIZES if on_cpu else SIZES[:1] if options.short else SIZES
    sizes = options.elements or default
    for size, dtype, direction in product(sizes, DTYPES, rows.TRAFFIC["losses"]):
        for cols in sorted(set(options.cols or known)):
            yield row_case("losses", direction, dtype, max(1, size // cols), cols)
    if not on_cpu and not options.drawn:
        few = ("mean",) if options.short else ("loss", "mean")
        for dtype, direction, shape in product(DTYPES, few, FEW_ROWS):
            yield row_case("losses", direction, dtype, *shape, group="few_rows")


def _losses(contender: str) -> Function:
    """From the logits and labels to the loss of each row."""
    if contender == "ours":
        return partial(jk.cross_entropy, implementation="ffi")

    def of_log_softmax(x: jax.Array, label: jax.Array) -> jax.Array:
        log_p = jk.log_softmax(x, implementation="ffi")
        return -jnp.take_along_axis(log_p, label[:, None], -1)[:, 0].astype(jnp.float32)

    return of_log_softmax if contender == "log_softmax" else of_optax


def of_optax(x: jax.Array, label: jax.Array) -> jax.Array:
    """Optax's loss of each row, in float32; refused where optax is not installed."""
    try:
        from optax import softmax_cross_entropy_with_integer_labels
    except ImportError as error:
        raise NotImplementedError("optax is not installed") from error
    return softmax_cross_entropy_with_integer_labels(x.astype(jnp.float32), label)


def _log_probs(contender: str) -> Function:
    """From the logits and labels to log-probabilities and entropies."""
    if contender == "ours":
        return partial(jk.token_log_probs, return_entropy=True, implementation="ffi")
    log_softmax = jax.nn.log_softmax
    if contender == "log_softmax":
        log_softmax = partial(jk.log_softmax, implementation="ffi")

    def both(x: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_p = log_softmax(x.astype(jnp.float32))
        at_label = jnp.take_along_axis(log_p, label[:, None], -1)[:, 0]
        return at_label, -jnp.sum(jnp.exp(log_p) * log_p, -1)

    return both


def function_of(contender: str, direction: str) -> Function:
    """What a contender computes, from (x, label), or from (x, label, cotangent) of ``none``."""
    if direction == "log_probs":
        return _log_probs(contender)
    losses = _losses(contender)
    mean = lambda x, label: jnp.mean(losses(x, label))  # noqa: E731
    if contender == "ours":
        mean = partial(losses, reduction="mean")
    if direction == "loss":
        return mean
    if direction == "mean":
        return jax.value_and_grad(mean)

    def each(x: jax.Array, label: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, pull = jax.vjp(lambda x: losses(x, label), x)
        return y, pull(dy)[0]

    return each


def _link(contender: str, direction: str) -> Function:
    """A link of a chain: its result takes the place of its last argument."""
    function = function_of(contender, direction)
    if direction == "mean":
        return lambda label, x: function(x, label)[1]

    def of_loss(label: jax.Array, x: jax.Array) -> jax.Array:
        # Else XLA sees the same x in every link, and takes the log-sum-exp of it once for all of them. A loss is
        # larger than any logit: as one of them it would win its row, which is a rare kind.
        return x.at[0, 0].set((function(x, label) / 8).astype(x.dtype))

    return of_loss


def _draw(case: Case) -> list[Arguments]:
    """(x, label) for each rotation; (x, label, cotangent) of ``none``; what a chain takes of few rows."""
    moved = rows.traffic(case)
    drawn = draw(case, 1, touched=moved.reads + moved.writes)
    label = jax.random.randint(jax.random.key(0), (case["rows"],), 0, case["cols"])
    if case["group"] == "few_rows":
        ((x,),) = drawn[0]
        return [((label, x),)]
    more = (normal(1, (case["rows"],)),) if case["direction"] == "none" else ()
    return [(x, label, *more) for (x,) in drawn]


def _program(contender: str, case: Case, drawn: Any) -> Program:
    direction = case["direction"]
    if case["group"] == "few_rows":
        return Program(lambda _: jax.jit(chain(_link(contender, direction))), drawn, CHAIN_CALLS)
    return rows.jitted(lambda: function_of(contender, direction), drawn)


def contenders(case: Case, options: Options) -> Mapping[str, Program]:
    """The ceiling of a case, ours and its peers; of few rows XLA and ours."""
    drawn = partial(_draw, case)
    if case["group"] == "few_rows":
        return {name: _program(name, case, drawn) for name in ("xla", "ours")}
    ceiling = {
        name: rows.jitted(lambda f=f: lambda x, *_: f(x), drawn)
        for name, (f, _) in rows.CEILINGS[rows.traffic(case).ceiling].items()
    }
    programs = {name: _program(name, case, drawn) for name in ("xla", "log_softmax", "ours")}
    torch = {
        name: Program(partial(torch_losses.make, case["direction"], name == "compiled"), drawn)
        for name in ("torch", "compiled")
        if torch_losses.is_installed() and case["direction"] != "log_probs"
    }
    return {**ceiling, **programs, **torch}


def views(run: Run) -> list[t.View]:
    """The fraction of the ceiling, and the times of all, for each dtype and direction; then few rows."""
    unit, text = t.rates(run.platform)
    peers = [name for name in PEERS if any(name in m.records for m in run.measured)]

    def columns(m: Measured) -> list[t.Column]:
        ceiling = rows.traffic(m).ceiling
        return [
            *t.fields("cols", "rows"),
            t.Column(f"{ceiling} {unit}", partial(rows.rate, name=ceiling), text),
            t.Column(f"ours {unit}", partial(rows.rate, name="ours"), text),
            t.Column(f"of {ceiling}", partial(rows.of_ceiling, name="ours"), "{:.3f}"),
            t.time("ours ms", "ours"),
            *(t.time(f"{PEERS[name]} ms", name) for name in peers),
            t.times_faster("x optax", "xla", "ours"),
        ]

    times = [t.time("optax us", "xla", "us", 1), t.time("ours us", "ours", "us", 1)]
    few = [*t.fields("direction", "rows", "cols", "dtype"), *times]
    return [
        t.View("{operation}: {direction}, {dtype}", columns, rows.is_rows, ("dtype", "direction")),
        t.View("{operation} of few rows", few, lambda m: not rows.is_rows(m)),
    ]


def watched(platform: str) -> Iterable[tuple[str, Case, Program]]:
    """A vocabulary of an odd length, alone and with its gradient."""
    elements, cols = (2**18, 1001) if platform == "cpu" else (2**26, 50257)
    for dtype, direction in product(DTYPES[:2], ("loss", "mean", "none")):
        case = row_case("losses", direction, dtype, elements // cols, cols)
        yield "rows", case, _program("ours", case, partial(_draw, case))


_SEED_HELP = f"of --drawn (default: {TUNING}, for tuning; {PUBLISHED} is what is published)"
SUITE = Suite(
    name="losses",
    summary="cross entropy over vocabularies beside optax's, torch's, a plain read and a plain copy",
    cases=cases,
    contenders=contenders,
    label=rows.label,
    views=views,
    axes={"dtype": DTYPES, "direction": tuple(rows.TRAFFIC["losses"])},
    options={
        "--cols": several(count, "N", "these lengths, such as 32000 or 2^15"),
        "--elements": several(count, "N", "sizes of logits (default: 2^28 and 2^30 on a GPU)"),
        "--drawn": {
            "type": count,
            "metavar": "N",
            "help": "lengths that a seed draws, nothing else",
        },
        "--seed": {"type": int, "default": TUNING, "metavar": "N", "help": _SEED_HELP},
        "--short": {"action": "store_true", "help": "two lengths at 2^28"},
    },
    defaults={"dtypes": DTYPES[:2]},
    watched=watched,
)
