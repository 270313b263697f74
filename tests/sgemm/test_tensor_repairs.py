"""Repairs of values that pairs of float16 cannot hold: of elements, tiles, or the whole product."""

import functools

import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import skip_or_fail

import jaxkernels as jk

tensor = functools.partial(jk.sgemm, algorithm="tensor")
pytestmark = pytest.mark.usefixtures("hopper")


def permuted(m, n, k, share, seed=0):
    """(a, b, a b): each column of b has a single one, and a share of a's elements lies 2^-60 below the rest.

    The product is exact in float32 by any kernel but that of pairs.
    """
    rng = np.random.default_rng([seed, m, n, k])
    a = rng.standard_normal((m, k)).astype(np.float32)
    a[rng.random((m, k)) < share] *= np.float32(2.0**-60)
    place = rng.integers(0, k, n)
    b = np.zeros((k, n), np.float32)
    b[place, np.arange(n)] = 1.0
    return a, b, a[:, place]


# Bounds the error of one product: a pair and its products' roundings cost 2^-23 each; alpha is 0.5.
PAIR = 4 * 2.0**-23


def check_pairs(got, product, c=0.0, alpha=1.0, beta=0.0):
    """Holds a result against alpha times a product that is exact in float32, and beta times C."""
    product, c = np.asarray(product, np.float64), np.asarray(c, np.float64)
    size = np.abs(alpha * product) + np.abs(beta * c)
    assert np.all(np.abs(np.asarray(got) - (alpha * product + beta * c)) <= PAIR * size)


