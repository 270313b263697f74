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

KINDS = ("normal", "wide", "outliers", "offset", "equal", "minus_inf")
# Lengths on either side of limits of the kernels: a tile of the CPU, a pack, staged rows, the tiers.
SHAPES = (
    (0, 19),
    (1, 600),
    (257, 19),
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


@cases.tiers
@cases.dtypes
def test_kernels_of_all_kinds(dtype, tier):
    """All kinds run one program."""
    served = [shape for shape in SHAPES if serves(tier, shape, dtype)]
    for kind in KINDS:
        for is_longest in (False, True) if cases.ON_GPU or kind == "normal" else (False,):
            some = [shape for shape in served if (shape[-1] > 50000) == is_longest]
            check_kernels([cases.logits(kind, *shape, dtype) for shape in some], dtype, tier)
    xs = []
    for cols in (6, 300, 40000):
        if serves(tier, (3, cols), dtype):
            x = cases.logits("normal", 3, cols, dtype)
            x[0, 0], x[1, 1], x[2, 4] = np.inf, np.nan, -np.inf
            xs.append(x)
    check_kernels(xs, dtype, tier)


@cases.tiers
@cases.dtypes
def test_kernels_of_rows_with_scales(dtype, tier):
    """A temperature, or a temperature and a soft cap, of each row."""
    served = [shape for shape in SHAPES if serves(tier, shape, dtype)]
    for scales in (1, 2):
        for kind in ("normal", "outliers"):
            xs = [cases.logits(kind, *shape, dtype) for shape in served]
            check_kernels(xs, dtype, tier, scales=scales)


@pytest.mark.parametrize("cap", [0.01, 50.0, 3e4])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_16_bit_logit_with_a_cap(dtype, cap):
    """The log-sum-exp of one class is its capped logit, which does not decrease."""
    bits, inf = np.arange(2**16, dtype=np.uint16), np.asarray(np.inf, oracle.storage(dtype))
    inf_bits = inf.view(np.uint16)  # NumPy's isfinite warns of the NaNs, depending on its version
    x = np.sort(bits[bits & inf_bits != inf_bits].view(inf.dtype))
    x = np.concatenate([x, np.asarray([np.inf, -np.inf, np.nan], x.dtype)])
    no_label = np.full(len(x), -1)
    results = jk.cross_entropy(x[:, None], no_label, logit_soft_cap=cap, return_lse=True)
    *found, of_inf, of_minus_inf, of_nan = np.asarray(results[1], np.float64)
    want = cap * np.tanh(oracle.widen(x[:-3]).astype(np.float64) / cap)
    np.testing.assert_allclose(found, want, rtol=2.0**-15, atol=2.0**-125 * max(cap, 1))
    assert np.diff(found).min() >= 0
    assert (of_inf, of_minus_inf) == (np.float32(cap), -np.inf)
    assert np.isnan(of_nan)


def rows_under_a_cap(cols, cap, dtype):
    """Rows and labels: usual logits, half of them hidden, a class that wins by far, two seen classes, a saturated one, a row
    with a NaN that is left out.
    """
    rng = np.random.default_rng([cols, int(cap)])
    x = 3 * rng.standard_normal((9, cols))
    x[1:8:2] = np.where(rng.random((4, cols)) < 0.5, -np.inf, x[1:8:2])
    x[2:4] = np.where(x[2:4] > -np.inf, -1.4 * min(cap, 60), x[2:4])
    x[4, 2:], x[5, 3:], x[6, 1] = -np.inf, -np.inf, 60 * cap
    label = np.arange(9) % 2
    x[np.arange(9), label] = np.where(np.arange(9) % 4 > 1, 1.4 * min(cap, 60), 2)
    x[7] = -np.inf
    x[7, 1], x[8, 5], label[8] = 0.001, np.nan, -1
    return x.astype(oracle.storage(dtype)), label


@pytest.mark.parametrize("cap", [0.01, 30.0, 127.0, 300.0])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("cols", [37, 768, 1001, 4096, 20001])
@np.errstate(all="ignore")
def test_rows_of_16_bits_with_a_cap(cols, dtype, cap):
    """Losses keep their digits next to a class that wins; results of all kernels agree with the truth."""
    x, label = rows_under_a_cap(cols, cap, dtype)
    t = np.float32([1, 2, 0, -1, 1e-3, 1, 1, 1, 1])

    @jax.jit
    def program(x):
        times = len(x) // 9
        by_row = functools.partial(
            jk.cross_entropy, labels=np.tile(label, times), logit_soft_cap=cap
        )
        loss, pull = jax.vjp(by_row, x)
        total = functools.partial(by_row, weights=np.tile(t, times), reduction="sum")
        return loss, by_row(x), pull(np.tile(t, times))[0], jax.grad(total)(x)

    results = jax.device_get(program(x))
    if cases.ON_GPU:  # many rows have other kernels
        for few, many in zip(results, jax.device_get(program(np.tile(x, (60, 1)))), strict=True):
            assert few.tobytes() == many[:9].tobytes()
    loss, alone, apart, together = (np.asarray(a, np.float64) for a in results)
    wide = oracle.widen(x).astype(np.float64)
    z = np.where(wide == -np.inf, wide, cap * np.tanh(wide / cap))
    own = (np.arange(9), label)
    others = np.exp(z - z[own][:, None])
    others[own] = 0
    others[8] = 0
    rest = others.sum(-1)
    for found in (loss, alone):
        np.testing.assert_allclose(found, np.log1p(rest), rtol=5e-4, atol=1e-30)
    p = others / (1 + rest)[:, None]
    p[own] = -rest / (1 + rest)
    slope = 1 - np.tanh(np.where(np.isfinite(wide), wide, 0) / cap) ** 2
    limit = np.abs(p * t[:, None]) * (slope * 2.0**-7 + 3e-6)
    limit += 6e-8 if dtype == "float16" else 1e-30
    for found in (apart, together):
        np.testing.assert_array_less(np.abs(found - p * slope * t[:, None]), limit)


@pytest.mark.smoke
@cases.dtypes
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_whose_exponentials_round_to_one_still_spread(dtype):
    """The gradient of the entropy is p (mean(x) - x) there."""
    with cases.x64(dtype):
        for cols in (19, 48):
            x = cases.logits("normal", 17, cols, dtype) * np.asarray(1e-18, dtype)
            entropies = functools.partial(jk.token_log_probs, return_entropy=True)
            dx = jax.grad(lambda x: entropies(x, np.full(17, 3))[1].sum())(x)  # noqa: B023
            want = (x.mean(-1, keepdims=True) - x) / cols
            np.testing.assert_allclose(dx, want, rtol=1e-5, atol=1e-24)


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
    """There may be more classes than the dtype can count."""
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


def test_gradients_of_a_mean_are_rounded_once():
    """With a cotangent of 1, gradients in bfloat16 are rounded gradients in float32."""
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


@cases.dtypes
def test_rows_of_no_columns_and_no_rows(dtype):
    with cases.x64(dtype):
        x = jnp.zeros((0, 7), dtype)
        label = jnp.zeros((0,), int)
        assert jk.cross_entropy(x, label).shape == (0,)
        assert jk.cross_entropy(x, label, reduction="mean") == 0
        assert jax.grad(lambda x: jk.cross_entropy(x, label).sum())(x).shape == (0, 7)
        empty = jax.jit(jk.cross_entropy)(jnp.zeros((3, 0), dtype), jnp.array([-1, 0, -1]))
        np.testing.assert_array_equal(np.isnan(empty), [False, True, False])


X = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)
LABEL = np.random.default_rng(1).integers(0, 7, (3, 5))


