"""Numbers worth trying: kinds of rows, of cotangents and of operands of products.

Kinds in `ALIKE` have rows whose roundings may all have one sign (see `truth.bounded.sum_error`).
"""

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from jaxkernels.verify.truth.compare import storage

Generator = np.random.Generator


def _minus_inf(x: np.ndarray, rng: Generator, dtype: str) -> np.ndarray:
    """About a third of the elements are -inf, but never a whole row."""
    rows, cols = x.shape
    keep = rng.integers(0, max(cols, 1), rows)
    x = np.where(rng.random(x.shape) < 0.35, -np.inf, x)
    if cols:
        x[np.arange(rows), keep] = 1.0
    return x


def _planted(x: np.ndarray, rng: Generator, *values: float) -> np.ndarray:
    """A few elements are one of the values, in about half of the rows."""
    rows, cols = x.shape
    hit = (rng.random(x.shape) < 2 / max(cols, 1)) & (rng.random((rows, 1)) < 0.5)
    return np.where(hit, rng.choice(values, x.shape), x)


def _finite_mask(x: np.ndarray, rng: Generator, dtype: str) -> np.ndarray:
    """Elements, and whole rows, are the lowest finite number of the dtype."""
    hidden = (rng.random(x.shape) < 0.35) | (rng.random((len(x), 1)) < 0.2)
    return np.where(hidden, float(ml_dtypes.finfo(storage(dtype)).min), x)


def _stagnant(x: np.ndarray, rng: Generator, dtype: str) -> np.ndarray:
    """The exponential of one element is so large that each other one lies just below its last place."""
    x = x * 0.01
    if x.shape[-1]:
        x[np.arange(len(x)), rng.integers(0, x.shape[-1], len(x))] += 16.6
    return x


_LOGITS: dict[str, Callable[[np.ndarray, Generator, str], np.ndarray]] = {
    "normal": lambda x, rng, dtype: 3 * x,
    # The range in which float32 exponentials do not vanish.
    "wide": lambda x, rng, dtype: rng.uniform(-88, 0, x.shape) + rng.uniform(-10, 10, (len(x), 1)),
    "outliers": lambda x, rng, dtype: np.where(
        rng.random(x.shape) < 0.02, x + rng.uniform(30, 80, x.shape), x
    ),
    "offset": lambda x, rng, dtype: x + 1000 * rng.uniform(-1, 1, (len(x), 1)),
    "equal": lambda x, rng, dtype: np.broadcast_to(x[:, :1], x.shape),
    "subnormal": lambda x, rng, dtype: x * (1e-39 if dtype != "float16" else 1e-6),
    "minus_inf": _minus_inf,
    "stagnant": _stagnant,
    "zeros": lambda x, rng, dtype: np.where(x < 0, -0.0, 0.0),
    "huge": lambda x, rng, dtype: (
        np.clip(x, -1, 1) * {"float16": 6e4, "float64": 1e308}.get(dtype, 3e38)
    ),
    "nan": lambda x, rng, dtype: _planted(x, rng, np.nan),
    "infinities": lambda x, rng, dtype: _planted(x, rng, np.inf, -np.inf),
    "finite_mask": _finite_mask,
    "all_minus_inf": lambda x, rng, dtype: np.where(rng.random((len(x), 1)) < 0.3, -np.inf, x),
}
KINDS = tuple(_LOGITS)
FINITE = ("normal", "wide", "outliers", "offset", "equal", "subnormal", "stagnant", "zeros")
ALIKE = frozenset({"equal", "stagnant", "zeros", "constant", "one_hot"})


def logits(kind: str, rows: int, cols: int, dtype: str, rng: Generator) -> np.ndarray:
    """An input array of shape (rows, cols), rounded to the storage type."""
    x = _LOGITS[kind](rng.standard_normal((rows, cols)), rng, dtype)
    with np.errstate(over="ignore"):
        return x.astype(storage(dtype))


def cotangents(
    kind: str, rows: int, cols: int, dtype: np.typing.DTypeLike, rng: Generator
) -> np.ndarray:
    """A (co)tangent of shape (rows, cols)."""
    t = rng.standard_normal((rows, cols))
    if cols and kind == "normal":  # one row in four sums to about zero
        t[::4] -= t[::4].mean(-1, keepdims=True)
    elif cols and kind == "one_hot":
        t = (np.arange(cols) == rng.integers(0, cols, (rows, 1))).astype(float)
    elif cols and kind == "constant":
        t[:] = t[:, :1]
    elif kind == "nan":
        t = _planted(t, rng, np.nan)
    return t.astype(storage(dtype))


COTANGENTS = ("normal", "one_hot", "constant", "nan")


def factors(kind: str, shape: Sequence[int], dtype: str, rng: Generator) -> np.ndarray:
    """An operand of a product; float32 computes products and sums of `integers` exactly."""
    x = rng.standard_normal(tuple(shape))
    if kind == "wide":
        x *= np.exp2(rng.integers(-20, 21, shape))
    elif kind == "outliers":
        x = np.where(rng.random(shape) < 0.02, 1000 * x, x)
    elif kind == "integers":
        x = rng.integers(-8, 9, shape)
    elif kind == "subnormal":
        x = np.where(rng.random(shape) < 0.5, x * 1e-39, x)
    elif kind in ("nan", "infinities"):
        value = np.nan if kind == "nan" else rng.choice([np.inf, -np.inf], shape)
        x = np.where(rng.random(shape) < 1 / max(x.size, 1) ** 0.75, value, x)
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(storage(dtype))


FACTORS = ("normal", "wide", "outliers", "integers", "subnormal", "nan", "infinities")
