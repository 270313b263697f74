"""Compares losses and gradients of rows with labels with the truth."""

import functools

import cases
import jax
import numpy as np
import oracle
from oracle import assert_within

from jaxkernels._rows import cross_entropy_kernels as kernels
from jaxkernels._rows import loss_measures
from jaxkernels.verify import row_layout
from jaxkernels.verify.truth.bounded import Bounded
from jaxkernels.verify.truth.losses import MEASURES, Losses

serves = functools.partial(cases.serves, operations=row_layout.LOSSES)


def labels_of(rows, cols, seed=0):
    """Labels; one in five is negative."""
    rng = np.random.default_rng([seed, rows, cols])
    label = rng.integers(0, cols, rows).astype(np.int32)
    return np.where(rng.random(rows) < 0.2, -1, label).astype(np.int32)


def losses_of(x, label, dtype, tier=None, mask=True, scales=None):
    """The truth of rows that a tier reduces, whose logits a mask hides and `scales` transform."""
    lanes = cases.accumulators("cross_entropy_fwd", x.shape, dtype, tier)
    temperature, cap = (None, None) if scales is None else (scales[:, :1], scales[:, 1:])
    options = {"soft_cap": cap if np.size(cap) else None, "smoothing": 0, "z_loss": 0}
    options |= {"reduction": "none", "returns": []}
    alike, hidden = np.zeros((len(x), 1), bool), np.broadcast_to(np.logical_not(mask), x.shape)
    return Losses(x, hidden, label, options, 1, alike, min(lanes, 4), None, temperature)


@functools.partial(jax.jit, static_argnames="tier")
def kernels_of(calls, tier):
    """The three kernels of many (x, label, numbers, cotangent, mask or None, scales or None), in one program."""
    results = []
    for x, label, numbers, cotangent, *some in calls:
        given = (x, label, *(one for one in some if one is not None))
        options = {"tier": tier or "auto", "require_kernel": True}
        options |= {"has_mask": some[0] is not None, "has_scales": some[1] is not None}
        kept = kernels.cross_entropy_fwd(*given, all_sums=True, **options)
        both = kernels.cross_entropy_fwd_grad(*given, numbers, all_sums=True, **options)
        dx = kernels.cross_entropy_grad(*given, kept, cotangent, **options)
        measures = [loss_measures.measures_of(row) for row in (kept, both[1])]
        results.append((measures, (kept, both[1]), both[0], dx))
    return results


@np.errstate(all="ignore")
def check_kernels(xs, dtype, tier=None, seed=0, scales=0, masked=False, place=lambda calls: calls):
    """Holds the kernels against the truth, with random numbers and cotangents for each row.

    Rows have a temperature of 1e-3 to 1000 if `scales` is 1, and a cap too if it is 2. If `masked`, the rows of most
    lengths share one mask. `place` puts all on devices.
    """
    wide = oracle.compute(dtype)
    calls = []
    for x in xs:
        rng = np.random.default_rng([seed, *x.shape])
        label = labels_of(*x.shape, seed)
        numbers = rng.uniform(0.05, 1, (len(x), 4)).astype(wide) / [1, 1, 1, 50]
        numbers[1::4, 0] = 0
        cotangent = rng.standard_normal((len(x), 4)).astype(wide)
        cotangent[label < 0, 0] = 0
        of_rows = rng.uniform([0.5, 2], [2, 30], (len(x), 2))
        of_rows[1::5] = [1e-3, 30]
        of_rows[2::5] = [1e3, 1e-2]
        of_rows[3::5, 1] = 1e-2  # nearly all logits saturate
        of_rows = of_rows.astype(wide)[:, :scales] if scales else None
        mask_rows = 1 if x.shape[1] % 3 else len(x)
        mask = rng.random((mask_rows, x.shape[1])) < 0.7 if masked else None
        numbers, cotangent = numbers.astype(wide), cotangent.astype(wide)
        calls.append((x, label[:, None], numbers, cotangent, mask, of_rows))
    with cases.x64(dtype):
        found = jax.device_get(kernels_of(place(calls), tier))
    for (x, label, numbers, cotangent, mask, of_rows), results in zip(calls, found, strict=True):
        of_both, kept_by_both, with_loss, dx = results
        seen = True if mask is None else mask
        losses = losses_of(x, label[:, 0], dtype, tier, seen, of_rows)
        truth, bounds = losses.rows.measures()

        def check_gradient(got, cotangent, off, what):
            gradient = losses.gradient(Bounded(cotangent, off), np.ones((len(x), 1)))  # noqa: B023
            want, limit = losses.through_scaling(gradient.where(seen), dtype)  # noqa: B023
            assert_within(got, want, limit, f"{what} {x.shape} {dtype}")  # noqa: B023

        for measures, kept in zip(of_both, kept_by_both, strict=True):
            measures = np.array(measures)
            measures[:, 1] += kept[:, 0]
            for i, name in enumerate(MEASURES):
                with_label = label[:, 0] >= 0 if name == "nll" else slice(None)
                got, want, limit = (a[with_label, i] for a in (measures, truth, bounds))
                assert_within(got, want, limit, f"{name} {x.shape} {dtype}")
        check_gradient(dx, cotangent, 0 * cotangent, "gradient")
        weight, q, smoothing, z = (oracle.widen(n)[:, None] for n in numbers.T)
        of_lse = 2 * weight * z * truth[:, 1:2]
        given = np.concatenate([weight * q, of_lse, 0 * q, weight * smoothing], axis=-1)
        given = np.where((label >= 0) & (weight != 0), given, 0)
        off = np.zeros_like(given)
        off[:, 1:2] = np.abs(2 * weight * z * bounds[:, 1:2])
        off = np.where(np.isfinite(off), off, 0) + 8 * losses.u * np.abs(given)
        check_gradient(with_loss, given, off, "with the loss")
