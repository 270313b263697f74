"""Inputs, the truth and its bounds for the tests of the scaled, biased and masked softmax.

What a row sees is written out by index, and the softmax and its derivatives are computed in a wider type from operands
that are already rounded; `tolerance.masked_bound` says how far a kernel may be from them. A case is a value; many go
into one program.
"""

import dataclasses
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
from oracle import storage, widen

import jaxkernels as jk
from jaxkernels.verify.truth import tolerance


@dataclasses.dataclass(frozen=True)
class Case:
    """One call: operands in the storage type, a cotangent of the result, options.

    Attributes:
      scores: (..., q, k).
      mask, bias: None, or arrays that broadcast against the scores.
      scale: a number, or a NumPy scalar that is passed as a traced array.
      options: causal, window, empty_rows.
      dy: a cotangent of the result.
    """

    scores: np.ndarray
    mask: Any = None
    bias: Any = None
    scale: Any = 1.0
    options: Any = dataclasses.field(default_factory=dict)
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


def band(q, k, causal=False, window=None):
    """Which columns each of q rows sees by its index, one by one; the last row stands on the last column."""
    before, after = window if isinstance(window, tuple) else (window, window)
    seen = np.ones((q, k), bool)
    for i in range(q):
        own = k - (q - i)  # 0-based distance from the right end, counted from the last row
        for j in range(k) if causal or window is not None else ():
            outside = causal and j > own
            outside |= before is not None and own - j > before
            outside |= after is not None and j - own > after
            seen[i, j] = not outside
    return seen


