"""Rows that are too long for all tiers that keep a row: XLA serves them by default, a kernel if it is asked for."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk
from jaxkernels._core import registry
from jaxkernels._rows import lowering, plan, primitive, softmax

LONG, SHORT = 1 << 20, 400_000  # for an H200
OPERATIONS = ("softmax_fwd", "softmax_grad", "log_softmax_fwd", "logsumexp_grad")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_length_decides(operation, monkeypatch):
    monkeypatch.setattr("jaxkernels._core.devices.default_device", lambda: "h200")
    dtype = jnp.dtype("float32")
    assert plan.is_left_to_xla(operation, (3, LONG), dtype)
    assert not plan.is_left_to_xla(operation, (3, SHORT), dtype)
    rows, cols = jax.export.symbolic_shape("rows, cols")
    assert plan.is_left_to_xla(operation, (rows, LONG), dtype)
    assert not plan.is_left_to_xla(operation, (3, cols), dtype)
    for ours in ("logsumexp_fwd", "cross_entropy_fwd", "cross_entropy_fwd_grad"):
        assert not plan.is_left_to_xla(ours, (3, LONG), dtype)


@pytest.fixture
def kernel(monkeypatch):
    """A primitive of softmax that is lowered for CUDA, wherever the test runs, for an H200."""
    monkeypatch.setattr(registry, "registered_platforms", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(registry, "has_kernels", lambda platform: True)
    monkeypatch.setattr("jaxkernels._core.devices.default_device", lambda: "h200")
    return primitive.of_operation()(softmax.softmax_fwd.reference)


@pytest.mark.parametrize(
    ("cols", "tier", "require_kernel", "platform", "calls"),
    [
        (LONG, "auto", False, "cuda", False),
        (LONG, "auto", True, "cuda", True),
        (LONG, "block_uncached", False, "cuda", True),
        (LONG, "auto", False, "cpu", True),
        (SHORT, "auto", False, "cuda", True),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_who_asks_gets_a_kernel(kernel, dtype, cols, tier, require_kernel, platform, calls):
    """float64 also where that is off when the program is lowered."""
    if dtype == "float64":
        cols //= 2
    function = functools.partial(kernel, tier=tier, require_kernel=require_kernel)
    with jax.enable_x64(dtype == "float64"):
        traced = jax.jit(function).trace(jax.ShapeDtypeStruct((4, cols), dtype))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("jaxkernels_rows" in text) == calls
    assert "f64" in text or dtype == "float32"


@pytest.mark.parametrize(("may_leave", "calls"), [(True, False), (False, True)])
def test_each_device_decides_by_its_own_rows(kernel, may_leave, calls):
    whole = functools.partial(lowering.whole, kernel, "auto", {}, may_leave)
    for cols, called in ((LONG, calls), (SHORT, True)):
        jaxpr = jax.make_jaxpr(whole)(jax.ShapeDtypeStruct((4, cols), "float32"))
        assert ("jaxkernels_rows" in str(jaxpr)) == called


@pytest.mark.parametrize("implementation", [None, "ffi"])
@pytest.mark.parametrize(("dtype", "cols"), [("float32", 1_000_003), ("bfloat16", 2_000_005)])
def test_values(gpu, dtype, cols, implementation):
    """NaN, infinities and rows that see nothing are as in jax.nn."""
    assert jk.plan_softmax((5, cols), dtype).xla_by_default
    x = jnp.asarray(cases.logits("normal", 5, cols, dtype))
    x = x.at[1, 7].set(jnp.nan).at[2, cols // 2].set(jnp.inf).at[3].set(-jnp.inf)
    x = x.at[4, : cols // 2].set(-jnp.inf)
    for name in ("softmax", "log_softmax", "logsumexp"):
        ours, peer = (functools.partial(getattr(of, name), axis=-1) for of in (jk, jax.nn))
        want = jax.jit(peer)(x.astype(jnp.float32))  # in bfloat16 jax.nn rounds what it sums
        got = jax.jit(functools.partial(ours, implementation=implementation))(x)
        tolerance = 1e-5 if dtype == "float32" else 2.0**-8
        got, want = (np.asarray(each, np.float64) for each in (got, want))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-30)
