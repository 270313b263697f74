"""What wrong products would give: mistakes that are planted into results (`mistakes`)."""

from __future__ import annotations

import numpy as np

from jaxkernels.verify.families.terms import Terms, result_shape
from jaxkernels.verify.problem import Arrays, Problem


def is_product(problem: Problem) -> bool:
    """Of float32 operands, with several elements."""
    return "labels" in problem.options and problem.dtype == "float32" and problem.has_elements


def is_sgemm(problem: Problem) -> bool:
    """With several elements."""
    return problem.operation == "sgemm" and problem.has_elements


def reads_c(problem: Problem) -> bool:
    """Whether c counts."""
    return bool(problem.options.get("has_c") and problem.options["beta"])


def has_axes_of_any_order(problem: Problem) -> bool:
    """Einsum and tensordot, whose results have several axes of more than one element."""
    if problem.operation not in ("einsum", "tensordot") or not problem.has_elements:
        return False
    return sum(size > 1 for size in result_shape(problem)) > 1


def sums_over_two_axes(problem: Problem) -> bool:
    """Of float32 operands, by labels."""
    if not is_product(problem):
        return False
    operands, _, _ = problem.options["labels"].partition("->")
    return operands.count("k") == operands.count("l") == 2


def tf32(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Operands are rounded to the 11 bits that a tensor core takes of a float32."""
    rounded = dict(operands)
    for name in "ab":
        bits = operands[name].view(np.uint32) + np.uint32(1 << 12)
        rounded[name] = (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return Terms(problem, rounded).result().value.reshape(y.shape).astype(y.dtype)


def without_c(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Beta c is left out."""
    return y - np.float32(problem.options["beta"]) * operands["c"]


def axes_merged_in_another_order(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The elements of b along k and l lie as if l came first, those of a as if k did."""
    labels = problem.options["labels"].replace("->", ",").split(",")[1]
    axes = [1 + labels.index(name) for name in "kl"]  # behind the members
    last = np.moveaxis(operands["b"], axes, (-2, -1))
    wrong = np.swapaxes(last, -1, -2).reshape(last.shape)
    wrong = operands | {"b": np.moveaxis(wrong, (-2, -1), axes)}
    return Terms(problem, wrong).result().value.reshape(y.shape).astype(y.dtype)


def axes_of_the_result_in_another_order(
    problem: Problem, operands: Arrays, y: np.ndarray
) -> np.ndarray:
    """The first axis of the result is stored as its last."""
    return np.moveaxis(y, 1, -1).reshape(y.shape)
