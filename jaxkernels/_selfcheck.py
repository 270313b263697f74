"""The self-test of ``python -m jaxkernels``: runs every live target on problems of `verify`.

Owns: which problems. Everything runs through the public functions under jit, so that a pass means that
a user's program works. Only the two parts of a softmax are called by themselves: no public function
needs them on one device. The compiled program is searched for the targets, so that a pass also means
that our kernels, not XLA's, gave the result. A CPU's matrix products are XLA's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from jaxkernels._core import devices, registry, validate
from jaxkernels._rows import calls, softmax
from jaxkernels.verify import draw
from jaxkernels.verify.families import family_of, losses
from jaxkernels.verify.problem import Problem, Traced

_DRAWS = 2  # sets of numbers
# An odd row length: misaligned rows, heads and tails are part of what is tested.
_SHAPE = (48, 1001)
_ROWS = {"shape": _SHAPE, "axis": -1, "where": None}
_SUMS = {**_ROWS, "keepdims": True}
_NORM = {"shape": _SHAPE, "axis": -1, "scale": "float32", "scale_offset": 0.0, "epsilon": 1e-6}
_SCORES = {"shape": _SHAPE, "mask": None, "bias": None, "scale": 0.5, "arguments": {"causal": True}}
_LOSSES = {**losses.PLAIN, "shape": _SHAPE}
_SUM_OF_LOSSES = {**_LOSSES, "reduction": "sum"}
# (function, derivative, options, row operation that computes each result).
_ROW_CASES = (
    ("softmax", "vjp", _ROWS, {"y": "softmax_fwd", "dx": "softmax_grad"}),
    ("log_softmax", "vjp", _ROWS, {"y": "log_softmax_fwd", "dx": "log_softmax_grad"}),
    ("log_softmax", "jvp", _ROWS, {"dy": "log_softmax_jvp"}),
    ("logsumexp", "vjp", _SUMS, {"y": "logsumexp_fwd", "dx": "logsumexp_grad"}),
    ("logsumexp", "jvp", _SUMS, {"dy": "logsumexp_jvp"}),
    ("rms_norm", "vjp", _NORM, {"y": "rms_norm_fwd", "dx": "rms_norm_grad"}),
    ("rms_norm", "jvp", _NORM, {"dy": "rms_norm_jvp"}),
    (
        *("scaled_masked_softmax", "vjp", _SCORES),
        {"y": "masked_softmax_fwd", "dscores": "masked_softmax_grad"},
    ),
    ("cross_entropy", "vjp", _LOSSES, {"y": "cross_entropy_fwd", "dx": "cross_entropy_grad"}),
    ("cross_entropy", "vjp", _SUM_OF_LOSSES, {"dx": "cross_entropy_fwd_grad"}),
)
# (m, k, n) of products. `pipelined` copies lines of whole packs (the first) and other lines (the
# second) in two ways; both end within a tile. The rest run each form of `thin`: small n, with the
# other operand K-major; small m, with the other one MN-major; small k.
_PRODUCTS = ((68, 132, 44), (67, 129, 45), (37, 129, 3), (3, 132, 37), (67, 33, 45))
_FACTORS = {"labels": "mk,kn->mn", "flags": [False] * 2, "has_c": True, "alpha": 0.5, "beta": -2.0}


@dataclass(frozen=True)
class Check:
    """One result of the self-test."""

    platform: str  # "cpu" or "cuda"
    dtype: str  # storage type
    tier: str  # the tier, or the rung of the SGEMM ladder, that was forced, or "auto"
    operation: str  # such as "softmax_fwd" or "sgemm"
    error: float = math.nan  # largest error, in units of the error that rounding explains
    problem: str = ""  # why there is no error to report, such as an exception's text; else empty

    @property
    def passed(self) -> bool:
        """Whether the result was computed by the target and its error is within the bound."""
        return not self.problem and self.error <= 1


class _Case(NamedTuple):
    """One program."""

    problem: Problem  # the function with its options
    labels: dict[str, str]  # of the results that are checked
    needs: list[str]  # patterns of the calls that the compiled program has if it runs our kernels
    core: Callable[[Traced], Traced] | None = None  # what replaces the public function

    @np.errstate(all="ignore")
    def errors(self) -> dict[str, float]:
        """Runs the program; returns each result's largest error in units of its bound, by label."""
        problem, family = self.problem, family_of(self.problem.operation)
        numbers = [draw.numbers(problem, i) for i in range(problem.draws)]
        given = [{name: x[0] for name, x in operands.items()} for operands, _ in numbers]
        compiled = jax.jit(self.core or family.core(problem)).lower(given[0]).compile()
        for pattern in self.needs:
            if not re.search(pattern, compiled.as_text() or ""):
                raise RuntimeError("the compiled program does not call the target")
        worst = dict.fromkeys(self.labels.values(), 0.0)
        for x, (operands, alike) in zip(given, numbers, strict=True):
            results = {name: np.asarray(y)[None] for name, y in compiled(x).items()}
            judged = family.judge(problem, operands, results, alike)
            for name, label in self.labels.items():
                worst[label] = max(worst[label], *judged[name])
        return worst