def nll(x, label):
    return -np.take_along_axis(np.asarray(jax.nn.log_softmax(x)), label[..., None], -1)[..., 0]


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=3e-6)


def test_shapes_that_broadcast():
    """Labels, weights and temperatures against the loss; masks and probabilities against the logits."""
    close(jk.cross_entropy(X, 3), nll(X, np.full((3, 5), 3)))
    close(jk.cross_entropy(X, LABEL[:1]), nll(X, np.broadcast_to(LABEL[0], (3, 5))))
    close(jk.cross_entropy(X[0, 0], 2), nll(X[0, 0], np.array(2)))
    weights = np.array([[1.0], [2], [3]], np.float32)
    close(jk.cross_entropy(X, LABEL, weights=weights), nll(X, LABEL) * weights)
    close(jk.cross_entropy(X, LABEL, temperature=weights), nll(X / weights[..., None], LABEL))
    uniform = jk.cross_entropy(X, np.full(7, 1 / 7, np.float32))
    close(uniform, -np.mean(jax.nn.log_softmax(X), -1))
    seen = np.arange(7) > 2
    hidden = np.where(seen, X, -np.inf)
    with np.errstate(all="ignore"):
        close(jk.cross_entropy(X, LABEL, where=seen), nll(hidden, LABEL))
    rows, alternating = (1, 2, 1, 2) * 5, (1, 2, 1, 1) * 5  # more often than kernels can
    many, seen = np.broadcast_to(X[0, 0], (*rows, 7)), np.broadcast_to(seen, (*alternating, 7))
    close(jk.cross_entropy(many, 5, where=seen), np.full(rows, nll(hidden[0, 0], np.array(5))))


