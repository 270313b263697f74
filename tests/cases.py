"""Inputs and shapes that the value tests share."""

import functools

import jax
import numpy as np
from oracle import OPERATIONS, compute, storage

import jaxkernels as jk
from jaxkernels import _validate
from jaxkernels.verify.truth.tolerance import check

ON_GPU = jax.default_backend() == "gpu"
# On a CPU a forced tier has no effect (test_softmax.py shows it), so one pass is enough there.
TIERS = (None, *_validate.TIERS) if ON_GPU else (None,)

KINDS = ("normal", "wide", "outliers", "offset", "equal", "subnormal", "minus_inf")


def logits(kind, rows, cols, dtype, seed=0):
    """An input array of shape (rows, cols), rounded to the storage type.

    normal: 3 randn. wide: uniform over the range in which float32 exponentials do not vanish. outliers: randn with a
    few columns 30 to 80 above it. offset: randn around 1000 (row maxima far from zero). equal: one value per row.
    subnormal: below the smallest normal number. minus_inf: randn with about a third of the entries -inf, none of the
    rows wholly so.
    """
    rng = np.random.default_rng([seed, rows, cols, KINDS.index(kind)])
    x = rng.standard_normal((rows, cols))
    if kind == "normal":
        x *= 3
    elif kind == "wide":
        x = rng.uniform(-88, 0, (rows, cols)) + rng.uniform(-10, 10, (rows, 1))
    elif kind == "outliers":
        x = np.where(rng.random((rows, cols)) < 0.02, x + rng.uniform(30, 80, (rows, cols)), x)
    elif kind == "offset":
        x += 1000 * rng.uniform(-1, 1, (rows, 1))
    elif kind == "equal":
        x = np.broadcast_to(x[:, :1], (rows, cols)).copy()
    elif kind == "subnormal":
        x *= 1e-39 if dtype != "float16" else 1e-6
    elif kind == "minus_inf":
        keep = rng.integers(0, max(cols, 1), rows)
        x = np.where(rng.random((rows, cols)) < 0.35, -np.inf, x)
        x[np.arange(rows), keep] = 1.0
    return x.astype(storage(dtype))


def cotangents(rows, cols, dtype, seed=0):
    """A (co)tangent of shape (rows, cols): randn, with one row in four that sums to about zero."""
    rng = np.random.default_rng([seed, rows, cols, 99])
    t = rng.standard_normal((rows, cols))
    t[::4] -= t[::4].mean(-1, keepdims=True) if cols else 0
    return t.astype(storage(dtype))


def with_gradient(f):
    """From the operands, of which the last is a cotangent, to the result and the gradient of the first."""

    def function(x, *others):
        y, pull = jax.vjp(lambda x: f(x, *others[:-1]), x)
        return y, pull(others[-1])[0]

    return function


def x64(dtype):
    """A context in which JAX keeps the storage type; arrays have to be made and used inside."""
    return jax.enable_x64(dtype == "float64")


def plan_or_none(shape, dtype, operation, tier):
    """The plan of a GPU for a forced tier, or None where the tier cannot hold such a row."""
    try:
        return jk.plan_softmax(shape, dtype, operation=operation, tier=tier)
    except ValueError:
        return None


def serves(tier, shape, dtype):
    """Whether a tier can run all five operations on this shape."""
    return tier is None or all(plan_or_none(shape, dtype, op, tier) for op in OPERATIONS)


def accumulators(operation, shape, dtype, tier=None):
    """Partial sums that a row has at least: a GPU's lanes, or the elements of a CPU's narrowest (16-byte) vector."""
    if ON_GPU and shape[-1] > 0:  # rows of no columns have no plan
        return jk.plan_softmax(shape, dtype, operation=operation, tier=tier).lanes
    return 16 // compute(dtype).itemsize


@functools.partial(jax.jit, static_argnames="tier")
def all_operations(xs, ts, tier=None):
    """Runs the five operations on many arrays in one program, so that many shapes cost one compilation.

    Returns:
      For every pair of x and (co)tangent, a dict from operation to result.
    """
    results = []
    for x, t in zip(xs, ts, strict=True):
        y, pull = jax.vjp(functools.partial(jk.softmax, tier=tier), x)
        log_softmax = functools.partial(jk.log_softmax, tier=tier)
        log_y, log_pull = jax.vjp(log_softmax, x)
        results.append(
            {
                "softmax_fwd": y,
                "softmax_grad": pull(t)[0],
                "log_softmax_fwd": log_y,
                "log_softmax_grad": log_pull(t)[0],
                "log_softmax_jvp": jax.jvp(log_softmax, (x,), (t,))[1],
            }
        )
    return results


def check_all(pairs, dtype, tier=None, operations=OPERATIONS):
    """Runs the five operations on (x, t) pairs of 2-D arrays and holds each result against the truth.

    The gradients are held against the truth for the y that the forward pass gave, which is their operand.
    """
    with x64(dtype):
        results = all_operations([x for x, _ in pairs], [t for _, t in pairs], tier=tier)
        results = jax.device_get(results)
    for (x, t), result in zip(pairs, results, strict=True):
        check_results(x, t, result, dtype, tier, operations)


def check_results(x, t, result, dtype, tier=None, operations=OPERATIONS):
    """Holds one of the results of `all_operations` against the truth."""
    operands = {
        "softmax_fwd": (x,),
        "softmax_grad": (result["softmax_fwd"], t),
        "log_softmax_fwd": (x,),
        "log_softmax_grad": (result["log_softmax_fwd"], t),
        "log_softmax_jvp": (result["log_softmax_fwd"], t),
    }
    for operation in operations:
        lanes = accumulators(operation, x.shape, dtype, tier)
        check(result[operation], operation, *operands[operation], accumulators=lanes)


def plan_boundaries(dtype, device=None):
    """Column counts at which the plan of any operation changes, found by asking the plans themselves.

    Within one residue of cols modulo the pack, what a plan holds grows with cols, so that changes can be bisected.
    The residues 0 and 1 stand for aligned and misaligned rows.
    """
    pack = 16 // storage(dtype).itemsize
    found = set()
    for operation in OPERATIONS:
        for residue in (0, 1):

            def layout(packs, operation=operation, residue=residue):
                cols = packs * pack + residue
                p = jk.plan_softmax((4, cols), dtype, operation=operation, device=device)
                # Of a block's threads matters how wide their warps meet: 4, 8 or 32 of them (BlockReducer).
                in_registers = p.tier in ("warp", "block")
                meet = (
                    (p.lanes,) if in_registers else (p.block_threads > 128, p.block_threads > 256)
                )
                return p.tier, p.packs_per_lane, p.rows_per_access, p.cluster_blocks, meet

            last = (1 << 20) // pack
            for packs in _changes(layout, 1, last):
                found.add(packs * pack + residue)
    return sorted(found)


def _changes(layout, low, high):
    if layout(low) == layout(high):
        return []
    if high - low == 1:
        return [high]
    middle = (low + high) // 2
    return _changes(layout, low, middle) + _changes(layout, middle, high)
