"""The programs that run on several devices: of two processes (`distributed_worker.py`), or GPUs of one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import cases
import gemm_cases
import jax
import masked_cases
import numpy as np
import oracle
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxkernels as jk


def meshes(devices):
    """Two meshes of ("data", "model"), whose neighbours along "model" follow one another or lie far apart."""
    devices = np.array(devices)
    half = len(devices) // 2
    return {
        "model side by side": Mesh(devices.reshape(half, 2), ("data", "model")),
        "model far apart": Mesh(devices.reshape(2, half).T, ("data", "model")),
    }


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of global arrays and what is known about it.

    Attributes:
      function: of the operands; gives a tuple.
      operands: NumPy arrays.
      results: of every result the truth and the largest error of it, elementwise.
      layouts: the shardings of the operands to run, and the collectives that each one costs.
    """

    function: Callable[..., Any]
    operands: tuple[np.ndarray, ...]
    results: list[tuple[np.ndarray, np.ndarray]]
    layouts: list[tuple[tuple[P, ...], set[str]]]


ROWS = [P("data"), P("data", "model"), P(("data", "model")), P(None, "model")]
COLUMNS = [P(None, None, "model"), P(None, None, "data"), P("data", None, "model")]


def rows(f):
    """softmax or log_softmax, over rows that devices have whole, and over rows that are spread over them."""
    x = cases.logits("normal", 16 * 8, 24, "float32").reshape(16, 8, 24)
    t = cases.cotangents(16 * 8, 24, "float32").reshape(16, 8, 24)
    y = np.asarray(f(x))  # by one device; the gradient is that of a result that is rounded already
    results = []
    for operation, operands in (("fwd", (x,)), ("grad", (y, t))):
        name = f"{f.__name__}_{operation}"
        count = cases.accumulators(name, x.shape, "float32")
        results.append(tuple(oracle.bounded(name, *operands, accumulators=count)))
    layouts = [((spec, spec), set()) for spec in ROWS]
    layouts += [((spec, spec), {"all-reduce"}) for spec in COLUMNS]
    return Program(cases.with_gradient(f), (x, t), results, layouts)


def masked():
    """Attention scores with a mask that every head shares and a bias that every batch shares."""
    b, h, q, k = full = (8, 4, 16, 24)
    case = masked_cases.case(
        full, "float32", mask=(b, 1, 1, k), bias=(1, h, q, k), scale=0.6, causal=True
    )
    truth = masked_cases.Truth(case)
    results = [
        (truth.shown, truth.shown_error),
        truth.gradients()["scores"],
    ]

    def function(x, mask, bias):
        return jk.scaled_masked_softmax(x, mask, bias, scale=case.scale, **case.options)

    def specs(batch=None, heads=None, keys=None):
        scores = P(batch, heads, None, keys)
        return scores, P(batch, None, None, keys), P(None, heads, None, keys), scores

    layouts = [
        (specs("data"), set()),
        (specs("data", "model"), set()),
        (specs(("data", "model")), set()),
        (specs("data", keys="model"), {"all-reduce"}),
        (specs(keys="data"), {"all-reduce"}),
    ]
    operands = (case.scores, case.mask, case.bias, case.dy)
    return Program(cases.with_gradient(function), operands, results, layouts)


def product(*batch):
    """Operands of a product, and of both gradients of it; results with their bounds."""
    a = gemm_cases.operand("normal", (*batch, 16, 24))
    b = gemm_cases.operand("normal", (*batch, 24, 32), seed=1)
    t = gemm_cases.operand("normal", (*batch, 16, 32), seed=2)
    pairs = [(a, b), (t, np.swapaxes(b, -1, -2)), (np.swapaxes(a, -1, -2), t)]
    return (a, b, t), [tuple(gemm_cases.bounded(*pair)) for pair in pairs]


def matmul():
    """Rows and columns need nothing; of a sharded contraction the parts are added."""
    operands, results = product()
    layouts = [
        ((P("data"), P()), set()),
        ((P("data"), P(None, "model")), set()),
        ((P(None, "model"), P("model")), {"all-reduce"}),
        ((P(None, "data"), P("data")), {"all-reduce"}),
        ((P("data", "model"), P("model")), {"all-reduce"}),
    ]
    return Program(lambda a, b: (jk.matmul(a, b),), operands[:2], results[:1], layouts)


def gradients(a, b, t):
    y, pull = jax.vjp(jk.matmul, a, b)
    return y, *pull(t)


def matmul_gradients():
    """Shared weights need one sum over the rows; a sharded contraction needs the product's own sum."""
    layouts = [
        ((P("data"), P(), P("data")), {"all-reduce"}),
        ((P(("data", "model")), P(), P(("data", "model"))), {"all-reduce"}),
        ((P(None, "model"), P("model"), P()), {"all-reduce"}),
        ((P(None, "data"), P("data"), P()), {"all-reduce"}),
    ]
    return Program(gradients, *product(), layouts)


def batched_matmul_gradients():
    """Members of a batch have nothing to do with one another."""
    layouts = [((P(axes),) * 3, set()) for axes in ("data", "model", ("data", "model"))]
    return Program(gradients, *product(8), layouts)


def mistaken():
    """A truth that is wrong at one place, by a millionth."""
    right = rows(jk.softmax)
    want, error = right.results[0]
    want = want.copy()
    want[-1, -1, -1] += 1e-6
    return dataclasses.replace(right, results=[(want, error), right.results[1]])


PROGRAMS = {
    "softmax": lambda: rows(jk.softmax),
    "log_softmax": lambda: rows(jk.log_softmax),
    "scaled_masked_softmax": masked,
    "matmul": matmul,
    "gradients of matmul": matmul_gradients,
    "gradients of a batched matmul": batched_matmul_gradients,
}
ON_REQUEST = {"a mistake": mistaken}
