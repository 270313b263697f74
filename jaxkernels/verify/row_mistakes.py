"""What wrong kernels of softmax, logsumexp and attention scores would give: mistakes that are planted into results."""

from __future__ import annotations

import numpy as np

from jaxkernels.verify.families.softmax import axes_of, rows_and_cols
from jaxkernels.verify.problem import Arrays, Problem


def is_rows(problem: Problem) -> bool:
    """Softmax and its kin along the last axis, of several rows and columns."""
    shape = problem.options.get("shape")
    has_rows = is_softmax(problem) or problem.operation == "scaled_masked_softmax"
    last = has_rows and problem.options.get("axis", -1) == -1
    return bool(shape) and last and len(shape) > 1 and shape[-1] > 2 and shape[-2] > 1


def is_softmax(problem: Problem) -> bool:
    """Of either form."""
    return problem.operation in ("softmax", "log_softmax")


def is_plain_softmax(problem: Problem) -> bool:
    """Along the last axis, of all elements."""
    return is_softmax(problem) and is_rows(problem) and not problem.options["where"]


def is_log_sum_exp(problem: Problem) -> bool:
    """Along the last axis of several rows and columns, all of which are seen."""
    o = problem.options
    if problem.operation != "logsumexp" or o["axis"] != -1 or o["where"] or len(o["shape"]) < 2:
        return False
    return o["shape"][-1] > 2 and o["shape"][-2] > 1


def has_cotangents_of_rows(problem: Problem) -> bool:
    """The gradient of logsumexp, of several rows."""
    is_gradient = problem.operation == "logsumexp" and problem.wants_gradient
    return is_gradient and problem.has_elements and rows_and_cols(problem)[0] > 1


def may_be_nan(problem: Problem) -> bool:
    """Results of rows with a NaN."""
    return is_softmax(problem) or problem.operation == "logsumexp"


def may_be_infinite(problem: Problem) -> bool:
    """Results that may be infinite."""
    return is_log_softmax(problem) or problem.operation == "logsumexp"


def is_log_softmax(problem: Problem) -> bool:
    """Of any axis and dtype."""
    return problem.operation == "log_softmax"


def is_exact_log_softmax(problem: Problem) -> bool:
    """Rounded to no less than float32."""
    is_narrow = problem.dtype in ("bfloat16", "float16")
    return is_log_softmax(problem) and problem.has_elements and not is_narrow


def has_mask(problem: Problem) -> bool:
    """Attention scores, some of which are hidden."""
    return is_rows(problem) and bool(problem.options.get("mask"))


def sums_lack_the_last(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The last term of each row is lost from its sum."""
    wide = y.astype(np.float64)
    if problem.operation == "log_softmax":
        return (wide - np.log1p(-np.exp(wide[..., -1:]))).astype(y.dtype)
    return (wide / (1 - wide[..., -1:])).astype(y.dtype)


def no_maximum(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Exponentials are of x itself."""
    e = np.exp(operands["x"].astype(np.float32))
    total = e.sum(-1, keepdims=True, dtype=np.float32)
    wrong = e / total if problem.operation == "softmax" else operands["x"] - np.log(total)
    return wrong.astype(y.dtype)


def maximum_summed_with_the_others(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Results near 0 are lost: the sum is 1 and a small rest, which is rounded away."""
    with np.errstate(all="ignore"):
        return np.log(np.exp(y))


def sum_lacks_the_last(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The last term of each row is lost from its logsumexp."""
    wide, last = y.astype(np.float64), operands["x"][..., -1].astype(np.float64)
    lost = np.exp(last.reshape(wide.shape) - wide)
    return (wide + np.log1p(-np.minimum(lost, 1))).astype(y.dtype)


def relative_to_zero(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Exponentials are of x itself."""
    e = np.exp(operands["x"].astype(np.float32))
    return np.log(e.sum(-1, dtype=np.float32)).reshape(y.shape).astype(y.dtype)


def numbers_of_rows_swapped(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The first two rows have one another's results."""
    rows = y.reshape(*operands["x"].shape[:-1])
    rows[..., [0, 1]] = rows[..., [1, 0]]
    return rows.reshape(y.shape)


def cotangent_of_the_row_before(problem: Problem, operands: Arrays, d: np.ndarray) -> np.ndarray:
    """Each row is given that of the row before."""
    summed = axes_of(problem)
    per_row = [1 if i in summed else n for i, n in enumerate(problem.options["shape"])]
    t = operands["t"].astype(np.float64).reshape(len(d), -1)
    ratio = (np.roll(t, 1, axis=-1) / t).reshape(len(d), *per_row)
    return (d.astype(np.float64) * ratio).astype(d.dtype)


def mask_column_lost(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The last column is seen though it is masked."""
    hidden = np.broadcast_to(~operands["mask"][..., -1], y.shape[:-1])
    y[..., -1] = np.where(hidden, np.asarray(0.25, y.dtype), y[..., -1])
    return y
