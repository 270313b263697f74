"""Compares cross entropy, its gradients and its additional results with the truth in float64."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from rows_of_losses import check_kernels, serves

import jaxkernels as jk
from jaxkernels.verify.truth.losses import Rows

dtypes = pytest.mark.parametrize("dtype", oracle.DTYPES)
tiers = pytest.mark.parametrize("tier", cases.TIERS)
KINDS = ("normal", "wide", "outliers", "offset", "equal", "minus_inf")
# Lengths on either side of what the kernels do differently: a tile of the CPU, a pack, staged rows, the tiers.
SHAPES = (
    (9, 1),
    (17, 2),
    (33, 5),
    (16, 48),
    (9, 49),
    (17, 128),
    (5, 257),
    (9, 1001),
    (4, 1024),
    (3, 4099),
    (2, 50257),
)


@tiers
@dtypes
def test_kernels_of_all_kinds(dtype, tier):
    xs = [
        cases.logits(kind, *shape, dtype)
        for kind in KINDS
        for shape in SHAPES
        if serves(tier, shape, dtype) and (cases.ON_GPU or shape[-1] < 50000 or kind == "normal")
    ]
    check_kernels(xs, dtype, tier)


@tiers
@dtypes
def test_kernels_of_rows_with_scales(dtype, tier):
    """A temperature, or a temperature and a soft cap, of each row."""
    for scales in (1, 2):
        xs = [
            cases.logits(kind, *shape, dtype)
            for kind in ("normal", "outliers")
            for shape in SHAPES
            if serves(tier, shape, dtype)
        ]
        check_kernels(xs, dtype, tier, scales=scales)


@pytest.mark.smoke
@pytest.mark.parametrize("rows", [0, 1, 3, 16, 257])
def test_numbers_of_rows(rows):
    for dtype in ("float32", "bfloat16"):
        xs = [cases.logits("normal", rows, cols, dtype) for cols in (1, 19, 600)]
        check_kernels(xs, dtype)
        check_kernels(xs, dtype, scales=2)


@dtypes
def test_a_confident_row_keeps_the_digits_of_its_loss(dtype):
    """A loss of 1e-9 would be lost if the maximum's term, 1, were summed with the others."""
    x = np.full((3, 40), -30, oracle.storage(dtype))
    x[:, 7] = [-9.28125, -8.5, -2]  # exact in all types; the first row is won by 1 - 1e-9
    label = np.full(3, 7, np.int32)
    want = Rows(x, label, 4).measures().value[:, 0]
    assert 0 < want[0] < 1e-7
    with cases.x64(dtype):
        loss, dx = jax.value_and_grad(lambda x: jk.cross_entropy(x, label).sum())(x)
        losses = jk.cross_entropy(x, label)
        mean = jax.grad(lambda x: jk.cross_entropy(x, label, reduction="sum"))(x)
    np.testing.assert_allclose(losses, want.astype(np.float64), rtol=2e-6)
    np.testing.assert_allclose(loss, float(want.sum()), rtol=2e-6)
    eps = max(float(jnp.finfo(dtype).eps), 2e-6)
    if dtype != "float16":  # in which a gradient of 1e-9 is 0
        for gradient in (dx, mean):
            np.testing.assert_allclose(
                oracle.widen(gradient)[:, 7].astype(np.float64),
                np.expm1(-want).astype(np.float64),
                rtol=eps,
            )


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_tokens_that_are_left_out_do_no_harm(implementation):
    x = cases.logits("normal", 5, 33, "float32")
    x[1], x[2], x[3, 4] = np.nan, -np.inf, np.inf
    label = np.array([4, -1, -7, -1, 7])

    def both(x):
        return jk.token_log_probs(x, label, return_entropy=True, implementation=implementation)

    def total(x):
        return jnp.sum(both(x)[0]) + jnp.sum(jnp.sin(both(x)[1]))

    (_, entropy), tangents = jax.jvp(both, (x,), (np.ones_like(x),))
    dx, twice = jax.grad(total)(x), jax.jvp(jax.grad(total), (x,), (x**0,))[1]
    for y in (*both(x), *tangents, dx, twice):
        assert (y[1:4] == 0).all()
        assert np.isfinite(y).all()
    assert (entropy[::4] > 0.1).all()
    assert (dx[::4] != 0).all()


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_labels_of_every_dtype(dtype):
    """Also where there are more classes than the type can count."""
    x = cases.logits("normal", 4, 300, "float32")
    label = np.array([0, 3, 100, 127], dtype)
    with jax.enable_x64(True):
        got = jax.jit(jk.cross_entropy)(x, label)
        signed = np.issubdtype(dtype, np.signedinteger)
        if signed:
            label[1] = np.iinfo(dtype).min
            assert jax.jit(jk.cross_entropy)(x, label)[1] == 0
        if np.iinfo(dtype).max > 300:
            label[2] = np.iinfo(dtype).max
            assert np.isnan(jax.jit(jk.cross_entropy)(x, label)[2])
        known = jk.cross_entropy(x, np.array([0, 3, 100, 127], dtype))
    want = jk.cross_entropy(x, np.array([0, 3, 100, 127]))
    np.testing.assert_array_equal(known, want)
    np.testing.assert_array_equal(got, want)


