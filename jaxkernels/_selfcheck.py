"""The self-test of ``python -m jaxkernels``: runs every live target and measures its error.

Owns: which results are computed; what they ought to be is in `_selfcheck_truth`. Everything runs
through the public functions under jit, so that a pass means that a user's program works (but for
the two parts of a softmax, which only programs on several devices call); the compiled program is
searched for the targets, so that a pass also means that our kernels, not XLA's, gave the result. (A
CPU's matrix products are XLA's own, and are held against the truth all the same.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from jaxkernels._core import registry, validate
from jaxkernels._rows import cross_entropy, logsumexp, masked, plan, softmax
from jaxkernels._rows import parts as row_parts
from jaxkernels._selfcheck_truth import LABELS, SCALE, SHAPE, bound, expected, widen
from jaxkernels._sgemm import primitive
from jaxkernels._sgemm import sgemm as products
from jaxkernels.typing import Algorithm, Tier

# (m, k, n): lines that are whole packs and lines that are not, which `pipelined` copies in two ways;
# ends within a tile. Then one of each form of `thin`: few lines, of which the others lie along k and
# across, and few k.
_PRODUCTS = ((68, 132, 44), (67, 129, 45), (37, 129, 3), (3, 132, 37), (67, 33, 45))
_ALPHA, _BETA = 0.5, -2.0
_LOGARITHMS = {
    "log_softmax": softmax.log_softmax,
    "logsumexp": partial(logsumexp.logsumexp, keepdims=True),
}
# Tiers that cannot hold such a row with a label, or have no kernels for it.
_NOT_OF_LOSSES = ("warp",)
_NOT_CALLED = "the compiled program does not call the target"


@dataclass(frozen=True)
class Check:
    """One result of the self-test.

    Attributes:
        platform: "cpu" or "cuda".
        dtype: storage type.
        tier: the tier, or the rung of the SGEMM ladder, that was forced, or "auto".
        operation: such as "softmax_fwd" or "sgemm".
        error: largest error against NumPy's widest float, in units of the dtype's epsilon.
        bound: the error that rounding explains, in the same units.
        problem: why there is no error to report, such as an exception's text; else empty.
    """

    platform: str
    dtype: str
    tier: str
    operation: str
    error: float = math.nan
    bound: float = math.nan
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether the result was computed by the target and its error is within the bound."""
        return not self.problem and self.error <= self.bound


def _softmax_results(tier: Tier | None, x: jax.Array, t: jax.Array) -> dict[str, jax.Array]:
    """Returns y and, for the cotangent t, dx."""
    y, pullback = jax.vjp(partial(softmax.softmax, tier=tier, implementation="ffi"), x)
    return {"softmax_fwd": y, "softmax_grad": pullback(t)[0]}


def _logarithm_results(
    name: str, tier: Tier | None, x: jax.Array, t: jax.Array
) -> dict[str, jax.Array]:
    """Returns y, dx for the cotangent t (or its first column, if y has one), and dy for the tangent t."""
    function = partial(_LOGARITHMS[name], axis=-1, tier=tier, implementation="ffi")
    y, pullback = jax.vjp(function, x)
    dx, dy = pullback(t[:, : y.shape[-1]])[0], jax.jvp(function, (x,), (t,))[1]
    return {f"{name}_fwd": y, f"{name}_grad": dx, f"{name}_jvp": dy}


def _attention_results(tier: Tier | None, x: jax.Array, t: jax.Array) -> dict[str, jax.Array]:
    """Returns y of scores x under a causal mask and, for the cotangent t, dx."""
    function = partial(masked.scaled_masked_softmax, scale=SCALE, causal=True)
    function = partial(function, tier=tier, implementation="ffi")
    y, pullback = jax.vjp(function, x)
    return {"masked_softmax_fwd": y, "masked_softmax_grad": pullback(t)[0]}


def _loss_results(tier: Tier | None, x: jax.Array, t: jax.Array) -> dict[str, jax.Array]:
    """Returns the loss of each row, dx for the first column of the cotangent t, and that of their sum."""
    function = partial(cross_entropy.cross_entropy, tier=tier, implementation="ffi")
    loss, pullback = jax.vjp(lambda x: function(x, LABELS), x)
    results = {"cross_entropy_fwd": loss[:, None]}
    results["cross_entropy_grad"] = pullback(t[:, 0].astype(loss.dtype))[0]
    if x.dtype != np.float16:  # whose gradient waits for the cotangent
        of_sum = jax.grad(lambda x: function(x, LABELS, reduction="sum"))
        results["cross_entropy_fwd_grad"] = of_sum(x)
    return results


def _results_in_parts(
    platform: str, tier: Tier | None, x: jax.Array, t: jax.Array
) -> dict[str, jax.Array]:
    """Runs the multi-device code path; one device is enough."""
    del tier, t
    devices = jax.devices(platform)[:1]
    mesh = jax.make_mesh((1,), ("part",), axis_types=(AxisType.Auto,), devices=devices)
    parts = row_parts.Parts("softmax_fwd")
    apply = jax.shard_map(
        lambda x: row_parts.apply(parts, [x], ("part",)),
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
    )
    return {"softmax_fwd": apply(x)}


