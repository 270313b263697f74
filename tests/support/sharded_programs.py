"""Public functions on several devices: of two processes (`distributed_worker.py`), GPUs of one, or compiled ahead."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from public_functions import FUNCTIONS

SIZES = {"b": 8, "r": 16, "c": 24, "h": 4, "q": 16, "k": 24, "d": 24, "m": 16, "n": 32}
ROWS = ({"b": "data"}, {"b": "data", "r": "model"}, {"b": ("data", "model")}, {"r": "model"})
COLUMNS = ({"c": "model"}, {"c": "data"}, {"b": "data", "c": "model"})
HEADS = ({"b": "data"}, {"b": "data", "h": "model"}, {"b": ("data", "model")})
KEYS = ({"b": "data", "k": "model"}, {"k": "data"})
# Mesh axes of dimensions of the operands, by name of the function: layouts that cost nothing, and layouts that need
# all-reduces, because each device has a part of a sum, in the result or in the gradient of the first operand.
LAYOUTS = {
    "softmax": (ROWS, COLUMNS),
    "log_softmax": (ROWS, COLUMNS),
    "masked": (HEADS, KEYS),
    "matmul": (
        ({"m": "data"}, {"m": ("data", "model")}),
        ({"d": "model"}, {"d": "data"}, {"m": "data", "d": "model"}, {"m": "data", "n": "model"}),
    ),
    "matmul-batched": (({"b": "data"}, {"b": ("data", "model")}), ({"b": "model", "d": "data"},)),
    "cross_entropy-none": (ROWS[:2], COLUMNS[:1]),
}


def meshes(devices):
    """Two meshes of ("data", "model"), whose neighbours along "model" follow one another or lie far apart."""
    devices = np.array(devices)
    half = len(devices) // 2
    return {
        "model side by side": Mesh(devices.reshape(half, 2), ("data", "model")),
        "model far apart": Mesh(devices.reshape(2, half).T, ("data", "model")),
    }


def pulled(f):
    """Maps operands to the result and the gradient of the first one."""

    def function(x, *others):
        y, pull = jax.vjp(lambda x: f(x, *others), x)
        return y, pull(jnp.cos(y))[0]

    return function


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of global arrays, its operands, the results that plain JAX gives, and their largest error.

    `layouts` has shardings of the operands, and the collectives that each one costs.
    """

    function: Callable[..., Any]
    operands: list[np.ndarray]
    results: list[np.ndarray]
    error: float
    layouts: list[tuple[list[P], set[str]]]


def program(name):
    function = FUNCTIONS[name]
    operands = function.draw(**SIZES)
    with jax.default_matmul_precision("highest"):
        results = list(jax.device_get(jax.jit(pulled(function.peer))(*operands)))
    layouts = [
        ([P(*map(layout.get, dims)) for dims in function.dims], cost)
        for some, cost in zip(LAYOUTS[name], (set(), {"all-reduce"}), strict=True)
        for layout in some
    ]
    error = function.tolerance * max(1.0, *(np.abs(x).max() for x in results))
    return Program(pulled(function.ours), operands, results, error, layouts)