NEUTRAL = np.array([[1.0, -1, 0, 2, -2]], np.float32)


@pytest.mark.parametrize(
    ("label", "weights"),
    [(np.full_like(LABEL, -1), None), (LABEL, np.zeros(5, np.float32)[None]), (LABEL, NEUTRAL)],
    ids=["no labels", "no weights", "weights whose sum is 0"],
)
def test_a_mean_of_nothing_is_0(label, weights):
    mean = functools.partial(jk.cross_entropy, labels=label, weights=weights, reduction="mean")
    loss, dx = jax.value_and_grad(mean)(X)
    assert loss == 0
    assert (dx == 0).all()


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_a_hidden_label_under_smoothing_alone(reduction, implementation):
    """With label_smoothing=1 a hidden label contributes nothing; a label that is no class still gives NaN."""
    x = X[0].copy()
    x[0, 3] = -np.inf
    log_p = np.asarray(jax.nn.log_softmax(x))

    def loss(x, smoothing, label=(3, 3, 3, 3, 3)):
        return jnp.sum(
            jk.cross_entropy(
                *(x, jnp.array(label)),
                label_smoothing=smoothing,
                reduction=reduction,
                implementation=implementation,
            )
        )

    hidden = np.isinf(log_p)
    want = -np.sum(np.where(hidden, 0, log_p) / np.sum(~hidden, -1, keepdims=True))
    close(loss(x, 1.0), want)
    assert np.isfinite(jax.grad(loss)(x, 1.0)).all()
    assert np.isnan(jax.jit(loss)(x, 1.0, jnp.array([9, 3, 3, 3, 3])))
    # Smoothing is differentiated there too, where labels are not hidden.
    got = jax.grad(loss, 1)(X[0], 1.0)
    log_p = np.asarray(jax.nn.log_softmax(X[0]))
    close(got, np.sum(log_p[:, 3]) - np.sum(log_p) / 7)


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_a_hidden_label_has_the_usual_gradient(reduction, implementation):
    """The loss is infinite; the gradient at visible classes is their probability, as from optax."""
    x = X[0].copy()
    x[0, 3] = -np.inf
    given = {"reduction": reduction, "implementation": implementation}
    dx = jax.grad(lambda x: jnp.sum(jk.cross_entropy(x, np.full(5, 3), **given)))(x)
    close(dx, np.asarray(jax.nn.softmax(x)) - np.eye(7)[3])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("options", [{}, {"return_lse": True}], ids=["alone", "with lse"])
@pytest.mark.parametrize("label", [9, 3], ids=["beyond the classes", "in a hidden row"])
def test_a_cotangent_of_0_hides_rows_that_are_not_finite(reduction, options, label):
    """`jnp.where` around a loss makes such cotangents, as do logits with several label sets. Second derivatives too."""
    x = X[0].copy()
    x[0] = -np.inf if label < x.shape[-1] else x[0]
    temperature = jnp.full(5, 2.0)

    def loss(factor, x, temperature, labels):
        found = jk.cross_entropy(
            *(x, labels), temperature=temperature, z_loss=0.1, reduction=reduction, **options
        )
        return jnp.sum(factor * (found[0] if options else found))

    of = jax.jit(jax.grad(loss, (1, 2)))
    labels, is_row = jnp.array([label, 3, 0, 1, -1]), reduction == "none"
    one, zero = (jnp.full(5, v) if is_row else v for v in (1.0, 0.0))
    for dx in of(zero, x, temperature, labels):
        np.testing.assert_array_equal(dx, np.zeros_like(dx))
    for dx in of(one.at[0].set(0), x, temperature, labels) if is_row else ():
        assert np.isfinite(dx).all()
    # The factor's derivative of a gradient is the gradient, also where the factor is 0.
    known = X[0], temperature, labels.at[0].set(1)
    moved = jax.jvp(lambda factor: of(factor, *known)[0], (zero,), (one,))[1]
    close(moved, of(one, *known)[0])