@pytest.mark.parametrize("side", "ab")
def test_sums_about_the_threshold(side):
    """Marked lines whose largest element meets a zero: sums on either side of the threshold, 32 here, scaled."""
    k, n = 32, 256
    rng = np.random.default_rng(5)
    x = np.exp2(rng.uniform(-33, -22, (n, k))) * rng.choice([-1.0, 1.0], (n, k))
    x[:, 0] = 1.0  # meets a zero
    y = rng.uniform(0.5, 1.0, (k, n))
    y[0] = 0.0
    y[1:, ::2] *= np.exp2(-rng.integers(0, 12, (k - 1, n // 2)))
    a, b = (np.asarray(v, np.float32) for v in ((x, y) if side == "a" else (y.T, x.T)))
    cases.check(tensor(a, b), a, b)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_large_product_that_ends_early(beta):
    """It ends after its first tiles, because too many need repair; with C in place it never does."""
    n = 3000
    assert jk.plan_sgemm(n, n, 64, algorithm="tensor").tiles_before_look > 0
    a, b, want = permuted(n, n, 64, 0.5)
    c = cases.operand("integers", (n, n))
    function = jax.jit(lambda a, b, c: tensor(a, b, c, beta=beta))
    for _ in range(3):
        check_pairs(function(a, b, c), want, c, beta=beta)


@pytest.mark.parametrize("beta", [0.0, -2.0])
@pytest.mark.parametrize("share", [1e-5, 0.01, 0.5])
@pytest.mark.parametrize("n", [640, 641, 642, 643])
def test_lines_that_no_pair_holds(n, beta, share):
    """Few elements are repaired one by one, many by whole tiles, more by a product without tensor cores; C in place
    has to survive all three, and is zero in half of the rows, where nothing else hides an element."""
    m = k = 640
    a, b, product = permuted(m, n, k, share)
    c = cases.operand("normal", (m, n))
    c[::2] = 0.0
    function = jax.jit(
        lambda a, b, c: tensor(a, b, c, alpha=0.5, beta=beta), donate_argnums=2 if beta else ()
    )
    for _ in range(2):
        check_pairs(function(a, b, jnp.array(c)), product, c, 0.5, beta)


@pytest.mark.parametrize("k", [64, 128, 192, 700])
def test_a_product_that_is_left_to_ffma_as_a_whole(k):
    """By blocks that have several tiles; the result is exact then, and the same each time."""
    a, b, want = permuted(2050, 2050, k, 0.5)
    function = jax.jit(tensor)
    for _ in range(10):
        assert np.array_equal(function(a, b), want)


@pytest.mark.parametrize("share", [1e-6, 0.5])
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(300, 270, 9000), (1100, 1050, 3000)])
def test_repairs_of_deep_products(shape, share, beta):
    """FFMA repairs them in several launches that add to C; if k is split, float64 repairs them."""
    m, n, k = shape
    assert (jk.plan_sgemm(m, n, k, algorithm="tensor").split_k > 1) == (k == 9000)
    a, b, want = permuted(m, n, k, share)
    a[5, 77] = np.nan
    c = cases.operand("integers", (m, n))
    got = np.asarray(tensor(a, b, c, beta=beta))
    assert np.isnan(got[5]).all()
    check_pairs(*(np.delete(x, 5, 0) for x in (got, want, c)), beta=beta)


def test_repairs_in_a_captured_graph():
    """Programs of many products become CUDA graphs."""
    problems = [
        permuted(200 + i, 131 + i, k, share, i)
        for i in range(9)
        for share in (0, 0.01, 0.5)
        for k in (96, 3000)
    ]
    program = jax.jit(lambda pairs: [tensor(a, b) for a, b in pairs])
    for _ in range(3):
        for got, (_, _, want) in zip(program([p[:2] for p in problems]), problems, strict=True):
            check_pairs(got, want)


@pytest.mark.parametrize("share", [1e-5, 0.5])
def test_products_one_after_another(share):
    """Each kernel of a call reads what the one before has written, into scratch that other calls have used. XLA's write the
    operands and read the results. Some products stop early if too much needs repair, some split k."""
    shapes = ((1100, 1400, 96), (3000, 3000, 64), (1237, 1269, 1100), (300, 260, 5000))
    plans = [jk.plan_sgemm(*shape, algorithm="tensor") for shape in shapes]
    assert [plan.tiles_before_look > 0 for plan in plans] == [False, True, False, False]
    assert [plan.split_k > 1 for plan in plans] == [False, False, False, True]
    problems = [permuted(*shape, share, i) for i, shape in enumerate(shapes)]
    pairs = [problem[:2] for problem in problems]

    def products(pairs):
        return [tensor(2 * a, b) for a, b in pairs]

    def zeros(pairs):
        return [jnp.zeros((len(a), b.shape[1])) for a, b in pairs]

    together = jax.jit(lambda _, pairs: [2 * x for x in products(pairs)])
    of_a_branch = jax.jit(lambda x, pairs: [2 * x for x in jax.lax.cond(x, products, zeros, pairs)])
    alone = jax.jit(lambda pair: 2 * products([pair])[0])
    for run in (together, of_a_branch, lambda _, pairs: [alone(pair) for pair in pairs]):
        for _ in range(4):
            for got, (_, _, want) in zip(run(True, pairs), problems, strict=True):
                check_pairs(got / 4, want)


@pytest.mark.parametrize(("m", "n", "k"), [(1024, 1024, 96), (1024, 1022, 96), (300, 650, 4000)])
def test_a_member_has_its_own_scales_and_repairs(m, n, k):
    """Clean, with a few elements to repair, with many, with NaN, and scaled: the bits of each alone."""
    made = [permuted(m, n, k, share, seed)[:2] for seed, share in enumerate((0, 1e-5, 0.5, 0, 0))]
    a, b = (np.stack([pair[i] for pair in made]) for i in (0, 1))
    a[3, 7, 11] = np.nan
    a[4] *= np.float32(2.0**-90)
    together = np.asarray(tensor(a, b))
    for member in range(5):
        assert np.asarray(tensor(a[member], b[member])).tobytes() == together[member].tobytes()


@pytest.mark.xdist_group("large arrays")
def test_repairs_in_groups(gpu):
    """A batch whose scratch would be more than 4 GiB. FFMA makes the last member of the first group and the first one of the
    second; a few elements of the last member are repaired."""
    if (gpu.memory_stats() or {}).get("bytes_limit", 2**34) < 60e9:
        skip_or_fail("this GPU has less than 60 GB")
    batch, m, k = 1100, 8192, 128
    assert jk.plan_sgemm(m, k, k, batch=batch, algorithm="tensor", device=gpu).groups == 2
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (batch, m, k), (batch, k, k), (batch, m, k)
    a, b, c = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    c = c.at[:, ::2].set(0.0)  # nothing else hides an element there
    for seed, (member, share) in enumerate([(549, 0.5), (550, 0.5), (1099, 1e-5)]):
        few = jax.random.bernoulli(jax.random.key(seed), share, (m, k))
        a = a.at[member].multiply(jnp.where(few, 2.0**-60, 1.0))
        b = b.at[member].set(jnp.eye(k))
    together = tensor(a, b, c, beta=-1.0)
    for member in (0, 549, 550, 1099):
        own = np.asarray(tensor(a[member], b[member], c[member], beta=-1.0))
        assert own.tobytes() == np.asarray(together[member]).tobytes()
        if member:
            check_pairs(own, a[member], c[member], beta=-1.0)
