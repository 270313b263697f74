"""softmax_kl_divergence, on the statistics of the row kernels of cross entropy.

Owns: the public function, the divergence of a row in plain JAX, and its derivatives. Must not know: how a
primitive works, or how a kernel is launched.

The kernels reduce the two logits of a row to their maxima and log-sum-exps. One fused pass over both then
computes the divergence, and another pass each gradient. With p and q the softmaxes and r = log p - log q,

    KL = sum_j p_j r_j = sum_j (p_j r_j + q_j - p_j),

because both softmaxes sum to 1. No term of the second sum is negative, so it keeps its digits when p and q
are nearly equal. A rounding error e of a log-sum-exp changes the result by a relative e.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike

from jaxkernels._core import eager, sharding, validate
from jaxkernels._rows import cross_entropy_kernels as kernels
from jaxkernels._rows import derivatives, loss_arguments, loss_measures, primitive
from jaxkernels._rows.contract import Operand, RowOperation
from jaxkernels._rows.cross_entropy_reference import bounded_below
from jaxkernels._rows.reference import LogitOptions, row_sum, scaled, widen
from jaxkernels.typing import Implementation, Reduction

_NAMES = ("logits", "target_logits")


class _Terms(NamedTuple):
    """The terms of a row; q is the prediction and p the target.

    Attributes:
        q, p: the softmaxes, 0 for hidden classes.
        ratio: log p - log q; inf for a class that only the prediction hides.
        q_below, p_below: the scaled logits minus their maxima, 0 for hidden classes.
        is_hidden: the classes that the target hides.
    """

    q: jax.Array
    p: jax.Array
    ratio: jax.Array
    q_below: jax.Array
    p_below: jax.Array
    is_hidden: jax.Array


def _terms(x: jax.Array, target: jax.Array, kept: jax.Array, *scales: jax.Array) -> _Terms:
    """`kept` has the maximum and lse - max of the scaled x, then those of the target."""
    found: list[tuple[jax.Array, ...]] = []
    x_max, x_log_sum, target_max, target_log_sum = jnp.split(kept, 4, axis=-1)
    for logits, largest, log_sum in ((x, x_max, x_log_sum), (target, target_max, target_log_sum)):
        z = scaled(logits, *scales) if scales else widen(logits)
        is_hidden = z == -jnp.inf
        below = jnp.where(is_hidden, 0, bounded_below(z - largest))
        log_sum = jnp.where(log_sum == -jnp.inf, 0, log_sum)
        softmax = jnp.where(is_hidden, 0, jnp.exp(below - log_sum))
        found.append((is_hidden, below, log_sum, softmax))
    (x_hidden, q_below, q_sum, q), (target_hidden, p_below, p_sum, p) = found
    ratio = (p_below - q_below) - (p_sum - q_sum)
    ratio = jnp.where(x_hidden & ~target_hidden, jnp.inf, ratio)
    return _Terms(q, p, ratio, q_below, p_below, target_hidden)


def _bregman(r: jax.Array) -> jax.Array:
    """The value r + exp(-r) - 1 for |r| < 1/2, by its Taylor series."""
    last = 17 if r.dtype == jnp.float64 else 10
    total = jnp.full_like(r, 1 / math.factorial(last))
    for k in range(last - 1, 1, -1):
        total = 1 / math.factorial(k) - r * total
    return r * r * total


def _two_sums(*terms: jax.Array) -> list[jax.Array]:
    """The sums of each row.

    On a CPU one reduction computes both, because XLA would store the terms that two reductions share. On a
    GPU XLA stores the terms of few rows either way.
    """

    def by_one(*terms: jax.Array) -> list[jax.Array]:
        zeros = [jnp.zeros((), x.dtype) for x in terms]
        add = functools.partial(jax.tree.map, jnp.add)
        sums = jax.lax.reduce(terms, tuple(zeros), add, (terms[0].ndim - 1,))
        return [jnp.expand_dims(x, -1) for x in sums]

    return jax.lax.platform_dependent(*terms, cpu=by_one, default=lambda *x: [*map(row_sum, x)])


@jax.custom_jvp
def _divergence(
    x: jax.Array, target: jax.Array, kept: jax.Array, scales: jax.Array | None
) -> jax.Array:
    """The divergence of each row, (..., 1). Its derivatives by x and the target include those of `kept`."""
    q, p, r, *_, is_hidden = _terms(x, target, kept, *_given(scales))
    is_near, bregman = (jnp.abs(r) < 0.5) & ~is_hidden, _bregman(r)
    excess = jnp.where(is_near, p * (bregman - r), q - p)
    terms = jnp.where(is_near, p * bregman, p * r + excess)
    loss, surplus = _two_sums(jnp.where(r == jnp.inf, r, terms), excess)
    # The log-sum-exps are rounded, so that q and p sum to nearly 1 only.
    loss = jnp.where(loss == jnp.inf, loss, loss - _bregman(-jnp.log1p(surplus)))
    return jnp.where(_has_target(kept), loss, 0)


def _given(scales: jax.Array | None) -> tuple[jax.Array, ...]:
    return () if scales is None else (scales,)


def _has_target(kept: jax.Array) -> jax.Array:
    """Whether the target shows a class."""
    return kept[..., 3:] != -jnp.inf


def _factors(
    x: jax.Array, other: jax.Array, kept: jax.Array, *scales: jax.Array, of_target: bool
) -> tuple[jax.Array, jax.Array]:
    """The factors of the tangent of x in the two sums of `_jvp`; x is the target if `of_target`."""
    row = _terms(*((other, x) if of_target else (x, other)), kept, *scales)
    if not of_target:
        return row.q, row.p
    return row.p, jnp.where(row.ratio == jnp.inf, row.ratio, row.p * row.ratio)


_OPERANDS = Operand("x"), Operand("other", "broadcast"), Operand("kept", "row", 4)
_SCALES = Operand("scales", "scales")


@primitive.of_operation(
    RowOperation(
        name="kl_divergence_jvp",
        operands=(*_OPERANDS, _SCALES, Operand("dx")),
        results=(Operand("dsums", "row", 2),),
        has_kernel=False,
    )
)
def _jvp(*operands: jax.Array, of_target: bool, has_scales: bool) -> jax.Array:
    """(sum q dx, sum p dx) for a tangent of the prediction, (sum p dx, sum p r dx) for one of the target."""
    del has_scales
    *given, dx = operands
    factors = _factors(*given, of_target=of_target)
    return loss_measures.joined(_two_sums(*(factor * widen(dx) for factor in factors)))


@primitive.of_operation(
    RowOperation(
        name="kl_divergence_grad",
        operands=(*_OPERANDS, _SCALES, Operand("cotangent", "row", 2)),
        results=(Operand("dx"),),
        has_kernel=False,
    )
)
def _grad(*operands: jax.Array, of_target: bool, has_scales: bool) -> jax.Array:
    """The transpose of `_jvp`; rows whose cotangents are 0 have the gradient 0, even if they hold NaN."""
    del has_scales
    x, other, kept, *scales, cotangent = operands
    # The barrier keeps XLA from storing the softmaxes of the forward pass, or of the other gradient.
    kept, cotangent = jax.lax.optimization_barrier((kept, cotangent))
    one, two = _factors(x, other, kept, *scales, of_target=of_target)
    dx = cotangent[..., :1] * one + cotangent[..., 1:] * two
    return jnp.where(jnp.any(cotangent != 0, -1, keepdims=True), dx, 0).astype(x.dtype)


derivatives.define_linear(_jvp, transpose=_grad, variables=3)
derivatives.define_linear(_grad, transpose=_jvp, variables=3)


@functools.partial(_divergence.defjvp, symbolic_zeros=True)
def _divergence_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    x, target, kept, scales = primals
    dx, dtarget, _, dscales = tangents
    loss = _divergence(*primals)
    known = jnp.where(jnp.isfinite(loss), loss, 0)  # so that a cotangent of 0 stays 0
    options = {"tier": "auto", "require_kernel": False, "has_scales": scales is not None}
    tangent = jnp.zeros_like(loss)
    if not isinstance(dx, SymbolicZero):
        sums = _jvp(x, target, kept, *_given(scales), dx, of_target=False, **options)
        tangent += sums[..., :1] - sums[..., 1:]
    if not isinstance(dtarget, SymbolicZero):
        sums = _jvp(target, x, kept, *_given(scales), dtarget, of_target=True, **options)
        tangent += sums[..., 1:] - known * sums[..., :1]
    if scales is not None:
        if not isinstance(dscales, SymbolicZero):
            row = _terms(x, target, kept, scales)
            of_target = row.p * (row.ratio - known) * row.p_below
            slope = row_sum((row.q - row.p) * row.q_below + of_target)
            tangent -= jnp.where(jnp.isfinite(slope), slope, 0) * dscales
        tangent /= scales
    return loss, jnp.where(_has_target(kept), tangent, 0)


@eager.jit_when_eager(
    *(*_NAMES, "where"),
    numbers=loss_arguments.NUMBERS,
    check=lambda logits, target_logits, **options: loss_arguments.are_fit(
        "softmax_kl_divergence", "target_logits", 0.0, None, **options
    ),
)
def softmax_kl_divergence(
    logits: ArrayLike,
    target_logits: ArrayLike,
    *,
    axis: int = -1,
    where: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
    weights: ArrayLike | None = None,
    reduction: Reduction = "none",
    implementation: Implementation | None = None,
) -> jax.Array:
    r"""KL divergence of two softmaxes, for distillation: `sum_j p_j (log p_j - log q_j)`.

    p is the softmax of `target_logits / temperature` (a teacher) and q that of `logits / temperature` (a
    student). This is `optax.losses.kl_divergence(log_q, p)` without the arrays of log-probabilities. The
    only arrays of the size of the logits are the gradients, in the dtypes of the logits, a copy for a mask
    and, on a GPU, float32 terms, which XLA stores at least for few rows.

    On CPUs and NVIDIA GPUs this package's kernels compute the log-sum-exps, and XLA the rest; elsewhere plain
    JAX runs. It works with jit, vmap, scan, remat, shard_map and derivatives of every order and mode.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> teacher = jnp.array([[0.0, 0.0], [0.0, -jnp.inf]])
        >>> print(jk.softmax_kl_divergence(jnp.array([[0.0, 0.0], [0.0, 0.0]]), teacher))
        [0.        0.6931472]
        >>> mean = lambda x: jk.softmax_kl_divergence(x, teacher, reduction="mean")
        >>> print(jax.grad(mean)(jnp.zeros((2, 2))))
        [[ 0.    0.  ]
         [-0.25  0.25]]

    Args:
        logits: the prediction, an array of shape (..., V, ...), the V classes along `axis`; kernels serve
            float32, bfloat16, float16 and float64. Integers are converted to a floating type, float8 to
            float32.
        target_logits: the target, of the shape of logits. Its dtype may be another.
        axis: the axis of the classes. The last axis is fastest; others are transposed to it.
        where: mask of bool of the shape of logits or with sizes of 1, or of shape (V,) if the classes are
            last. Classes where it is False are excluded from both softmaxes.
        temperature: divides both logits: a positive number, or an array of the shape of the result or with
            sizes of 1. The gradient has the factor 1 / temperature: distillation usually multiplies the
            result by temperature ** 2.
        weights: a factor for each row: a number, or of the shape of the result or with sizes of 1. A row
            with the weight 0 has the result 0 and the gradient 0, whatever its logits are.
        reduction: "none" returns the divergence of each row, "sum" their sum. "mean" divides the sum by the
            number of rows or, with `weights`, by the sum of their weights. A mean of no rows is 0, and so is
            a mean whose weights sum to 0.
        implementation: None uses a kernel if there is one, "ffi" raises an error if there is none,
            "xla" runs plain JAX.

    Returns:
        The divergence, an array of the shape of logits without `axis`, or a number; float32, or float64 if
        one of the logits is float64.

    Raises:
        TypeError: an argument is not an array or number, logits are bool or complex, or `axis` is not an
            integer.
        ValueError: `axis` is out of bounds, a shape does not fit, `where` is not of type bool, a known
            temperature is not positive, or `reduction` or `implementation` is not one of the above.
        NotImplementedError: `implementation="ffi"` and there is no kernel, when the program is lowered.

    Notes:
        * A class with the target logit -inf contributes 0. One that only the prediction hides (-inf) makes
          the result inf. A row whose target has no class has the result 0.
        * Its terms are not negative, so a result near 0 keeps its digits: nearly equal logits that differ by
          noise of 1e-3 have a divergence near 5e-7.
        * Forward, the kernels read each array of logits once, and XLA reads both once more. Each gradient
          reads both once, and is written once.
        * The temperature is differentiable. The kernels divide by it as they read the logits. XLA applies
          `where` in a copy of the logits.
        * If `axis` is sharded, devices exchange two maxima and a few sums per row, never the logits.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.

    References:
        Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015, arXiv:1503.02531.
    """
    name = "softmax_kl_divergence"
    validate.check_row_options(implementation, None)
    validate.check_static(axis=axis, reduction=reduction)
    loss_arguments.check_loss_options(name, reduction, 0.0, 0.0)
    given = [validate.as_array(name, *x) for x in zip(_NAMES, (logits, target_logits), strict=True)]
    if given[0].shape != given[1].shape:
        raise ValueError(
            f"{name}: target_logits must have the shape of logits, {given[0].shape}; got {given[1].shape}"
        )
    both = [
        loss_arguments.rows_of_logits(name, array, axis, where, None, 1.0, order)
        for array, order in zip(given, (_NAMES, ("target_logits", "logits")), strict=True)
    ]
    x, target = (options.applied(rows) for rows, options in both)
    if jnp.float64 in (x.dtype, target.dtype):
        x, target = x.astype(jnp.float64), target.astype(jnp.float64)
    x, target = sharding.equalize([x, target], [False, False])
    scales = loss_arguments.scales_of_rows(name, None, temperature, x)
    calls = kernels.Calls("auto", implementation, all_sums=False)
    label = jnp.full((*x.shape[:-1], 1), -1, jnp.int32)
    kept = []
    for rows in (x, target):
        measures, largest = calls.measures(rows, label, LogitOptions(scales=scales))
        kept += [largest, measures[..., 1:2]]
    loss = _divergence(x, target, loss_measures.joined(kept), scales)
    weight = loss_arguments.weights_of_rows(name, weights, jnp.ones_like(label, bool), x)
    weight = loss_measures.coefficients_of(weight, reduction, 0.0, 0.0)[..., :1]
    loss = weight * jnp.where((weight != 0) | jnp.isfinite(loss), loss, 0)
    return jnp.squeeze(loss, -1) if reduction == "none" else jnp.sum(loss)
