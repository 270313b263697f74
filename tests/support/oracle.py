"""The truth of row operations on one array, from `jaxkernels.verify.truth`."""

import numpy as np

from jaxkernels.verify.truth.bounded import sum_error
from jaxkernels.verify.truth.compare import compute, storage, widen
from jaxkernels.verify.truth.rows import DTYPES, EPSILON, OPERATIONS, bounded, reads_x_for_y

__all__ = [
    "DTYPES",
    "EPSILON",
    "OPERATIONS",
    "bounded",
    "compute",
    "reads_x_for_y",
    "row_scalars",
    "storage",
    "sum_error",
    "truth",
    "widen",
]


def truth(operation, *operands):
    """The result of an operation, without its bound."""
    return bounded(operation, *operands, accumulators=1).value


def row_scalars(t):
    """A number for each row, out of a (co)tangent for each element; rows of no elements have it too."""
    return t[:, :1] if t.shape[-1] else np.zeros((len(t), 1), t.dtype)
