"""rms_norm: scales of every dtype and place, special rows, shardings. Other tests have its transformations and tiers."""

import functools

import cases
import hlo
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels.verify.truth.rows import rms_norm_scale_grad

EPSILON = 1e-3
# The fewest sums that a kernel has for each row are allowed.
check = functools.partial(oracle.check, accumulators=1, epsilon=EPSILON)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("of_scale", [None, *oracle.DTYPES])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_scales_of_other_dtypes(dtype, of_scale, offset):
    """They are added and multiplied in the dtype of computation; their gradient has their dtype."""
    wide = oracle.compute(dtype)
    with jax.enable_x64(True):
        for cols in (24, 333, 4096, 20001):
            x, t = cases.logits("normal", 5, cols, dtype), cases.cotangents(5, cols, dtype)
            scale = np.random.default_rng(cols).standard_normal(cols).astype(of_scale or wide)
            column = scale.astype(wide) + wide.type(offset) if of_scale else np.ones(cols, wide)

            def norm(x, *scale):
                options = {"scale_offset": offset} if scale else {}
                return jk.rms_norm(x, *scale, epsilon=EPSILON, **options)

            given = (x, scale) if of_scale else (x,)
            y, pull = jax.vjp(norm, *given)
            dx, *dscale = pull(jnp.asarray(t))
            check(y, "rms_norm_fwd", x, column)
            check(dx, "rms_norm_grad", x, column, t)
            for got in map(np.asarray, dscale):
                want, limit = rms_norm_scale_grad(
                    x[None], t[None], scale.dtype, epsilon=EPSILON, alike=np.array([False])
                )
                assert got.dtype == scale.dtype
                assert oracle.largest_ratio(got, want[0], limit[0])[0] <= 1


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("cols", [64, 1024, 9000, 40000])
def test_a_scale_that_begins_anywhere(dtype, cols):
    """As XLA passes a slice of the parameters of many layers, at each place within 16 bytes."""
    x, t = cases.logits("normal", 4, cols, dtype), cases.cotangents(4, cols, dtype)
    places = range(0, 16 // x.itemsize, max(1, 4 // x.itemsize))
    flat = np.random.default_rng(0).standard_normal(cols + 16).astype(dtype)

    @jax.jit
    def program(x, t, flat):
        found = []
        for place in places:
            norm = functools.partial(jk.rms_norm, scale=flat[place : place + cols], epsilon=EPSILON)
            y, pull = jax.vjp(norm, x)
            found.append((y, pull(t)[0]))
        return found

    with cases.x64(dtype):
        results = jax.device_get(program(x, t, flat))
    for place, (y, dx) in zip(places, results, strict=True):
        check(y, "rms_norm_fwd", x, flat[place : place + cols])
        check(dx, "rms_norm_grad", x, flat[place : place + cols], t)


@pytest.mark.parametrize("cols", [5, 1000, 20001])
def test_special_rows_are_those_of_plain_jax(cols):
    """Squares that overflow give 0, one infinity gives NaN in its place and 0 elsewhere, and NaN spoils its row alone."""
    x = np.array(cases.logits("normal", 6, cols, "float32"))
    x[0] *= 1e30
    x[1, 3], x[2, cols - 1] = np.inf, np.nan
    x[3], x[4] = 0, 1e-30
    got, want = (jk.rms_norm(x, implementation=name) for name in (None, "xla"))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert not np.any(got[0])
    assert np.isnan(got[1]).sum() == 1
    assert np.isnan(got[2]).all()
    assert not np.isnan(got[3:]).any()


def test_mapped_scales_have_no_kernel():
    """A kernel has one scale for all rows."""
    x, scales = jnp.ones((3, 4, 8)), jnp.ones((3, 8))
    with pytest.raises(NotImplementedError, match=r"ffi.*jaxkernels_rms_norm_fwd.*vmap over the"):
        jax.vmap(functools.partial(jk.rms_norm, implementation="ffi"))(x, scales)


def test_the_gradient_of_a_scale_is_one_sum_over_devices(mesh, on_a_cpu):
    x = jax.device_put(np.ones((8, 16, 24), np.float32), NamedSharding(mesh, P("a", "b")))
    scale = jax.device_put(np.ones(24, np.float32), NamedSharding(mesh, P()))
    gradients = jax.jit(jax.grad(lambda x, scale: jnp.sum(jk.rms_norm(x, scale) ** 2), (0, 1)))
    text = gradients.lower(x, scale).compile().as_text()
    assert set(hlo.collectives(text)) == {"all-reduce"}, text
    assert set(hlo.reduced_shapes(text)) == {(24,)}, text


@pytest.mark.parametrize("kind", ["export", "shard_map"])
def test_programs_that_python_cannot_split_gather_nothing(kind, grid, on_a_cpu):
    """XLA splits plain JAX there; it would gather the operands of a kernel with a column."""
    shardings = [NamedSharding(grid, P("a")), NamedSharding(grid, P())]
    given = jax.device_put([np.ones((8, 4, 24), np.float32), np.ones(24, np.float32)], shardings)
    norm = jk.rms_norm
    if kind == "export":
        checks = jk.export_checks()
        export = jax.export.export(jax.jit(norm), platforms=["cpu"], disabled_checks=checks)
        norm = export(*given).call
    else:
        specs = {"in_specs": (P(None, "b"), P()), "out_specs": P(None, "b")}
        norm = jax.shard_map(norm, mesh=grid, axis_names={"b"}, **specs)
    text = jax.jit(norm).lower(*given).compile().as_text()
    assert not hlo.collectives(text), text
