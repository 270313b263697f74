"""The suites ``softmax``, ``logsumexp`` and ``rms_norm``, and what ``losses`` and ``map`` share with them.

One run compares a plain pass over memory (``traffic``), XLA's code under jit (``jax.nn``'s, or plain JAX for
RMSNorm), our default (``auto``) and each forced tier, all over the last axis:

* ``fwd``: y from x.
* ``grad``: dx from the residuals and dy, without the forward pass. Ours is the function that ``jax.vjp``
  returns. Softmax saves y, logsumexp and RMSNorm save x. (16-bit log_softmax saves x instead; it is given y,
  because softmax(y) = softmax(x).) XLA's softmax is the autodiff of ``jax.nn`` in its most favourable form, from
  y instead of the unnormalised exponentials. XLA's logsumexp saves the exponentials and so computes less here;
  the cost of storing them shows only in ``both``. The gradient of a scale is not measured.
* ``both``: y and dx from x and dy, in one program.

The group ``few_rows`` of softmax has inputs so small that only the latency of a call matters; its calls are
chained in one program.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

import jaxkernels as jk
from jaxkernels.bench import programs, traffic
from jaxkernels.bench import tables as t
from jaxkernels.bench.options import count, several
from jaxkernels.bench.programs import CHAIN_CALLS, chain, with_gradient
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite
from jaxkernels.typing import Operation, Tier

DTYPES = tuple(traffic.ITEM_BYTES)
TIERS = ("auto", *get_args(Tier))
CPU_COLS = (64, 1024, 4096, 32768, 50257)
# Lengths: powers of two, model widths, vocabularies, and odd lengths with their even neighbours.
SOFTMAX_COLS = (
    *(32, 64, 128, 256, 512, 768, 1000, 1001, 1024, 2048, 3072, 4096, 5120, 8192, 12288, 16384),
    *(24576, 32768, 50256, 50257, 65536, 131072, 151935, 151936, 262144, 524288, 1048576),
)
LOGSUMEXP_COLS = (
    *(8, 17, 33, 128, 197, 512, 1001, 1024, 2048, 4096, 8192, 16384),
    *(24576, 32003, 32768, 50257, 65536, 128256, 131072, 262144, 1048576),
)
RMS_NORM_COLS = (
    *(64, 128, 197, 512, 1024, 1536, 2048, 4096, 5120, 8192, 12288, 16384, 32768, 65536, 131072),
)
FEW_ROWS = ((1, 32768), (1, 131072), (8, 131072), (64, 128256), (256, 256), (4096, 128))

# f(y, dy) -> dx, as XLA compiles the autodiff of jax.nn.
XLA_BACKWARD: dict[str, Function] = {
    "softmax": lambda y, dy: y * (dy - jnp.sum(dy * y, axis=-1, keepdims=True)),
    "log_softmax": lambda y, dy: dy - jnp.exp(y) * jnp.sum(dy, axis=-1, keepdims=True),
}


def is_few(case: Case | Measured) -> bool:
    """Whether a case measures latency, with calls chained in one program."""
    return case["group"] == "few_rows"


def row_case(
    operation: str, direction: str, dtype: str, rows: int, cols: int, group: str = "rows"
) -> Case:
    """A case of (rows, cols), without the planned tier."""
    kind = {"group": group, "operation": operation, "direction": direction, "dtype": dtype}
    return {**kind, "rows": rows, "cols": cols}


def with_tier(case: Case) -> Case:
    """Adds the tier that this GPU's plan chooses, if one kernel runs."""
    if jax.default_backend() != "gpu" or case["direction"] == "both":
        return case
    operation = cast(Operation, f"{case['operation']}_{case['direction']}")
    shape, dtype = (case["rows"], case["cols"]), jnp.dtype(case["dtype"])
    return {**case, "tier": str(jk.plan_softmax(shape, dtype, operation=operation).tier)}


