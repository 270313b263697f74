"""Values of logsumexp and of its derivatives against the truth.

test_softmax_grad.py tries every row length, boundary of a plan and kind of input, with the other operations; here are
rows whose sum is 0 or infinite.
"""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jaxkernels as jk

# A cluster's on a GPU. On a CPU the widest type of the truth is slow on infinities and NaN.
LONG = 40003 if cases.ON_GPU else 4499
OPERATIONS = ("logsumexp_fwd", "logsumexp_grad", "logsumexp_jvp")


def check(xs, dtype, tier=None):
    """Holds the kernels of rows that the tier can hold against the truth; yields x, its results and gradients."""
    xs = [x for x in xs if cases.serves(tier, x.shape, dtype)]
    cases.check_all([(x, cases.cotangents(*x.shape, dtype)) for x in xs], dtype, tier, OPERATIONS)

    @jax.jit
    def program(xs):
        ours = functools.partial(jk.logsumexp, axis=-1, tier=tier)
        found = [jax.vjp(ours, x) for x in xs]
        tangents = [jax.jvp(ours, (x,), (jnp.ones_like(x),))[1] for x in xs]
        return [
            (y, pull(jnp.ones_like(y))[0], dy)
            for (y, pull), dy in zip(found, tangents, strict=True)
        ]

    with cases.x64(dtype):
        found = jax.device_get(program(xs))
    for x, results in zip(xs, found, strict=True):
        yield tuple(map(oracle.widen, (x, *results)))


@pytest.mark.smoke
@cases.tiers
@cases.dtypes
def test_special_rows(dtype, tier):
    """-inf alone gives -inf and a derivative of 0; +inf gives +inf, NaN gives NaN, and neighbours feel nothing."""
    xs = []
    for cols in (1, 2, 7, 48, 64, 257, 1030, LONG):
        x = cases.logits("normal", 11, cols, dtype)
        x[1] = -np.inf
        x[3, 0] = np.inf
        x[4, -1] = np.inf
        x[5, cols // 2] = np.nan
        x[6, 0] = -np.inf
        x[7, -1] = -np.inf
        x[8] = 3.25
        x[9] = float(jnp.finfo(dtype).max)
        x[10] = float(jnp.finfo(dtype).min)
        xs.append(x)
    for x, y, dx, dy in check(xs, dtype, tier):
        assert y[1] == -np.inf
        assert (dx[1] == 0).all()
        assert dy[1] == 0
        assert (y[[3, 4]] == np.inf).all()
        assert np.isnan(y[5])
        if x.shape[-1] > 1:
            others = np.isfinite(x)
            assert (dx[[3, 4]][others[[3, 4]]] == 0).all()
            assert np.isfinite(y[[0, 2, 6, 7, 8]]).all()


@cases.dtypes
def test_opposite_extremes(dtype):
    """The difference overflows to -inf, not to NaN; the largest numbers alone may overflow, by log(cols)."""
    most = float(jnp.finfo(dtype).max)
    x = np.zeros((3, 40), oracle.storage(dtype))
    x[0, ::3], x[0, 1::3] = most, -most
    x[1], x[2, 0] = -most, most
    for _, y, dx, dy in check([x], dtype):
        np.testing.assert_allclose(y, [most, -most, most], rtol=1e-3)
        assert np.isfinite(dx).all()
        assert np.isfinite(dy).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_give_the_same_bits_whatever_the_batch(dtype):
    """Losses and gradients too. Few rows have several blocks each. Rows of whole cache lines apart begin alike."""

    @jax.jit
    def program(x, label):
        def loss(x):
            losses = jk.cross_entropy(x, label)
            return jnp.sum(losses**2), losses

        return jk.logsumexp(x, axis=-1), jax.grad(loss, has_aux=True)(x)

    for cols in (33, 1000, 5003, 50_003, 131_072) if cases.ON_GPU else (33, 1000, 50_003):
        x, label = jnp.asarray(cases.logits("normal", 72, cols, dtype)), np.arange(72) % cols
        of_all = jax.tree.leaves(program(x, label))
        for rows in (slice(0, 72), slice(0, 1), slice(0, 5), slice(64, 72)):
            for some, whole in zip(
                jax.tree.leaves(program(x[rows], label[rows])), of_all, strict=True
            ):
                np.testing.assert_array_equal(some, whole[rows])
