"""Losses of a linear layer on many devices, and of padded tables: values, copies in a program, memory."""

import functools
import re

import hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from linear_losses import PLATFORM
from memory_stats import SLACK

import jaxkernels as jk
from jaxkernels._linear_loss import plan

RNG = np.random.default_rng(0)
X = RNG.standard_normal((16, 8, 12)).astype(np.float32)
W = RNG.standard_normal((12, 64)).astype(np.float32)
B = RNG.standard_normal(64).astype(np.float32)
SHOWN = np.arange(64) % 9 > 0
LABEL = RNG.choice([-1, *np.flatnonzero(SHOWN)], (16, 8)).astype(np.int32)
SCALE = RNG.uniform(0.5, 1.5, (16, 8)).astype(np.float32)
BOUND = 30_000  # in bytes: several chunks on each device, or one where it has few rows
on_cpus = pytest.mark.usefixtures("on_a_cpu", "exact_products")
reductions = pytest.mark.parametrize("reduction", ["none", "mean"])


def step(x, w, b, label, scale, reduction, max_bytes=None):
    """One number, made of losses or of log-probabilities and entropies of tokens, and its gradients."""

    def loss(x, w, b, scale):
        options = {"bias": b, "max_bytes": max_bytes, "where": SHOWN}
        if reduction == "tokens":
            options |= {"temperature": scale, "logit_soft_cap": 3.0, "return_entropy": True}
            found = jk.linear_token_log_probs(x, w, label, **options)
        else:
            options |= {"label_smoothing": 0.1, "z_loss": 0.01}
            options |= {"weights": SCALE, "reduction": reduction}
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


def assert_close(got, want, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.max(np.abs(b)))


# Mesh axes of rows and of classes, and shapes that all-reduces have.
LAYOUTS = [
    (("a",), None, {(12, 64)}),
    ((("a", "b"),), None, {(12, 64)}),
    (("a", "b"), None, {(12, 64)}),
    ((), ("a", "b"), {(16, 8, 12)}),
    (("a",), "b", {(12, 32), (4, 8, 12)}),
]


@on_cpus
@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("reduction", ["none", "mean", "tokens"])
@pytest.mark.parametrize("max_bytes", [None, BOUND], ids=["whole", "chunks"])
@pytest.mark.parametrize(("rows", "classes", "shapes"), LAYOUTS, ids=str)
def test_shardings(reduction, max_bytes, rows, classes, shapes, mesh):
    """Devices that share rows sum the gradients of w and the bias. Devices that share classes exchange
    a maximum, six sums, dx, and derivatives by two scales per row: no logits, and nothing of w's size."""
    given = sharded(mesh, rows, classes)
    program = functools.partial(step, reduction=reduction, max_bytes=max_bytes)
    compiled = jax.jit(program).lower(*given).compile()
    text, got = compiled.as_text(), compiled(*given)
    assert set(hlo.collectives(text)) == {"all-reduce"}, text
    found = set(hlo.reduced_shapes(text, dropped=""))
    assert shapes <= found, text
    if classes is None:
        assert found <= {(), (1,), (12, 64), (64,)}, text
    else:
        assert {shape[-1] for shape in found if shape} <= {1, 2, 6, 12, 32}, text
        assert not ({W.shape, X.shape} - shapes) & found, text
    assert_close(got, on_one_device(reduction))
    dw, db = got[1][1:3]
    assert dw.sharding.is_equivalent_to(NamedSharding(mesh, P(None, classes)), 2)
    assert db.sharding.is_equivalent_to(NamedSharding(mesh, P(classes)), 1)


@on_cpus
@reductions
@pytest.mark.parametrize("spec", [P("a"), P(None, "a")], ids=str)
def test_weights_that_share_the_axis_of_rows_are_gathered(reduction, spec, mesh):
    """As fully sharded training has them."""
    x, label = (jax.device_put(a, NamedSharding(mesh, P("a"))) for a in (X, LABEL))
    w = jax.device_put(W, NamedSharding(mesh, spec))
    given = (x, w, B, label, SCALE)
    program = jax.jit(functools.partial(step, reduction=reduction)).lower(*given).compile()
    assert "all-gather" in hlo.collectives(program.as_text())
    assert_close(program(*given), on_one_device(reduction))


@on_cpus
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes_of_sharded_classes(dtype, mesh):
    with jax.enable_x64(dtype == "float64"):
        given = sharded(mesh, ("a",), "b")
        given[:2] = (jax.device_put(a.astype(dtype), a.sharding) for a in given[:2])
        got = jax.jit(functools.partial(step, reduction="mean"))(*given)
        alone = [jnp.asarray(np.asarray(a)) for a in given]
        want = jax.jit(functools.partial(step, reduction="mean"))(*alone)
    assert got[1][0].dtype == dtype
    assert_close(got, want, {"float64": 1e-6, "float16": 3e-3, "bfloat16": 3e-2}[dtype])


@on_cpus
@reductions
def test_forward_mode_of_sharded_rows_sends_numbers_alone(reduction, mesh):
    given = sharded(mesh, ("a",), None)

    def tangent(x, w, b, label, scale):
        loss = functools.partial(jk.linear_cross_entropy, reduction=reduction)
        moved = lambda x, w: jnp.sum(loss(x, w, label, bias=b))  # noqa: E731
        return jax.jvp(moved, (x, w), (jnp.sin(x), jnp.cos(w)))[1]

    program = jax.jit(tangent).lower(*given).compile()
    shapes = set(hlo.reduced_shapes(program.as_text(), dropped=""))
    allowed = {(), (1,)} if reduction == "none" else {(), (1,), (12, 64)}
    assert set(hlo.collectives(program.as_text())) == {"all-reduce"}
    assert shapes <= allowed
    np.testing.assert_allclose(program(*given), tangent(X, W, B, LABEL, SCALE), rtol=1e-5)


