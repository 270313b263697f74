"""The suite ``sgemm``: times and errors of every algorithm of ours and of XLA's float32 product.

A call of a small product costs the host more time than the GPU, so the timed program contains several
products and lasts about a millisecond. Plain squares make a chain, in which each result is the next
product's b. Other products are independent, and all results are returned.

On a GPU, a chain is so long that its operands a exceed the cache. Its small b and results stay in the
cache, like those between the layers of a network. Other products rotate through inputs that exceed the
cache. Products of less than about ten microseconds keep their inputs, because updating a CUDA graph for
new inputs takes the host as long.

``families`` are products that networks compute, and operands that are hard to represent in 16 bits.
``peers`` are XLA's other algorithms: TF32, sums of bfloat16 or TF32 products, and float16 operands, whose
rounding counts as error. Errors are measured on sampled rows and columns of the first batch elements,
because the float64 operands of a large product would not fit the device.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import DotAlgorithmPreset, Precision

import jaxkernels as jk
from jaxkernels.bench import sgemm_products as products
from jaxkernels.bench import tables as t
from jaxkernels.bench.families import FAMILIES
from jaxkernels.bench.options import count, seeded, several, sizes
from jaxkernels.bench.programs import normal, rotations
from jaxkernels.bench.records import Case, Measured, Run
from jaxkernels.bench.suite import Arguments, Function, Options, Program, Suite
from jaxkernels.bench.timing import last_level_cache_bytes
from jaxkernels.typing import Algorithm

RUNGS: tuple[Algorithm, ...] = get_args(Algorithm)
LADDER = tuple(rung for rung in RUNGS if rung != "thin")  # algorithms that serve a large square
AUTO = "auto"  # the planned algorithm
OURS = (AUTO, "pipelined")
# XLA's precisions of float32 products by name; float16 operands have only the default.
_PRECISIONS = {
    "xla": Precision.HIGHEST,
    "tf32_x3": DotAlgorithmPreset.TF32_TF32_F32_X3,
    "bf16_x6": DotAlgorithmPreset.BF16_BF16_F32_X6,
    "tf32": DotAlgorithmPreset.TF32_TF32_F32,
    "float16": Precision.DEFAULT,
}
PEERS = tuple(_PRECISIONS)[1:]
_PROGRAM_SECONDS = 1e-3
_MAX_PRODUCTS = 64
# Guesses of a product's least time: rates of operations and of bytes, and the latency of a launch.
_GUESSED = {"gpu": (200e12, 3e12), "cpu": (50e9, 10e9)}
_GUESSED_LATENCY = 5e-6
# Time to update a CUDA graph for a product's new inputs.
_TELLING_SECONDS = 10e-6
# On a GPU, the operands a of a chain are this multiple of the cache, up to the longest chain.
_CACHES_OF_CHAIN = 2
_MAX_CHAIN = 1024
# Number of rows, columns and batch elements on which errors are measured.
_SAMPLED_ROWS, _SAMPLED_COLS, _SAMPLED_MEMBERS = 256, 1024, 2
_EPSILON = 2.0**-24

Pair = tuple[jax.Array, jax.Array]


def _cases(options: Options) -> Iterable[Case]:
    platform = jax.default_backend()
    asked = [
        {**case, "group": "square"} if products.is_square(case) else case
        for case in products.of_shapes("other", *(options.shapes or ()))
    ]
    asked += products.drawn(options.drawn or 0, options.seed, platform)
    return asked or (products.CPU_PRODUCTS if platform == "cpu" else products.GPU_PRODUCTS)


def _function(case: Case, name: str) -> Function:
    """A contender's product; it reads transposed operands without a copy.

    XLA copies slices for our custom call, unless they begin at a multiple of 128 bytes.
    """
    if products.is_sliced(case):
        whole = _function({**case, "operands": None}, name)
        return lambda a, b: whole(a[1:], b[1:])
    trans_a, trans_b = products.is_transposed(case)
    if name not in _PRECISIONS:
        on_gpu = jax.default_backend() == "gpu"
        rung = None if name == AUTO else name
        options = {"algorithm": rung, "implementation": "ffi"} if on_gpu else {}
        return partial(jk.sgemm, trans_a=trans_a, trans_b=trans_b, **options)
    first = 1 if case["batch"] > 1 else 0
    contract = ((first + (0 if trans_a else 1),), (first + (1 if trans_b else 0),))
    batch = ((0,), (0,)) if first else ((), ())
    how: dict[str, Any] = {"preferred_element_type": jnp.float32, "precision": _PRECISIONS[name]}
    return partial(jax.lax.dot_general, dimension_numbers=(contract, batch), **how)


def _guessed_seconds(case: Case, platform: str) -> float:
    rate, bandwidth = _GUESSED[platform]
    return max(
        products.flops(case) / rate, products.touched_bytes(case) / bandwidth, _GUESSED_LATENCY
    )


def products_per_call(case: Case, platform: str) -> int:
    """The number of products in a program, so that it lasts long enough and a chain exceeds the cache."""
    wanted = math.ceil(_PROGRAM_SECONDS / _guessed_seconds(case, platform))
    count = max(1, min(_MAX_PRODUCTS, wanted))
    if platform == "gpu" and products.is_chain(case):
        cache = _CACHES_OF_CHAIN * last_level_cache_bytes(platform)
        count = max(count, min(_MAX_CHAIN, math.ceil(cache / (4 * case["m"] * case["k"]))))
    return count


@partial(jax.jit, static_argnums=(0,))
def _of_family(name: str, a: jax.Array, b: jax.Array, seed: int) -> Pair:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
    noise = (jax.random.uniform(key, x.shape) for key, x in zip(keys, (a, b), strict=True))
    return FAMILIES[name](jnp, a, b, *noise)


def operands(case: Case, count: int, dtype: str = "float32") -> list[Pair]:
    """Operands of independent products, in their stored layout; those of a family are float32."""
    trans_a, trans_b = products.is_transposed(case)
    m, n, k = case["m"], case["n"], case["k"]
    batch = (case["batch"],) if case["batch"] > 1 else ()
    a, b = (*batch, *((k, m) if trans_a else (m, k))), (*batch, *((n, k) if trans_b else (k, n)))
    if products.is_sliced(case):
        a, b = ((x[0] + 1, *x[1:]) for x in (a, b))
    pairs = [(normal(2 * i, a, dtype), normal(2 * i + 1, b, dtype)) for i in range(count)]
    if "family" not in case:
        return pairs
    return [_of_family(case["family"], *pair, 2 * i) for i, pair in enumerate(pairs)]


def draw(case: Case, count: int, dtype: str = "float32") -> list[Arguments]:
    """The arguments of `count` products; those of a chain are scaled to keep results finite."""
    keeps_inputs = jax.default_backend() == "gpu" and (
        products.is_chain(case) or _guessed_seconds(case, "gpu") < _TELLING_SECONDS
    )
    turns = 1 if keeps_inputs else rotations(count * products.touched_bytes(case))
    pairs = operands(case, turns * count, dtype)
    calls = [pairs[first::turns] for first in range(turns)]
    if not products.is_chain(case):
        return [tuple(call) for call in calls]
    return [(call[0][1], *(a / math.sqrt(case["k"]) for a, _ in call)) for call in calls]


@partial(jax.jit, static_argnums=0)
def _sampled_errors(transposes: str, a: jax.Array, b: jax.Array, c: jax.Array) -> dict:
    """RelF, and the largest error relative to its bound, k eps |A| |B|."""
    a, b = (
        jnp.swapaxes(x, -1, -2) if letter == "T" else x
        for x, letter in zip((a, b), transposes, strict=True)
    )
    a, b, c = (x[:_SAMPLED_MEMBERS] if x.ndim == 3 else x for x in (a, b, c))
    rows, cols = (
        np.unique(np.linspace(0, length - 1, most).astype(int))
        for length, most in zip(c.shape[-2:], (_SAMPLED_ROWS, _SAMPLED_COLS), strict=True)
    )
    a, b, c = a[..., rows, :], b[..., cols], c[..., rows, :][..., cols]
    a, b, c = (x.astype(jnp.float64) for x in (a, b, c))
    oracle, error = a @ b, c - a @ b
    bound = a.shape[-1] * _EPSILON * (jnp.abs(a) @ jnp.abs(b))
    # The bound is 0 if all products are 0; a correct result then has no error.
    of_bound = jnp.where(error == 0, 0, jnp.abs(error) / bound)
    relative = jnp.linalg.norm(error.ravel()) / jnp.linalg.norm(oracle.ravel())
    return {"relF": relative, "of_bound": jnp.max(of_bound)}


def errors(case: Case, pair: Pair, c: jax.Array) -> dict[str, float]:
    """The errors of a product against float64, on sampled rows and columns."""
    with jax.enable_x64(True):
        return jax.tree.map(float, _sampled_errors(case["transposes"], *pair, c))


def names(case: Case, options: Options) -> Iterable[str]:
    """XLA, and the requested algorithms; by default those of the group."""
    default = {"ladder": LADDER, "peers": (AUTO, *PEERS)}.get(case["group"], OURS)
    return ("xla", *(options.algorithms or default))


def rung_of(case: Case, algorithm: Algorithm | None = None) -> str:
    """The rung that computes a product, by default or if `algorithm` is requested."""
    trans_a, trans_b = products.is_transposed(case)
    how = {"batch": case["batch"], "trans_a": trans_a, "trans_b": trans_b}
    return jk.plan_sgemm(case["m"], case["n"], case["k"], algorithm=algorithm, **how).algorithm


def program(case: Case, name: str) -> Program:
    """A contender's program: a chain of products, or several independent ones."""
    function, dtype = _function(case, name), "float16" if name == "float16" else "float32"
    number = products_per_call(case, jax.default_backend())

    def chained(b: jax.Array, *many_a: jax.Array) -> jax.Array:
        return reduce(lambda b, a: function(a, b), many_a, b)

    def independent(*pairs: Pair) -> list[jax.Array]:
        return [function(a, b) for a, b in pairs]

    def errors_of(*_: Any) -> dict[str, float]:
        (pair,) = operands(case, 1)
        return errors(case, pair, jax.jit(function)(*(x.astype(dtype) for x in pair)))

    look: dict[str, Function] = {"errors": errors_of}
    if name == AUTO and jax.default_backend() == "gpu":
        look["rung"] = lambda *_: rung_of(case)
    return Program(
        chained if products.is_chain(case) else independent,
        partial(draw, case, number, dtype),
        inputs=dtype,
        operations=number,
        inspect=look,
    )


