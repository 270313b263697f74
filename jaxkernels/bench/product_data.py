"""Operands of products, drawn on the device, and the error of a product beside float64.

The error is that of sampled rows and columns of the first members: a product that fills half of a
device leaves no room for its operands in float64.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels.bench.families import FAMILIES
from jaxkernels.bench.products import is_transposed
from jaxkernels.bench.programs import normal
from jaxkernels.bench.records import Case

_SAMPLED_ROWS, _SAMPLED_COLS = 256, 1024
_SAMPLED_MEMBERS = 2
_EPSILON = 2.0**-24

Pair = tuple[jax.Array, jax.Array]


@partial(jax.jit, static_argnums=(0,))
def _of_family(name: str, a: jax.Array, b: jax.Array, seed: int) -> Pair:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
    noise = (jax.random.uniform(key, x.shape) for key, x in zip(keys, (a, b), strict=True))
    return FAMILIES[name](jnp, a, b, *noise)


def operands(case: Case, count: int, dtype: str = "float32") -> list[Pair]:
    """Operands of independent products, as they lie in memory; a family's are float32."""
    trans_a, trans_b = is_transposed(case)
    m, n, k = case["m"], case["n"], case["k"]
    batch = (case["batch"],) if case["batch"] > 1 else ()
    a, b = (*batch, *((k, m) if trans_a else (m, k))), (*batch, *((n, k) if trans_b else (k, n)))
    pairs = [(normal(2 * i, a, dtype), normal(2 * i + 1, b, dtype)) for i in range(count)]
    if "family" not in case:
        return pairs
    return [_of_family(case["family"], *pair, 2 * i) for i, pair in enumerate(pairs)]


def _lines(length: int, most: int) -> np.ndarray:
    """At most so many numbers of lines, spread over all."""
    return np.unique(np.linspace(0, length - 1, most).astype(int))


@partial(jax.jit, static_argnames=("trans_a", "trans_b"))
def _compared(
    a: jax.Array,
    b: jax.Array,
    c: jax.Array,
    rows: jax.Array,
    cols: jax.Array,
    *,
    trans_a: bool,
    trans_b: bool,
) -> tuple[jax.Array, jax.Array]:
    """RelF and the largest error over its bound, of some rows and columns."""
    a = jnp.take(a, rows, axis=-1 if trans_a else -2)
    b = jnp.take(b, cols, axis=-2 if trans_b else -1)
    c = jnp.take(jnp.take(c, rows, axis=-2), cols, axis=-1)
    a = jnp.swapaxes(a, -1, -2) if trans_a else a
    b = jnp.swapaxes(b, -1, -2) if trans_b else b
    a, b, c = (x.astype(jnp.float64) for x in (a, b, c))
    truth, error = a @ b, c - a @ b
    bound = a.shape[-1] * _EPSILON * (jnp.abs(a) @ jnp.abs(b))
    relative = jnp.linalg.norm(error.ravel()) / jnp.linalg.norm(truth.ravel())
    # Where all products are 0, so is the error of a right result.
    of_bound = jnp.where(error == 0, 0, jnp.abs(error) / bound)
    return relative, jnp.max(of_bound)


def errors(case: Case, pair: Pair, c: jax.Array) -> dict[str, float]:
    """Against float64: RelF, and the largest error in units of k eps |A| |B|."""
    a, b = pair
    trans_a, trans_b = is_transposed(case)
    if case["batch"] > 1:
        a, b, c = (x[:_SAMPLED_MEMBERS] for x in (a, b, c))
    lines = _lines(case["m"], _SAMPLED_ROWS), _lines(case["n"], _SAMPLED_COLS)
    with jax.enable_x64(True):
        found = _compared(a, b, c, *lines, trans_a=trans_a, trans_b=trans_b)
        relative, of_bound = map(float, found)
    return {"relF": relative, "of_bound": of_bound}
