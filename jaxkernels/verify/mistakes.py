"""Mistakes that are planted into results, to show that each would be noticed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxkernels.verify import loss_mistakes
from jaxkernels.verify.families.softmax import axes_of, rows_and_cols
from jaxkernels.verify.families.terms import Terms
from jaxkernels.verify.problem import Arrays, Problem

if TYPE_CHECKING:
    from jaxkernels.verify.run import Ran

# From the problem, its operands and a result "y" to a wrong one.
Change = Callable[[Problem, Arrays, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One way to be wrong.

    Attributes:
        name: in a few words.
        change: from a problem, operands and one result to what a wrong kernel would give.
        fits: the problems that have what it spoils.
        result: which result is spoilt, "y" or that of the derivative, "d" and more.
        second_run_only: the first run is right.
    """

    name: str
    change: Change
    fits: Callable[[Problem], bool] = lambda problem: True
    result: str = "y"
    second_run_only: bool = False

    def spoil(self, ran: Ran) -> Ran:
        """The results as the mistake would leave them."""
        if self.second_run_only:
            again = {i: self._spoilt(ran, {}, x) for i, x in ran.again.items()}
            return dataclasses.replace(ran, again=again)
        results = self._spoilt(ran, ran.operands, ran.results)
        members = ran.problem.members
        again = {
            i: {name: x[i * members : (i + 1) * members] for name, x in results.items()}
            for i in ran.again
        }
        return dataclasses.replace(ran, results=results, again=again)

    def _spoilt(self, ran: Ran, operands: Arrays, results: Arrays) -> Arrays:
        name = next(x for x in results if x.startswith(self.result))
        with np.errstate(all="ignore"):
            wrong = self.change(ran.problem, operands, results[name].copy())
        return results | {name: np.asarray(wrong)}


def _is_rows(problem: Problem) -> bool:
    """Softmax and its kin along the last axis, of several rows and columns."""
    shape = problem.options.get("shape")
    is_softmax = _is_softmax(problem) or problem.operation == "scaled_masked_softmax"
    last = problem.options.get("axis", -1) == -1 and is_softmax
    return bool(shape) and last and len(shape) > 1 and shape[-1] > 2 and shape[-2] > 1


def _has_elements(problem: Problem) -> bool:
    """Results of several elements."""
    o = problem.options
    shape = o.get("shape") or o.get("sizes") or [n for x in o["shapes"] for n in x]
    return min(shape) > 0 and max(shape) > 4


def _is_softmax(problem: Problem) -> bool:
    return problem.operation in ("softmax", "log_softmax")


def _is_plain_softmax(problem: Problem) -> bool:
    return _is_softmax(problem) and _is_rows(problem) and not problem.options["where"]


def _is_log_sum_exp(problem: Problem) -> bool:
    """Along the last axis of several rows and columns, all of which are seen."""
    o = problem.options
    if problem.operation != "logsumexp" or o["axis"] != -1 or o["where"] or len(o["shape"]) < 2:
        return False
    return o["shape"][-1] > 2 and o["shape"][-2] > 1


def _has_cotangents_of_rows(problem: Problem) -> bool:
    is_gradient = problem.operation == "logsumexp" and problem.wants_gradient
    return is_gradient and _has_elements(problem) and rows_and_cols(problem)[0] > 1


def _may_be_nan(problem: Problem) -> bool:
    return _is_softmax(problem) or problem.operation == "logsumexp"


def _may_be_infinite(problem: Problem) -> bool:
    return _is_log_softmax(problem) or problem.operation == "logsumexp"


def _is_log_softmax(problem: Problem) -> bool:
    return problem.operation == "log_softmax"


def _is_exact_log_softmax(problem: Problem) -> bool:
    return _is_log_softmax(problem) and _has_elements(problem) and not _is_narrow(problem)


def _has_mask(problem: Problem) -> bool:
    return _is_rows(problem) and bool(problem.options.get("mask"))


def _is_narrow(problem: Problem) -> bool:
    """Results are rounded to 16 bits."""
    is_wide = "labels" in problem.options or "label_dtype" in problem.options
    return _has_elements(problem) and problem.dtype in ("bfloat16", "float16") and not is_wide


def _is_product(problem: Problem) -> bool:
    return "labels" in problem.options and problem.dtype == "float32" and _has_elements(problem)


def _is_sgemm(problem: Problem) -> bool:
    return problem.operation == "sgemm" and _has_elements(problem)


def _reads_c(problem: Problem) -> bool:
    return bool(problem.options.get("has_c") and problem.options["beta"])


def _has_members(problem: Problem) -> bool:
    return problem.members > 1 and _has_elements(problem)


def _has_derivative(problem: Problem) -> bool:
    return problem.derivative != "value" and _has_elements(problem)


def _has_exact_derivative(problem: Problem) -> bool:
    """One whose bound is a few roundings of float32."""
    return _has_derivative(problem) and problem.dtype == "float32" and "shape" in problem.options


