"""Cross entropy of logits on many devices, in exported programs, and with buffers that are given away."""

import functools
import re

import cases
import hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rows_of_losses import checked_gradient, checked_loss

import jaxkernels as jk

X = cases.logits("normal", 16 * 8, 24, "float32").reshape(16, 8, 24)
LABEL = np.random.default_rng(0).integers(0, 24, (16, 8)).astype(np.int32)
LABEL[::3, 1] = -1
on_a_cpu = pytest.mark.usefixtures("on_a_cpu")
OPTIONS = {"label_smoothing": 0.1, "z_loss": 0.01}


def losses(x, label):
    return jk.cross_entropy(x, label, **OPTIONS)


def mean(x, label):
    return jk.cross_entropy(x, label, reduction="mean", **OPTIONS)


def gradient(x, label):
    weight = jnp.arange(1.0, 9)
    return jax.grad(lambda x: jnp.sum(losses(x, label) * weight))(x)


def gradient_of_mean(x, label):
    return jax.grad(mean)(x, label)


def entropies(x, label):
    value = functools.partial(jk.token_log_probs, return_entropy=True)
    return value(x, label)[1], jax.grad(lambda x: jnp.sum(jnp.sin(value(x, label)[1])))(x)


def mapped(x, label):
    return jax.vmap(losses, 1, 1)(x, label)


def plain(x, label):
    """Without what needs all sums of a row."""
    value, pull = jax.vjp(lambda x: jk.cross_entropy(x, label, z_loss=0.01), x)
    return value, pull(jnp.cos(value))


PROGRAMS = (losses, mean, gradient, gradient_of_mean, entropies, mapped, plain)
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)


@functools.cache
def on_one_device(program):
    return jax.device_get(jax.jit(program)(X, LABEL))


def sharded(mesh, spec):
    rows = P(*(*spec, None, None)[:2])
    return jax.device_put(X, NamedSharding(mesh, spec)), jax.device_put(
        LABEL, NamedSharding(mesh, rows)
    )


def assert_same(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=4e-6, atol=4e-6)


@on_a_cpu
@each_program
@pytest.mark.parametrize("spec", [P(("a", "b")), P("a", "b")], ids=str)
def test_sharded_rows_send_nothing_but_the_mean(program, spec, mesh):
    """Every device runs the kernel on its own rows. A mean sums a number of each device, and its weights."""
    compiled = jax.jit(program).lower(*sharded(mesh, spec)).compile()
    text = compiled.as_text()
    found = hlo.collectives(text)
    if program in (mean, gradient_of_mean):
        assert set(found) == {"all-reduce"}, text
        assert all(shape in ((), (1,)) for shape in scalar_shapes(text)), text
    else:
        assert not found, text
    assert_same(compiled(*sharded(mesh, spec)), on_one_device(program))


def scalar_shapes(text):
    """Shapes of the results of all-reduces, of which none has a dimension that counts rows or classes."""
    found = re.findall(r"= \w+\[([\d,]*)\]\S* all-reduce(?:-start)?\(", text)
    return [tuple(int(n) for n in shape.split(",") if n) for shape in found]


@on_a_cpu
@each_program
@pytest.mark.parametrize("spec", [P("a", None, "b"), P(None, None, ("a", "b"))], ids=str)
def test_sharded_classes_are_distributed(program, spec, mesh):
    """Of each row a maximum and three or six sums cross the network, and nothing of the size of the logits."""
    compiled = jax.jit(program).lower(*sharded(mesh, spec)).compile()
    text = compiled.as_text()
    assert set(hlo.collectives(text)) == {"all-reduce"}, text
    for shape in scalar_shapes(text):
        assert shape == () or shape[-1] in (1, 3 if program is plain else 6), text
    assert_same(compiled(*sharded(mesh, spec)), on_one_device(program))