def sum_to(x, shape):
    """The transpose of broadcasting an array of `shape` to that of x."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and x.shape[i] != 1)
    return x.sum(axis=axes, keepdims=True)


class Truth:
    """The result and the derivatives of a case, each with the largest error that right arithmetic makes."""

    def __init__(self, case, tier=None):
        self.case = case
        shape, self.dtype = case.scores.shape, case.scores.dtype.name
        inner = self.dtype
        if case.bias is not None:  # promotes the scores
            inner = jnp.promote_types(case.scores.dtype, case.bias.dtype).name
        self.inner, self.precision = inner, tolerance.PRECISION[inner]
        operation = "masked_softmax_fwd" if case.bias is None else "biased_softmax_fwd"
        self.sigma, self.grad_sigma = (
            tolerance.sum_error(shape[-1], cases.accumulators(name, shape, inner, tier))
            for name in (operation, "masked_softmax_grad")
        )
        options = {n: case.options[n] for n in ("causal", "window") if n in case.options}
        seen = np.broadcast_to(band(*shape[-2:], **options), shape)
        self.seen = seen if case.mask is None else seen & case.mask
        with np.errstate(all="ignore"):
            self._forward()

    def _forward(self):
        case = self.case
        self.x = widen(case.scores)
        self.scale = (
            widen(np.asarray(case.scale)) if case.traces_scale else self.x.dtype.type(case.scale)
        )
        self.s = self.scale * self.x
        b = (
            np.zeros_like(self.s)
            if case.bias is None
            else np.broadcast_to(widen(case.bias), self.s.shape)
        )
        # What is beyond the compute type is infinite in it.
        largest = np.finfo(np.float64 if self.inner == "float64" else np.float32).max
        t = np.where(np.abs(self.s + b) > largest, np.copysign(np.inf, self.s + b), self.s + b)
        t = np.where(self.seen, t, -np.inf)
        top = np.max(t, axis=-1, keepdims=True, initial=-np.inf)
        top = np.where(top == -np.inf, 0, top)
        e = np.where(self.seen, np.exp(t - top), 0)
        total = e.sum(-1, keepdims=True)
        self.y = np.where(total == 0, 0, e / np.where(total == 0, 1, total))
        self.nan = np.isnan(total)
        self.y_error = tolerance.masked_bound(
            self.precision, self.y, self.s, b, np.where(e > 0, top - t, 0), total, self.sigma
        )
        self.shown = self.y
        if case.options.get("empty_rows") == "mean":
            alive = self.seen.any(-1, keepdims=True)
            self.shown = np.where(alive, self.y, 1 / max(self.y.shape[-1], 1))

    def stored(self, value, error, dtype):
        """The error of a value once it is rounded to a storage type."""
        p = tolerance.PRECISION[dtype]
        return error + (p.us + self.precision.u) * np.abs(value) + p.smallest

    def check(self, y):
        error = self.stored(self.shown, self.y_error, self.dtype)
        self._compare("y", y, self.shown, error, self.case.scores.dtype)

    def gradients(self):
        """By the name of the operand: its cotangent and the bound of it."""
        case, u = self.case, self.precision.u
        dy, y = np.where(self.y == 0, 0, widen(case.dy)), self.y

        def total(x):
            return np.sum(x, axis=-1, keepdims=True)

        difference = dy - total(dy * y)
        dt = np.where(y == 0, 0, y * difference)
        y_error = self.stored(y, self.y_error, self.inner)
        rounding = y * u * ((self.grad_sigma + 1) * total(np.abs(dy * y)) + 3 * np.abs(difference))
        error = y_error * np.abs(difference) + y * total(np.abs(dy) * y_error) + rounding
        error = np.where(self.seen, error + self.precision.smallest * y.shape[-1], 0)
        factor = np.abs(self.scale)
        dx, dx_error = self.scale * dt, factor * error
        # The kernel gives scale * dt in the storage type; that is what is divided by scale and summed.
        inner = "float32" if case.traces_scale and self.inner != "float64" else self.inner
        kernel_error = self.stored(dx, dx_error, inner)
        fused = factor if not case.traces_scale and case.scale > 0 else 1.0
        summed_error = (kernel_error if fused is factor else self.stored(dt, error, inner)) / fused
        found = {"scores": (dx, self.stored(dx, kernel_error, self.dtype))}
        if case.bias is not None:
            want = sum_to(dt, case.bias.shape)
            count = dt.size / max(want.size, 1)
            summed = sum_to(summed_error + (count + 2) * u * np.abs(dt), case.bias.shape)
            found["bias"] = (want, self.stored(want, summed, case.bias.dtype.name))
        if case.traces_scale:
            x = np.where(dt == 0, 0, self.x)
            summed = np.sum(np.abs(x) * (summed_error + (dt.size + 2) * u * np.abs(dt)))
            found["scale"] = (np.sum(x * dt), summed)
        return found

    def check_gradients(self, got, names):
        with np.errstate(all="ignore"):
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
        wide = widen(got)
        with np.errstate(all="ignore"):
            ratio = np.where(wide == want, 0, np.abs(wide - want) / error)
        if got.shape == self.seen.shape:  # what a NaN row does not see is 0 or NaN
            ratio = np.where(np.isnan(want) & (np.isnan(wide) | ~self.seen & (wide == 0)), 0, ratio)
        else:
            ratio = np.where(np.isnan(want) & np.isnan(wide), 0, ratio)
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        if ratio.size and ratio.max() > 1:
            place = tuple(map(int, np.unravel_index(np.argmax(ratio), ratio.shape)))
            raise AssertionError(
                f"{self.case} {dtype}: {what} at {place}: {got[place]!r}, truth {want[place]!r}, "
                f"{float(ratio[place]):.3g} times the bound"
            )


DIFFERENTIATED = ("scores", "bias", "scale")


def run_all(some, *args, **how):
    """The arrays of `results_of`, as NumPy's."""
    return jax.device_get(results_of(some, *args, **how))


def results_of(
    some, tier=None, wrt=DIFFERENTIATED, implementation=None, function=jk.scaled_masked_softmax
):
    """Results and cotangents of many cases, in one program.

    Args:
      some: the cases.
      tier, implementation: as for the function.
      wrt: operands of which there are cotangents; of a scale, if it is traced.
      function: what is run.
    """

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
    if case.scores.shape[-1] == 0 or tier is None:
        return True
    return all(cases.plan_or_none(case.scores.shape, dtype, name, tier) for name in names)


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
