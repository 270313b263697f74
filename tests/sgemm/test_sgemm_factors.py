"""alpha and beta of sgemm: BLAS's rule for 0, derivatives of every kind, and what a factor may be.

A factor of 0 hides its operand, a NaN included. This holds for values and tangents at this one point,
and does not make the derivative by the factor 0.
"""

import fractions
import functools

import flax.nnx
import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk

A, B = cases.operand("integers", (4, 3)), cases.operand("integers", (3, 5), seed=1)
C = cases.operand("integers", (4, 5), seed=2)
NAN_A, NAN_C = np.full_like(A, np.nan), np.full_like(C, np.nan)
AB = A @ B
WEIGHTS = np.arange(1.0, 21.0, dtype=np.float32).reshape(4, 5)
ZERO = jnp.float32(0)


def scanned(f):
    """The function as the step of a scan over one factor."""
    return lambda *x: jax.lax.scan(lambda carry, _: (carry, f(*x)), 0.0, None, length=1)[1][0]


def mapped(f):
    return lambda *x: jax.vmap(lambda t: f(*x) * t)(jnp.ones(1))[0]


WRAPPERS = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "scan": scanned,
    "vmap": mapped,
}
wrappers = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


def test_one_factor_is_differentiated():
    """The other factor is a constant; c may be NaN."""
    assert jax.grad(lambda a: jk.sgemm(A, B, C, alpha=a, beta=2.0).sum())(0.0) == AB.sum()
    assert jax.grad(lambda b: jk.sgemm(A, B, C, beta=b).sum())(0.0) == C.sum()
    assert np.isnan(jax.grad(lambda b: jk.sgemm(A, B, NAN_C, beta=b).sum())(0.0))


@pytest.mark.half_on_a_cpu
@wrappers
def test_derivatives_where_the_factors_are_zero(wrap):
    """Those of a product: the first ones, and the second, forward over reverse and in the other orders."""

    @wrap
    def loss(alpha, beta, a, c):
        return jnp.sum(WEIGHTS * jk.sgemm(a, B, c, alpha=alpha, beta=beta))

    def by_formula(alpha, beta, a, c):
        return jnp.sum(WEIGHTS * (alpha * jnp.matmul(a, B, precision="highest") + beta * c))

    numbers = (0, 1, 2, 3)
    point = (0.0, 0.0, A, C)
    for inner in (jax.jacfwd, jax.jacrev):
        got, want = (inner(f, numbers) for f in (loss, by_formula))
        jax.tree.map(np.testing.assert_array_equal, got(*point), want(*point))
        for outer in (jax.jacfwd, jax.jacrev):
            second = (outer(f, numbers)(*point) for f in (got, want))
            jax.tree.map(np.testing.assert_array_equal, *second)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("beta", [0.0, ZERO], ids=("number", "array"))
@wrappers
def test_beta_of_zero_hides_a_nan_in_c(wrap, beta):
    """From the value, and from all derivatives but the one by beta, in both modes."""
    f = wrap(functools.partial(jk.sgemm, alpha=2.0, beta=beta))
    np.testing.assert_array_equal(f(A, B, NAN_C), 2 * AB)
    gradients = jax.grad(lambda *x: jnp.sum(f(*x)), (0, 1, 2))(A, B, NAN_C)
    np.testing.assert_array_equal(gradients[0], np.broadcast_to(2 * B.sum(1), A.shape))
    np.testing.assert_array_equal(gradients[1], np.broadcast_to(2 * A.sum(0)[:, None], B.shape))
    np.testing.assert_array_equal(gradients[2], np.zeros_like(C))
    for c, c_dot in ((NAN_C, C), (C, NAN_C), (NAN_C, NAN_C)):
        value, tangent = jax.jvp(f, (A, B, c), (A, np.zeros_like(B), c_dot))
        np.testing.assert_array_equal(value, 2 * AB)
        np.testing.assert_array_equal(tangent, 2 * AB)
    jacobian = jax.jacfwd(f, 2)(A, B, NAN_C)
    np.testing.assert_array_equal(jacobian, np.zeros_like(jacobian))


