"""The suite ``losses``: cross entropy over vocabularies of known or random sizes.

One run compares a plain pass over memory, optax's loss under XLA (``xla``), our loss,
``-log_softmax[label]`` with our log_softmax, and torch's ``cross_entropy``, eager and compiled, if torch
is installed (``traffic`` has the model bytes and the ceilings):

* ``loss``: the mean of the losses of all rows.
* ``mean``: the mean and its gradient.
* ``none``: the loss of each row, and the gradient for a given cotangent of each row.
* ``log_probs``: the log-probability and the entropy of each row.

``--directions`` also selects the log-probabilities of 8 or 1024 ids of each row (``ids_8``, ``ids_1024``), and the KL
divergence of each row (``kl``), or the mean and its gradient by the logits (``kl_mean``) or by both (``kl_both``).

A sweep of random lengths (``--drawn``) draws one to three options of ``OPTIONS`` for each cell, and measures our
loss with them (``options``), and in plain JAX (``plain``). ``--options`` names options instead, each measured alone.
The tables begin with the options that cost the most time per byte. The bytes of a mask of (rows, classes), and of an
option's numbers of each row, are counted.

XLA's contenders widen 16-bit logits to float32 in the same program, because ours computes in float32.
Calls of ``few_rows`` are chained in one program: a gradient replaces x, and a loss replaces its first
element.
"""

import importlib.util
import random
from collections.abc import Callable, Iterable
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
DIRECTIONS = ("loss", "mean", "none", "log_probs")  # measured by default
# Keyword arguments by option, for a number of rows and of classes. Arrays are arguments of the program.
OPTIONS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "temperature": lambda rows, cols: {"temperature": jnp.float32(0.7)},
    "temperatures": lambda rows, cols: {"temperature": jnp.linspace(0.5, 2, rows)},
    "where": lambda rows, cols: {"where": jnp.arange(cols) % 7 != 6},
    "mask": lambda rows, cols: {"where": jnp.tile(jnp.arange(cols) % 7 != 6, (rows, 1))},
    "soft_cap": lambda rows, cols: {"logit_soft_cap": 30.0},
    "weights": lambda rows, cols: {"weights": jnp.linspace(0.5, 2, rows)},
    "smoothing": lambda rows, cols: {"label_smoothing": 0.1},
    "z_loss": lambda rows, cols: {"z_loss": 1e-4},
    "results": lambda rows, cols: {"return_lse": True, "return_entropy": True},
}
# At most one option of each group is drawn. Log-probabilities have the first three groups.
_DRAWN = (("temperature", "temperatures"), ("where", "mask"), ("soft_cap",))
_DRAWN += (("weights",), ("smoothing",), ("z_loss",), ("results",))
_CPU_COLS, _CPU_SIZES = (1000, 32000), (2**22,)


def lengths(count: int, seed: int) -> list[int]:
    """Random lengths from 100 to 300,000, log-uniform; every second one is made odd."""
    chance = random.Random(seed)
    drawn = (round(100 * 3000 ** chance.random()) for _ in range(count))
    return [n | 1 if i % 2 else n for i, n in enumerate(drawn)]


def _drawn(chance: random.Random, direction: str) -> str:
    """One to three options that go together, joined by "+"."""
    some = _DRAWN[:3] if direction == "log_probs" else _DRAWN
    return "+".join(chance.choice(one) for one in chance.sample(some, chance.randint(1, 3)))


