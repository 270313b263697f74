"""Log-probabilities of tokens of a linear layer against those of its logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from linear_losses import PLATFORM, bound_for
from memory_stats import SLACK, stats

import jaxkernels as jk

RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 11, 12)).astype(np.float32)
W = RNG.standard_normal((12, 32)).astype(np.float32)
B = RNG.standard_normal(32).astype(np.float32)
IDS = RNG.integers(-1, 32, (7, 11)).astype(np.int32)
SCALE = RNG.uniform(0.5, 1.5, (7, 11)).astype(np.float32)
SHOWN = np.arange(32) % 3 > 0
OPERANDS = (X, W, B, SCALE, 3.0)
BOUND = bound_for(3, 77, 12, 32, "float32")
pytestmark = pytest.mark.usefixtures("exact_products")
CASES = {
    "plain": (),
    "entropy": ("entropy", "temperature"),
    "where": ("where", "entropy", "cap"),
    "trans": ("trans_w", "cap", "temperature"),
}


def program(case, is_ours, max_bytes=BOUND):
    """The log-probabilities, and the entropies if the case has them, of operands and ids."""
    has = CASES[case]

    def call(x, w, b, scale, cap, ids=IDS):
        options = {"return_entropy": "entropy" in has, "where": SHOWN if "where" in has else None}
        options |= {"temperature": scale} if "temperature" in has else {}
        options |= {"logit_soft_cap": cap} if "cap" in has else {}
        if is_ours:
            w = w.T if "trans_w" in has else w
            options |= {"trans_w": "trans_w" in has, "bias": b, "max_bytes": max_bytes}
            return jk.linear_token_log_probs(x, w, ids, **options)
        return jk.token_log_probs(jnp.matmul(x, w) + b, ids, **options)

    return call


def close(got, want, tolerance=2e-5):
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        scale = np.max(np.abs(np.where(np.isfinite(b), b, 0)))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def gradient_of(f, *operands):
    """The pullback of cotangents that differ from row to row."""
    found, pull = jax.vjp(f, *operands)
    return found, pull(jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size)).reshape(y.shape), found))


@pytest.mark.parametrize("case", CASES)
def test_values_and_derivatives(case):
    """Reverse and forward mode, mapped rows, mapped w, and a Hessian-vector product."""
    tangents = tuple(map(jnp.sin, OPERANDS))

    def run(is_ours):
        f = program(case, is_ours)
        pull = lambda *a: gradient_of(f, *a)[1]  # noqa: E731
        rows = jax.vmap(f, (0, None, None, 0, None, 0))(*OPERANDS, IDS)
        of_w = jax.vmap(lambda w: gradient_of(f, X, w, *OPERANDS[2:]))(np.stack([W, 2 * W]))
        seconds = [] if case == "where" else jax.jvp(pull, OPERANDS, tangents)[1]
        return gradient_of(f, *OPERANDS), jax.jvp(f, OPERANDS, tangents), rows, of_w, seconds

    close(*jax.jit(lambda: (run(True), run(False)))(), 1e-4)


def test_rows_that_are_left_out_give_zero():
    """Whatever they hold: their entropies, gradients and effect on w are 0."""
    x = X.copy()
    x[IDS < 0] = np.nan
    f = program("entropy", is_ours=True)
    got = jax.jit(functools.partial(gradient_of, f))(x, *OPERANDS[1:])
    want = jax.jit(functools.partial(gradient_of, f))(*OPERANDS)
    close(got, want)
    (log_probs, entropy), (dx, *_) = got
    for rows in (log_probs, entropy, dx):
        np.testing.assert_array_equal(rows[IDS < 0], 0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spec", [(("a",), None), ((), ("a", "b")), (("a",), "b")], ids=str)
def test_sharded_rows_and_classes(case, spec, mesh):
    rows, classes = spec
    places = (P(*rows), P(None, classes), P(classes), P(*rows))
    x = np.concatenate([X[:4], X[:4]])
    given = (x, W, B, np.concatenate([SCALE[:4], SCALE[:4]]))
    ids = np.concatenate([IDS[:4], IDS[3:]])
    put = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(given, places, strict=True)]

    def run(is_ours, *operands):
        call = functools.partial(program(case, is_ours), ids=ids)
        return gradient_of(call, *operands, 3.0)

    close(
        jax.jit(functools.partial(run, True))(*put), jax.jit(functools.partial(run, False))(*given)
    )


def test_logits_dtype_and_dtype():
    x, w = jnp.asarray(X, "bfloat16"), jnp.asarray(W)
    wide = jk.token_log_probs(
        jnp.matmul(x, w.astype("bfloat16"), preferred_element_type="float32"), IDS
    )
    options = {"dtype": "bfloat16", "logits_dtype": "float32"}
    close(jk.linear_token_log_probs(x, w, IDS, **options), wide)
    rounded = jk.linear_token_log_probs(x, w, IDS, dtype="bfloat16")
    assert np.max(np.abs(rounded - wide)) > 1e-3
    close(jk.linear_token_log_probs(x[0, 0], w, 3), jk.token_log_probs(x[0, 0] @ w, 3))


def test_no_logits_are_kept():
    """Neither by the forward pass, nor between it and the gradient."""
    shape = (1021, 64, 2048)
    bound = bound_for(5, *shape, "float32")
    x, w, ids = jnp.zeros(shape[:2]), jnp.zeros(shape[1:]), jnp.zeros(shape[0], jnp.int32)
    both = lambda x, w: jk.linear_token_log_probs(  # noqa: E731
        x, w, ids, max_bytes=bound, return_entropy=True
    )
    loss = lambda x, w: sum(jnp.sum(jnp.sin(y)) for y in both(x, w))  # noqa: E731
    plan = functools.partial(
        jk.plan_linear_cross_entropy, *shape, "float32", max_bytes=bound, platform=PLATFORM
    )
    pulled = stats(jax.grad(loss, (0, 1)), x, w).temp_size_in_bytes
    if jax.__version_info__ >= (0, 11) or PLATFORM != "cpu":
        forward = plan(w_is_constant=True).total_bytes
        assert stats(both, x, w).temp_size_in_bytes <= forward + SLACK
        assert pulled <= max(plan().total_bytes, forward) + SLACK
    residuals = jax.tree.leaves(jax.vjp(both, x, w)[1])
    assert max(r.size for r in residuals) <= w.size