def _sums_lack_the_last(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    wide = y.astype(np.float64)
    if problem.operation == "log_softmax":
        return (wide - np.log1p(-np.exp(wide[..., -1:]))).astype(y.dtype)
    return (wide / (1 - wide[..., -1:])).astype(y.dtype)


def _no_maximum(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    e = np.exp(operands["x"].astype(np.float32))
    total = e.sum(-1, keepdims=True, dtype=np.float32)
    wrong = e / total if problem.operation == "softmax" else operands["x"] - np.log(total)
    return wrong.astype(y.dtype)


def _maximum_summed_with_the_others(
    problem: Problem, operands: Arrays, y: np.ndarray
) -> np.ndarray:
    """Results near 0 are lost: the sum is 1 and a small rest, which is rounded away."""
    with np.errstate(all="ignore"):
        return np.log(np.exp(y))


def _sum_lacks_the_last(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    wide, last = y.astype(np.float64), operands["x"][..., -1].astype(np.float64)
    lost = np.exp(last.reshape(wide.shape) - wide)
    return (wide + np.log1p(-np.minimum(lost, 1))).astype(y.dtype)


def _relative_to_zero(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    e = np.exp(operands["x"].astype(np.float32))
    return np.log(e.sum(-1, dtype=np.float32)).reshape(y.shape).astype(y.dtype)


def _numbers_of_rows_swapped(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    rows = y.reshape(*operands["x"].shape[:-1])
    rows[..., [0, 1]] = rows[..., [1, 0]]
    return rows.reshape(y.shape)


def _cotangent_of_the_row_before(problem: Problem, operands: Arrays, d: np.ndarray) -> np.ndarray:
    summed = axes_of(problem)
    per_row = [1 if i in summed else n for i, n in enumerate(problem.options["shape"])]
    t = operands["t"].astype(np.float64).reshape(len(d), -1)
    ratio = (np.roll(t, 1, axis=-1) / t).reshape(len(d), *per_row)
    return (d.astype(np.float64) * ratio).astype(d.dtype)


def _mask_column_lost(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The last column is seen though it is masked."""
    hidden = np.broadcast_to(~operands["mask"][..., -1], y.shape[:-1])
    y[..., -1] = np.where(hidden, np.asarray(0.25, y.dtype), y[..., -1])
    return y


def _one_ulp_up(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.where(
        np.isfinite(y.astype(np.float64)), np.nextafter(y, np.asarray(np.inf, y.dtype)), y
    )


def _tail_not_stored(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    y.reshape(len(y), -1)[:, -1] = 0.7
    return y


def _off_by_one(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.roll(y.reshape(len(y), -1), 1, axis=1).reshape(y.shape)


def _tf32(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Operands are rounded to the 11 bits that a tensor core takes of a float32."""
    rounded = dict(operands)
    for name in "ab":
        bits = operands[name].view(np.uint32) + np.uint32(1 << 12)
        rounded[name] = (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return Terms(problem, rounded).result().value.reshape(y.shape).astype(y.dtype)


def _no_nan(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(y), np.asarray(0, y.dtype), y)


def _no_infinity(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(y), np.asarray(3e4, y.dtype), y)


def _one_bit(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    y.view(np.uint8).reshape(-1)[0] ^= 1
    return y


def _swapped(axis: int) -> Change:
    def swap(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
        if axis == 0:  # the members of a draw
            parts = y.reshape(-1, problem.members, *y.shape[1:])
            return parts[:, ::-1].reshape(y.shape)
        y[..., [0, 1], :] = y[..., [1, 0], :]
        return y

    return swap


def _without_c(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return y - np.float32(problem.options["beta"]) * operands["c"]


def _scaled(factor: Any) -> Change:
    return lambda problem, operands, y: (y * np.asarray(factor, y.dtype)).astype(y.dtype)


def _wrong_dtype(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return y.astype(np.float32 if y.dtype == np.float16 else np.float16)


MISTAKES = {
    mistake.name: mistake
    for mistake in (
        Mistake("last term lost from a sum", _sums_lack_the_last, _is_rows),
        Mistake(
            "maximum summed with the others",
            _maximum_summed_with_the_others,
            _is_exact_log_softmax,
        ),
        Mistake("no maximum subtracted", _no_maximum, _is_plain_softmax),
        Mistake("last term lost from a sum of exponentials", _sum_lacks_the_last, _is_log_sum_exp),
        Mistake("exponentials relative to zero", _relative_to_zero, _is_log_sum_exp),
        Mistake("numbers of rows swapped", _numbers_of_rows_swapped, _is_log_sum_exp),
        Mistake(
            "cotangent of the row before",
            _cotangent_of_the_row_before,
            _has_cotangents_of_rows,
            "d",
        ),
        Mistake("label off by one", loss_mistakes.label_off_by_one, loss_mistakes.is_of_rows),
        Mistake(
            "smoothing without its -e", loss_mistakes.smoothed_twice, loss_mistakes.is_smoothed
        ),
        Mistake("sum over a padded row", loss_mistakes.padding_summed, loss_mistakes.is_of_rows),
        Mistake(
            "rows left out are counted",
            loss_mistakes.rows_left_out_are_counted,
            loss_mistakes.leaves_rows_out,
        ),
        Mistake("column of a mask lost", _mask_column_lost, _has_mask),
        Mistake("rounded one unit up", _one_ulp_up, _is_narrow),
        Mistake("last element not stored", _tail_not_stored, _has_elements),
        Mistake("slice off by one", _off_by_one, _has_elements),
        Mistake("TF32", _tf32, _is_product),
        Mistake("alpha lost", _scaled(1.5), _is_sgemm),
        Mistake("c left out", _without_c, _reads_c),
        Mistake("NaN swallowed", _no_nan, _may_be_nan),
        Mistake("infinity swallowed", _no_infinity, _may_be_infinite),
        Mistake("rows swapped", _swapped(-2), _is_rows),
        Mistake("members swapped", _swapped(0), _has_members),
        Mistake("derivative rounded to 9 bits", _scaled(1 + 2.0**-9), _has_exact_derivative, "d"),
        Mistake("derivative with the wrong sign", _scaled(-1), _has_derivative, "d"),
        Mistake("wrong dtype", _wrong_dtype),
        Mistake("another bit the second time", _one_bit, _has_elements, second_run_only=True),
    )
}