def _views(run: Run) -> list[t.View]:
    """A table for each group, with a line for each contender of each product, XLA last."""
    unit, text = t.rates(run.platform, "FLOP")
    peer = "cuBLAS" if run.platform == "gpu" else "XLA"
    columns = [
        t.Column("product", lambda m: products.size(m.case)),
        t.Column("by", lambda m: peer if m.contender == "xla" else m.contender),
        t.time("us", unit="us", digits=1),
        t.Column(unit, lambda m: m.rate(products.flops(m.case)), text),
        t.extra("relF", "errors", "relF", pattern="{:.1e}"),
        t.extra("of bound", "errors", "of_bound", pattern="{:.3f}"),
        t.Column(f"of {peer}", lambda m: m.ratio("xla"), "{:.3f}"),
    ]

    def notes(members: Sequence[Measured]) -> list[str]:
        """The planned algorithm relative to XLA, and the number of products on tensor cores, if known."""
        said = ["on a CPU both are XLA's own product"] if run.platform == "cpu" else []
        planned = [m for m in members if AUTO in m.records]
        if planned:
            ratio, label = lambda m: m.ratio("xla", AUTO), lambda m: products.size(m.case)
            of_xla = t.Sweep(f"auto over {peer}", ratio, label)
            rungs = [m.extra(AUTO, "rung") for m in planned if ratio(m)]
            on_tensor = f", {rungs.count('tensor')} on tensor cores" if any(rungs) else ""
            said.insert(0, of_xla.summary(planned) + on_tensor)
        return said

    def last(m: Measured) -> list[str]:
        return sorted(m.records, key=lambda name: name == "xla")

    title = "{group}: (m, n, k), batch x (m, n, k), T is transposed in memory"
    return [t.View(title, columns, contenders=last, notes=notes)]


_ALGORITHMS_HELP = "rungs of every product (default: all for the ladder, else auto and pipelined)"
_SHAPES_HELP = "as n, mxnxk or batchxmxnxk (default: squares, other shapes, transposes)"
_DRAWN_HELP = "N products that a seed draws, in place of the listed ones"
SUITE = Suite(
    name="sgemm",
    summary="float32 matrix products, every rung, compared with XLA's at the highest precision",
    cases=_cases,
    names=names,
    program=program,
    label=lambda case: f"product {products.size(case)}",
    views=_views,
    ours=AUTO,
    axes={"group": products.GROUPS},
    options={
        "--shapes": several(sizes(1, 3, 4), "SHAPE", _SHAPES_HELP),
        "--drawn": {"type": count, "metavar": "N", "help": _DRAWN_HELP},
        "--seed": seeded("of --drawn", tuning=1, published=3),
        "--algorithms": {"nargs": "+", "choices": (AUTO, *RUNGS), "help": _ALGORITHMS_HELP},
    },
    defaults={"groups": (*products.LISTED, "drawn")},
)
