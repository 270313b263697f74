"""Mistakes that are planted into results, to show that each would be noticed: those of any function, and the list of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxkernels.verify import loss_mistakes as of_losses
from jaxkernels.verify import product_mistakes as of_products
from jaxkernels.verify import row_mistakes as of_rows
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


def _has_elements(problem: Problem) -> bool:
    return problem.has_elements


def _is_narrow(problem: Problem) -> bool:
    """Results are rounded to 16 bits."""
    is_wide = "labels" in problem.options or "label_dtype" in problem.options
    return problem.has_elements and problem.dtype in ("bfloat16", "float16") and not is_wide


def _has_members(problem: Problem) -> bool:
    return problem.members > 1 and problem.has_elements


def _has_derivative(problem: Problem) -> bool:
    return problem.derivative != "value" and problem.has_elements


def _has_exact_derivative(problem: Problem) -> bool:
    """One whose bound is a few roundings of float32."""
    return _has_derivative(problem) and problem.dtype == "float32" and "shape" in problem.options


def _one_ulp_up(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.where(
        np.isfinite(y.astype(np.float64)), np.nextafter(y, np.asarray(np.inf, y.dtype)), y
    )


def _tail_not_stored(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    y.reshape(len(y), -1)[:, -1] = 0.7
    return y


def _off_by_one(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.roll(y.reshape(len(y), -1), 1, axis=1).reshape(y.shape)


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


def _has_turns(problem: Problem) -> bool:
    return problem.delivery == "turns" and problem.has_elements


def _has_shared_gradient(problem: Problem) -> bool:
    """The gradient of the operand that comes first, which the members share."""
    is_shared = any(problem.shares(name) for name in ("x", "scores", "q", "a"))
    return is_shared and problem.wants_gradient and problem.has_elements


def _of_the_member_before(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    parts = y.reshape(-1, problem.members, *y.shape[1:])
    return np.roll(parts, 1, axis=1).reshape(y.shape)


def _scaled(factor: Any) -> Change:
    return lambda problem, operands, y: (y * np.asarray(factor, y.dtype)).astype(y.dtype)


def _wrong_dtype(problem: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return y.astype(np.float32 if y.dtype == np.float16 else np.float16)


MISTAKES = {
    mistake.name: mistake
    for mistake in (
        Mistake("last term lost from a sum", of_rows.sums_lack_the_last, of_rows.is_rows),
        Mistake(
            "maximum summed with the others",
            of_rows.maximum_summed_with_the_others,
            of_rows.is_exact_log_softmax,
        ),
        Mistake("no maximum subtracted", of_rows.no_maximum, of_rows.is_plain_softmax),
        Mistake(
            "last term lost from a sum of exponentials",
            of_rows.sum_lacks_the_last,
            of_rows.is_log_sum_exp,
        ),
        Mistake("exponentials relative to zero", of_rows.relative_to_zero, of_rows.is_log_sum_exp),
        Mistake("numbers of rows swapped", of_rows.numbers_of_rows_swapped, of_rows.is_log_sum_exp),
        Mistake(
            "cotangent of the row before",
            of_rows.cotangent_of_the_row_before,
            of_rows.has_cotangents_of_rows,
            "d",
        ),
        Mistake("label off by one", of_losses.label_off_by_one, of_losses.is_of_rows),
        Mistake("smoothing without its -e", of_losses.smoothed_twice, of_losses.is_smoothed),
        Mistake("sum over a padded row", of_losses.padding_summed, of_losses.is_of_rows),
        Mistake(
            "rows left out are counted",
            of_losses.rows_left_out_are_counted,
            of_losses.leaves_rows_out,
        ),
        Mistake("column of a mask lost", of_rows.mask_column_lost, of_rows.has_mask),
        Mistake("rounded one unit up", _one_ulp_up, _is_narrow),
        Mistake("last element not stored", _tail_not_stored, _has_elements),
        Mistake("slice off by one", _off_by_one, _has_elements),
        Mistake("TF32", of_products.tf32, of_products.is_product),
        Mistake("alpha lost", _scaled(1.5), of_products.is_sgemm),
        Mistake("c left out", of_products.without_c, of_products.reads_c),
        Mistake(
            "axes merged in another order",
            of_products.axes_merged_in_another_order,
            of_products.sums_over_two_axes,
        ),
        Mistake(
            "axes of the result in another order",
            of_products.axes_of_the_result_in_another_order,
            of_products.has_axes_of_any_order,
        ),
        Mistake("NaN swallowed", _no_nan, of_rows.may_be_nan),
        Mistake("infinity swallowed", _no_infinity, of_rows.may_be_infinite),
        Mistake("rows swapped", _swapped(-2), of_rows.is_rows),
        Mistake("members swapped", _swapped(0), _has_members),
        Mistake("program of the call before", _of_the_member_before, _has_turns),
        Mistake(
            "gradient of another member",
            _of_the_member_before,
            _has_shared_gradient,
            "d",
        ),
        Mistake("derivative rounded to 9 bits", _scaled(1 + 2.0**-9), _has_exact_derivative, "d"),
        Mistake("derivative with the wrong sign", _scaled(-1), _has_derivative, "d"),
        Mistake("wrong dtype", _wrong_dtype),
        Mistake("another bit the second time", _one_bit, _has_elements, second_run_only=True),
    )
}
