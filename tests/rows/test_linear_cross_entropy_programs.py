"""The cross entropy of a linear layer on many devices, and under shard_map."""

import functools
import re

import hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk

RNG = np.random.default_rng(0)
X = RNG.standard_normal((16, 8, 12)).astype(np.float32)
W = RNG.standard_normal((12, 64)).astype(np.float32)
B = RNG.standard_normal(64).astype(np.float32)
LABEL = RNG.integers(-1, 64, (16, 8)).astype(np.int32)
BOUND = 30_000  # in bytes: several chunks on each device, or one where it has few rows
pytestmark = [pytest.mark.usefixtures("on_a_cpu"), pytest.mark.usefixtures("exact_products")]
reductions = pytest.mark.parametrize("reduction", ["none", "mean"])
bounds = pytest.mark.parametrize("max_bytes", [None, BOUND], ids=["whole", "chunks"])


def step(x, w, b, label, reduction, max_bytes=None, **options):
    """A number of the losses, and its gradients."""

    def loss(x, w, b):
        options_of_all = {"reduction": reduction, "max_bytes": max_bytes, "z_loss": 0.01, **options}
        return jnp.sum(
            jnp.sin(
                jk.linear_cross_entropy(x, w, label, bias=b, label_smoothing=0.1, **options_of_all)
            )
        )

    return jax.value_and_grad(loss, (0, 1, 2))(x, w, b)


@functools.cache
def on_one_device(reduction):
    return jax.device_get(jax.jit(step, static_argnums=4)(X, W, B, LABEL, reduction))


def sharded(mesh, rows, classes):
    """The operands, their rows and classes spread over mesh axes."""
    specs = (P(*rows), P(None, classes), P(classes), P(*rows))
    return [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in zip((X, W, B, LABEL), specs, strict=True)
    ]


def compiled(mesh, rows, classes, reduction, max_bytes):
    given = sharded(mesh, rows, classes)
    program = jax.jit(functools.partial(step, reduction=reduction, max_bytes=max_bytes))
    found = program.lower(*given).compile()
    return found.as_text(), found(*given)


def reduced(text):
    """Shapes of all that all-reduces give, in HLO."""
    results = re.findall(r"= (\(?\w+\[.*?) all-reduce(?:-start)?\(", text)
    shapes = [shape for result in results for shape in re.findall(r"\w+\[([\d,]*)\]", result)]
    return {tuple(int(n) for n in shape.split(",") if n) for shape in shapes}


def assert_same(got, reduction):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(on_one_device(reduction)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(b)))


@reductions
@bounds
@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("rows", [("a",), (("a", "b"),), ("a", "b")], ids=str)
def test_rows_are_sharded(reduction, max_bytes, rows, mesh):
    """Nothing crosses the network but the sums of w's and the bias's gradients, and of the loss."""
    text, got = compiled(mesh, rows, None, reduction, max_bytes)
    assert set(hlo.collectives(text)) == {"all-reduce"}, text
    assert reduced(text) <= {(), (1,), (12, 64), (64,)}
    assert (12, 64) in reduced(text)
    assert_same(got, reduction)


@reductions
@bounds
def test_classes_are_sharded(reduction, max_bytes, mesh):
    """Devices exchange a maximum, six sums and dx per row: no logits, and nothing of w's size."""
    text, got = compiled(mesh, (), ("a", "b"), reduction, max_bytes)
    assert set(hlo.collectives(text)) == {"all-reduce"}, text
    assert {shape[-1] for shape in reduced(text) if shape} == {1, 6, 12}
    assert (16, 8, 12) in reduced(text)
    assert_same(got, reduction)
    dw, db = got[1][1:]
    assert dw.sharding.is_equivalent_to(NamedSharding(mesh, P(None, ("a", "b"))), 2)
    assert db.sharding.is_equivalent_to(NamedSharding(mesh, P(("a", "b"))), 1)


@reductions
@bounds
def test_both_are_sharded(reduction, max_bytes, mesh):
    """Parts of dw are summed over devices that share classes, parts of dx over those that share rows."""
    text, got = compiled(mesh, ("a",), "b", reduction, max_bytes)
    assert set(hlo.collectives(text)) == {"all-reduce"}, text
    shapes = reduced(text)
    assert {(12, 32), (4, 8, 12)} <= shapes
    assert not {(12, 64), (16, 8, 12)} & shapes
    assert_same(got, reduction)


@reductions
@pytest.mark.parametrize("spec", [P("a"), P(None, "a")], ids=str)
def test_weights_that_share_the_axis_of_rows_are_gathered(reduction, spec, mesh):
    """As fully sharded training has them."""
    x, label = (jax.device_put(a, NamedSharding(mesh, P("a"))) for a in (X, LABEL))
    w = jax.device_put(W, NamedSharding(mesh, spec))
    program = jax.jit(functools.partial(step, reduction=reduction)).lower(x, w, B, label).compile()
    assert "all-gather" in hlo.collectives(program.as_text())
    assert_same(program(x, w, B, label), reduction)


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

    def tangent(x, w, b, label):
        loss = functools.partial(jk.linear_cross_entropy, reduction=reduction)
        moved = lambda x, w: jnp.sum(loss(x, w, label, bias=b))  # noqa: E731
        return jax.jvp(moved, (x, w), (jnp.sin(x), jnp.cos(w)))[1]

    program = jax.jit(tangent).lower(*given).compile()
    shapes = reduced(program.as_text())
    allowed = {(), (1,)} if reduction == "none" else {(), (1,), (12, 64)}
    assert set(hlo.collectives(program.as_text())) == {"all-reduce"}
    assert shapes <= allowed
    np.testing.assert_allclose(program(*given), tangent(X, W, B, LABEL), rtol=1e-5)


@reductions
def test_shard_map(reduction, cpu_devices):
    """Rows that vary over devices, and w that does not: its gradient is summed by JAX."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)

    def program(**options):
        def body(x, w, label):
            loss = lambda x, w: jnp.sum(  # noqa: E731
                jk.linear_cross_entropy(x, w, label, reduction=reduction, **options)
            )
            value, gradients = jax.value_and_grad(loss, (0, 1))(x, w)
            tangent = jax.jvp(loss, (x, w), (jnp.cos(x), jnp.sin(w)))[1]
            return value[None], *gradients, tangent[None]

        rows, whole = P("a"), P()
        specs = {"in_specs": (rows, whole, rows), "out_specs": (rows, rows, whole, rows)}
        return jax.jit(jax.shard_map(body, mesh=mesh, **specs))(X, W, LABEL)

    got, want = program(max_bytes=BOUND // 2), program(implementation="xla")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(b)))