def _cases(operation: str, gpu_cols: Sequence[int], options: Options) -> Iterable[Case]:
    """Every dtype, direction and length (or the requested lengths), on inputs of one size."""
    on_cpu = jax.default_backend() == "cpu"
    elements = options.elements or (2**24 if on_cpu else 2**28)
    lengths = sorted(set(options.cols or (CPU_COLS if on_cpu else gpu_cols)))
    for dtype, direction, cols in product(DTYPES, traffic.TRAFFIC[operation], lengths):
        rows = max(1, elements // cols)
        yield with_tier(row_case(operation, direction, dtype, rows, cols))


def _softmax_cases(options: Options) -> Iterable[Case]:
    yield from _cases(options.operation, SOFTMAX_COLS, options)
    few_rows = options.few_rows
    if few_rows or (few_rows is None and jax.default_backend() != "cpu"):
        for dtype, direction, shape in product(DTYPES, traffic.TRAFFIC["softmax"], FEW_ROWS):
            yield row_case(options.operation, direction, dtype, *shape, group="few_rows")


def _names(case: Case, options: Options) -> list[str]:
    if is_few(case):
        return ["xla", "auto"]
    tiers = options.tiers or (TIERS[:1] if jax.default_backend() == "cpu" else TIERS)
    return [*traffic.CEILINGS[traffic.of(case).ceiling], "xla", *tiers]


def _label(case: Case) -> str:
    shape = f"{case['rows']}x{case['cols']}"
    return f"{case['operation']} {case['direction']} {case['dtype']} {shape}"


def draw(types: Sequence[jax.ShapeDtypeStruct], case: Case) -> list[Arguments]:
    """Random arrays for each rotation; for few rows one tuple for a chain.

    The ceiling touches the least data, so it determines the number of rotations.
    """
    touched = 2 if traffic.of(case).ceiling == "copy" else 1
    size = touched * case["rows"] * case["cols"] * traffic.ITEM_BYTES[case["dtype"]]
    drawn = programs.draw(types, size, turns=1 if is_few(case) else 0)
    return [tuple(drawn)] if is_few(case) else drawn


def type_of_x(case: Case) -> jax.ShapeDtypeStruct:
    """The shape and dtype of the input of a case."""
    return jax.ShapeDtypeStruct((case["rows"], case["cols"]), case["dtype"])


def function_of(case: Case, name: str) -> tuple[Function, list[jax.ShapeDtypeStruct]]:
    """A contender's function in the direction of a case, and the types of its arguments.

    ``grad`` takes residuals, then the cotangent, and does not run the forward pass. ``jax.vjp`` returns a
    pytree whose leaves are the residuals; an abstract evaluation gives its structure. Times do not depend
    on the values of residuals, so they are random.
    """
    x, direction, operation = type_of_x(case), case["direction"], case["operation"]
    if passing := traffic.ceiling(case, name):
        return passing, [x]
    if name == "xla":
        if direction == "grad" and operation in XLA_BACKWARD:
            return XLA_BACKWARD[operation], [x, x]
        peer = getattr(jax.nn, operation, None) or partial(jk.rms_norm, implementation="xla")
        function = partial(peer, axis=-1)
    else:  # a forced tier, or the default; it raises instead of falling back to XLA
        tier = None if name == "auto" else name
        ours: Function = getattr(jk, operation)
        # By default XLA serves the longest rows, whose tier would be block_uncached.
        may_be_xlas = tier is None and case.get("tier") == "block_uncached"
        function = partial(ours, axis=-1, tier=tier, implementation=None if may_be_xlas else "ffi")
    if operation == "rms_norm":
        function = partial(function, scale=np.linspace(0.5, 1.5, case["cols"], dtype=np.float32))
    if direction == "fwd":
        return function, [x]
    dy = jax.eval_shape(function, x)
    if direction == "both":
        return with_gradient(function), [dy, x]
    pullback = jax.eval_shape(lambda primal: jax.vjp(function, primal)[1], x)
    residuals, structure = jax.tree.flatten(pullback)

    def backward(*arguments: jax.Array) -> jax.Array:
        return jax.tree.unflatten(structure, arguments[:-1])(arguments[-1])[0]

    return backward, [*residuals, dy]


def program(case: Case, name: str) -> Program:
    """A contender's program; a chain for few rows."""
    function, types = function_of(case, name)
    drawn = partial(draw, types, case)
    if is_few(case):
        return Program(chain(function), drawn, str(types), CHAIN_CALLS)
    return Program(function, drawn, str(types))


def _views(run: Run) -> list[t.View]:
    """Tables of rates for each dtype and direction, then one of few rows."""
    unit, text = t.rates(run.platform)
    tiers = [name for name in TIERS[1:] if any(name in m.records for m in run.measured)]

    def rate_of(head: str, name: str) -> t.Column:
        return t.Column(head, partial(traffic.rate, name=name), text)

    def columns(m: Measured) -> list[t.Column]:
        ceiling = traffic.of(m).ceiling
        peer = "jax.nn" if hasattr(jax.nn, m["operation"]) else "plain JAX"
        return [
            *t.fields("cols", "rows"),
            rate_of(ceiling, ceiling),
            rate_of(peer, "xla"),
            rate_of("ours", "auto"),
            t.Column(f"of {ceiling}", traffic.of_ceiling, "{:.3f}"),
            t.times_faster(f"x {peer}", "xla", "auto"),
            *(t.fields("tier") if m["tier"] else ()),
            *(rate_of(tier, tier) for tier in tiers),
        ]

    times = [t.time("jax.nn us", "xla", "us", 1), t.time("ours us", "auto", "us", 1)]
    of_rows = "{operation} {direction}, {dtype}" + f" ({unit} of model bytes)"
    of_few = [*t.fields("direction", "rows", "cols", "dtype"), *times]
    return [
        t.View(of_rows, columns, ("rows",)),
        t.View("{operation} on few rows", of_few, ("few_rows",)),
    ]


_TIERS_HELP = "auto and the tiers to force (default: all on a GPU, auto on a CPU)"
_ELEMENTS_HELP = "size of each input, rows = N // cols (default: 2^28 on a GPU, 2^24 on a CPU)"
_FEW_ROWS_HELP = "also measure the latency on small inputs (default: on a GPU)"
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--cols": several(count, "N", "row lengths, such as 1000 or 2^15"),
    "--tiers": {"nargs": "+", "choices": TIERS, "help": _TIERS_HELP},
    "--elements": {"type": count, "metavar": "N", "help": _ELEMENTS_HELP},
}