def _run_case(
    platform: str,
    dtype: str,
    tier: Tier | Literal["auto"],
    evaluate: Callable[..., dict[str, jax.Array]],
    in_parts: bool = False,
) -> list[Check]:
    """Compiles and runs one function on one device and checks all of its results."""
    random = np.random.default_rng(0)
    device = jax.devices(platform)[0]
    x, t = (
        jax.device_put((scale * random.standard_normal(SHAPE)).astype(dtype), device)
        for scale in (3.0, 1.0)
    )
    forced = None if tier == "auto" else tier
    compiled = jax.jit(partial(evaluate, forced)).lower(x, t).compile()
    program = compiled.as_text() or ""
    results = {name: widen(result) for name, result in compiled(x, t).items()}
    wide_x, wide_t = widen(x), widen(t)
    y = next(result for name, result in results.items() if name.endswith("_fwd"))
    spread = float((wide_x.max(axis=-1, keepdims=True) - wide_x).max())
    limit = bound(dtype, spread, SHAPE[-1])
    epsilon = float(jax.numpy.finfo(dtype).eps)
    checks = []
    for operation, result in results.items():
        parts = (registry.STATISTICS_TARGET, registry.FINISH_TARGET)
        targets = parts if in_parts else (registry.ROWS_TARGET,)
        label = f"{operation} in parts" if in_parts else operation
        case = partial(Check, platform, dtype, tier, label)
        if not all(_calls(program, target, operation) for target in targets):
            checks.append(case(problem=_NOT_CALLED))
            continue
        truth, scale = expected(operation, wide_x, y, wide_t)
        # Below the smallest normal number the spacing of a dtype no longer shrinks.
        unit = epsilon * np.maximum(scale, float(jax.numpy.finfo(dtype).smallest_normal))
        errors = np.abs(result - truth) / unit
        checks.append(case(error=float(np.max(errors)), bound=limit))
    return checks


def _calls(program: str, target: str, operation: str) -> bool:
    """Returns whether a compiled program calls a target for a row operation."""
    call = rf'custom_call_target="{target}".* operation = \\*"{operation}\\*"'
    return re.search(call, program) is not None


def _check_sgemm(platform: str, algorithm: Algorithm | Literal["auto"]) -> list[Check]:
    """Compiles and runs one rung of the ladder on one device; of its products the worst counts.

    A sum of k products errs by k roundings at most, alpha, beta and their sum by one each; a rounding
    is half an epsilon of |alpha| |A| |B| + |beta C|.
    """
    case = partial(Check, platform, "float32", algorithm, "sgemm")
    has_kernel = primitive.TARGET in registry.TARGETS[platform]
    sgemm = partial(
        products.sgemm,
        alpha=_ALPHA,
        beta=_BETA,
        algorithm=None if algorithm == "auto" else algorithm,
        implementation="ffi" if has_kernel else None,
    )
    random = np.random.default_rng(0)
    device = jax.devices(platform)[0]
    operands = [
        [
            jax.device_put(random.standard_normal(shape).astype(np.float32), device)
            for shape in ((m, k), (k, n), (m, n))
        ]
        for m, k, n in _PRODUCTS
    ]
    compiled = jax.jit(lambda sets: [sgemm(*arrays) for arrays in sets]).lower(operands).compile()
    if has_kernel and primitive.TARGET not in (compiled.as_text() or ""):
        return [case(problem=_NOT_CALLED)]
    errors = []
    for arrays, result in zip(operands, compiled(operands), strict=True):
        a, b, c = (widen(array) for array in arrays)
        truth = _ALPHA * (a @ b) + _BETA * c
        scale = abs(_ALPHA) * (np.abs(a) @ np.abs(b)) + np.abs(_BETA * c)
        errors.append(np.abs(widen(result) - truth) / (float(np.finfo(np.float32).eps) * scale))
    roundings = max(k for _, k, _ in _PRODUCTS) + 3
    return [case(error=max(float(np.max(e)) for e in errors), bound=roundings / 2)]


def _cases(platform: str) -> Iterator[tuple[str, str, str, Callable[[], list[Check]]]]:
    """Yields (dtype, tier, name, what checks it).

    Every dtype with the chosen tier; on CUDA every tier in float32, and every rung of the ladder.
    """
    on_cuda = platform == "cuda"
    tiers: list[tuple[str, Tier | Literal["auto"]]] = [(dtype, "auto") for dtype in validate.DTYPES]
    tiers.extend(("float32", tier) for tier in validate.TIERS if on_cuda)
    for dtype, tier in tiers:
        for name, evaluate in (
            ("softmax", _softmax_results),
            *((name, partial(_logarithm_results, name)) for name in _LOGARITHMS),
            ("scaled_masked_softmax", _attention_results),
            ("cross_entropy", _loss_results),
        ):
            if name == "cross_entropy" and tier in _NOT_OF_LOSSES:
                continue
            yield dtype, tier, name, partial(_run_case, platform, dtype, tier, evaluate)
    for dtype in validate.DTYPES:
        evaluate = partial(_results_in_parts, platform)
        check = partial(_run_case, platform, dtype, "auto", evaluate, in_parts=True)
        yield dtype, "auto", "softmax in parts", check
    for algorithm in validate.ALGORITHMS if on_cuda else ("auto",):
        yield "float32", algorithm, "sgemm", partial(_check_sgemm, platform, algorithm)


def run(platform: str) -> list[Check]:
    """Runs the self-test on the first device of a platform.

    Args:
        platform: "cpu" or "cuda", one whose targets are live.

    Returns:
        One check per operation, dtype and tier (that the GPU has) or rung; an exception becomes a
        failed check.
    """
    checks = []
    for dtype, tier, name, check in _cases(platform):
        try:
            if tier == "cluster" and not plan.has_clusters():
                continue
            with _x64(dtype):
                checks += check()
        except Exception as error:  # the report of a broken installation must not break
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            checks.append(Check(platform, dtype, tier, name, problem=text))
    return checks


def _x64(dtype: str) -> Any:
    """Returns a context in which arrays of ``dtype`` exist."""
    return jax.enable_x64(dtype == "float64")
