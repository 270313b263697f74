"""Memory of cross entropy: logits that the caller gives away become their gradient."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk

reductions = pytest.mark.parametrize("reduction", ["none", "mean"])
tiers = pytest.mark.parametrize("tier", cases.TIERS)
# Kernels of a GPU apply these; on a CPU plain JAX does, with arrays of the logits' size.
SCALES = [{"temperature": 2.0}, {"logit_soft_cap": 30.0}] if cases.ON_GPU else []
# The most temporary memory, relative to the logits: a few numbers per row, no second array.
MOST = 0.05


def value_and_gradient(reduction, tier=None, **options):
    def loss(x, label):
        losses = jk.cross_entropy(x, label, reduction=reduction, tier=tier, **options)
        return jnp.sum(losses)

    return jax.value_and_grad(loss)


def part_of_logits(x, compiled):
    """The temporary memory of a program, as a part of the bytes of the logits."""
    return compiled.memory_analysis().temp_size_in_bytes / x.nbytes


@reductions
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, *SCALES], ids=str)
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_no_second_array_of_their_size(dtype, options, reduction):
    with cases.x64(dtype):
        x, label = jnp.zeros((256, 4096), dtype), jnp.zeros(256, jnp.int32)
        program = jax.jit(value_and_gradient(reduction, **options), donate_argnums=0)
        lowered = program.lower(x, label)
        assert "output_operand_alias" in lowered.as_text()
        compiled = lowered.compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= x.nbytes
    assert part_of_logits(x, compiled) < MOST


@reductions
def test_logits_that_are_kept_are_not_copied(reduction):
    """A kernel that had to write over them would read a copy."""
    x, label = jnp.zeros((256, 4096)), jnp.zeros(256, jnp.int32)
    lowered = jax.jit(value_and_gradient(reduction)).lower(x, label)
    assert "output_operand_alias" not in lowered.as_text()
    assert part_of_logits(x, lowered.compile()) < MOST


@tiers
@reductions
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_the_same_bits_in_place(dtype, reduction, tier):
    """Rows of every alignment, whose packs neighbours read while they are written."""
    operations = ("cross_entropy_fwd", "cross_entropy_fwd_grad")
    lengths = [
        cols
        for cols in (3, 37, 128, 513, 1030, 4099, 20001)
        if not tier or all(cases.plan_or_none((40, cols), dtype, of, tier) for of in operations)
    ]
    xs = [cases.logits("normal", 40, cols, dtype) for cols in lengths]
    label = np.arange(40) % 4 - 1  # -1 to 2

    def program(xs):
        return [value_and_gradient(reduction, tier)(x, label) for x in xs]

    with cases.x64(dtype):
        want = jax.device_get(jax.jit(program)(xs))
        given = [jax.device_put(x, may_alias=False) for x in xs]
        got = jax.device_get(jax.jit(program, donate_argnums=0)(given))
    assert all(x.is_deleted() for x in given)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.tobytes() == b.tobytes()


@reductions
def test_logits_that_are_needed_again(reduction):
    """XLA copies them first."""
    x, label = cases.logits("normal", 9, 300, "float32"), jnp.arange(9)

    def program(x, label):
        (loss, dx), again = value_and_gradient(reduction)(x, label), jnp.cos(x)
        return loss, dx, again, jk.cross_entropy(x, label, label_smoothing=0.1)

    want = jax.jit(program)(x, label)
    got = jax.jit(program, donate_argnums=0)(jax.device_put(x, may_alias=False), label)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("on_a_cpu")
@reductions
@pytest.mark.parametrize("spec", [P("a"), P(None, "a")], ids=str)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_on_many_devices(kind, spec, reduction, cpu_devices):
    """Whole rows are overwritten; of spread classes only the values are looked at."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(kind,), devices=cpu_devices)
    x = cases.logits("normal", 256, 1024, "float32")
    whole, label = jax.device_put(x, NamedSharding(mesh, spec)), np.arange(256)
    label = jax.device_put(label, NamedSharding(mesh, P(spec[0])))
    function = value_and_gradient(reduction)
    want = jax.jit(function)(whole, label)
    program = jax.jit(function, donate_argnums=0).lower(whole, label).compile()
    if spec[0]:
        assert part_of_logits(x[:32], program) < MOST
    for a, b in zip(program(whole, label), want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert whole.is_deleted()


def test_a_scan_gives_nothing_away():
    """Its body is a function within the program."""
    x, label = cases.logits("normal", 6, 5 * 40, "float32").reshape(5, 6, 40), jnp.arange(6)

    def program(x):
        step = functools.partial(value_and_gradient("mean"), label=label)
        return jax.lax.scan(lambda carry, x: (carry, step(x)), None, x)[1]

    got = jax.jit(program, donate_argnums=0)(jax.device_put(x, may_alias=False))
    for a, b in zip(got, jax.jit(program)(x), strict=True):
        np.testing.assert_array_equal(a, b)
