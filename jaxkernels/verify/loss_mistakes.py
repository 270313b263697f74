"""What wrong kernels of cross entropy would give: mistakes that are planted into its results (`mistakes`)."""

from __future__ import annotations

import numpy as np

from jaxkernels.verify.families.class_rows import rows_and_classes
from jaxkernels.verify.problem import Arrays, Problem


def is_of_rows(problem: Problem) -> bool:
    """Cross entropy along the last axis of several rows, of logits as they are, with a loss for each row."""
    o = problem.options
    if problem.operation != "cross_entropy" or o["axis"] != -1 or o["reduction"] != "none":
        return False
    count, classes = rows_and_classes(o)
    is_more = o["where"] or o["beyond"] or o["soft_cap"] or o["temperature"] or o["weights"]
    return not is_more and count > 1 and classes > 4


def is_smoothed(problem: Problem) -> bool:
    """The same, with smoothing."""
    return is_of_rows(problem) and problem.options["smoothing"] > 0


def leaves_rows_out(problem: Problem) -> bool:
    """A mean of rows, of which labels may leave some out."""
    o = problem.options
    if problem.operation != "cross_entropy" or o["reduction"] != "mean" or o["weights"]:
        return False
    return rows_and_classes(o)[0] > 4 and np.iinfo(o["label_dtype"]).min < 0


def _at(x: np.ndarray, label: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, np.maximum(label, 0).astype(int)[..., None], -1)[..., 0]


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    largest = x.max(-1, keepdims=True)
    return (largest + np.log(np.exp(x - largest).sum(-1, keepdims=True)))[..., 0]


def _changed(operands: Arrays, y: np.ndarray, by: np.ndarray) -> np.ndarray:
    """The losses of rows with a label, changed."""
    return np.where(operands["label"] >= 0, y + by, y).astype(y.dtype)


def label_off_by_one(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The logit of the class behind the label is taken."""
    x, label = operands["x"].astype(np.float64), operands["label"].astype(int)
    behind = (label + 1) % x.shape[-1]
    by = (1 - problem.options["smoothing"]) * (_at(x, label) - _at(x, behind))
    return _changed(operands, y, by)


def smoothed_twice(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The label keeps all of its weight where e of it goes to all classes."""
    x = operands["x"].astype(np.float64)
    nll = _log_sum_exp(x) - _at(x, operands["label"])
    return _changed(operands, y, problem.options["smoothing"] * nll)


def padding_summed(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """A row has a class more, whose logit is 0."""
    lse = _log_sum_exp(operands["x"].astype(np.float64))
    wrong = np.logaddexp(lse, 0)
    return _changed(operands, y, wrong - lse + problem.options["z_loss"] * (wrong**2 - lse**2))


def rows_left_out_are_counted(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """A mean divides by the number of all rows."""
    counted = (operands["label"] >= 0).reshape(len(y), -1)
    return (y * counted.mean(-1)).astype(y.dtype)
