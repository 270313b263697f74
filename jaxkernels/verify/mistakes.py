"""`MISTAKES` that are planted into results, to show that each would be noticed."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxkernels.bench.tables import Table
from jaxkernels.verify import draw
from jaxkernels.verify.families import family_of
from jaxkernels.verify.families.products import labels_of, result_shape
from jaxkernels.verify.problem import FIRST, Arrays, Problem, Truths
from jaxkernels.verify.row_layout import RowLayout
from jaxkernels.verify.run import Change, Mistake, judge, run
from jaxkernels.verify.truth.compare import storage, total

_SOFTMAX = ("softmax", "log_softmax")
_ROWS = (*_SOFTMAX, "scaled_masked_softmax", "logsumexp")
_LOSSES = ("cross_entropy", "token_log_probs")
_DIVERGENCES = ("softmax_kl_divergence",)


def _has_rows(problem: Problem) -> bool:
    """Several rows along the last axis, without `where`."""
    o, shape = problem.options, problem.options["shape"]
    is_plain = o.get("axis", -1) == -1 and not o.get("where")
    return is_plain and len(shape) > 1 and shape[-1] > 2 and shape[-2] > 1


def _is_plain_loss(problem: Problem) -> bool:
    """The loss of each row, of several classes."""
    o = problem.options
    is_more = o["beyond"] or o["weights"] or o["z_loss"] or o["reduction"] != "none"
    return not is_more and RowLayout(o).cols > 4


def _is_16_bit(problem: Problem) -> bool:
    return problem.dtype in ("bfloat16", "float16")


def _is_product(problem: Problem) -> bool:
    return "labels" in problem.options and problem.dtype == "float32"


def _sums_over_two_axes(problem: Problem) -> bool:
    return _is_product(problem) and all({"k", "l"} <= {*x} for x in labels_of(problem)[:2])


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _truth(p: Problem, operands: Arrays, y: np.ndarray) -> Truths:
    return family_of(p.operation).truth(p, operands, {"y": y}, np.zeros(len(y), bool))


def _of_others(alter: Callable[[Problem, Arrays], Arrays], result: str = "y") -> Change:
    """The right results for some other operands."""

    def changed(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
        p = dataclasses.replace(p, derivative="value") if result == "y" else p
        return _truth(p, operands | alter(p, operands), y)[result].value

    return changed


def _shifted(x: np.ndarray) -> np.ndarray:
    return x - x.max(-1, keepdims=True)


def _swapped(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The first two rows in the other order."""
    rows = y.reshape(len(y), *p.options["shape"][:-1], -1)
    return np.concatenate([rows[..., 1::-1, :], rows[..., 2:, :]], axis=-2)