def test_loss_scaling_of_float16():
    """A hundred thousand tokens: 1 / N is nearly nothing in float16, and times 65536 it is something again."""
    rows, cols, scale = 100_000, 4, 65536.0
    x = np.random.default_rng(0).standard_normal((rows, cols)).astype(np.float16)
    label = np.arange(rows) % cols

    def loss(x, dtype):
        return scale * jk.cross_entropy(x.astype(dtype), label, reduction="mean")

    with jax.enable_x64(True):
        dx = np.asarray(
            jax.jit(jax.grad(functools.partial(loss, dtype=jnp.float16)))(x), np.float64
        )
        want = np.asarray(
            jax.jit(jax.grad(functools.partial(loss, dtype=jnp.float64)))(x.astype(np.float64))
        )
    np.testing.assert_allclose(dx, want, rtol=2.0**-10, atol=1e-9)


def test_gradients_of_a_mean_are_rounded_once():
    """Those of bfloat16 with a cotangent of 1 are those of float32, rounded."""
    x = cases.logits("normal", 16, 100, "bfloat16")
    label = np.arange(16)
    dx = jax.grad(lambda x: jk.cross_entropy(x, label, reduction="mean"))(x)
    want = jax.grad(lambda x: jk.cross_entropy(x, label, reduction="mean"))(x.astype(np.float32))
    assert dx.dtype == jnp.bfloat16
    apart = np.abs(oracle.widen(dx) - oracle.widen(want)) / np.abs(oracle.widen(want))
    assert apart.max() <= 2.0**-8 * 1.01
    powers = jax.grad(lambda x: 4 * jk.cross_entropy(x, label, reduction="mean"))(x)
    np.testing.assert_array_equal(powers, 4 * dx)
    twice = jax.grad(lambda x: 3 * jk.cross_entropy(x, label, reduction="mean"))(x)
    np.testing.assert_array_equal(twice, 3 * dx)


@dtypes
def test_rows_of_no_columns_and_no_rows(dtype):
    with cases.x64(dtype):
        x = jnp.zeros((0, 7), dtype)
        label = jnp.zeros((0,), int)
        assert jk.cross_entropy(x, label).shape == (0,)
        assert jk.cross_entropy(x, label, reduction="mean") == 0
        assert jax.grad(lambda x: jk.cross_entropy(x, label).sum())(x).shape == (0, 7)
        empty = jax.jit(jk.cross_entropy)(jnp.zeros((3, 0), dtype), jnp.array([-1, 0, -1]))
        np.testing.assert_array_equal(np.isnan(empty), [False, True, False])