@on_a_cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_values_of_sharded_classes(dtype, cpu_devices):
    """Within the bounds of one device's kernels; devices that see nothing but -inf, far from the maximum, NaN."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)
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


@on_a_cpu
def test_classes_that_do_not_divide_are_gathered(cpu_devices):
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)
    x = jax.device_put(X[:, 0], NamedSharding(mesh, P()))
    program = jax.jit(lambda x, label: gradient_of_mean(x[:, :23], label))
    split = jax.device_put(X[:, 0], NamedSharding(mesh, P(None, "a")))
    label = LABEL[:, 0] % 23
    np.testing.assert_allclose(program(split, label), program(x, label), rtol=4e-6, atol=1e-7)


@on_a_cpu
def test_shard_map(cpu_devices):
    """Of logits that vary over devices, and of replicated ones with labels that vary."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)
    split, whole = P("a"), P()

    def program(f):
        def body(x, same_x, label):
            y, dx = jax.value_and_grad(lambda x: f(x, label, "mean"))(x)
            tangent = jax.jvp(lambda x: f(x, label, "none"), (x,), (jnp.cos(x),))[1]
            of_same = jax.grad(lambda x: f(x, label[0], "sum"))(same_x)
            return y[None], dx, tangent, of_same

        specs = {"in_specs": (split, whole, split), "out_specs": (split, split, split, whole)}
        return jax.jit(jax.shard_map(body, mesh=mesh, **specs))

    def ours(x, label, reduction):
        return jk.cross_entropy(x, label, reduction=reduction)

    def plain(x, label, reduction):
        return jk.cross_entropy(x, label, reduction=reduction, implementation="xla")

    got, want = (program(f)(X, X[0], LABEL) for f in (ours, plain))
    assert_same(got, want)


@on_a_cpu
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_specs_of_the_results(kind, cpu_devices):
    """A loss for each row is sharded as rows are, and a gradient as the logits."""
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind,) * 2, devices=cpu_devices)
    x, label = sharded(mesh, P("a", None, "b"))
    loss, dx = jax.jit(lambda x, label: (losses(x, label), gradient(x, label)))(x, label)
    assert loss.sharding.is_equivalent_to(NamedSharding(mesh, P("a")), loss.ndim)
    assert dx.sharding.is_equivalent_to(NamedSharding(mesh, P("a", None, "b")), dx.ndim)


def test_export():
    """An exported program has the kernels; its rows may be left open."""
    target = jax.export.DisabledSafetyCheck.custom_call("jaxkernels_rows")
    (rows,) = jax.export.symbolic_shape("rows")
    x = jax.ShapeDtypeStruct((rows, 24), jnp.float32)
    label = jax.ShapeDtypeStruct((rows,), jnp.int32)
    value = jax.jit(jax.value_and_grad(mean))
    exported = jax.export.export(value, disabled_checks=[target])(x, label)
    again = jax.export.deserialize(exported.serialize())
    for n in (3, 8):
        got = again.call(X[0, :n], LABEL[0, :n])
        assert_same(got, value(X[0, :n], LABEL[0, :n]))


def test_donation():
    x = jnp.asarray(X)
    want = np.asarray(gradient_of_mean(x, LABEL))
    given = jnp.copy(x)
    program = jax.jit(jax.value_and_grad(mean), donate_argnums=0)
    _, dx = program(given, LABEL)
    assert given.is_deleted()
    np.testing.assert_allclose(dx, want, rtol=1e-6, atol=1e-8)


def test_a_mean_keeps_no_array_but_its_gradient():
    """Memory analysis: besides the logits and their gradient, a few numbers of each row."""
    x = jax.ShapeDtypeStruct((512, 4096), jnp.float32)
    label = jax.ShapeDtypeStruct((512,), jnp.int32)
    compiled = jax.jit(jax.value_and_grad(mean)).lower(x, label).compile()
    analysis = compiled.memory_analysis()
    assert analysis.temp_size_in_bytes < 512 * 4096
    assert analysis.output_size_in_bytes <= 512 * 4096 * 4 + 64
