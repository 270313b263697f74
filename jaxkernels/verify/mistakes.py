"""Mistakes that are planted into results, to show that each would be noticed: `MISTAKES` by name.

Each is a function of a problem, its operands and one result. It returns what a wrong kernel would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxkernels.verify.families.row_layout import RowLayout
from jaxkernels.verify.families.terms import Terms, labels_of, result_shape
from jaxkernels.verify.mistake import Change, Mistake, Needs
from jaxkernels.verify.problem import FIRST, Arrays, Problem
from jaxkernels.verify.truth.compare import total

MISTAKES: dict[str, Mistake] = {}


def _plant(name: str, needs: Needs = lambda p: True, **more: Any) -> Callable[[Change], Change]:
    """Lists a function as a mistake."""

    def register(change: Change) -> Change:
        MISTAKES[name] = Mistake(name, change, needs, **more)
        return change

    return register


def _is_softmax(problem: Problem) -> bool:
    return problem.operation in ("softmax", "log_softmax")


def _has_rows(problem: Problem) -> bool:
    """Several rows along the last axis."""
    shape, axis = problem.options.get("shape", []), problem.options.get("axis", -1)
    return axis == -1 and len(shape) > 1 and shape[-1] > 2 and shape[-2] > 1


def _is_rows(problem: Problem) -> bool:
    is_one = _is_softmax(problem) or problem.operation == "scaled_masked_softmax"
    return is_one and _has_rows(problem)


def _is_log_sum_exp(problem: Problem) -> bool:
    is_one = problem.operation == "logsumexp" and not problem.options["where"]
    return is_one and _has_rows(problem)


def _has_a_loss_of_each_row(problem: Problem) -> bool:
    """The loss of plain logits along the last axis of several rows."""
    o = problem.options
    if problem.operation != "cross_entropy" or o["axis"] != -1 or o["reduction"] != "none":
        return False
    layout = RowLayout(o)
    is_more = o["where"] or o["beyond"] or o["soft_cap"] or o["temperature"] or o["weights"]
    return not is_more and layout.count > 1 and layout.cols > 4


def _may_leave_rows_out(problem: Problem) -> bool:
    """A mean over rows whose labels may be negative."""
    o = problem.options
    if problem.operation != "cross_entropy" or o["reduction"] != "mean" or o["weights"]:
        return False
    return RowLayout(o).count > 4 and np.iinfo(o["label_dtype"]).min < 0


def _is_16_bit(problem: Problem) -> bool:
    return problem.dtype in ("bfloat16", "float16")


def _is_rounded_to_16_bits(problem: Problem) -> bool:
    return _is_16_bit(problem) and not {"labels", "label_dtype"} & set(problem.options)


def _is_product(problem: Problem) -> bool:
    return "labels" in problem.options and problem.dtype == "float32"


def _sums_over_two_axes(problem: Problem) -> bool:
    if not _is_product(problem):
        return False
    left, right, _ = labels_of(problem)
    return {"k", "l"} <= set(left) & set(right)


def _has_axes_of_any_order(problem: Problem) -> bool:
    is_one = problem.operation in ("einsum", "tensordot")
    return is_one and sum(size > 1 for size in result_shape(problem)) > 1


def _has_exact_derivative(problem: Problem) -> bool:
    """The bound is a few roundings of float32."""
    is_exact = problem.dtype == "float32" and "shape" in problem.options
    return is_exact and problem.derivative != "value"


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    largest = x.max(-1, keepdims=True)
    return (largest + np.log(total(np.exp(x - largest))))[..., 0]


def _at(x: np.ndarray, label: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, np.maximum(label, 0).astype(int)[..., None], -1)[..., 0]


@_plant("last term lost from a sum", _is_rows)
def _sums_lack_the_last(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    wide = y.astype(np.float64)
    if p.operation == "log_softmax":
        return wide - np.log1p(-np.exp(wide[..., -1:]))
    return wide / (1 - wide[..., -1:])


@_plant(
    "maximum summed with the others",
    lambda p: p.operation == "log_softmax" and not _is_16_bit(p),
)
def _sums_the_maximum(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Results near 0 are lost: the sum is 1 and a small rest, which is rounded away."""
    return np.log(np.exp(y))


