"""Inputs and shapes that the value tests share."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import DTYPES, EPSILON, OPERATIONS, TANGENTS, check, compute, row_scalars, storage

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._core import validate
from jaxkernels._rows import logsumexp, rms_norm
from jaxkernels.verify import values
from jaxkernels.verify.row_layout import accumulators as accumulators
from jaxkernels.verify.row_layout import plan_boundaries as plan_boundaries
from jaxkernels.verify.truth.bounded import PRECISION

ON_GPU = jax.default_backend() == "gpu"
# A forced tier has no effect on a CPU (test_errors.py shows it), so one pass is enough there.
TIERS = (None, *validate.TIERS) if ON_GPU else (None,)
# The length of a cluster's rows on a GPU. On a CPU the widest type of the truth is slow on infinities and NaN.
LONG = 40003 if ON_GPU else 4499
tiers = pytest.mark.parametrize("tier", TIERS)
dtypes = pytest.mark.parametrize("dtype", DTYPES)

KINDS = ("normal", "wide", "outliers", "offset", "equal", "subnormal", "minus_inf")


def logits(kind, rows, cols, dtype, seed=0):
    """An input array of shape (rows, cols) of one of `values.KINDS`, rounded to the storage type."""
    rng = np.random.default_rng([seed, rows, cols, KINDS.index(kind)])
    return values.logits(kind, rows, cols, dtype, rng)


def cotangents(rows, cols, dtype, seed=0):
    """A (co)tangent of shape (rows, cols): randn, with one row in four that sums to about zero."""
    rng = np.random.default_rng([seed, rows, cols, 99])
    return values.cotangents("normal", rows, cols, dtype, rng)


def scale_of(x):
    """A scale of the columns of x, in its dtype or, for odd lengths, in that of computation."""
    cols, dtype = x.shape[-1], x.dtype.name
    scale = 1 + np.random.default_rng(cols).standard_normal(cols)
    return scale.astype(compute(dtype) if cols % 2 else storage(dtype))


def x64(dtype):
    """A context in which JAX keeps the storage type; arrays have to be made and used inside."""
    return jax.enable_x64(dtype == "float64")


def limits(device="h200", **changes):
    found = _cpu.named_devices()[device]
    fields = {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}
    return jk.DeviceLimits(**{**fields, **changes})


def plan_or_none(shape, dtype, operation, tier, device=None):
    """The plan of a GPU for a forced tier, or None where the tier cannot hold such a row."""
    try:
        return jk.plan_softmax(shape, dtype, operation=operation, tier=tier, device=device)
    except ValueError:
        return None


def serves(tier, shape, dtype, operations=OPERATIONS):
    """Whether a tier can run all operations on this shape."""
    return tier is None or all(plan_or_none(shape, dtype, op, tier) for op in operations)


@functools.partial(jax.jit, static_argnames=("tier", "tangents"))
def all_operations(xs, ts, scalars, tier=None, tangents=True):
    """Runs all operations on many 2-D arrays in one program; for every x a dict from operation to result.

    `scalars` has a number for each row of each x. As slices of the cotangents they would be kernels of XLA's own, which
    cost more than all of ours. Tangents are plain JAX, whose compilation takes several times as long.
    """
    # "ffi" also for rows that XLA serves by default.
    asked = {"tier": tier, "implementation": "ffi" if ON_GPU else None}
    plain = {"tier": tier or "auto", "require_kernel": ON_GPU}
    of_norm = {**plain, "epsilon": EPSILON}
    results = []
    for x, t, scalar in zip(xs, ts, scalars, strict=True):
        y, pull = jax.vjp(functools.partial(jk.softmax, **asked), x)
        log_softmax = functools.partial(jk.log_softmax, **asked)
        log_y, log_pull = jax.vjp(log_softmax, x)
        scale = jnp.asarray(scale_of(x))
        found = {
            "softmax_fwd": y,
            "softmax_grad": pull(t)[0],
            "log_softmax_fwd": log_y,
            "log_softmax_grad": log_pull(t)[0],
            # The primitives: what the public function adds would slow down programs of many arrays.
            "logsumexp_fwd": logsumexp.logsumexp_fwd(x, **plain),
            "logsumexp_grad": logsumexp.logsumexp_grad(x, scalar, **plain),
            "rms_norm_fwd": rms_norm.rms_norm_fwd(x, scale, **of_norm),
            "rms_norm_grad": rms_norm.rms_norm_grad(x, scale, t, **of_norm),
        }
        if tangents:
            found["log_softmax_jvp"] = jax.jvp(log_softmax, (x,), (t,))[1]
            found["logsumexp_jvp"] = logsumexp.logsumexp_jvp(x, t, **plain)
            found["rms_norm_jvp"] = rms_norm.rms_norm_jvp(x, scale, t, **of_norm)
        results.append(found)
    return results


def check_all(pairs, dtype, tier=None, operations=(*OPERATIONS, *TANGENTS)):
    """Runs all operations on (x, t) pairs of 2-D arrays and holds each result against the truth.

    The gradients are held against the truth for their operand: the y that the forward pass gave, or x.
    Tangents have no tiers, so only the pass without a tier includes them.
    """
    if tier is not None:
        operations = [operation for operation in operations if operation not in TANGENTS]
    tangents = not set(operations).isdisjoint(TANGENTS)
    with x64(dtype):
        xs, ts = [x for x, _ in pairs], [t for _, t in pairs]
        scalars = [row_scalars(t) for t in ts]
        results = all_operations(xs, ts, scalars, tier=tier, tangents=tangents)
        results = jax.device_get(results)
    for (x, t), result in zip(pairs, results, strict=True):
        check_results(x, t, result, dtype, tier, operations)


def check_results(
    x, t, result, dtype, tier=None, operations=(*OPERATIONS, *TANGENTS), scalars=None, lanes=None
):
    """The least number of a row's partial sums is `lanes`, or that of the plan."""
    operands = operands_of(x, t, result["softmax_fwd"], result["log_softmax_fwd"], scalars)
    for operation in operations:
        sums = lanes or accumulators(operation, x.shape, dtype, tier)
        check(result[operation], operation, *operands[operation], accumulators=sums)