def _member_before(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    return np.roll(y.reshape(-1, p.members, *y.shape[1:]), 1, axis=1).reshape(y.shape)


def _sums_lack_the_last(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    if p.operation == "logsumexp":
        last = np.exp(_wide(operands["x"])[..., -1].reshape(y.shape) - y)
        return y + np.log1p(-np.minimum(last, 1))
    last = _wide(y)[..., -1:]
    return y - np.log1p(-np.exp(last)) if p.operation == "log_softmax" else y / (1 - last)


def _no_maximum(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    e = np.exp(operands["x"].astype(np.float32))
    if p.operation == "softmax":
        return e / total(e)
    return np.log(total(e)) if p.operation == "logsumexp" else operands["x"] - np.log(total(e))


def _not_compensated(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The difference to the maximum is rounded to float32."""
    e = np.exp(_wide(_shifted(operands["x"])))
    return e / total(e)


def _sum_narrowed(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """The sum of exponentials is kept in the storage type."""
    e = np.exp(_shifted(_wide(operands["x"])))
    return e / np.add.accumulate(e.astype(y.dtype), axis=-1)[..., -1:]


def _of_other_sums(alter: Callable[[np.ndarray], np.ndarray]) -> Change:
    """The results for other sums of exponentials."""

    def changed(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
        d = _shifted(_wide(operands["x"]))
        e = np.exp(d)
        return e / alter(e) if p.operation == "softmax" else d - np.log(alter(e))

    return changed


def _rounded_y_for_x(p: Problem, operands: Arrays, dx: np.ndarray) -> np.ndarray:
    d, t = _shifted(_wide(operands["x"])), _wide(operands["t"])
    y = (d - np.log(total(np.exp(d)))).astype(dx.dtype)
    return t - np.exp(_wide(y)) * total(t)


def _padding_summed(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    """Each row sums one class more, whose logit is 0."""
    lse = _truth(p, operands, y)["lse"].value.reshape(y.shape)
    return np.where(operands["label"].astype(int) >= 0, y + np.logaddexp(lse, 0) - lse, y)


def _smoothing_added(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    plain = dataclasses.replace(p, options=p.options | {"smoothing": 0.0})
    return y + p.options["smoothing"] * _truth(plain, operands, y)["y"].value.reshape(y.shape)


def _tf32(p: Problem, operands: Arrays) -> Arrays:
    """Operands are rounded to the 11 bits that a tensor core takes of a float32."""
    bits = {name: operands[name].view(np.uint32) + np.uint32(1 << 12) for name in "ab"}
    return {name: (x & np.uint32(0xFFFFE000)).view(np.float32) for name, x in bits.items()}


def _last_term_lost(p: Problem, operands: Arrays) -> Arrays:
    a = operands["a"].copy()
    np.moveaxis(a, 1 + labels_of(p)[0].index("k"), -1)[..., -1] = 0
    return {"a": a}


def _merged_otherwise(p: Problem, operands: Arrays) -> Arrays:
    """The elements of b along k and l lie as if l came first, those of a as if k did."""
    axes = [1 + labels_of(p)[1].index(name) for name in "kl"]  # behind the members
    last = np.moveaxis(operands["b"], axes, (-2, -1))
    return {"b": np.moveaxis(np.swapaxes(last, -1, -2).reshape(last.shape), (-2, -1), axes)}


def _is_last(x: np.ndarray) -> np.ndarray:
    return np.arange(x.shape[-1]) == x.shape[-1] - 1


def _one_bit(p: Problem, operands: Arrays, y: np.ndarray) -> np.ndarray:
    y.view(np.uint8).reshape(-1)[0] ^= 1
    return y


# Those with a `least`: some programs lack the numbers that they spoil, such as a NaN or a row that is left out.
MISTAKES: dict[str, Mistake] = {
    "last term lost from a sum": Mistake(_sums_lack_the_last, _has_rows, _ROWS),
    # Results near 0 are lost: the sum is 1 and a small rest, which is rounded away.
    "maximum summed with the others": Mistake(
        lambda p, o, y: np.log(np.exp(y)), lambda p: not _is_16_bit(p), ("log_softmax",), least=3
    ),
    "no maximum subtracted": Mistake(_no_maximum, _has_rows, (*_SOFTMAX, "logsumexp"), least=4),
    "difference not compensated": Mistake(
        _not_compensated, lambda p: p.dtype == "float32" and _has_rows(p), ("softmax",), least=1
    ),
    "result rounded twice": Mistake(
        lambda p, o, y: y * np.float32(1 + 2.0**-18),
        lambda p: p.dtype == "float32" and 2 < RowLayout(p.options).cols <= 300,
        ("softmax",),
    ),
    "neighbour's element in the sum": Mistake(
        _of_other_sums(lambda e: total(e) + np.roll(e[..., :1], -1, axis=-2)), _has_rows, _SOFTMAX
    ),
    "sum of the row before": Mistake(
        _of_other_sums(lambda e: np.roll(total(e), 1, axis=-2)), _has_rows, _SOFTMAX
    ),
    "sum kept in the storage type": Mistake(
        _sum_narrowed, lambda p: _is_16_bit(p) and _has_rows(p), ("softmax",)
    ),
    "rounded y for x": Mistake(
        _rounded_y_for_x,
        lambda p: _is_16_bit(p) and p.wants_gradient and _has_rows(p),
        ("log_softmax",),
        result="d",
    ),
    "cotangent of the row before": Mistake(
        _of_others(lambda p, o: {"t": np.roll(o["t"], 1)}, "dx"),
        lambda p: p.wants_gradient and RowLayout(p.options).count > 1,
        ("logsumexp",),
        result="d",
    ),
    "number narrowed": Mistake(
        _of_others(lambda p, o: {"t": _wide(o["t"].astype(storage("bfloat16")))}, "dx"),
        lambda p: p.wants_gradient and p.dtype == "float32",
        ("logsumexp",),
        result="d",
    ),
    "scale of the column before": Mistake(
        _of_others(lambda p, o: {"scale": np.roll(o["scale"], 1, -1)}),
        lambda p: bool(p.options["scale"]) and RowLayout(p.options).cols > 2,
        ("rms_norm",),
    ),
    "scale's gradient of half of the rows": Mistake(
        lambda p, o, d: d / 2,
        lambda p: bool(p.options["scale"]) and p.wants_gradient,
        ("rms_norm",),
        result="dscale",
    ),
    "label off by one": Mistake(
        _of_others(lambda p, o: {"label": (o["label"] + np.int64(1)) % RowLayout(p.options).cols}),
        lambda p: not p.options["beyond"] and RowLayout(p.options).cols > 4,
        _LOSSES,
    ),
    "smoothing without its -e": Mistake(  # the factor of nll is 1, not 1 - e
        _smoothing_added, lambda p: p.options["smoothing"] > 0 and _is_plain_loss(p), _LOSSES[:1]
    ),
    "sum over a padded row": Mistake(_padding_summed, _is_plain_loss, _LOSSES[:1]),
    "prediction and target swapped": Mistake(
        _of_others(lambda p, o: {"x": o["target"], "target": o["x"]}),
        lambda p: p.options["target"] == p.dtype and RowLayout(p.options).cols > 4,
        _DIVERGENCES,
        least=2,  # the divergence of nearly equal logits has no direction
    ),
    "temperature left out": Mistake(
        _of_others(lambda p, o: {"temperature": 0 * o["temperature"] + 1}),
        lambda p: bool(p.options["temperature"]) and RowLayout(p.options).cols > 4,
        _DIVERGENCES,
        least=3,
    ),
    "rows left out are counted": Mistake(
        lambda p, o, y: y * (o["label"] >= 0).reshape(len(y), -1).mean(-1),
        lambda p: p.options["reduction"] == "mean" and not p.options["weights"],
        _LOSSES[:1],
        least=1,
    ),
    "column of a mask lost": Mistake(
        _of_others(lambda p, o: {"mask": o["mask"] | _is_last(o["mask"])}),
        lambda p: bool(p.options.get("mask")),
        least=4,
    ),
    "rounded one unit up": Mistake(
        lambda p, o, y: np.where(
            np.isfinite(_wide(y)), np.nextafter(y, np.asarray(np.inf, y.dtype)), y
        ),
        lambda p: _is_16_bit(p) and not {"labels", "label_dtype", "target"} & set(p.options),
        least=4,
    ),
    "last element not stored": Mistake(
        lambda p, o, y: np.where(_is_last(y.reshape(len(y), -1)), 0.7, y.reshape(len(y), -1))
    ),
    "slice off by one": Mistake(lambda p, o, y: np.roll(y.reshape(len(y), -1), 1, axis=1), least=3),
    "TF32": Mistake(_of_others(_tf32), _is_product),
    "alpha lost": Mistake(lambda p, o, y: y * 1.5, operations=("sgemm",)),
    "last term of a product lost": Mistake(_of_others(_last_term_lost), _is_product),
    "c left out": Mistake(
        _of_others(lambda p, o: {"c": 0 * o["c"]}),
        lambda p: bool(p.options.get("has_c") and p.options["beta"]),
    ),
    "axes merged in another order": Mistake(_of_others(_merged_otherwise), _sums_over_two_axes),
    "axes of the result in another order": Mistake(
        lambda p, o, y: np.moveaxis(y, 1, -1),
        lambda p: sum(size > 1 for size in result_shape(p)) > 1,
        ("einsum", "tensordot"),
        least=4,
    ),
    "NaN swallowed": Mistake(
        lambda p, o, y: np.where(np.isnan(y), np.asarray(0, y.dtype), y),
        operations=(*_SOFTMAX, "logsumexp"),
        least=1,  # few rows have one
    ),
    "infinity swallowed": Mistake(
        lambda p, o, y: np.where(np.isinf(y), np.asarray(3e4, y.dtype), y),
        operations=("log_softmax", "logsumexp"),
        least=3,
    ),
    "rows swapped": Mistake(_swapped, _has_rows, _ROWS, least=4),
    "members swapped": Mistake(
        lambda p, o, y: y.reshape(-1, p.members, *y.shape[1:])[:, ::-1],
        lambda p: p.members > 1,
        least=3,
    ),
    "program of the call before": Mistake(_member_before, lambda p: p.delivery == "turns", least=4),
    "gradient of another member": Mistake(
        _member_before,
        lambda p: p.wants_gradient and any(p.shares(name) for name in FIRST),
        result="d",
        least=4,
    ),
    "derivative rounded to 9 bits": Mistake(
        lambda p, o, d: d * np.asarray(1 + 2.0**-9, d.dtype),
        # The bound of these derivatives is a few roundings of float32.
        lambda p: p.dtype == "float32" and "shape" in p.options and p.derivative != "value",
        result="d",
        least=3,
    ),
    "derivative with the wrong sign": Mistake(
        lambda p, o, d: -d, lambda p: p.derivative != "value", result="d", least=4
    ),
    "wrong dtype": Mistake(
        lambda p, o, y: y.astype(np.float32 if y.dtype == np.float16 else np.float16),
        keeps_dtype=False,
    ),
    "another bit the second time": Mistake(_one_bit, second_run_only=True),
}
_PROGRAMS = 6  # programs that a mistake is planted into
_DRAWS = 6
_MOST_BUNDLES = 120


def check(seed: int, announce: Callable[[str], None] = lambda text: None) -> Table:
    """Plants every mistake into a few programs that fit it (`Mistake.fits`).

    Bundles are drawn until every mistake has its programs. Its row of the table ends with "FAIL" if
    too few programs showed it.
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
            dataclasses.replace(p, draws=_DRAWS)
            for p in draw.bundle(seed, index, MISTAKES[missing[0]].operations)
            if p.draws > _DRAWS and any(MISTAKES[name].fits(p) for name in missing)
        ]
        for ran in run(some, threads=1) if some else ():
            programs += 1
            false_alarms += bool(judge(ran).failures)
            for name in missing:
                if MISTAKES[name].fits(ran.problem) and planted[name] < _PROGRAMS:
                    planted[name] += 1
                    noticed[name] += bool(judge(MISTAKES[name].spoil(ran)).failures)
    rows = []
    for name, mistake in MISTAKES.items():
        least = max(planted[name] if mistake.least is None else mistake.least, 1)
        verdict = "pass" if noticed[name] >= least else "FAIL"
        rows.append((name, str(planted[name]), str(noticed[name]), verdict))
    verdict = "FAIL" if false_alarms else "pass"
    rows.append(("none", str(programs), str(false_alarms), verdict))
    return Table("Planted mistakes", ("mistake", "programs", "noticed", ""), tuple(rows))