@pytest.mark.parametrize("beta", [0.0, ZERO], ids=("number", "array"))
def test_beta_of_zero_hides_a_nan_cotangent_from_c(beta):
    _, pull = jax.vjp(lambda c: jk.sgemm(A, B, c, beta=beta), C)
    np.testing.assert_array_equal(pull(NAN_C)[0], np.zeros_like(C))
    transposed = jax.linear_transpose(lambda c: jk.sgemm(0 * A, B, c, beta=beta), C)
    np.testing.assert_array_equal(transposed(NAN_C)[0], np.zeros_like(C))


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("alpha", [0.0, ZERO], ids=("number", "array"))
@wrappers
def test_alpha_of_zero_hides_a_nan_in_a(wrap, alpha):
    """As the reference implementation of BLAS, which does not read a and b then."""
    f = wrap(lambda a, c: jk.sgemm(a, B, c, alpha=alpha, beta=-2.0))
    np.testing.assert_array_equal(f(NAN_A, C), -2 * C)
    gradients = jax.grad(lambda *x: jnp.sum(f(*x)), (0, 1))(NAN_A, C)
    np.testing.assert_array_equal(gradients[0], np.zeros_like(A))
    np.testing.assert_array_equal(gradients[1], np.full_like(C, -2))
    value, tangent = jax.jvp(f, (NAN_A, C), (NAN_A, C))
    np.testing.assert_array_equal(value, -2 * C)
    np.testing.assert_array_equal(tangent, -2 * C)


def test_alpha_of_zero_without_a_c():
    for implementation in (None, "xla"):
        got = jk.sgemm(NAN_A, B, alpha=0.0, implementation=implementation)
        np.testing.assert_array_equal(got, np.zeros_like(C))


def test_a_map_over_factors_of_which_some_are_zero():
    """Every member is as it is alone, with a NaN in c for those that hide it."""
    alphas, betas = jnp.array([0.0, 1.0, 0.0, 2.0]), jnp.array([0.0, 3.0, 3.0, 0.0])
    c = np.stack([NAN_C, C, C, NAN_C])
    one = lambda alpha, beta, c: jk.sgemm(A, B, c, alpha=alpha, beta=beta)  # noqa: E731
    alone = np.stack([one(*x) for x in zip(alphas, betas, c, strict=True)])
    for in_axes, operand in ((0, c), (1, np.moveaxis(c, 0, 1)), (2, np.moveaxis(c, 0, 2))):
        got = jax.vmap(one, (0, 0, in_axes))(alphas, betas, operand)
        np.testing.assert_array_equal(got, alone)


TWOS = (
    *(2, 2.0, np.float32(2), np.float64(2), np.int8(2), np.array(2), np.array(2.0)),
    *(jnp.int32(2), jnp.float16(2), jnp.bfloat16(2), jnp.asarray(2.0), jnp.bfloat16(2).item()),
    *(fractions.Fraction(2), flax.nnx.Param(jnp.float32(2)), jnp.bfloat16.dtype.type(2)),
)


@pytest.mark.parametrize(
    ("number", "value"),
    [*((x, 2) for x in TWOS), *((x, 1) for x in (True, np.True_, jnp.bool_(True)))],
    ids=lambda x: f"{type(x).__name__}-{getattr(x, 'dtype', '')}",
)
def test_kinds_of_numbers(number, value):
    want = value * (AB + C)
    np.testing.assert_array_equal(jk.sgemm(A, B, C, alpha=number, beta=number), want)
    traced = jax.jit(lambda a: jk.sgemm(a, B, C, alpha=number, beta=number))(A)
    np.testing.assert_array_equal(traced, want)
    zero = type(number)(0) if isinstance(number, np.generic) else number * 0
    np.testing.assert_array_equal(jk.sgemm(A, B, NAN_C, beta=zero), AB)
    np.testing.assert_array_equal(jk.sgemm(NAN_A, B, C, alpha=zero, beta=number), value * C)


def test_factors_of_64_bits():
    """They are rounded to float32, and their derivatives are of their own type."""
    with jax.enable_x64(True):
        third = jnp.float64(1 / 3)
        got = jk.sgemm(A, B, C, alpha=third, beta=1 / 3)
        want = jk.sgemm(A, B, C, alpha=np.float32(1 / 3), beta=np.float32(1 / 3))
        np.testing.assert_allclose(got, want, rtol=1e-6)
        gradient = jax.grad(lambda b: jk.sgemm(A, B, C, beta=b).sum())(jnp.float64(0))
        assert (gradient, gradient.dtype) == (C.sum(), jnp.float64)
        tangent = jax.jvp(lambda b: jk.sgemm(A, B, C, beta=b), (0.0,), (1.0,))[1]
        np.testing.assert_array_equal(tangent, C)


def test_a_gradient_by_c_alone_costs_no_pass_over_c():
    """The tangents that are known to be 0 are left out of the program."""
    f = functools.partial(jk.sgemm, A, B)
    jaxpr = jax.make_jaxpr(
        lambda beta, c, t: jax.vjp(lambda c: f(c, beta=beta), c)[1](t),
    )(ZERO, C, C)
    names = [str(e.primitive) for e in jaxpr.eqns]
    assert names.count("mul") == 0
    assert names.count("jaxkernels_scale") == 2