def _call_of(target: str, operation: str) -> str:
    return rf'custom_call_target="{target}".* operation = \\*"{operation}\\*"'


def _in_parts(device: Any, operands: Traced) -> Traced:
    """Softmax by the multi-device code path; one device is enough."""
    mesh = jax.make_mesh((1,), ("part",), axis_types=(AxisType.Auto,), devices=[device])
    apply = jax.shard_map(
        lambda x: calls.in_parts(softmax.softmax_fwd.operation, None, [x], ("part",)),
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
    )
    return {"y": apply(operands["x"])}


def _problem(function: str, dtype: str, tier: str, derivative: str, options: Any) -> Problem:
    how = None if tier == "auto" else tier
    return Problem(function, dtype, how, derivative, "plain", 1, _DRAWS, [0], options)


def _cases(platform: str) -> Iterator[_Case]:
    """Programs of every dtype; on CUDA also of every tier in float32, and of every SGEMM rung."""
    on_cuda = platform == "cuda"
    tiers = [(dtype, "auto") for dtype in validate.DTYPES]
    tiers += [("float32", tier) for tier in validate.TIERS if on_cuda]
    for dtype, tier in tiers:
        for function, derivative, options, operations in _ROW_CASES:
            if function == "cross_entropy" and tier == "warp":
                continue  # which cannot hold such a row with a label
            if options is _SUM_OF_LOSSES and dtype == "float16":
                continue  # its gradient waits for the cotangent
            problem = _problem(function, dtype, tier, derivative, options)
            needs = [_call_of(registry.ROWS_TARGET, x) for x in operations.values()]
            yield _Case(problem, operations, needs)
    in_parts = partial(_in_parts, jax.devices(platform)[0])
    targets = registry.STATISTICS_TARGET, registry.FINISH_TARGET
    needs = [_call_of(target, "softmax_fwd") for target in targets]
    for dtype in validate.DTYPES:
        problem = _problem("softmax", dtype, "auto", "value", _ROWS)
        yield _Case(problem, {"y": "softmax_fwd in parts"}, needs, in_parts)
    target = registry.SGEMM_TARGET
    for rung in validate.ALGORITHMS if on_cuda else ("auto",):
        for m, k, n in _PRODUCTS:
            options = {**_FACTORS, "shapes": [[m, k], [k, n]]}
            problem = _problem("sgemm", "float32", rung, "value", options)
            yield _Case(problem, {"y": "sgemm"}, [target] * (target in registry.TARGETS[platform]))


def run(platform: str) -> list[Check]:
    """Runs the self-test on the first device of a platform ("cpu", "cuda") with live targets.

    Returns a check per operation, dtype and tier (that the GPU has), and per rung and product;
    an exception becomes a failed check.
    """
    checks = []
    for case in _cases(platform):
        problem = case.problem
        about = platform, problem.dtype, problem.how or "auto"
        if problem.how == "cluster" and devices.limits_of(None).cluster_blocks == 1:
            continue
        try:
            with jax.default_device(jax.devices(platform)[0]), jax.enable_x64(problem.wide):
                checks += [Check(*about, label, error) for label, error in case.errors().items()]
        except Exception as error:  # the report of a broken installation must not break
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            checks += [Check(*about, label, problem=text) for label in case.labels.values()]
    return checks
