"""Losses of the largest finite logits, of padded classes, and of rows that are left out, whatever they hold."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import ON_GPU, x64
from oracle import assert_within

import jaxkernels as jk
import jaxkernels.optax
from jaxkernels.verify.truth.losses import Rows

LABEL = np.array([0, 3, 1, 1, -1, 2], np.int32)
SCALES = [{}, {"temperature": 2.0}, {"logit_soft_cap": 5.0, "temperature": 2.0}]
SMOOTHING = {"none": 0.0, "traced 0": None, "some": 0.1}


def masked_rows(dtype, cols):
    """Rows of finfo.min alone, with two such classes, of -1e30, won by 1e20, left out, and from end to end."""
    least = float(jnp.finfo(dtype).min)
    x = np.random.default_rng(cols).standard_normal((6, cols))
    x[0], x[1, :2], x[2], x[3, 1] = least, least, max(-1e30, least), min(1e20, -least)
    x[4], x[5, 2], x[5, 3:] = least, -least, least
    return np.asarray(x, dtype)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float64])
def test_finite_logits_have_finite_results(dtype, reduction, smoothing, implementation):
    """Losses, log-sum-exps, entropies and gradients, with a cotangent of 2; 300 columns and 40000 take other kernels."""
    e = SMOOTHING[smoothing]
    lengths = (4, 300) if implementation == "xla" else (4, 300, 40000)
    with x64(jnp.dtype(dtype).name):
        for cols, more in itertools.product(lengths, (False, True)):
            x = jnp.asarray(masked_rows(dtype, cols))
            weights = np.array([1, 1, 1, 1, 1, 0 if reduction == "mean" else 1], np.float32)

            def loss(x, e, more=more, weights=weights):
                given = {"return_lse": more, "return_entropy": more, "reduction": reduction}
                given |= {"weights": weights, "implementation": implementation}
                found = jk.cross_entropy(x, LABEL, label_smoothing=e, **given)
                return found if more else (found,)

            @jax.jit
            def both(x, traced, loss=loss):
                value, vjp = jax.vjp(lambda x: loss(x, traced if e is None else e), x)
                return value, vjp(tuple(jnp.full_like(y, 2) for y in value))[0]

            value, dx = both(x, 0.0)
            for found in (*value, dx):
                assert np.isfinite(np.asarray(found, np.float64)).all()
            rows = Rows(np.asarray(x), LABEL, 1)
            truth, bounds = rows.measures()
            if more:
                for i, found in ((1, value[1]), (2, value[2])):
                    assert_within(found, truth[:, i], bounds[:, i], (cols, i))
            if reduction == "none":
                want, limit = (
                    (1 - (e or 0)) * a[:, 0] + (e or 0) * a[:, 3] for a in (truth, bounds)
                )
                counted = (LABEL >= 0) & (truth[:, 3] < float(jnp.finfo(dtype).max))
                limit = limit + 4 * rows.precision.u * np.abs(want)
                found = np.where(counted, np.asarray(value[0], np.float64), 0)
                assert_within(found, want * counted, limit * counted, (cols, "loss"))
                assert not np.asarray(dx, np.float64)[4].any() or more


# The last three run in tiers that keep a row in a block's registers, in its shared memory and in a cluster's.
SHAPES = [(40, 3), (40, 40), (7, 300), (1, 70001)]
SHAPES += [(300, 1031), (300, 8192), (300, 20003)] if ON_GPU else []


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_mask_is_minus_infinity(dtype, shape, reduction):
    """Rows are left out, have a label beyond the classes, or a NaN. Those of odd length share a mask."""
    rng = np.random.default_rng(1)
    mask = rng.random((1, shape[1]) if shape[1] % 2 else shape) < 0.7
    mask[:, 0] = True
    label = np.arange(shape[0]) % (shape[1] + 2) - 1

    def both(x, label, mask=None):
        options = {"where": mask, "temperature": 0.7, "reduction": reduction}
        value, vjp = jax.vjp(lambda x: jk.cross_entropy(x, label, **options), x)
        return value, vjp(jnp.ones_like(value))[0]

    with x64(dtype):
        x = jnp.asarray(rng.standard_normal(shape), dtype).at[-1, 0].set(jnp.nan)
        want, dy = jax.device_get(jax.jit(both)(jnp.where(mask, x, -jnp.inf), label))
        got, dx = jax.device_get(jax.jit(both, donate_argnums=0)(x, label, mask))
    dx, dy = (np.asarray(d, np.float64) for d in (dx, dy))
    tolerance = {"float32": 1e-6, "bfloat16": 0.01, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(got, want, tolerance)
    dx_seen, dy_seen = (np.where(mask, d, 0) for d in (dx, dy))
    np.testing.assert_allclose(dx_seen, dy_seen, tolerance, atol=tolerance * 1e-3)
    assert not dx[~np.broadcast_to(mask, shape)].any()


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("of", ["none", "mean", "several ids"])
@pytest.mark.parametrize("scales", SCALES, ids=lambda options: "+".join(options) or "plain")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_hidden_classes(dtype, shape, scales, of):
    """A label that is hidden, a row of hidden classes, and hidden NaN and inf; masks of one row, of each, and both."""
    rng = np.random.default_rng(0)
    with x64(dtype):
        x = rng.standard_normal(shape).astype(dtype)
        of_class = rng.random(shape[-1]) < 0.7
        of_class[0] = True
        for mask in (
            of_class,
            of_class | (rng.random(shape) < 0.5),
            np.zeros((1, shape[-1]), bool),
        ):
            mask[..., 1] = False
            seen = np.broadcast_to(mask, shape)
            label = np.where(np.arange(shape[0]) % 3 == 1, 1, 0)
            given = jnp.where(seen, x, jnp.where(np.arange(shape[-1]) % 2 == 0, jnp.nan, jnp.inf))

            def loss(x, implementation, mask=mask, label=label):
                options = {"where": mask, "implementation": implementation, **scales}
                if of == "several ids":
                    ids = jnp.stack([label, label * 0, label * 0 - 1, label], -1)
                    return jk.token_log_probs(x, ids, return_entropy=True, **options)
                return jk.cross_entropy(x, label, label_smoothing=0.1, reduction=of, **options)

            def both(x, implementation, loss=loss):
                value, vjp = jax.vjp(lambda x: loss(x, implementation), x)
                return value, vjp(jax.tree.map(jnp.ones_like, value))[0]

            (got, dx), (want, dy) = (
                jax.jit(functools.partial(both, implementation=i))(given) for i in (None, "xla")
            )
            assert (np.where(seen, 0, dx) == 0).all()
            if of == "mean" and not seen.any():  # an infinite loss
                ours = functools.partial(loss, implementation=None)
                assert np.isnan(jax.jvp(ours, (given,), (given,))[1])
            tolerance = (
                {"rtol": 0.02, "atol": 1e-4}
                if dtype == "bfloat16"
                else {"rtol": 1e-5, "atol": 1e-6}
            )
            for a, b in zip(jax.tree.leaves((got, dx)), jax.tree.leaves((want, dy)), strict=True):
                np.testing.assert_allclose(
                    *(np.asarray(y, np.float64) for y in (a, b)), **tolerance
                )


def test_masked_classes_behind_a_temperature():
    """A temperature makes -inf of them in float32; the mask may also hide probabilities of 0."""
    least = float(jnp.finfo(jnp.float32).min)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    mask = np.where(np.arange(8) < 6, 0, least).astype(np.float32)
    label = np.array([0, 5, -1])
    seen = x[:, :6]

    def hot(x, mask):
        return jk.cross_entropy(x + mask, label, temperature=0.5, return_entropy=True)

    np.testing.assert_allclose(hot(x, mask), hot(seen, 0), rtol=1e-5)
    assert np.isfinite(jax.grad(lambda x: hot(x, mask)[1].sum())(x)).all()
    shares = np.where(np.arange(8) < 6, 1 / 6, 0).astype(np.float32)
    found, dx = jax.value_and_grad(lambda x: jk.cross_entropy(x + mask, shares).sum())(x)
    right = optax.softmax_cross_entropy(x + mask, shares).sum()
    np.testing.assert_allclose(found, right, rtol=1e-6)
    assert np.isfinite(dx).all()


def test_tangents_of_rows_of_one_huge_number():
    """They run in plain JAX, where XLA may contract the product into the shift of the row."""
    t = jnp.asarray(np.random.default_rng(0).standard_normal((3, 7)), jnp.float32)
    x = jnp.broadcast_to(jnp.array([[-2.38e38], [2e38], [-1.23e38]]), t.shape)
    label = jnp.zeros(3, int)
    mean = np.asarray(t, np.float64).mean(-1, keepdims=True)
    for function, truth in (
        (lambda z: jk.logsumexp(z, axis=-1, keepdims=True), mean),
        (jk.log_softmax, t - mean),
        (lambda z: jk.cross_entropy(z, label)[:, None], mean - t[:, :1]),
    ):
        dy = jax.jit(lambda x, t: jax.jvp(function, (0.72 * x,), (t,))[1])(x, t)  # noqa: B023
        np.testing.assert_allclose(dy, truth, atol=1e-6)


@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_large_logits_behind_a_temperature(dtype, implementation):
    """Rows that hold one number, as masks write it, and rows whose exponents of 2 are near 2^20."""
    mask = -2.3819763e38 if dtype != "float16" else -6e4
    x = np.full((5, 100), mask)
    x[1, 3] = 0
    rng = np.random.default_rng(5)
    x[2:] = rng.standard_normal((3, 100)) + np.array([[30.0], [-30.0], [900.0]])
    x = jnp.asarray(x, dtype)
    label, temperature = jnp.full(5, 3), jnp.array([0.72, 0.72, 4e-5, 4e-5, 1.2e-3])
    given = {"temperature": temperature, "implementation": implementation}
    value, pull = jax.vjp(jax.jit(lambda x: jk.cross_entropy(x, label, **given)), x)
    wide = np.asarray(x, np.float64) / np.asarray(temperature, np.float64)[:, None]
    d = wide - wide.max(-1, keepdims=True)
    log_p = d - np.log(np.exp(d).sum(-1, keepdims=True))
    slack = 2.0**-22 * np.abs(wide).max(-1, keepdims=True) * (np.arange(5) > 1)[:, None]
    assert_within(value, -log_p[:, 3], slack[:, 0] + 1e-5, "loss")
    p, label = np.exp(log_p), np.eye(100)[3]
    scale = 1 / np.asarray(temperature, np.float64)[:, None]
    relative = 2 * float(jnp.finfo(dtype).eps) + np.expm1(2 * slack)
    dx = np.asarray(pull(jnp.ones(5))[0], np.float64)
    assert_within(dx, (p - label) * scale, relative * (p + label) * scale + 1e-30, "dx")


@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("hide", ["where", "-inf"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_smoothing_goes_over_visible_classes(reduction, hide, implementation):
    """A vocabulary of 13 padded to 16: the same loss and gradient, 0 for the padding."""
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    label, seen = np.array([0, 12, 5, -1]), np.arange(16) < 13

    def loss(x, **given):
        given |= {"label_smoothing": 0.1, "reduction": reduction, "implementation": implementation}
        return jnp.sum(jk.cross_entropy(x, label, **given))

    padded = (x, {"where": seen}) if hide == "where" else (np.where(seen, x, -np.inf), {})
    value, dx = jax.value_and_grad(loss)(padded[0], **padded[1])
    want, right = jax.value_and_grad(loss)(x[:, :13])
    np.testing.assert_allclose(value, want, rtol=1e-6)
    np.testing.assert_allclose(dx, np.pad(right, ((0, 0), (0, 3))), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_a_z_loss_keeps_its_derivative_where_its_slope_overflows(reduction):
    """-3e38 for both classes in mathematics; it may overflow, but not vanish."""
    x = jnp.full((1, 2), -3e38)
    loss = lambda x: jnp.sum(jk.cross_entropy(x, LABEL[:1] * 0, z_loss=1.0, reduction=reduction))  # noqa: E731
    assert (jax.grad(loss)(x) < -1e38).all()


@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("largest", [0.5, 1e38])
def test_smoothing_moves_classes_of_the_smallest_number(largest, implementation):
    """Their gradient is -e / V, also where their distance from the largest logit is the smallest number or overflows."""
    least = float(jnp.finfo(jnp.float32).min)
    given = {"label_smoothing": 0.1, "implementation": implementation}
    x = jnp.array([largest, least, least, largest])
    dx = jax.grad(lambda x: jk.cross_entropy(x, 0, **given))(x)
    np.testing.assert_allclose(dx, [-0.425, -0.025, -0.025, 0.475], rtol=1e-5)


LARGEST = float(jnp.finfo(jnp.float32).max)


@pytest.mark.parametrize("options", SCALES, ids=lambda options: "+".join(options) or "plain")
@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_rows_left_out_never_show(reduction, implementation, options):
    """They reach no value, no gradient and, for plain logits, no second derivative; NaN in another row does."""
    label = np.array([4, -1, -1, 0, 3, 2], np.int32)
    weights = np.array([0.5, 3, 2, 0, 0, 1], np.float32)
    given = {"weights": weights, "reduction": reduction, "implementation": implementation}
    given |= {"z_loss": 0.1, "label_smoothing": 0.1}

    def loss(x, scales):
        return jnp.sum(jk.cross_entropy(x, label, **given, **scales))

    @jax.jit
    def orders(x):
        second = 0 if options else jax.grad(lambda x: jnp.sum(jax.grad(loss)(x, options) ** 2))(x)
        return jax.tree.leaves((jax.value_and_grad(loss, (0, 1))(x, options), second))

    x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    want, close = orders(x), functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
    for filler in (np.nan, np.inf, -np.inf, LARGEST, -LARGEST):
        spoiled = x.copy()
        spoiled[1], spoiled[2, 3], spoiled[3], spoiled[4, 4] = filler, filler, filler, filler
        jax.tree.map(close, orders(spoiled), want)
    spoiled[5, 2] = np.nan
    value, dx, *of_scales, _ = orders(spoiled)
    assert np.isnan([value, *of_scales]).all()
    assert np.isnan(dx[5]).all()
    assert np.isfinite(dx[:5]).all()


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_long_columns_left_out_never_show(implementation):
    """XLA's maximum of more than a thousand elements along the first axis loses a NaN on a CPU."""

    def loss(x):
        given = {"axis": 0, "reduction": "sum", "implementation": implementation}
        return jk.cross_entropy(x, np.array([-1, 1]), **given)

    x = np.zeros((3839, 2), np.float32)
    x[3, 0] = np.nan
    dx = jax.grad(loss)(x)
    assert not dx[:, 0].any()
    assert dx[:, 1].all()


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_rows_without_a_number_have_no_gradient(reduction):
    """All elements of a row with NaN or infinity have the gradient NaN, hidden ones too."""
    x = np.random.default_rng(0).standard_normal((2, 80)).astype(np.float32)
    x[:, 3], x[0, 2], x[1, 2] = -np.inf, np.inf, np.nan

    def loss(x):
        given = {"label_smoothing": 0.1, "z_loss": 1e-3, "reduction": reduction}
        return jk.cross_entropy(x, np.array([0, 1]), **given).sum()

    assert np.isnan(jax.grad(loss)(x)).all()
