"""Padded tables of linear losses: the values, the copies in a program, and their memory.

Only GPUs pad, because cuBLAS is slow on rows that do not begin at multiples of 16 bytes. Here CPUs pad too.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from linear_losses import PLATFORM
from memory_stats import SLACK

import jaxkernels as jk
from jaxkernels._linear_loss import plan

RNG = np.random.default_rng(0)
X = RNG.standard_normal((512, 9)).astype(np.float32)
W = RNG.standard_normal((9, 130)).astype(np.float32)
B = RNG.standard_normal(130).astype(np.float32)
LABEL = RNG.integers(-1, 130, 512).astype(np.int32)
SCALE = RNG.uniform(0.5, 1.5, 512).astype(np.float32)


@pytest.fixture
def padding(monkeypatch):
    """Keeps programs from padding, until the function is called. Then chunks may be small, too."""
    monkeypatch.setattr(plan, "_PADDED_PLATFORMS", ())

    def pad():
        monkeypatch.setattr(plan, "_PADDED_PLATFORMS", ("cpu", "cuda"))
        monkeypatch.setattr(plan, "_LEAST_PADDED_ROWS", 1)
        monkeypatch.setattr(plan, "_LEAST_CHUNK_ROWS", 1)

    return pad


def step(x, w, bias, label, scale, options):
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
    label = np.append(LABEL[:-1], 130 if case == "none" else 3)
    given, options = (X, W, B, label, SCALE), {**CASES[case], "max_bytes": max_bytes}
    if case == "where":
        label[label % 3 == 0] = -1
    run = lambda: jax.jit(functools.partial(step, options=options))  # noqa: E731
    want = jax.device_get(run()(*given))
    padding()
    if devices > 1:
        mesh = jax.make_mesh(
            (devices,), ("a",), (jax.sharding.AxisType.Auto,), devices=cpu_devices[:2]
        )
        put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))  # noqa: E731
        given = (put(X), put(W, None, "a"), put(B, "a"), put(label), put(SCALE))
    program = run().lower(*given).compile()
    assert re.search(r"f32\[(64,128|64,192|192,64|128,64)\]", program.as_text()), (
        "nothing is padded"
    )
    for a, b in zip(jax.tree.leaves(program(*given)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(np.nan_to_num(b))))


def loss_of(bound, reduction):
    return lambda x, w, label: jnp.sum(
        jk.linear_cross_entropy(x, w, label, reduction=reduction, max_bytes=bound)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bound", [None, 7_000_000], ids=["whole", "chunks"])
@pytest.mark.parametrize("moving", [(0, 1), (0,)], ids=["both", "x"])
@pytest.mark.parametrize("classes", [3999, 4032])
def test_a_program_pads_w_once(classes, bound, dtype, moving, padding):
    """Neither once a chunk, nor if rows of w are aligned; the plan counts the copies."""
    padding()
    x, w = jnp.zeros((1024, 64), dtype), jnp.zeros((64, classes), dtype)
    label = jnp.zeros(1024, jnp.int32)
    program = jax.jit(jax.value_and_grad(loss_of(bound, "mean"), moving)).lower(x, w, label)
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
