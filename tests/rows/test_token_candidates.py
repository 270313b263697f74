"""token_log_probs of several ids of each row: against float64, its kernels and its memory."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hlo import operations

import jaxkernels as jk
from jaxkernels._rows import cross_entropy_reference as reference
from jaxkernels._rows import loss_labels, loss_measures

MASK = np.random.default_rng(1).random((9, 40)) < 0.7
OF_ROWS = np.geomspace(1e-3, 1e3, 9)
OPTIONS = [{}, {"temperature": OF_ROWS}, {"logit_soft_cap": 5.0, "temperature": 0.3}]
OPTIONS += [{"where": MASK, "logit_soft_cap": 0.01, "temperature": OF_ROWS}]
OPTIONS += [{"implementation": "xla"}]


def drawn(count, dtype):
    """Logits and ids: equal ones, negative ones, a row without any, one that is all but certain."""
    x = cases.logits("normal", 9, 40, dtype)
    rng = np.random.default_rng(count)
    ids = rng.integers(-5, 40, (9, count)).astype(np.int32)
    ids[:, 1::3] = ids[:, ::3][:, : ids[:, 1::3].shape[1]]
    ids[2], x[2] = -1, np.nan
    ids[3, 0], x[3, 7] = 7, 18
    ids[3, 1:2] = 7
    return x, ids, rng.standard_normal((9, count)), rng.standard_normal(9)


def scaled(x, temperature=1.0, logit_soft_cap=None):
    x = x if logit_soft_cap is None else logit_soft_cap * jnp.tanh(x / logit_soft_cap)
    return x / jnp.expand_dims(temperature, -1)


def truth(x, ids, where=True, **scales):
    """In float64: the results, and the softmax."""
    log_p = jax.nn.log_softmax(jnp.where(where, scaled(x, **scales), -jnp.inf))
    entropy = -jnp.sum(jnp.exp(log_p) * jnp.where(log_p == -jnp.inf, 0, log_p), -1)
    found = jnp.where(ids < 0, 0, jnp.take_along_axis(log_p, ids, -1))
    return (found, jnp.where(ids.max(-1) < 0, 0, entropy)), jnp.exp(log_p)


def check(x, ids, of_ids, of_entropy, options):
    """Within bounds in proportion to the terms that each result sums."""
    wide = oracle.compute(x.dtype)
    known = {k: v for k, v in options.items() if k != "implementation"}
    exact = np.where(np.isnan(x), 0, x.astype(np.float64))
    with jax.enable_x64(True):
        plain = functools.partial(truth, ids=ids, **known)
        want, pull, p = jax.device_get(jax.vjp(plain, exact, has_aux=True))
        (slope,) = jax.device_get(pull((of_ids, of_entropy)))
    with cases.x64(x.dtype):
        ours = functools.partial(jk.token_log_probs, ids=ids, return_entropy=True, **options)
        got, pull = jax.vjp(ours, x)
        got, (dx,) = jax.device_get((got, pull((of_ids.astype(wide), of_entropy.astype(wide)))))
    scales = {k: v for k, v in known.items() if k != "where"}
    largest = np.max(np.abs(scaled(exact, **scales)), -1) if scales else np.zeros(len(x))
    u = np.finfo(wide).eps
    if "logit_soft_cap" in known and x.dtype.itemsize == 2:
        u = 2.0**-13  # the error of capped logits of 16 bits on a GPU
    for a, b in zip(got, want, strict=True):
        assert a.dtype == wide
        bound = 8 * u * np.abs(b) + 4 * u * largest.reshape(-1, *[1] * (b.ndim - 1))
        oracle.assert_within(a.astype(np.float64), b, bound + 1e-14)
    is_same, is_plain = ids[..., None] == np.arange(x.shape[-1]), "implementation" in options
    difference = is_same + p[:, None] if is_plain else np.abs(is_same - p[:, None])
    terms = np.sum(np.abs(of_ids * (ids >= 0))[..., None] * difference, 1)
    surprise = np.abs(np.log(np.maximum(p, 1e-300)))
    terms += np.abs(of_entropy)[:, None] * p * (surprise + want[1][:, None])
    per_logit = 1 / np.expand_dims(known.get("temperature", 1.0), -1)
    limits = jnp.finfo(x.dtype)
    bound = 16 * u * (1 + largest[:, None]) * terms * per_logit + 1e-14
    # Plain JAX rounds the terms of a gradient to the dtype of the logits.
    bound += limits.eps * (terms if is_plain else np.abs(slope)) + float(limits.smallest_subnormal)
    assert dx.dtype == x.dtype
    oracle.assert_within(dx.astype(np.float64), slope, bound)
    for y in (got[0][ids < 0], got[1][2], dx[2]):
        assert (y == 0).all()


@pytest.mark.half_on_a_cpu
@cases.dtypes
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "none")
def test_values(options, dtype):
    for count in (2, 6, 50):
        check(*drawn(count, dtype), options)


def test_the_next_candidate_is_noticed(monkeypatch):
    """One column further, in the values and in the gradient, which `at_labels` also decides."""
    at_labels = loss_labels.at_labels
    monkeypatch.setattr(loss_labels, "at_labels", lambda x, label: at_labels(x, label + 1))
    with pytest.raises(AssertionError, match="times the bound"):
        check(*drawn(6, "float32"), {"logit_soft_cap": 51.0})
    monkeypatch.undo()
    put = loss_labels._with_elements
    shifted = lambda x, columns, values: put(x, columns, jnp.roll(values, 1, -1))  # noqa: E731
    monkeypatch.setattr(loss_labels, "_with_elements", shifted)
    with pytest.raises(AssertionError, match="times the bound"):
        check(*drawn(6, "float32"), {"logit_soft_cap": 52.0})


@pytest.mark.parametrize("cap", [[], [0.5]])
def test_the_slope_of_scales_at_labels(cap):
    """The gradient that overwrites labels is that by the logits before a cap that saturates, and a temperature."""
    x, label, of_ids, of_entropy = drawn(6, "float32")
    scales = jnp.broadcast_to(jnp.array([0.7, *cap], "float32"), (9, 1 + len(cap)))
    forward = functools.partial(reference.cross_entropy_fwd, all_sums=True)
    plain = lambda x: loss_measures.measures_of(forward(x, label, scales))  # noqa: E731
    cotangent = np.concatenate([of_ids * (label >= 0), of_entropy[:, None] ** [[1, 2, 0]]], -1)
    cotangent = cotangent.astype("f") * (label.max(-1, keepdims=True) >= 0) * [*[1] * 8, 0]
    want = jax.vjp(plain, jnp.where(jnp.isnan(x), 0, x))[1](cotangent.astype("f"))[0]
    kept = forward(x, label, scales)
    got = loss_labels.grad_of_labels(
        reference.cross_entropy_grad, x, label, scales, kept, cotangent
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_no_probability_exceeds_one():
    """XLA caps the logits at ids, whose rounding differs from that of the kernel."""
    x = np.random.default_rng(0).normal(0, 30, (2000, 1)).astype("float32")
    x, ids = np.concatenate([x, x - 200], 1), np.tile([[0, 1]], (2000, 1))
    assert jk.token_log_probs(x, ids, logit_soft_cap=50.0, temperature=0.05).max() <= 0


def test_shapes():
    """Any axis; sizes of 1; one id keeps its dimension; no ids, and no classes."""
    x = cases.logits("normal", 6, 20, "float32").reshape(2, 3, 20)
    ids = np.random.default_rng(0).integers(0, 20, (2, 3, 4))
    want = np.take_along_axis(np.asarray(jax.nn.log_softmax(x)), ids, -1)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5)
    close(jk.token_log_probs(x.swapaxes(0, 2), ids.swapaxes(0, 2), axis=0), want.swapaxes(0, 2))
    close(jk.token_log_probs(x[0, 0], ids[0, 0]), want[0, 0])
    close(jk.token_log_probs(x, ids[..., :1]), want[..., :1])
    close(jk.token_log_probs(x[:1], ids[:1, :1].astype(np.int8))[:, :1], want[:1, :1])
    none = lambda x: jk.token_log_probs(x, ids[..., :0], return_entropy=True)  # noqa: E731
    (log_probs, entropy), vjp = jax.vjp(none, x)
    assert log_probs.shape == (2, 3, 0)
    assert (entropy == 0).all()
    assert (vjp((log_probs, jnp.ones_like(entropy)))[0] == 0).all()
    assert (jk.token_log_probs(x[..., :0], ids * 0 - 1) == 0).all()
    beyond = jax.jit(jk.token_log_probs)(x, ids + 20 * (ids == ids[0, 0, 0]))
    assert (np.isnan(beyond) == (ids == ids[0, 0, 0])).all()


@cases.dtypes
@pytest.mark.parametrize(("donated", "count"), [(True, 4), (False, 1024)])
def test_no_second_array_of_their_size(donated, count, dtype):
    """The gradient is overwritten at the ids in place; all else has the size of the ids, up to 24 times."""

    def loss(x, ids, weights):
        found, entropy = jk.token_log_probs(x, ids, return_entropy=True)
        return jnp.sum(weights * found) + jnp.sum(entropy**2)

    with cases.x64(dtype):
        x, ids = jnp.zeros((32, 131072), dtype), jnp.zeros((32, count), jnp.int32)
        program = jax.jit(jax.value_and_grad(loss), donate_argnums=[0] * donated)
        compiled = program.lower(x, ids, jnp.ones(ids.shape, oracle.compute(dtype))).compile()
    assert operations(compiled.as_text()) == ["cross_entropy_fwd", "cross_entropy_grad"]
    # A GPU's XLA scatters float64 into a copy of donated logits, and a CPU's, to JAX 0.10, bfloat16 in
    # float32.
    copies = int(donated and dtype == "float64" and cases.ON_GPU)
    if dtype == "bfloat16" and not cases.ON_GPU and jax.__version_info__ < (0, 11):
        copies = 2
    of_ids = 24 * ids.size * oracle.compute(dtype).itemsize
    assert compiled.memory_analysis().temp_size_in_bytes < (0.05 + copies) * x.nbytes + of_ids
    assert compiled.memory_analysis().alias_size_in_bytes >= donated * x.nbytes