def _cases(options: Options) -> Iterable[Case]:
    on_cpu = jax.default_backend() == "cpu"
    known = _CPU_COLS if on_cpu else VOCABULARIES
    if options.drawn:
        known = lengths(options.drawn, options.seed)
    elif options.short:
        known = (VOCABULARIES[3], *lengths(1, options.seed))
    default = _CPU_SIZES if on_cpu else SIZES[:1] if options.short else SIZES
    sizes, chance = options.elements or default, random.Random(options.seed)
    for size, dtype, direction in product(sizes, DTYPES, traffic.TRAFFIC["losses"]):
        for cols in sorted(set(options.cols or known)):
            case = partial(row_case, "losses", direction, dtype, max(1, size // cols), cols)
            named = options.options or ([_drawn(chance, direction)] if options.drawn else [])
            if not named or direction not in DIRECTIONS:
                yield case()
                continue
            of_loss = {name for some in _DRAWN[3:] for name in some}
            for some in named:
                if direction != "log_probs" or some not in of_loss:
                    yield {**case(group="options"), "options": some}
    if not on_cpu and not options.drawn and not options.options:
        few = ("mean",) if options.short else ("loss", "mean")
        for dtype, direction, shape in product(DTYPES, few, FEW_ROWS):
            yield row_case("losses", direction, dtype, *shape, group="few_rows")


def names(case: Case, options: Options) -> list[str]:
    """The ceiling's contenders, ours and its peers; for few rows only XLA and ours."""
    if rows.is_few(case):
        return ["xla", "ours"]
    passes = traffic.CEILINGS[traffic.of(case).ceiling]
    if "options" in case:
        return [*passes, "xla", "ours", "options", "plain"]
    if case["direction"] not in DIRECTIONS:
        return [*passes, "xla", "ours"]
    has_torch = importlib.util.find_spec("torch") and case["direction"] != "log_probs"
    return [*passes, "xla", "log_softmax", "ours", *(("torch", "compiled") if has_torch else ())]


def of_optax(label: jax.Array, x: jax.Array) -> jax.Array:
    """Optax's loss of each row, in float32."""
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(x.astype(jnp.float32), label)


def _at_label(log_p: jax.Array, label: jax.Array) -> jax.Array:
    found = jnp.take_along_axis(log_p, label.reshape(len(label), -1), -1)
    return found.reshape(label.shape)


def _of_log_softmax(label: jax.Array, x: jax.Array) -> jax.Array:
    return -_at_label(jk.log_softmax(x, implementation="ffi"), label).astype(jnp.float32)


def _of_ours(label: jax.Array, x: jax.Array, reduction: Any = "none") -> Any:
    return jk.cross_entropy(x, label, reduction=reduction, implementation="ffi")


def _keywords(case: Case) -> dict[str, Any]:
    """The keyword arguments of the options of a case."""
    some = (OPTIONS[name](case["rows"], case["cols"]) for name in case["options"].split("+"))
    return {name: value for given in some for name, value in given.items()}


def _with_options(case: Case, implementation: Any) -> Function:
    """Our function of (label, arrays of options, x), with a cotangent after the label for ``none``."""
    direction = case["direction"]
    fixed = {n: a for n, a in _keywords(case).items() if not isinstance(a, jax.Array)}
    call = partial(jk.cross_entropy, reduction="mean" if direction in ("loss", "mean") else "none")
    if direction == "log_probs":
        call = partial(jk.token_log_probs, return_entropy=True)

    def results(x: jax.Array, label: jax.Array, given: dict[str, jax.Array]) -> tuple[Any, Any]:
        found: Any = call(x, label, **given, **fixed, implementation=implementation)
        return (found[0], found[1:]) if isinstance(found, tuple) else (found, ())

    def each(label: jax.Array, dy: jax.Array, given: dict[str, jax.Array], x: jax.Array) -> Any:
        y, pull, others = jax.vjp(lambda x: results(x, label, given), x, has_aux=True)
        return y, pull(dy)[0], others

    if direction == "none":
        return each
    whole = jax.value_and_grad(results, has_aux=True) if direction == "mean" else results
    return lambda label, given, x: whole(x, label, given)


def _divergence(name: str, direction: str) -> Function:
    """f(target, x) -> the KL divergence of each row, or the mean and its gradients."""
    import optax

    def divergence(x: jax.Array, target: jax.Array) -> jax.Array:
        if name == "ours":
            return jk.softmax_kl_divergence(x, target, implementation="ffi")
        p = jax.nn.softmax(target.astype(jnp.float32))
        return optax.losses.kl_divergence(jax.nn.log_softmax(x.astype(jnp.float32)), p)

    if direction == "kl":
        return lambda target, x: divergence(x, target)
    mean = lambda x, target: jnp.mean(divergence(x, target))  # noqa: E731
    whole = jax.value_and_grad(mean, (0, 1) if direction == "kl_both" else 0)
    return lambda target, x: whole(x, target)


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
    if direction.startswith("ids"):
        log_softmax = lambda x: jax.nn.log_softmax(x.astype(jnp.float32))  # noqa: E731
        ours = partial(jk.token_log_probs, implementation="ffi")
        return lambda ids, x: ours(x, ids) if name == "ours" else _at_label(log_softmax(x), ids)
    if direction.startswith("kl"):
        return _divergence(name, direction)
    peers = {"xla": of_optax, "log_softmax": _of_log_softmax}
    losses: Function = peers.get(name, _of_ours)

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
    if case["direction"].startswith("kl"):
        return rows.draw([rows.type_of_x(case)] * 2, case)
    count = case["direction"].partition("ids_")[2]
    shape = (case["rows"], int(count)) if count else (case["rows"],)
    label = jax.random.randint(jax.random.key(0), shape, 0, case["cols"])
    before = (label, normal(1, (case["rows"],))) if case["direction"] == "none" else (label,)
    drawn = rows.draw([rows.type_of_x(case)], case)
    if rows.is_few(case):
        return [((*before, *drawn[0][0]),)]
    return [(*before, x) for (x,) in drawn]


def _draw_with_options(case: Case) -> list[Arguments]:
    """As `_draw`, with labels that no mask hides, and the arrays of options before x."""
    given = {n: a for n, a in _keywords(case).items() if isinstance(a, jax.Array)}
    return [(label - (label % 7 == 6), *dy, given, x) for label, *dy, x in _draw(case)]


def program(case: Case, name: str) -> Program:
    """A contender's program."""
    direction, drawn = case["direction"], partial(_draw, case)
    if name in ("options", "plain"):
        function = _with_options(case, "ffi" if name == "options" else "xla")
        return Program(function, partial(_draw_with_options, case), "options")
    if rows.is_few(case):
        return Program(chain(_link(name, direction)), drawn, operations=CHAIN_CALLS)
    if name in ("torch", "compiled"):
        return Program(_of_torch(direction, compiled=name == "compiled"), drawn, jit=False)
    return Program(traffic.ceiling(case, name) or function_of(name, direction), drawn)


def _per_byte(m: Measured) -> float | None:
    """The speed of our loss with options relative to that without, in bytes per second."""
    some, moved, ratio = (m["options"] or "").split("+"), traffic.of(m), m.ratio("ours", "options")
    # A mask is read as often as the logits; a temperature and a weight have 4 bytes a row, results 8.
    of_row = {"mask": moved.reads * m["cols"], "temperatures": 4, "weights": 4, "results": 8}
    more = m["rows"] * sum(of_row.get(name, 0) for name in some)
    return ratio and ratio * (1 + more / moved.size(m))


def _views(run: Run) -> list[t.View]:
    """Tables of rates and times for each dtype and direction, with options, and of few rows."""
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
        ]

    def of_options(m: Measured) -> list[t.Column]:
        return [
            t.Column("options", lambda m: m["options"].replace("+", ", ")),
            *columns(m),
            t.time("options ms", "options"),
            t.Column("per byte", _per_byte, "{:.3f}"),
            t.times_faster("x plain", "plain", "options"),
        ]

    times = [t.time("optax us", "xla", "us", 1), t.time("ours us", "ours", "us", 1)]
    few = [*t.fields("direction", "rows", "cols", "dtype"), *times]
    label = lambda m: f"{m['rows']} x {m['cols']}, {m['options']}"  # noqa: E731
    sweep = t.Sweep("Speed per byte with options, relative to none,", _per_byte, label, 0.95, 8)
    with_options = "{operation} with options: {direction}, {dtype}"
    return [
        t.View("{operation}: {direction}, {dtype}", columns, ("rows",)),
        sweep.view(with_options, of_options, ("options",)),
        t.View("{operation} of few rows", few, ("few_rows",)),
    ]


_DRAWN_HELP = "lengths that a seed draws, with options that it draws, nothing else"
_OPTIONS_HELP = "measure these options, each alone, nothing else"
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
        "--options": {"nargs": "+", "choices": OPTIONS, "default": (), "help": _OPTIONS_HELP},
        "--seed": seeded("of --drawn", tuning=1, published=3),
        "--short": {"action": "store_true", "help": "two lengths at 2^28"},
    },
    defaults={"dtypes": DTYPES[:2], "directions": DIRECTIONS},
)
