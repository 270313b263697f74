"""Losses of a linear layer on many devices."""

import functools
import re

import hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk

RNG = np.random.default_rng(0)
X = RNG.standard_normal((16, 8, 12)).astype(np.float32)
W = RNG.standard_normal((12, 64)).astype(np.float32)
B = RNG.standard_normal(64).astype(np.float32)
LABEL = RNG.integers(-1, 64, (16, 8)).astype(np.int32)
SCALE = RNG.uniform(0.5, 1.5, (16, 8)).astype(np.float32)
BOUND = 30_000  # in bytes: several chunks on each device, or one where it has few rows
pytestmark = pytest.mark.usefixtures("on_a_cpu", "exact_products")
reductions = pytest.mark.parametrize("reduction", ["none", "mean"])


def step(x, w, b, label, scale, reduction, max_bytes=None):
    """A number of the losses, or of log-probabilities and entropies of tokens, and its gradients."""

    def loss(x, w, b, scale):
        options = {"bias": b, "max_bytes": max_bytes}
        if reduction == "tokens":
            options |= {"temperature": scale, "return_entropy": True}
            found = jk.linear_token_log_probs(x, w, label, **options)
        else:
            options |= {"label_smoothing": 0.1, "z_loss": 0.01, "reduction": reduction}
            found = jk.linear_cross_entropy(x, w, label, **options)
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(found))

    moving = (0, 1, 2, 3) if reduction == "tokens" else (0, 1, 2)
    return jax.value_and_grad(loss, moving)(x, w, b, scale)


@functools.cache
def on_one_device(reduction):
    return jax.device_get(jax.jit(step, static_argnums=5)(X, W, B, LABEL, SCALE, reduction))


def sharded(mesh, rows, classes):
    """The operands, their rows and classes spread over mesh axes."""
    specs = (P(*rows), P(None, classes), P(classes), P(*rows), P(*rows))
    return [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip((X, W, B, LABEL, SCALE), specs, strict=True)
    ]


def reduced(text):
    """Shapes of all that all-reduces give, in HLO."""
    results = re.findall(r"= (\(?\w+\[.*?) all-reduce(?:-start)?\(", text)
    shapes = [shape for result in results for shape in re.findall(r"\w+\[([\d,]*)\]", result)]
    return {tuple(int(n) for n in shape.split(",") if n) for shape in shapes}


def assert_same(got, reduction):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(on_one_device(reduction)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(b)))


# Mesh axes of rows and of classes, and shapes that all-reduces have.
LAYOUTS = [
    (("a",), None, {(12, 64)}),
    ((("a", "b"),), None, {(12, 64)}),
    (("a", "b"), None, {(12, 64)}),
    ((), ("a", "b"), {(16, 8, 12)}),
    (("a",), "b", {(12, 32), (4, 8, 12)}),
]


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("reduction", ["none", "mean", "tokens"])
@pytest.mark.parametrize("max_bytes", [None, BOUND], ids=["whole", "chunks"])
@pytest.mark.parametrize(("rows", "classes", "shapes"), LAYOUTS, ids=str)
def test_shardings(reduction, max_bytes, rows, classes, shapes, mesh):
    """Devices that share rows sum the gradients of w and the bias. Devices that share classes exchange
    a maximum, six sums and dx per row: no logits, and nothing of w's size."""
    given = sharded(mesh, rows, classes)
    program = functools.partial(step, reduction=reduction, max_bytes=max_bytes)
    compiled = jax.jit(program).lower(*given).compile()
    text, got = compiled.as_text(), compiled(*given)
    assert set(hlo.collectives(text)) == {"all-reduce"}, text
    found = reduced(text)
    assert shapes <= found, text
    if classes is None:
        assert found <= {(), (1,), (12, 64), (64,)}, text
    else:
        assert {shape[-1] for shape in found if shape} <= {1, 6, 12, 32}, text
        assert not ({W.shape, X.shape} - shapes) & found, text
    assert_same(got, reduction)
    dw, db = got[1][1:3]
    assert dw.sharding.is_equivalent_to(NamedSharding(mesh, P(None, classes)), 2)
    assert db.sharding.is_equivalent_to(NamedSharding(mesh, P(classes)), 1)


@reductions
@pytest.mark.parametrize("spec", [P("a"), P(None, "a")], ids=str)
def test_weights_that_share_the_axis_of_rows_are_gathered(reduction, spec, mesh):
    """As fully sharded training has them."""
    x, label = (jax.device_put(a, NamedSharding(mesh, P("a"))) for a in (X, LABEL))
    w = jax.device_put(W, NamedSharding(mesh, spec))
    given = (x, w, B, label, SCALE)
    program = jax.jit(functools.partial(step, reduction=reduction)).lower(*given).compile()
    assert "all-gather" in hlo.collectives(program.as_text())
    assert_same(program(*given), reduction)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes_of_sharded_classes(dtype, mesh):
    with jax.enable_x64(dtype == "float64"):
        given = sharded(mesh, ("a",), "b")
        given[:2] = (jax.device_put(a.astype(dtype), a.sharding) for a in given[:2])
        got = jax.jit(functools.partial(step, reduction="mean"))(*given)
        alone = [jnp.asarray(np.asarray(a)) for a in given]
        want = jax.jit(functools.partial(step, reduction="mean"))(*alone)
    assert got[1][0].dtype == dtype
    tolerance = {"float64": 1e-6, "float16": 3e-3, "bfloat16": 3e-2}[dtype]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.max(np.abs(b)))


@reductions
def test_forward_mode_of_sharded_rows_sends_numbers_alone(reduction, mesh):
    given = sharded(mesh, ("a",), None)

    def tangent(x, w, b, label, scale):
        loss = functools.partial(jk.linear_cross_entropy, reduction=reduction)
        moved = lambda x, w: jnp.sum(loss(x, w, label, bias=b))  # noqa: E731
        return jax.jvp(moved, (x, w), (jnp.sin(x), jnp.cos(w)))[1]

    program = jax.jit(tangent).lower(*given).compile()
    shapes = reduced(program.as_text())
    allowed = {(), (1,)} if reduction == "none" else {(), (1,), (12, 64)}
    assert set(hlo.collectives(program.as_text())) == {"all-reduce"}
    assert shapes <= allowed
    np.testing.assert_allclose(program(*given), tangent(X, W, B, LABEL, SCALE), rtol=1e-5)