def operands_of(x, t, y, log_y, scalars=None):
    """The operands of each operation: x, its (co)tangent, the results of softmax and log_softmax, and a number for each
    row, by default the first of the cotangent."""
    scalars = row_scalars(t) if scalars is None else scalars
    kept = x if x.dtype.itemsize == 2 else log_y
    return {
        "softmax_fwd": (x,),
        "softmax_grad": (y, t),
        "log_softmax_fwd": (x,),
        "log_softmax_grad": (kept, t),
        "log_softmax_jvp": (kept, t),
        "logsumexp_fwd": (x,),
        "logsumexp_grad": (x, scalars),
        "logsumexp_jvp": (x, t),
        "rms_norm_fwd": (x, scale_of(x)),
        "rms_norm_grad": (x, scale_of(x), t),
        "rms_norm_jvp": (x, scale_of(x), t),
    }


def close(got, want, message=""):
    """Equal type, shape and weakness; values within a few of jax.nn's own rounding errors.

    jax.nn rounds every step to the storage type, at worst once per addition of a row's sum.
    The values themselves are held against the truth elsewhere; here the question is which values are meant.
    """
    assert (got.shape, got.dtype) == (want.shape, want.dtype), message
    assert got.weak_type == want.weak_type, message
    u = PRECISION.get(got.dtype.name, PRECISION["float32"]).us
    got, want = (
        np.asarray(a).astype(np.complex128 if a.dtype.kind == "c" else np.float64)
        for a in (got, want)
    )
    np.testing.assert_allclose(got, want, rtol=32 * u, atol=32 * u, err_msg=message)


def pairwise(levels):
    """Choices of one level for each option; every two levels of two options are in one of them."""
    rng, sizes = np.random.default_rng(0), [len(some) for some in levels.values()]
    draw = lambda: [*enumerate(rng.integers(sizes).tolist())]  # noqa: E731
    pairs = lambda choice: {*itertools.combinations(choice, 2)}  # noqa: E731
    left = set().union(*(pairs(draw()) for _ in range(2000)))
    while left:
        best = max((draw() for _ in range(200)), key=lambda choice: len(left & pairs(choice)))
        left -= pairs(best)
        yield {name: levels[name][i] for name, (_, i) in zip(levels, best, strict=True)}
