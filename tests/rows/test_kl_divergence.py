"""softmax_kl_divergence against float64, also of nearly equal logits; hidden classes; its memory."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import x64
from oracle import assert_within

import jaxkernels as jk
from jaxkernels.verify.truth.losses import kl_divergence

INF, LEAST = np.inf, float(jnp.finfo(jnp.float32).min)
DTYPES = (
    *(("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float16")),
    *(("float16", "float32"), ("float64", "float64")),
)


def logits_of(shape, spread, dtypes):
    """A prediction, and a target that differs by about `spread`, or altogether for None."""
    rng = np.random.default_rng(shape)
    x, other = (3 * rng.standard_normal(shape) for _ in range(2))
    x = x.astype(jnp.dtype(dtypes[0]))
    target = other if spread is None else x.astype(float) + spread * other
    return x, target.astype(jnp.dtype(dtypes[1]))


@functools.partial(jax.jit, static_argnames="implementation")
def value_and_gradients(x, target, cotangent, **options):
    loss, pull = jax.vjp(functools.partial(jk.softmax_kl_divergence, **options), x, target)
    return loss, *pull(cotangent)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("temperature", [None, 2.0, 1e-3, 1e3])
@pytest.mark.parametrize("spread", [None, 1e-3, 0.0])
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_values_and_gradients(dtypes, spread, temperature, implementation):
    for shape in ((5, 3), (4, 300), (3, 5000)):
        with x64(dtypes[0]):
            x, target = logits_of(shape, spread, dtypes)
            wide = jnp.float64 if "float64" in dtypes else jnp.float32
            hidden = np.arange(shape[-1]) >= shape[-1] - shape[-1] // 8
            cotangent = np.linspace(-2, 1, shape[0]).astype(wide)
            options = {"implementation": implementation, "where": ~hidden}
            options |= {} if temperature is None else {"temperature": temperature}
            found = value_and_gradients(x, target, cotangent, **options)
        scale = None if temperature is None else np.asarray(temperature, wide)
        want = kl_divergence(x, target, hidden, scale, cotangent[:, None], 1)
        assert found[0].dtype == wide
        for a, b, name in zip(found, want, ("loss", "dx", "dtarget"), strict=True):
            assert_within(a.reshape(b.value.shape), *b, (shape, name))
        if spread == 0.0 and dtypes[0] == dtypes[1]:
            np.testing.assert_array_equal(found[0], 0)


@pytest.mark.parametrize("temperature", [1.0, 1e3])
def test_a_result_near_0_keeps_its_digits(temperature):
    """The direct sum of p r loses them. So would, at a high temperature, errors of the log-sum-exps."""
    x, target = logits_of((8, 1000), 1e-3, ("float32", "float32"))
    scale = np.float32(temperature)
    (want, _), *_ = kl_divergence(x, target, False, scale, np.ones((8, 1)), 1)
    found = jk.softmax_kl_divergence(x, target, temperature=temperature)
    np.testing.assert_allclose(found, want[:, 0], rtol=1e-3)
    log_q, log_p = jax.nn.log_softmax(x / scale), jax.nn.log_softmax(target / scale)
    plain = jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)
    assert np.max(np.abs(plain - want[:, 0]) / want[:, 0]) > 0.01


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_hidden_classes_finite_masks_and_nan(implementation):
    """Each row: prediction, target, divergence."""
    two = np.log(2)
    rows = [
        ([0, 0, 5], [0, 0, -INF], two * 0 + np.log1p(np.exp(5) / 2)),
        ([0, 0, -INF], [0, 0, -INF], 0),
        ([0, 0, -INF], [0, 0, -200], INF),
        ([0, 0, LEAST], [0, LEAST, LEAST], two),
        ([LEAST] * 3, [LEAST] * 3, 0),
        ([LEAST] * 3, [0, LEAST, LEAST], np.log(3)),
        ([0, 0, 0], [LEAST] * 3, 0),
        ([-INF] * 3, [0, 0, 0], INF),
        ([0, 1, 2], [-INF] * 3, 0),
        ([-INF] * 3, [-INF] * 3, 0),
        ([np.nan, 0, 0], [0, 0, 0], np.nan),
        ([0, 0, 0], [0, INF, 0], np.nan),
    ]
    x, target, want = (np.array(a, np.float32) for a in zip(*rows, strict=True))
    how = {"implementation": implementation}
    call = functools.partial(value_and_gradients, **how)
    loss, dx, dtarget = call(x, target, np.ones_like(want))
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    assert np.isfinite(dx[:10]).all()
    assert np.isfinite(dtarget[np.isfinite(want)]).all()
    np.testing.assert_array_equal(dx[8:10], 0)
    # Rows with the weight 0, and those whose cotangent is 0, have no effect.
    mean = functools.partial(jk.softmax_kl_divergence, reduction="mean", **how)
    weights = np.isfinite(want) * np.float32(2)
    loss, found = jax.value_and_grad(
        lambda x, target, t: mean(x, target, weights=weights, temperature=t), (0, 1, 2)
    )(x, target, 1.0)
    np.testing.assert_allclose(loss, want[weights > 0].mean(), rtol=1e-6)
    assert all(np.isfinite(d).all() for d in found)
    assert not any(d[weights == 0].any() for d in found[:2])
    for d in call(x, target, np.zeros_like(want))[1:]:
        np.testing.assert_array_equal(d, 0)
    assert mean(x, target, weights=0.0) == mean(x[:0], target[:0]) == 0


@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("bfloat16", "float16")], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_16_bit_logits_are_not_widened(dtypes, reduction):
    """Not in a program, nor between the passes of a derivative."""
    x, target = (np.zeros((64, 3000), dtype) for dtype in map(jnp.dtype, dtypes))
    loss = lambda *xs: jnp.sum(jk.softmax_kl_divergence(*xs, reduction=reduction))  # noqa: E731
    for program in (loss, jax.value_and_grad(loss), jax.value_and_grad(loss, (0, 1))):
        text = jax.jit(program).lower(x, target).compile().as_text()
        entry = text[text.index("ENTRY") :]
        assert re.search(r"= \(?f32\[64", entry), entry  # of rows
        # A GPU's XLA stores float32 terms of so few rows.
        assert jax.default_backend() != "cpu" or not re.search(r"f32\[64,3000\]", entry), entry
    kept = jax.tree.leaves(jax.vjp(loss, x, target)[1])
    assert {x.dtype.name for x in kept if x.size == 64 * 3000} == set(dtypes)