def test_probabilities():
    """They need not sum to 1; where one is 0, the log-probability that it multiplies may be infinite."""
    p = np.random.default_rng(3).random(X.shape).astype(np.float32)
    p[..., 2] = 0
    x = X.copy()
    x[..., 2] = -np.inf
    log_p = np.asarray(jax.nn.log_softmax(x), np.float64)
    with np.errstate(all="ignore"):
        want = -np.sum(np.where(p == 0, 0, p * log_p), -1)
    close(jk.cross_entropy(x, p), want)
    close(jk.cross_entropy(x, p, reduction="mean"), want.mean())
    dx = jax.grad(lambda x: jk.cross_entropy(x, p, reduction="sum"))(x)
    close(dx, p.sum(-1, keepdims=True) * np.exp(log_p) - p)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float8_e4m3fn", "float16", "bfloat16"])
def test_dtypes_of_logits(dtype):
    x = jnp.asarray(np.arange(12).reshape(3, 4), dtype)
    loss = jk.cross_entropy(x, np.array([0, 1, 2]))
    assert loss.dtype == jnp.float32
    close(loss, nll(np.asarray(x, np.float32), np.array([0, 1, 2])))


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4])
def test_labels_of_few_bits(dtype):
    for label in (LABEL.astype(dtype), jnp.asarray(LABEL, dtype)):
        close(jk.cross_entropy(X, label), nll(X, LABEL))
        close(jk.token_log_probs(X, label), -nll(X, LABEL))


def test_known_labels_are_copied_as_guards_allow():
    """A label that is too large is found, also in a NumPy array under jit."""
    x, label = jnp.asarray(X), jnp.asarray(LABEL)
    with jax.transfer_guard_device_to_host("disallow"):
        jk.cross_entropy(x, label)
        with pytest.raises(ValueError, match="labels must be smaller than 7"):
            jk.cross_entropy(x, label + 7)
    for function in (jk.cross_entropy, jk.token_log_probs):
        with pytest.raises(ValueError, match="must be smaller than 7"):
            jax.jit(lambda x: function(x, LABEL + 7))(x)  # noqa: B023


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_second_derivatives_beside_a_loss(reduction):
    """The gradient of z_loss has the log-sum-exp, which also depends on the logits."""
    x, label = np.random.default_rng(0).standard_normal((3, 5), np.float32), np.array([1, 3, -1])

    def value(x, implementation):
        options = {"reduction": reduction, "z_loss": 0.7, "implementation": implementation}
        beside = {"return_lse": True, "return_entropy": True}
        return sum(jnp.sum(jnp.sin(r)) for r in jk.cross_entropy(x, label, **options, **beside))

    got, want = (jax.jit(jax.hessian(value), static_argnums=1)(x, n) for n in (None, "xla"))
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_entropies_of_large_logits_that_nearly_agree(dtype):
    """Roundings of scaled logits change the sums of an entropy alike, so that they cancel."""
    largest = 577 if dtype == "float16" else 576
    step = 0.5 if dtype == "float16" else 4
    x = jnp.tile(jnp.array([[largest, largest - step]], dtype), (400, 1))
    temperature = np.linspace(10, 20, 400, dtype=np.float32)
    _, entropy = jk.cross_entropy(
        x, jnp.zeros(400, jnp.int32), temperature=temperature, return_entropy=True
    )
    odds = np.exp(-step / temperature.astype(np.float64))
    p = np.stack([1 / (1 + odds), odds / (1 + odds)])
    np.testing.assert_allclose(entropy, -np.sum(p * np.log(p), axis=0), rtol=0, atol=6e-7)


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint])
def test_weights_mapped_without_the_logits(wrap):
    """A derivative of a program that maps the weights alone, and uses results that do not depend on them."""
    x, label = jnp.arange(12.0).reshape(3, 4), jnp.array([0, 1, -1])
    weights = jnp.arange(6.0).reshape(2, 3) + 1

    def loss(x, w):
        results = jk.cross_entropy(
            x, label, weights=w, reduction="mean", return_lse=True, return_entropy=True
        )
        return sum(jnp.sum(jnp.sin(y)) for y in results)

    mapped = wrap(lambda x: jnp.sum(jax.vmap(loss, (None, 0))(x, weights)))
    one_by_one = lambda x: sum(loss(x, w) for w in weights)  # noqa: E731
    derivatives = jax.grad, jax.hessian, lambda f: lambda x: jax.jvp(f, (x,), (x,))[1]
    got, want = jax.jit(lambda x: [[of(f)(x) for of in derivatives] for f in (mapped, one_by_one)])(
        x
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
