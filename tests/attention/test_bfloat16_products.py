"""The products of attention in bfloat16 on a CPU, and that attention consists of them there."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxkernels as jk
import jaxkernels.flax
from jaxkernels._attention import bfloat16_products

# On a GPU XLA rounds each term of such small products to bfloat16.
pytestmark = pytest.mark.usefixtures("on_a_cpu")
EINSUM = {"W": "...qhd,...khd->...hqk", "X": "...hqk,...khd->...qhd", "Y": "...hqk,...qhd->...khd"}
# Batch, heads, queries, keys, depth.
B, H, Q, K, D = 2, 3, 5, 7, 4
SHAPES = {"W": (B, H, Q, K), "X": (B, Q, H, D), "Y": (B, K, H, D)}
LACKING = tuple(SHAPES)


def operands(lacking, seed=0):
    """The two that the product takes, with few bits, so that bfloat16 holds them."""
    draw = np.random.default_rng(seed)
    names = [x for x in SHAPES if x != lacking]
    return [jnp.asarray(draw.integers(-8, 9, SHAPES[x]), jnp.bfloat16) for x in names]


def truth(lacking, *given):
    return np.einsum(EINSUM[lacking], *(np.asarray(x, np.float64) for x in given))


@pytest.fixture
def on_cpu(monkeypatch):
    """As on a CPU, whatever device the tests have."""
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")


def times(lacking):
    return functools.partial(bfloat16_products.product, lacking, dtype="float32")


@pytest.mark.parametrize("lacking", LACKING)
def test_tangents_are_not_rounded(lacking):
    given, dots = operands(lacking), operands(lacking, seed=1)
    dots = [x * jnp.bfloat16(1.0078125) for x in dots]
    expected = truth(lacking, dots[0], given[1]) + truth(lacking, given[0], dots[1])
    for function in (times(lacking), jax.jit(times(lacking))):
        _, tangent = jax.jvp(function, given, dots)
        np.testing.assert_allclose(tangent, expected, rtol=1e-6)
    _, tangent = jax.jvp(lambda x: times(lacking)(x, given[1]), given[:1], dots[:1])
    np.testing.assert_allclose(tangent, truth(lacking, dots[0], given[1]), rtol=1e-6)


@pytest.mark.parametrize("in_axes", [(0, 0), (2, 1), (0, None), (None, 1)])
@pytest.mark.parametrize("lacking", LACKING)
def test_vmap(lacking, in_axes):
    given = [
        x if d is None else jnp.stack([x, -2 * x, x + 1], d)
        for x, d in zip(operands(lacking), in_axes, strict=True)
    ]
    mapped = jax.vmap(times(lacking), in_axes)
    found = mapped(*given)
    for i in range(3):
        one = [x if d is None else jnp.take(x, i, d) for x, d in zip(given, in_axes, strict=True)]
        np.testing.assert_array_equal(found[i], truth(lacking, *one))
    # A mapped dimension is one more of the batch, unless an operand lacks it.
    assert count(mapped, *given) == ((0, 1) if None in in_axes else (1, 0))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("lacking", LACKING)
def test_mapped_dimension_may_be_sharded(lacking, kind, cpu_devices):
    mesh = jax.make_mesh((4,), ("z",), axis_types=(kind,), devices=cpu_devices[:4])
    given = [jnp.stack([x, -2 * x, x + 1, -x]) for x in operands(lacking)]
    with jax.set_mesh(mesh):
        sharding = NamedSharding(mesh, PartitionSpec("z"))
        result = jax.jit(jax.vmap(times(lacking)))(*jax.device_put(given, sharding))
    assert result.sharding.is_equivalent_to(sharding, result.ndim)
    np.testing.assert_array_equal(result, truth(lacking, *given))


def attention(q, k, v):
    return jk.dot_product_attention(q, k, v, implementation="ffi")


def count(function, *given):
    text = str(jax.make_jaxpr(function)(*given))
    return text.count(f"{bfloat16_products.product_p.name}["), text.count("dot_general[")


@pytest.mark.usefixtures("on_cpu")
def test_attention_consists_of_them():
    x = jnp.ones((B, Q, H, D), jnp.bfloat16)
    assert count(attention, x, x, x) == (2, 0)
    assert count(lambda *given: jax.vjp(attention, *given)[1](x), x, x, x) == (6, 0)
    # XLA's: heads that are shared, other dtypes, a precision that the user names.
    assert count(attention, x, x[:, :, :1], x[:, :, :1])[0] == 0
    assert count(attention, *[x.astype("float16")] * 3)[0] == 0
    flax = functools.partial(jaxkernels.flax.dot_product_attention, precision="highest")
    assert count(flax, x, x, x)[0] == 0


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("heads_first", [False, True])
def test_programs_around_them_leave_their_form(heads_first):
    """The kernels contract the last dimension of the left operand, whatever transposes XLA moves."""
    turned = functools.partial(jnp.swapaxes, axis1=1, axis2=2) if heads_first else lambda x: x

    def layer(*given):
        return turned(attention(*map(turned, given)))

    def squares(*given):
        return (layer(*given).astype(jnp.float32) ** 2).sum()

    x = jnp.ones((2, 4, 64, 16) if heads_first else (2, 64, 4, 16), jnp.bfloat16)
    for function, arguments in (
        (jax.grad(squares, argnums=(0, 1, 2)), [x] * 3),
        (lambda ct, *given: jax.vjp(layer, *given)[1](ct), [x] * 4),
    ):
        text = jax.jit(function).lower(*arguments).compile().as_text()
        contracted = re.findall(r" dot\(.*lhs_contracting_dims=\{(\d+)\}", text)
        assert contracted
        assert set(contracted) == {"3"}


@pytest.mark.parametrize("lacking", LACKING)
def test_exported_for_a_gpu_they_name_their_algorithm(lacking):
    exported = jax_export.export(jax.jit(times(lacking)), platforms=["cuda"])(*operands(lacking))
    text = exported.mlir_module()
    assert "accumulation_type = f32" in text
    assert "optimization_barrier" not in text
