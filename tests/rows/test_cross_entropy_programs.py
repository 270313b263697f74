"""Cross entropy of logits on many devices, its kernels, and derivatives that it alone has."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rows_of_losses import checked_gradient, checked_loss

import jaxkernels as jk

X = cases.logits("normal", 16 * 8, 24, "float32").reshape(16, 8, 24)
LABEL = np.random.default_rng(0).integers(0, 24, (16, 8)).astype(np.int32)
LABEL[::3, 1] = -1


def losses(x, label=LABEL, reduction="none", **options):
    return jk.cross_entropy(
        x, label, label_smoothing=0.1, z_loss=0.01, reduction=reduction, **options
    )


def mean(x, label=LABEL, **options):
    return losses(x, label, "mean", **options)


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_values_of_sharded_classes(dtype, cpu_devices):
    """Within the bounds of one device's kernels; devices that see nothing but -inf, far from the maximum, NaN."""
    mesh = jax.make_mesh(
        (8,), ("a",), axis_types=(jax.sharding.AxisType.Auto,), devices=cpu_devices
    )
    x = cases.logits("normal", 11, 64, dtype)
    x[1, :56], x[1, 56:] = -np.inf, -300
    x[2, 5] = np.nan
    x[5, :8] = -np.inf
    x[6, :8], x[6, 8:16] = 300, -300
    x[7] = -200
    x[8, 1] = 100
    label = np.array([0, 60, 1, 63, -1, 9, 3, 5, 1, 64, 8], np.int32)
    columns, whole = NamedSharding(mesh, P(None, "a")), NamedSharding(mesh, P())
    with cases.x64(dtype):
        given = jax.device_put(x, columns), jax.device_put(label, whole)
        loss = jax.jit(jk.cross_entropy)(*given)
        dx = jax.jit(jax.grad(lambda x, label: jnp.sum(jk.cross_entropy(x, label))))(*given)
        of_sum = functools.partial(jk.cross_entropy, reduction="sum")
        both = jax.jit(jax.grad(of_sum))(*given)
    checked_loss(loss, x, label)
    checked_gradient(dx, x, label)
    if dtype != "float16":
        checked_gradient(both, x, label)


@pytest.mark.parametrize("mode", [jax.jacrev, jax.jacfwd])
@pytest.mark.parametrize("options", [{}, {"logit_soft_cap": 3.0}], ids=str)
@pytest.mark.parametrize("hidden", [-np.inf, np.nan])
def test_derivatives_of_a_temperature_with_hidden_classes(mode, options, hidden):
    """They are those of the classes that are seen."""
    label = np.array([0, 1, 3])
    x = X[0, :3, :7]
    seen = np.arange(x.shape[-1]) < 4
    where = None if hidden == -np.inf and not options else seen

    def loss(x, temperature, where=None):
        found = jk.cross_entropy(
            *(x, label), where=where, temperature=temperature, reduction="mean", **options
        )
        return jnp.sum(found)

    of_hidden = functools.partial(loss, where=where)
    of_seen = jax.jit(mode(loss, (0, 1)))(x[:, :4], 0.7)
    of_all = jax.jit(mode(of_hidden, (0, 1)))(np.where(seen, x, hidden), 0.7)
    np.testing.assert_allclose(of_all[0][:, :4], of_seen[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(of_all[0][:, 4:], 0)
    np.testing.assert_allclose(of_all[1], of_seen[1], rtol=1e-5, atol=1e-6)


def kernels_in(function, *arguments):
    text = str(jax.make_jaxpr(function)(*arguments))
    names = ("fwd", "fwd_grad", "grad", "jvp")
    return {name: text.count(f"jaxkernels_cross_entropy_{name}[") for name in names}


def test_a_mean_of_float16_makes_no_gradient_with_its_loss():
    """It would be rounded before it is scaled."""
    assert kernels_in(jax.grad(mean), X.astype(np.float16))["fwd_grad"] == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cotangent_of_one_costs_nothing(dtype):
    """XLA multiplies the gradient of a mean by nothing, and converts it to nothing."""
    x = jnp.zeros((4, 6, 70), dtype)
    label = jnp.zeros((4, 6), int)
    value = jax.jit(jax.value_and_grad(mean))
    lines = value.lower(x, label).compile().as_text().splitlines()
    made = [line for line in lines if "[4,6,70]" in line.split("=")[-1].split("(")[0]]
    assert sum("custom-call" in line for line in lines) == 1
    assert not [
        line for line in made if "fusion" in line or "multiply" in line or "convert" in line
    ]


def test_a_loss_that_is_infinite_has_a_tangent():
    """Weights that do not vary have a zero tangent, which must not multiply the infinite loss."""
    x = jnp.array([[0.0, -jnp.inf, 1.0], [1.0, 2.0, 3.0]])
    for reduction in ("none", "mean", "sum"):
        loss = functools.partial(jk.cross_entropy, labels=np.array([1, 0]), reduction=reduction)
        y, tangent = jax.jvp(loss, (x,), (jnp.ones_like(x).at[0, 1].set(0),))
        assert np.isinf(y).any()
        assert np.isfinite(tangent).all()


def test_derivatives_of_weights_alone_make_no_gradient():
    weights = jnp.ones(LABEL.shape)
    counts = kernels_in(jax.grad(lambda w: mean(X, weights=w)), weights)
    assert counts == {"fwd": 1, "fwd_grad": 0, "grad": 0, "jvp": 0}
