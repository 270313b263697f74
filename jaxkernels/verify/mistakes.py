"""Mistakes that are planted into results, to show that each would be noticed: `MISTAKES`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxkernels.bench.tables import Table
from jaxkernels.verify import draw
from jaxkernels.verify.families.products import Terms, labels_of, result_shape
from jaxkernels.verify.problem import FIRST, Arrays, Problem
from jaxkernels.verify.row_layout import RowLayout
from jaxkernels.verify.run import Change, Mistake, judge, run
from jaxkernels.verify.truth.compare import total

_SOFTMAX = ("softmax", "log_softmax")
_ROWS = (*_SOFTMAX, "scaled_masked_softmax")


def _has_rows(problem: Problem) -> bool:
    """Several rows along the last axis."""
    shape, axis = problem.options.get("shape", []), problem.options.get("axis", -1)
    return axis == -1 and len(shape) > 1 and shape[-1] > 2 and shape[-2] > 1


def _has_plain_rows(problem: Problem) -> bool:
    return _has_rows(problem) and not problem.options["where"]


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


def _is_product(problem: Problem) -> bool:
    return "labels" in problem.options and problem.dtype == "float32"


def _sums_over_two_axes(problem: Problem) -> bool:
    if not _is_product(problem):
        return False
    left, right, _ = labels_of(problem)
    return {"k", "l"} <= set(left) & set(right)


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    largest = x.max(-1, keepdims=True)
    return (largest + np.log(total(np.exp(x - largest))))[..., 0]


def _at(x: np.ndarray, label: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, np.maximum(label, 0).astype(int)[..., None], -1)[..., 0]


def _swapped(rows: np.ndarray) -> np.ndarray:
    """The first two rows in the other order."""
    return np.concatenate([rows[..., 1::-1, :], rows[..., 2:, :]], axis=-2)


def _member_before(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.roll(y.reshape(-1, p.members, *y.shape[1:]), 1, axis=1).reshape(y.shape)


def _sums_lack_the_last(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    last = _wide(y)[..., -1:]
    return y - np.log1p(-np.exp(last)) if p.operation == "log_softmax" else y / (1 - last)


def _no_maximum(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    e = np.exp(operands["x"].astype(np.float32))
    return e / total(e) if p.operation == "softmax" else operands["x"] - np.log(total(e))


def _cotangent_before(p: Problem, operands: Arrays, d: np.ndarray) -> np.ndarray:
    layout = RowLayout(p.options)
    per_row = [1 if i in layout.axes else n for i, n in enumerate(layout.shape)]
    t = _wide(operands["t"]).reshape(len(d), -1)
    return d * (np.roll(t, 1, axis=-1) / t).reshape(len(d), *per_row)


def _scale_before(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    scale = _wide(operands["scale"]) + p.options["scale_offset"]
    axis = 1 + p.options["axis"] % len(p.options["shape"])
    shape = [n if d in (0, axis) else 1 for d, n in enumerate(y.shape)]
    return y * (np.roll(scale, 1, -1) / scale).reshape(shape)


def _of_losses(change: Change) -> Change:
    """Adds to the losses of rows with a label; the change is of wide logits and integer labels."""

    def changed(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
        label = operands["label"].astype(int)
        return np.where(label >= 0, y + change(p, {"label": label}, _wide(operands["x"])), y)

    return changed


def _label_off_by_one(p: Problem, operands: Arrays, x: np.ndarray) -> np.ndarray:
    label = operands["label"]
    by = _at(x, label) - _at(x, (label + 1) % x.shape[-1])
    return (1 - p.options["smoothing"]) * by


def _padding_summed(p: Problem, operands: Arrays, x: np.ndarray) -> np.ndarray:
    """A row has a class more, whose logit is 0."""
    lse = _log_sum_exp(x)
    wrong = np.logaddexp(lse, 0)
    return wrong - lse + p.options["z_loss"] * (wrong**2 - lse**2)


def _mask_column_lost(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    hidden = np.broadcast_to(~operands["mask"][..., -1], y.shape[:-1])
    y[..., -1] = np.where(hidden, np.asarray(0.25, y.dtype), y[..., -1])
    return y


def _tail_not_stored(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    y.reshape(len(y), -1)[:, -1] = 0.7
    return y


def _tf32(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Operands are rounded to the 11 bits that a tensor core takes of a float32."""
    bits = {name: operands[name].view(np.uint32) + np.uint32(1 << 12) for name in "ab"}
    rounded = {name: (x & np.uint32(0xFFFFE000)).view(np.float32) for name, x in bits.items()}
    return Terms(p, operands | rounded).result().value