# Only GPUs pad tables, because cuBLAS is slow on rows that do not begin at multiples of 16 bytes. Here CPUs pad too.
@pytest.fixture
def padding(monkeypatch):
    """Keeps programs from padding, until the function is called. Then chunks may be small, too."""
    monkeypatch.setattr(plan, "_PADDED_PLATFORMS", ())

    def pad():
        monkeypatch.setattr(plan, "_PADDED_PLATFORMS", ("cpu", "cuda"))
        monkeypatch.setattr(plan, "_LEAST_PADDED_ROWS", 1)
        monkeypatch.setattr(plan, "_LEAST_CHUNK_ROWS", 1)

    return pad


def all_of(x, w, bias, label, scale, options):
    """The losses, with their gradients and tangents."""
    options = {"temperature": scale, "label_smoothing": 0.1, "z_loss": 0.01, **options}
    w = w.T if options.get("trans_w") else w

    def loss(x, w, bias, scale):
        options["temperature"] = scale
        return jk.linear_cross_entropy(x, w, label, bias=bias, **options)

    operands = (x, w, bias, scale)
    value, vjp = jax.vjp(loss, *operands)
    tangent = jax.jvp(loss, operands, tuple(map(jnp.cos, operands)))[1]
    return value, vjp(jnp.sin(1 + value)), tangent


CASES = {
    "none": {},
    "mean": {"reduction": "mean"},
    "where": {"where": np.arange(130) % 3 > 0, "logit_soft_cap": 3.0, "reduction": "mean"},
    "cap": {"logit_soft_cap": 3.0, "trans_w": True},
    "cap mean": {"logit_soft_cap": 3.0, "reduction": "mean"},
}


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("max_bytes", [None, 800_000], ids=["whole", "chunks"])
@pytest.mark.parametrize("devices", [1, 2])
def test_padding_changes_no_value(case, max_bytes, devices, padding, cpu_devices, exact_products):
    """A label beyond the classes gives NaN, in the padding too; shards of the vocabulary are padded alone."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(n).astype(np.float32) for n in ((512, 9), (9, 130), 130))
    label = np.append(rng.integers(-1, 130, 511), 130 if case == "none" else 3).astype(np.int32)
    scale = rng.uniform(0.5, 1.5, 512).astype(np.float32)
    given, options = (x, w, b, label, scale), {**CASES[case], "max_bytes": max_bytes}
    if case == "where":
        label[label % 3 == 0] = -1
    run = lambda: jax.jit(functools.partial(all_of, options=options))  # noqa: E731
    want = jax.device_get(run()(*given))
    padding()
    if devices > 1:
        mesh = jax.make_mesh((devices,), ("a",), (AxisType.Auto,), devices=cpu_devices[:2])
        put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))  # noqa: E731
        given = (put(x), put(w, None, "a"), put(b, "a"), put(label), put(scale))
    program = run().lower(*given).compile()
    assert re.search(r"f32\[(64,128|64,192|192,64|128,64)\]", program.as_text()), "no padding"
    for a, b in zip(jax.tree.leaves(program(*given)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(np.nan_to_num(b))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bound", [None, 7_000_000], ids=["whole", "chunks"])
@pytest.mark.parametrize("moving", [(0, 1), (0,)], ids=["both", "x"])
@pytest.mark.parametrize("classes", [3999, 4032])
def test_a_program_pads_w_once(classes, bound, dtype, moving, padding):
    """Neither once a chunk, nor if rows of w are aligned; the plan counts the copies."""
    padding()
    x, w = jnp.zeros((1024, 64), dtype), jnp.zeros((64, classes), dtype)
    label = jnp.zeros(1024, jnp.int32)
    mean = functools.partial(jk.linear_cross_entropy, reduction="mean", max_bytes=bound)
    program = jax.jit(jax.value_and_grad(mean, moving)).lower(x, w, label)
    pads = re.findall(r"stablehlo.pad .*-> tensor<64x4032x", program.as_text())
    assert len(pads) == (classes == 3999)
    about = {"w_is_constant": moving == (0,), "platform": PLATFORM, "max_bytes": bound}
    found = jk.plan_linear_cross_entropy(x.shape, w.shape, dtype, **about)
    assert found.chunks > 1 or not bound
    is_padded = classes == 3999
    assert (found.pad_classes > 0, found.table_bytes > 0) == (is_padded, is_padded)
    if dtype == "float32" and (PLATFORM == "cuda" or jax.__version_info__ >= (0, 11)):
        used = program.compile().memory_analysis().temp_size_in_bytes
        assert used <= found.total_bytes + SLACK


def test_plans_pad_where_it_pays():
    """16-byte rows, few rows and a bound without room for a copy of w leave w as it is."""
    plan_of = functools.partial(jk.plan_linear_cross_entropy, device="h100")
    padded = plan_of(8192, 2047, 50257, "bfloat16")
    assert (padded.pad_features, padded.pad_classes) == (1, 47)
    assert padded.table_bytes == 2 * 2 * 2048 * 50304
    assert padded.logits_bytes == 2 * 8192 * 50304
    several = plan_of(65536, 2047, 50257, "bfloat16")
    assert several.chunks > 1
    assert several.table_bytes == 2 * 2048 * 50304
    for sizes in ((8192, 2048, 50264), (255, 2047, 50257)):
        assert plan_of(*sizes, "bfloat16").table_bytes == 0
    bound = 250_000_000
    small = plan_of(8192, 2048, 50257, "bfloat16", w_is_constant=True, max_bytes=bound)
    assert small.table_bytes == 0
    assert small.total_bytes <= bound
