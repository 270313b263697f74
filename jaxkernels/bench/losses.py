"""The suite ``losses``: cross entropy over vocabularies of known or random sizes.

One run compares a plain pass over memory, optax's loss under XLA (``xla``), our loss,
``-log_softmax[label]`` with our log_softmax, and torch's ``cross_entropy``, eager and compiled, if torch
is installed (``traffic`` has the model bytes and the ceilings):

* ``loss``: the mean of the losses of all rows.
* ``mean``: the mean and its gradient.
* ``none``: the loss of each row, and the gradient for a given cotangent of each row.
* ``log_probs``: the log-probability and the entropy of each row.

A sweep of random lengths (``--drawn``) also measures our loss with each option of ``OPTIONS``.

XLA's contenders widen 16-bit logits to float32 in the same program, because ours computes in float32.
Calls of ``few_rows`` are chained in one program: a gradient replaces x, and a loss replaces its first
element.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterable
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

import jaxkernels as jk
from jaxkernels.bench import rows, traffic
from jaxkernels.bench import tables as t
from jaxkernels.bench.options import count, seeded, several
from jaxkernels.bench.programs import CHAIN_CALLS, chain, normal, of_torch
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.rows import DTYPES, row_case
from jaxkernels.bench.suite import Arguments, Function, Options, Program

VOCABULARIES = (32000, 50257, 50304, 128256, 151936, 262144)
SIZES = (2**28, 2**30)
FEW_ROWS = ((1, 128256), (8, 128256), (64, 128256))
PEERS = {
    "xla": "optax",
    "log_softmax": "log_softmax",
    "torch": "torch",
    "compiled": "torch.compile",
}
# Options of our loss that a drawn sweep measures as contenders of their own.
OPTIONS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "soft_cap": {"logit_soft_cap": 30.0},
    "smoothing": {"label_smoothing": 0.1},
    "where": {},  # a mask of the classes
}
_CPU_COLS, _CPU_SIZES = (1000, 32000), (2**22,)


def lengths(count: int, seed: int) -> list[int]:
    """Random lengths from 100 to 300,000, uniform in the logarithm; half of them are odd."""
    chance = random.Random(seed)
    drawn = (round(100 * 3000 ** chance.random()) for _ in range(count))
    return [n | 1 if i % 2 else n for i, n in enumerate(drawn)]


def _cases(options: Options) -> Iterable[Case]:
    on_cpu = jax.default_backend() == "cpu"
    known = _CPU_COLS if on_cpu else VOCABULARIES
    if options.drawn:
        known = lengths(options.drawn, options.seed)
    elif options.short:
        known = (VOCABULARIES[3], *lengths(1, options.seed))
    default = _CPU_SIZES if on_cpu else SIZES[:1] if options.short else SIZES
    sizes = options.elements or default
    for size, dtype, direction in product(sizes, DTYPES, traffic.TRAFFIC["losses"]):
        for cols in sorted(set(options.cols or known)):
            yield row_case("losses", direction, dtype, max(1, size // cols), cols)
    if not on_cpu and not options.drawn:
        few = ("mean",) if options.short else ("loss", "mean")
        for dtype, direction, shape in product(DTYPES, few, FEW_ROWS):
            yield row_case("losses", direction, dtype, *shape, group="few_rows")


def names(case: Case, options: Options) -> list[str]:
    """The ceiling's contenders, ours and its peers; for few rows only XLA and ours."""
    if rows.is_few(case):
        return ["xla", "ours"]
    passes = traffic.CEILINGS[traffic.of(case).ceiling]
    if options.drawn:
        return [*passes, "xla", "ours", *OPTIONS]
    has_torch = importlib.util.find_spec("torch") and case["direction"] != "log_probs"
    return [*passes, "xla", "log_softmax", "ours", *(("torch", "compiled") if has_torch else ())]


def of_optax(label: jax.Array, x: jax.Array) -> jax.Array:
    """Optax's loss of each row, in float32."""
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(x.astype(jnp.float32), label)


def _at_label(log_p: jax.Array, label: jax.Array) -> jax.Array:
    return jnp.take_along_axis(log_p, label[:, None], -1)[:, 0]


def _of_log_softmax(label: jax.Array, x: jax.Array) -> jax.Array:
    return -_at_label(jk.log_softmax(x, implementation="ffi"), label).astype(jnp.float32)


def _of_ours(name: str, label: jax.Array, x: jax.Array, reduction: Any = "none") -> Any:
    options: Any = OPTIONS.get(name, {})
    if name == "where":
        options = {"where": jnp.arange(x.shape[-1]) % 7 != 0}
    return jk.cross_entropy(x, label, reduction=reduction, implementation="ffi", **options)


