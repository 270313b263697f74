"""The bytes that an operation along rows must move, and the plain passes over memory that bound its rate.

The pass over memory is the ceiling of a case:

* ``copy``: a jitted copy reads and writes x once. A kernel that reads its input twice shows about two thirds of
  its rate.
* ``read``: a reduction reads x once and writes almost nothing. No reduction of XLA is close to the
  ceiling for all shapes, so three are measured, and the fastest one counts: ``row_max``, the maximum of
  each row; ``sum``, the sum of all elements; and ``piece_max``, the maximum of every 4096 consecutive
  elements (a remainder of fewer than 4096 is not read).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxkernels.bench.records import Case, Measured
from jaxkernels.bench.suite import Function

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_PIECE = 4096


class Traffic(NamedTuple):
    """The minimum of data that an operation moves."""

    reads: int  # arrays of the size of x that are read
    writes: int = 0  # arrays of that size that are written
    scalars: int = 0  # further elements per row
    numbers: int = 0  # further numbers of 4 bytes per row

    @property
    def ceiling(self) -> str:
        """The entry of `CEILINGS` that it is compared with."""
        return "copy" if self.writes else "read"

    def size(self, m: Measured) -> int:
        """Bytes moved in a case."""
        row = (self.reads + self.writes) * m["cols"] + self.scalars
        return m["rows"] * (row * ITEM_BYTES[m["dtype"]] + 4 * self.numbers)


_SOFTMAX = {"fwd": Traffic(1, 1), "grad": Traffic(2, 1)}
# By operation and direction.
TRAFFIC: dict[str, dict[str, Traffic]] = {
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
    "logsumexp": {"fwd": Traffic(1, 0, 1), "grad": Traffic(1, 1, 1), "both": Traffic(2, 1, 2)},
    "rms_norm": _SOFTMAX,
    "losses": {
        "loss": Traffic(1),
        "mean": Traffic(1, 1),
        "none": Traffic(2, 1),
        "log_probs": Traffic(1),
        # Ids are read, and their log-probabilities written.
        "ids_8": Traffic(1, numbers=2 * 8),
        "ids_1024": Traffic(1, numbers=2 * 1024),
        # Reads of the logits and of the target; writes of their gradients.
        "kl": Traffic(2),
        "kl_mean": Traffic(2, 1),
        "kl_both": Traffic(2, 2),
    },
}


def _piece_max(x: jax.Array) -> jax.Array:
    piece = min(_PIECE, x.size)
    return jnp.max(x.reshape(-1)[: x.size // piece * piece].reshape(-1, piece), axis=-1)


# Ceilings, and the contenders for each; the fastest one counts.
CEILINGS: dict[str, dict[str, tuple[Function, Traffic]]] = {
    "copy": {"copy": (jnp.copy, Traffic(1, 1))},
    "read": {
        "row_max": (partial(jnp.max, axis=-1), Traffic(1, scalars=1)),
        "sum": (jnp.sum, Traffic(1)),
        "piece_max": (_piece_max, Traffic(1)),
    },
}


def of(case: Case | Measured) -> Traffic:
    """The minimum of data that a case moves."""
    return TRAFFIC[case["operation"]][case["direction"]]


def ceiling(case: Case, name: str) -> Function | None:
    """The ceiling's function of that name, on the last argument; None if there is none."""
    found = CEILINGS[of(case).ceiling].get(name)
    return found and (lambda *arguments: found[0](arguments[-1]))


def rate(m: Measured, name: str = "auto") -> float | None:
    """The model bytes per second of a contender, or of the fastest contender of a ceiling."""
    passes = CEILINGS.get(name) or {name: (None, of(m))}
    rates = (m.rate(moved.size(m), contender) for contender, (_, moved) in passes.items())
    return max((rate for rate in rates if rate is not None), default=None)


def of_ceiling(m: Measured, name: str = "auto") -> float | None:
    """Our rate relative to the ceiling's rate in the same case."""
    best, own = rate(m, of(m).ceiling), rate(m, name)
    return None if best is None or own is None else own / best