@_plant(
    "no maximum subtracted",
    lambda p: _is_softmax(p) and _has_rows(p) and not p.options["where"],
)
def _no_maximum(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    e = np.exp(operands["x"].astype(np.float32))
    return e / total(e) if p.operation == "softmax" else operands["x"] - np.log(total(e))


@_plant("last term lost from a sum of exponentials", _is_log_sum_exp)
def _sum_lacks_the_last(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    wide, last = y.astype(np.float64), operands["x"][..., -1].astype(np.float64)
    lost = np.exp(last.reshape(wide.shape) - wide)
    return wide + np.log1p(-np.minimum(lost, 1))


@_plant("exponentials relative to zero", _is_log_sum_exp)
def _relative_to_zero(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.log(total(np.exp(operands["x"].astype(np.float32)))).reshape(y.shape)


@_plant("numbers of rows swapped", _is_log_sum_exp)
def _numbers_swapped(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    rows = y.reshape(operands["x"].shape[:-1])
    rows[..., [0, 1]] = rows[..., [1, 0]]
    return rows.reshape(y.shape)


@_plant(
    "cotangent of the row before",
    lambda p: p.operation == "logsumexp" and p.wants_gradient and RowLayout(p.options).count > 1,
    result="d",
)
def _cotangent_before(p: Problem, operands: Arrays, d: np.ndarray) -> np.ndarray:
    layout = RowLayout(p.options)
    per_row = [1 if i in layout.axes else n for i, n in enumerate(layout.shape)]
    t = operands["t"].astype(np.float64).reshape(len(d), -1)
    ratio = (np.roll(t, 1, axis=-1) / t).reshape(len(d), *per_row)
    return d.astype(np.float64) * ratio


@_plant("label off by one", _has_a_loss_of_each_row)
def _label_off_by_one(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    x, label = operands["x"].astype(np.float64), operands["label"].astype(int)
    behind = (label + 1) % x.shape[-1]
    by = (1 - p.options["smoothing"]) * (_at(x, label) - _at(x, behind))
    return np.where(label >= 0, y + by, y)


@_plant(
    "smoothing without its -e",
    lambda p: _has_a_loss_of_each_row(p) and p.options["smoothing"] > 0,
)
def _smoothed_twice(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    x, label = operands["x"].astype(np.float64), operands["label"]
    nll = _log_sum_exp(x) - _at(x, label)
    return np.where(label >= 0, y + p.options["smoothing"] * nll, y)


@_plant("sum over a padded row", _has_a_loss_of_each_row)
def _padding_summed(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """A row has a class more, whose logit is 0."""
    lse = _log_sum_exp(operands["x"].astype(np.float64))
    wrong = np.logaddexp(lse, 0)
    by = wrong - lse + p.options["z_loss"] * (wrong**2 - lse**2)
    return np.where(operands["label"] >= 0, y + by, y)


@_plant("rows left out are counted", _may_leave_rows_out)
def _all_rows_counted(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return y * (operands["label"] >= 0).reshape(len(y), -1).mean(-1)


@_plant("column of a mask lost", lambda p: _is_rows(p) and bool(p.options.get("mask")))
def _mask_column_lost(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    hidden = np.broadcast_to(~operands["mask"][..., -1], y.shape[:-1])
    y[..., -1] = np.where(hidden, np.asarray(0.25, y.dtype), y[..., -1])
    return y


@_plant("rounded one unit up", _is_rounded_to_16_bits)
def _one_ulp_up(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    above = np.nextafter(y, np.asarray(np.inf, y.dtype))
    return np.where(np.isfinite(y.astype(np.float64)), above, y)


@_plant("last element not stored")
def _tail_not_stored(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    y.reshape(len(y), -1)[:, -1] = 0.7
    return y


@_plant("slice off by one")
def _off_by_one(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.roll(y.reshape(len(y), -1), 1, axis=1).reshape(y.shape)


@_plant("TF32", _is_product)
def _tf32(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Operands are rounded to the 11 bits that a tensor core takes of a float32."""
    rounded = dict(operands)
    for name in "ab":
        bits = operands[name].view(np.uint32) + np.uint32(1 << 12)
        rounded[name] = (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return Terms(p, rounded).result().value.reshape(y.shape)


@_plant("alpha lost", lambda p: p.operation == "sgemm")
def _alpha_lost(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return y * 1.5


@_plant("c left out", lambda p: bool(p.options.get("has_c") and p.options["beta"]))
def _without_c(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return y - np.float32(p.options["beta"]) * operands["c"]


@_plant("axes merged in another order", _sums_over_two_axes)
def _merged_otherwise(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The elements of b along k and l lie as if l came first, those of a as if k did."""
    _, labels, _ = labels_of(p)
    axes = [1 + labels.index(name) for name in "kl"]  # behind the members
    last = np.moveaxis(operands["b"], axes, (-2, -1))
    wrong = np.swapaxes(last, -1, -2).reshape(last.shape)
    given = operands | {"b": np.moveaxis(wrong, (-2, -1), axes)}
    return Terms(p, given).result().value.reshape(y.shape)


@_plant("axes of the result in another order", _has_axes_of_any_order)
def _result_turned(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.moveaxis(y, 1, -1).reshape(y.shape)


@_plant("NaN swallowed", lambda p: _is_softmax(p) or p.operation == "logsumexp")
def _no_nan(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(y), np.asarray(0, y.dtype), y)


@_plant("infinity swallowed", lambda p: p.operation in ("log_softmax", "logsumexp"))
def _no_infinity(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(y), np.asarray(3e4, y.dtype), y)


@_plant("rows swapped", _is_rows)
def _rows_swapped(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    y[..., [0, 1], :] = y[..., [1, 0], :]
    return y


@_plant("members swapped", lambda p: p.members > 1)
def _members_swapped(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return y.reshape(-1, p.members, *y.shape[1:])[:, ::-1].reshape(y.shape)


@_plant(
    "gradient of another member",
    lambda p: p.wants_gradient and any(p.shares(name) for name in FIRST),
    result="d",
)
@_plant("program of the call before", lambda p: p.delivery == "turns")
def _member_before(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.roll(y.reshape(-1, p.members, *y.shape[1:]), 1, axis=1).reshape(y.shape)


@_plant("derivative rounded to 9 bits", _has_exact_derivative, result="d")
def _rounded_to_9_bits(p: Problem, operands: Arrays, d: np.ndarray) -> np.ndarray:
    return d * np.asarray(1 + 2.0**-9, d.dtype)


@_plant("derivative with the wrong sign", lambda p: p.derivative != "value", result="d")
def _wrong_sign(p: Problem, operands: Arrays, d: np.ndarray) -> np.ndarray:
    return -d


@_plant("wrong dtype", keeps_dtype=False)
def _wrong_dtype(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return y.astype(np.float32 if y.dtype == np.float16 else np.float16)


@_plant("another bit the second time", second_run_only=True)
def _one_bit(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    y.view(np.uint8).reshape(-1)[0] ^= 1
    return y