def _log_probs(name: str) -> Function:
    """f(labels, logits) -> log-probabilities and entropies."""
    if name == "ours":
        ours = partial(jk.token_log_probs, return_entropy=True, implementation="ffi")
        return lambda label, x: ours(x, label)
    log_softmax = jax.nn.log_softmax
    if name == "log_softmax":
        log_softmax = partial(jk.log_softmax, implementation="ffi")

    def both(label: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_p = log_softmax(x.astype(jnp.float32))
        return _at_label(log_p, label), -jnp.sum(jnp.exp(log_p) * log_p, -1)

    return both


def function_of(name: str, direction: str) -> Function:
    """A contender's function of (label, x), or of (label, cotangent, x) for ``none``."""
    if direction == "log_probs":
        return _log_probs(name)
    peers = {"xla": of_optax, "log_softmax": _of_log_softmax}
    losses: Function = peers.get(name) or partial(_of_ours, name)

    def mean(x: jax.Array, label: jax.Array) -> jax.Array:
        if name in peers:
            return jnp.mean(losses(label, x))
        return losses(label, x, reduction="mean")

    def each(label: jax.Array, dy: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, pull = jax.vjp(partial(losses, label), x)
        return y, pull(dy)[0]

    if direction == "none":
        return each
    whole = jax.value_and_grad(mean) if direction == "mean" else mean
    return lambda label, x: whole(x, label)


def _of_torch(direction: str, compiled: bool) -> Function:
    """The loss of torch, of JAX's (label, x), or of (label, cotangent, x) for ``none``."""
    reduction = "none" if direction == "none" else "mean"

    @cache
    def loss_of(torch: Any) -> Function:
        loss = torch.nn.functional.cross_entropy
        return torch.compile(loss) if compiled else loss

    def prepare(torch: Any, label: Any, *rest: Any) -> Function:
        *cotangent, x = rest
        label, x = label.long(), x.requires_grad_(direction != "loss")

        def call() -> Any:
            x.grad = None
            value = loss_of(torch)(x, label, reduction=reduction)
            if direction != "loss":
                value.backward(*cotangent)
            return value.detach(), x.grad

        return call

    return of_torch(prepare)


def _link(name: str, direction: str) -> Function:
    """A link of a chain, whose result replaces its last argument."""
    function = function_of(name, direction)
    if direction == "mean":
        return lambda label, x: function(label, x)[1]

    def of_loss(label: jax.Array, x: jax.Array) -> jax.Array:
        # The loss is stored into x, because XLA would otherwise compute one log-sum-exp for all links. It
        # is divided by 8, because it exceeds all logits and would dominate its row.
        return x.at[0, 0].set((function(label, x) / 8).astype(x.dtype))

    return of_loss


def _draw(case: Case) -> list[Arguments]:
    """(label, x) or (label, cotangent, x) for each rotation; for few rows one tuple for a chain."""
    label = jax.random.randint(jax.random.key(0), (case["rows"],), 0, case["cols"])
    before = (label, normal(1, (case["rows"],))) if case["direction"] == "none" else (label,)
    drawn = rows.draw([rows.type_of_x(case)], case)
    if rows.is_few(case):
        return [((*before, *drawn[0][0]),)]
    return [(*before, x) for (x,) in drawn]


def program(case: Case, name: str) -> Program:
    """A contender's program."""
    direction, drawn = case["direction"], partial(_draw, case)
    if rows.is_few(case):
        return Program(chain(_link(name, direction)), drawn, operations=CHAIN_CALLS)
    if name in ("torch", "compiled"):
        return Program(_of_torch(direction, compiled=name == "compiled"), drawn, jit=False)
    return Program(traffic.ceiling(case, name) or function_of(name, direction), drawn)


def _views(run: Run) -> list[t.View]:
    """Tables of rates and times for each dtype and direction, then one of few rows."""
    unit, text = t.rates(run.platform)
    peers = [name for name in PEERS if any(name in m.records for m in run.measured)]

    def columns(m: Measured) -> list[t.Column]:
        ceiling = traffic.of(m).ceiling
        return [
            *t.fields("cols", "rows"),
            t.Column(f"{ceiling} {unit}", partial(traffic.rate, name=ceiling), text),
            t.Column(f"ours {unit}", partial(traffic.rate, name="ours"), text),
            t.Column(f"of {ceiling}", partial(traffic.of_ceiling, name="ours"), "{:.3f}"),
            t.time("ours ms", "ours"),
            *(t.time(f"{PEERS[name]} ms", name) for name in peers),
            t.times_faster("x optax", "xla", "ours"),
            *(t.times_faster(name, "ours", name) for name in OPTIONS if name in m.records),
        ]

    times = [t.time("optax us", "xla", "us", 1), t.time("ours us", "ours", "us", 1)]
    few = [*t.fields("direction", "rows", "cols", "dtype"), *times]
    return [
        t.View("{operation}: {direction}, {dtype}", columns, ("rows",)),
        t.View("{operation} of few rows", few, ("few_rows",)),
    ]


_DRAWN_HELP = "lengths that a seed draws, with each option, nothing else"
SUITE = rows.suite(
    "losses",
    summary="cross entropy over vocabularies, compared with optax, torch, a read and a copy",
    cases=_cases,
    names=names,
    program=program,
    views=_views,
    ours="ours",
    options={
        "--cols": several(count, "N", "these lengths, such as 32000 or 2^15"),
        "--elements": several(count, "N", "sizes of logits (default: 2^28 and 2^30 on a GPU)"),
        "--drawn": {"type": count, "metavar": "N", "help": _DRAWN_HELP},
        "--seed": seeded("of --drawn", tuning=1, published=3),
        "--short": {"action": "store_true", "help": "two lengths at 2^28"},
    },
)
