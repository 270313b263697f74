"""Inputs for the tests of scaled_masked_softmax, and the comparison with `jaxkernels.verify.truth.masked`.

Many cases go into one program.
"""

import dataclasses
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
from oracle import assert_within, storage

import jaxkernels as jk
from jaxkernels.verify.truth import masked


@dataclasses.dataclass(frozen=True)
class Case:
    """One call: operands in the storage type, options, and a cotangent of the result."""

    scores: np.ndarray  # (..., q, k)
    mask: Any = None
    bias: Any = None
    scale: Any = 1.0  # a NumPy array is passed as a traced one
    options: Any = dataclasses.field(default_factory=dict)  # causal, window, empty_rows
    dy: Any = None

    @property
    def traces_scale(self):
        return isinstance(self.scale, np.ndarray)

    def __str__(self):
        shapes = [None if a is None else a.shape for a in (self.mask, self.bias)]
        return f"{self.scores.shape} mask {shapes[0]} bias {shapes[1]} {self.scale} {self.options}"


def case(shape, dtype, *, mask=None, bias=None, scale=1.0, seed=0, bias_dtype=None, **options):
    """A case of random numbers; `mask` and `bias` are shapes, or arrays, or None.

    About a third of a mask is hidden, and now and then a whole row.
    """
    rng = np.random.default_rng([seed, *shape])
    scores = (3 * rng.standard_normal(shape)).astype(storage(dtype))
    if isinstance(mask, tuple):
        mask = np.asarray(rng.random(mask) < 0.65)
        if mask.ndim and mask.shape[-1] > 1:
            mask &= rng.random((*mask.shape[:-1], 1)) < 0.9
    if isinstance(bias, tuple):
        bias = np.asarray(2 * rng.standard_normal(bias)).astype(storage(bias_dtype or dtype))
    dy = rng.standard_normal(shape).astype(storage(dtype))
    return Case(scores, mask, bias, scale, options, dy)


class Truth(masked.Truth):
    """The result and the derivatives of a case, each with its bound."""

    def __init__(self, case, tier=None):
        self.case = case

        def accumulators(operation, dtype):
            return cases.accumulators(operation, case.scores.shape, dtype, tier)

        super().__init__(
            case.scores, case.mask, case.bias, case.scale, case.options, case.dy, accumulators
        )

    def check(self, y):
        self._compare("y", y, *self.result, self.case.scores.dtype)

    def check_gradients(self, got, names):
        for name, (want, error) in self.gradients().items():
            if name not in names:
                continue
            dtype = np.asarray(getattr(self.case, name)).dtype
            self._compare(f"cotangent of {name}", got[name], want, error, dtype)

    def _compare(self, what, got, want, error, dtype):
        got = np.asarray(got)
        assert (got.shape, got.dtype) == (want.shape, dtype), (
            f"{self.case}: {got.shape} {got.dtype}"
        )
        assert_within(got, self.forgiving(got, want), error, f"{self.case} {dtype}: {what}")


DIFFERENTIATED = ("scores", "bias", "scale")


def run_all(some, *args, **how):
    """The arrays of `results_of`, as NumPy's."""
    return jax.device_get(results_of(some, *args, **how))


def results_of(
    some, tier=None, wrt=DIFFERENTIATED, implementation=None, function=jk.scaled_masked_softmax
):
    """Results and cotangents of many cases, in one program; "scale" counts only in cases that trace it."""

    def one(case, arrays, dy):
        def result(operands):
            given = arrays | operands
            return function(
                given["scores"],
                given["mask"],
                given["bias"],
                scale=given["scale"] if case.traces_scale else case.scale,
                tier=tier,
                implementation=implementation,
                **case.options,
            )

        active = {n: a for n, a in arrays.items() if n in wrt and a is not None}
        y, pull = jax.vjp(result, active)
        return y, pull(dy)[0]

    arrays = [
        {"scores": c.scores, "mask": c.mask, "bias": c.bias}
        | ({"scale": c.scale} if c.traces_scale else {})
        for c in some
    ]
    program = jax.jit(lambda *arrays: list(map(one, some, *arrays)))
    return program(arrays, [c.dy for c in some])


def serves(case, tier):
    """Whether a tier can run the operations of a case."""
    dtype = case.scores.dtype if case.bias is None else case.bias.dtype
    dtype = jnp.promote_types(case.scores.dtype, dtype)
    names = (
        "masked_softmax_fwd" if case.bias is None else "biased_softmax_fwd",
        "masked_softmax_grad",
    )
    return case.scores.shape[-1] == 0 or cases.serves(tier, case.scores.shape, dtype, names)


def check_all(some, dtype, tier=None, wrt=DIFFERENTIATED, **how):
    """Runs the cases that a tier can hold in one program and holds results and gradients against the truth."""
    some = [c for c in some if serves(c, tier)]
    with cases.x64(dtype):
        results = run_all(some, tier, wrt, **how)
    for c, (y, cotangents) in zip(some, results, strict=True):
        truth = Truth(c, tier)
        truth.check(y)
        truth.check_gradients(cotangents, wrt)
    return len(some)