def _merged_otherwise(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The elements of b along k and l lie as if l came first, those of a as if k did."""
    _, labels, _ = labels_of(p)
    axes = [1 + labels.index(name) for name in "kl"]  # behind the members
    last = np.moveaxis(operands["b"], axes, (-2, -1))
    wrong = np.swapaxes(last, -1, -2).reshape(last.shape)
    return Terms(p, operands | {"b": np.moveaxis(wrong, (-2, -1), axes)}).result().value


def _one_bit(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    y.view(np.uint8).reshape(-1)[0] ^= 1
    return y


MISTAKES: dict[str, Mistake] = {
    "last term lost from a sum": Mistake(_sums_lack_the_last, _has_rows, _ROWS),
    # Results near 0 are lost: the sum is 1 and a small rest, which is rounded away.
    "maximum summed with the others": Mistake(
        lambda p, o, y: np.log(np.exp(y)), lambda p: not _is_16_bit(p), ("log_softmax",)
    ),
    "no maximum subtracted": Mistake(_no_maximum, _has_plain_rows, _SOFTMAX),
    "last term lost from a sum of exponentials": Mistake(
        lambda p, o, y: (
            y + np.log1p(-np.minimum(np.exp(_wide(o["x"])[..., -1].reshape(y.shape) - y), 1))
        ),
        _has_plain_rows,
        ("logsumexp",),
    ),
    "exponentials relative to zero": Mistake(
        lambda p, o, y: np.log(total(np.exp(o["x"].astype(np.float32)))),
        _has_plain_rows,
        ("logsumexp",),
    ),
    "numbers of rows swapped": Mistake(
        lambda p, o, y: _swapped(y.reshape(*o["x"].shape[:-1], 1)), _has_plain_rows, ("logsumexp",)
    ),
    "cotangent of the row before": Mistake(
        _cotangent_before,
        lambda p: p.wants_gradient and RowLayout(p.options).count > 1,
        ("logsumexp",),
        result="d",
    ),
    "scale of the column before": Mistake(
        _scale_before,
        lambda p: bool(p.options["scale"]) and RowLayout(p.options).cols > 2,
        ("rms_norm",),
    ),
    "scale's gradient of half of the rows": Mistake(
        lambda p, o, d: d / 2,
        lambda p: bool(p.options["scale"]) and p.wants_gradient,
        ("rms_norm",),
        result="dscale",
    ),
    "label off by one": Mistake(_of_losses(_label_off_by_one), _has_a_loss_of_each_row),
    "smoothing without its -e": Mistake(
        _of_losses(lambda p, o, x: p.options["smoothing"] * (_log_sum_exp(x) - _at(x, o["label"]))),
        lambda p: _has_a_loss_of_each_row(p) and p.options["smoothing"] > 0,
    ),
    "sum over a padded row": Mistake(_of_losses(_padding_summed), _has_a_loss_of_each_row),
    "rows left out are counted": Mistake(
        lambda p, o, y: y * (o["label"] >= 0).reshape(len(y), -1).mean(-1), _may_leave_rows_out
    ),
    "column of a mask lost": Mistake(
        _mask_column_lost, lambda p: _has_rows(p) and bool(p.options.get("mask")), _ROWS
    ),
    "rounded one unit up": Mistake(
        lambda p, o, y: np.where(
            np.isfinite(_wide(y)), np.nextafter(y, np.asarray(np.inf, y.dtype)), y
        ),
        lambda p: _is_16_bit(p) and not {"labels", "label_dtype"} & set(p.options),
    ),
    "last element not stored": Mistake(_tail_not_stored),
    "slice off by one": Mistake(lambda p, o, y: np.roll(y.reshape(len(y), -1), 1, axis=1)),
    "TF32": Mistake(_tf32, _is_product),
    "alpha lost": Mistake(lambda p, o, y: y * 1.5, operations=("sgemm",)),
    "c left out": Mistake(
        lambda p, o, y: y - np.float32(p.options["beta"]) * o["c"],
        lambda p: bool(p.options.get("has_c") and p.options["beta"]),
    ),
    "axes merged in another order": Mistake(_merged_otherwise, _sums_over_two_axes),
    "axes of the result in another order": Mistake(
        lambda p, o, y: np.moveaxis(y, 1, -1),
        lambda p: sum(size > 1 for size in result_shape(p)) > 1,
        ("einsum", "tensordot"),
    ),
    "NaN swallowed": Mistake(
        lambda p, o, y: np.where(np.isnan(y), np.asarray(0, y.dtype), y),
        operations=(*_SOFTMAX, "logsumexp"),
    ),
    "infinity swallowed": Mistake(
        lambda p, o, y: np.where(np.isinf(y), np.asarray(3e4, y.dtype), y),
        operations=("log_softmax", "logsumexp"),
    ),
    "rows swapped": Mistake(lambda p, o, y: _swapped(y), _has_rows, _ROWS),
    "members swapped": Mistake(
        lambda p, o, y: y.reshape(-1, p.members, *y.shape[1:])[:, ::-1], lambda p: p.members > 1
    ),
    "program of the call before": Mistake(_member_before, lambda p: p.delivery == "turns"),
    "gradient of another member": Mistake(
        _member_before,
        lambda p: p.wants_gradient and any(p.shares(name) for name in FIRST),
        result="d",
    ),
    "derivative rounded to 9 bits": Mistake(
        lambda p, o, d: d * np.asarray(1 + 2.0**-9, d.dtype),
        # The bound of these derivatives is a few roundings of float32.
        lambda p: p.dtype == "float32" and "shape" in p.options and p.derivative != "value",
        result="d",
    ),
    "derivative with the wrong sign": Mistake(
        lambda p, o, d: -d, lambda p: p.derivative != "value", result="d"
    ),
    "wrong dtype": Mistake(
        lambda p, o, y: y.astype(np.float32 if y.dtype == np.float16 else np.float16),
        keeps_dtype=False,
    ),
    "another bit the second time": Mistake(_one_bit, second_run_only=True),
}
_PROGRAMS = 6  # that a mistake is planted into
_DRAWS = (0, 1, 2, 3, 4, 5)
_MOST_BUNDLES = 120


def check(seed: int, announce: Callable[[str], None] = lambda text: None) -> Table:
    """Plants every mistake into a few programs that have what it spoils.

    Programs run once; mistakes are planted into what they gave. Bundles are drawn until every
    mistake has its programs. Its row of the table ends with "FAIL" if no program showed it.
    """
    noticed = dict.fromkeys(MISTAKES, 0)
    planted = dict.fromkeys(MISTAKES, 0)
    false_alarms = programs = 0
    for index in range(_MOST_BUNDLES):
        missing = [name for name, count in planted.items() if count < _PROGRAMS]
        if not missing:
            break
        announce(f"bundle {index}, {len(missing)} mistakes still lack programs")
        some = [
            dataclasses.replace(p, draws=len(_DRAWS))
            for p in draw.bundle(seed, index)
            if p.draws > len(_DRAWS) and any(MISTAKES[name].fits(p) for name in missing)
        ]
        for ran in run(some, threads=1, draws=_DRAWS) if some else ():
            programs += 1
            false_alarms += bool(judge(ran).failures)
            for name in missing:
                if MISTAKES[name].fits(ran.problem) and planted[name] < _PROGRAMS:
                    planted[name] += 1
                    noticed[name] += bool(judge(MISTAKES[name].spoil(ran)).failures)
    rows = [
        (name, str(planted[name]), str(noticed[name]), "pass" if noticed[name] else "FAIL")
        for name in MISTAKES
    ]
    verdict = "FAIL" if false_alarms else "pass"
    rows.append(("none", str(programs), str(false_alarms), verdict))
    return Table("Planted mistakes", ("mistake", "programs", "noticed", ""), tuple(rows))