def suite(name: str, operation: str = "", **fields: Any) -> Suite:
    """The suite of a row operation of `TRAFFIC`; `fields` override the common fields."""
    common: dict[str, Any] = {
        "names": _names,
        "program": program,
        "label": _label,
        "views": _views,
        "ours": "auto",
        "axes": {"dtype": DTYPES, "direction": tuple(traffic.TRAFFIC[operation or name])},
        "options": _OPTIONS,
        "defaults": {"dtypes": DTYPES[:2]},
    }
    return Suite(name=name, **(common | fields))


SUITES = (
    suite(
        "softmax",
        summary="softmax and log_softmax, forward and backward, compared with jax.nn and a copy",
        cases=_softmax_cases,
        options={
            **_OPTIONS,
            "--operation": {"choices": ("softmax", "log_softmax"), "default": "softmax"},
            "--few-rows": {"action": argparse.BooleanOptionalAction, "help": _FEW_ROWS_HELP},
        },
    ),
    suite(
        "logsumexp",
        summary="logsumexp, forward, backward and both, compared with jax.nn, a read and a copy",
        cases=partial(_cases, "logsumexp", LOGSUMEXP_COLS),
    ),
    suite(
        "rms_norm",
        summary="RMSNorm, forward and backward, compared with plain JAX and a copy",
        cases=partial(_cases, "rms_norm", RMS_NORM_COLS),
    ),
)
