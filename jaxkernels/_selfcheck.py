"""The self-test of ``python -m jaxkernels``: problems of `verify` for rows, products and attention.

Owns: which problems. They run through the public functions under jit, so that a pass means that a user's
program works, by our kernels and not by XLA's. A CPU's matrix products are XLA's own.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from jaxkernels._attention import tensor_cores
from jaxkernels._core import devices, registry, validate
from jaxkernels.verify import draw
from jaxkernels.verify.families import family_of, losses
from jaxkernels.verify.problem import Problem
from jaxkernels.verify.run import Outcome, outcomes

_DRAWS = 2  # sets of numbers
# An odd row length: misaligned rows, heads and tails are part of what is tested.
_SHAPE = (48, 1001)
_ROWS = {"shape": _SHAPE, "axis": -1, "where": None}
_SUMS = {**_ROWS, "keepdims": True}
_NORM = {"shape": _SHAPE, "axis": -1, "scale": "float32", "scale_offset": 0.0, "epsilon": 1e-6}
_SCORES = {"shape": _SHAPE, "mask": None, "bias": None, "scale": 0.5, "arguments": {"causal": True}}
_LOSSES = {**losses.PLAIN, "shape": _SHAPE}
# (function, derivative, options); their kernels are all row operations without a bias.
_ROW_CASES = (
    ("softmax", "vjp", _ROWS),
    ("log_softmax", "vjp", _ROWS),
    ("logsumexp", "vjp", _SUMS),
    ("rms_norm", "vjp", _NORM),
    ("scaled_masked_softmax", "vjp", _SCORES),
    ("cross_entropy", "vjp", _LOSSES),
    ("cross_entropy", "vjp", {**_LOSSES, "reduction": "sum"}),
)
# (m, k, n) of products. `pipelined` copies lines of whole packs (the first) and other lines (the
# second) in two ways; both end within a tile. The rest run each form of `thin`: small n, with the
# other operand K-major; small m, with the other one MN-major; small k.
_PRODUCTS = ((68, 132, 44), (67, 129, 45), (37, 129, 3), (3, 132, 37), (67, 33, 45))
_ATTENTION = {"sizes": [2, 130, 257, 4, 2, 40], "mask": [1, 4, 1, 257], "bias": [1, 4, 130, 257]}
_FACTORS = {"labels": "mk,kn->mn", "flags": [False] * 2, "has_c": True, "alpha": 0.5, "beta": -2.0}


def problems(platform: str) -> Iterator[Problem]:
    """Problems of every dtype; on CUDA also of every tier in float32, and of every SGEMM rung."""
    on_cuda = platform == "cuda"

    def problem(function: str, dtype: str, how: str | None, derivative: str, options: Any) -> Any:
        return Problem(function, dtype, how, derivative, "plain", 1, _DRAWS, [0], options)

    tiers = [(dtype, None) for dtype in validate.DTYPES]
    tiers += [("float32", tier) for tier in validate.TIERS if on_cuda]
    for dtype, tier in tiers:
        if tier == "cluster" and devices.limits_of(None).cluster_blocks == 1:
            continue
        for function, derivative, options in _ROW_CASES:
            if function != "cross_entropy" or tier != "warp":  # it cannot hold a row with a label
                yield problem(function, dtype, tier, derivative, options)
    for rung in validate.ALGORITHMS if on_cuda else (None,):
        for m, k, n in _PRODUCTS:
            shapes = {"shapes": [[m, k], [k, n]]}
            yield problem("sgemm", "float32", rung, "value", _FACTORS | shapes)
    if on_cuda and not tensor_cores.why_not(_ATTENTION["sizes"], devices.limits_of(None)):
        options = {**_ATTENTION, "lengths": [], "arguments": {"is_causal": True}}
        yield problem("dot_product_attention", "float32", "ffi_flash", "vjp", options)


def _calls_kernels(problem: Problem, target: str) -> bool:
    """Whether the program of a problem calls a target for all its results; XLA's results could be right too."""
    operands, _ = draw.numbers(problem, 0)
    with jax.enable_x64(problem.wide):
        program = jax.jit(family_of(problem.operation).core(problem))
        text = program.lower({name: x[0] for name, x in operands.items()}).as_text()
    is_one = problem.derivative == "value" or problem.options.get("reduction") == "sum"
    return text.count(f"@{target}") >= (1 if is_one else 2)


def run(platform: str) -> list[Outcome]:
    """Runs the self-test on the first device of a platform ("cpu", "cuda") with live targets.

    Returns an outcome per problem; an exception becomes a failure, and so does a program without our kernels.
    """
    found = []
    with jax.default_device(jax.devices(platform)[0]):
        for problem in problems(platform):
            (outcome,) = outcomes([problem], 1)
            target = {
                "sgemm": registry.SGEMM_TARGET,
                "dot_product_attention": registry.ATTENTION_TARGET,
            }.get(problem.operation, registry.ROWS_TARGET)
            has_target = target in registry.TARGETS[platform] and not outcome.failures
            if has_target and not _calls_kernels(problem, target):
                why = (0, "the program does not call the target")
                outcome = dataclasses.replace(outcome, failures=(why,))
            found.append(outcome)
    return found
