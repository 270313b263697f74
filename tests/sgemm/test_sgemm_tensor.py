"""The rung `tensor`: float32 accuracy from pairs of float16, whatever the operands hold."""

import functools

import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensor_families as families

import jaxkernels as jk
from jaxkernels.bench.families import DENSE, FAMILIES

tensor = functools.partial(jk.sgemm, algorithm="tensor")
pytestmark = pytest.mark.usefixtures("hopper")


def highest(a, b):
    return jnp.matmul(a, b, precision="highest")


def check_errors(got, a, b, relative=6e-7, largest=1e-6, peer=None):
    """Both errors are within their limits, or within 1.05 times those of another product."""
    limits = [relative, largest]
    if peer is not None:
        limits = map(max, limits, (1.05 * x for x in families.errors(peer, a, b)))
    for error, limit in zip(families.errors(got, a, b), limits, strict=True):
        assert error <= limit


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "shape", [(128, 128, 32), (257, 255, 129), (512, 512, 512), (300, 260, 4096)]
)
def test_error_is_that_of_float32(family, shape):
    """No more than 1.05 times what cuBLAS makes of the same operands, or than 6e-7 and 1e-6."""
    a, b = families.operands(family, *shape)
    check_errors(tensor(a, b), a, b, peer=highest(a, b))


def test_dense_products_err_less_than_cublas():
    """In geometric mean."""
    ratios = []
    for family in DENSE:
        a, b = families.operands(family, 512, 512, 2048)
        own, peer = (families.errors(f(a, b), a, b)[0] for f in (tensor, highest))
        ratios.append(own / peer)
    assert np.exp(np.mean(np.log(ratios))) < 1


@pytest.mark.parametrize("k", [20_000, 65_536])
def test_deep_sums(k):
    """The sum of the high products starts anew; one that never did would be off by 1e-4 here."""
    assert jk.plan_sgemm(128, 130, k, algorithm="tensor").algorithm == "tensor"
    for family in ("normal", "uniform"):
        a, b = families.operands(family, 128, 130, k)
        check_errors(tensor(a, b), a, b, peer=highest(a, b))


# At which a line along k has more threads, more elements a thread, or two passes; odd ones begin anywhere.
@pytest.mark.parametrize("k", [512, 513, 1024, 1025, 2048, 2049, 4096, 4097, 8191, 8192, 8193])
@pytest.mark.parametrize(("trans_a", "trans_b"), cases.TRANSPOSES)
def test_lines_of_every_length(k, trans_a, trans_b):
    assert jk.plan_sgemm(130, 257, k, algorithm="tensor").algorithm == "tensor"
    a, b = families.operands("wide", 130, 257, k)
    stored_a, stored_b = a.T if trans_a else a, b.T if trans_b else b
    got = tensor(stored_a.copy(), stored_b.copy(), trans_a=trans_a, trans_b=trans_b)
    check_errors(got, a, b)


@pytest.mark.parametrize("steps", [17, 18, 63, 64])
def test_compensated_sums(steps):
    """An even and an odd number of stages. 64 float32 additions alone would err by 6e-7 here."""
    m, n, k = 1000, 1050, 64 * steps
    plan = jk.plan_sgemm(m, n, k, algorithm="tensor")
    assert (plan.split_k, plan.compensated) == (1, True)
    a, b = families.operands("uniform", m, n, k)
    check_errors(tensor(a, b), a, b, 2.5e-7, 4e-7)


# Few tiles and deep k, which is split: parts that do not divide the steps, k that ends within a step, lines that
# begin anywhere, parts that are compensated.
SPLIT = ((300, 260, 4096), (129, 257, 2049), (200, 643, 9001), (640, 260, 30000))


@pytest.mark.parametrize("shape", SPLIT)
@pytest.mark.parametrize(("trans_a", "trans_b"), cases.TRANSPOSES)
def test_products_whose_k_is_split(shape, trans_a, trans_b):
    """Alone, and with C in place."""
    m, n, k = shape
    plan = jk.plan_sgemm(m, n, k, trans_a=trans_a, trans_b=trans_b, algorithm="tensor")
    assert plan.split_k > 1
    assert plan.compensated == (k == 30000)
    c = cases.operand("normal", (m, n))
    program = jax.jit(
        lambda a, b, c: tensor(a, b, c, alpha=0.5, beta=-2.0, trans_a=trans_a, trans_b=trans_b),
        donate_argnums=2,
    )
    for family in ("uniform", "wide"):
        a, b = families.operands(family, m, n, k)
        stored = cases.stored(a, trans_a), cases.stored(b, trans_b)
        got = tensor(*stored, trans_a=trans_a, trans_b=trans_b)
        check_errors(got, a, b)
        again = tensor(*stored, trans_a=trans_a, trans_b=trans_b)
        assert np.asarray(got).tobytes() == np.asarray(again).tobytes()
        cases.check(program(*stored, jnp.array(c)), a, b, c, 0.5, -2.0)


def test_parts_are_added_with_what_they_lose():
    """The first part's sum is 2^24, and each other part's 1, which a float32 addition alone would lose."""
    m, n, k = 100, 120, 8192
    plan = jk.plan_sgemm(m, n, k, algorithm="tensor")
    assert plan.split_k > 3
    first = np.arange(plan.split_k) * plan.k_per_split
    a, b = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
    a[:, first] = b[first] = 1.0
    a[:, 0] = b[0] = 2.0**12
    want = np.float32(2**24 + plan.split_k - 1)
    assert want > 2**24
    assert np.all(np.asarray(tensor(a, b)) == want)


@pytest.mark.parametrize("in_axes", [(0, 0, 0), (0, None, 0), (None, 0, 0)])
def test_members_whose_k_is_split(in_axes):
    """By vmap, with C: the bits of each alone."""
    m, n, k = 130, 260, 3000
    assert jk.plan_sgemm(m, n, k, algorithm="tensor").split_k > 1
    shapes = (m, k), (k, n), (m, n)
    operands = [
        cases.operand("wide", shape if axis is None else (4, *shape), seed)
        for seed, (shape, axis) in enumerate(zip(shapes, in_axes, strict=True))
    ]
    product = functools.partial(tensor, alpha=0.5, beta=2.0)
    together = np.asarray(jax.jit(jax.vmap(product, in_axes))(*operands))
    for member in range(4):
        own = [x if axis is None else x[member] for x, axis in zip(operands, in_axes, strict=True)]
        assert np.asarray(product(*own)).tobytes() == together[member].tobytes()


def spoilt(values, seed=0):
    """Operands with a few of these values, which reach only some rows and columns of the product."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((300, 200), (200, 270)))
    for x in (a, b):
        x[rng.integers(0, len(x), 3), rng.integers(0, x.shape[1], 3)] = rng.choice(values, 3)
    return a, b


@pytest.mark.parametrize(
    "values", [[np.inf], [np.nan], [np.inf, -np.inf, np.nan]], ids=("inf", "nan", "all")
)
@pytest.mark.parametrize("zeros", [False, True])
def test_what_is_not_finite_is_where_float32_has_it(values, zeros):
    a, b = spoilt(values)
    if zeros:
        b[:, ::3] = 0.0
        a[::5] = 0.0
    got, want = np.asarray(tensor(a, b)), np.asarray(jk.sgemm(a, b, algorithm="pipelined"))
    assert np.array_equal(np.isnan(got), np.isnan(want))
    for infinity in (np.inf, -np.inf):
        assert np.array_equal(got == infinity, want == infinity)
    cases.check(got, a, b)


def test_overflow_is_infinite():
    """A result is infinite if the exact result is too large, and only then."""
    a, b = families.operands("normal", 200, 210, 300)
    a[::2] *= 1e25
    b[:, ::3] *= 1e25
    got = np.asarray(tensor(a, b))
    with np.errstate(over="ignore"):
        want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    assert np.isinf(want).any()
    assert np.isfinite(want).any()
    assert np.array_equal(np.isinf(got), np.isinf(want))


def test_products_take_it_by_default():
    a = np.ones((2048, 2048), np.float32)
    with jk.default_algorithm(None):
        text = jax.jit(jax.grad(lambda a: jk.matmul(a, a).sum())).lower(a).as_text()
    assert text.count('algorithm = "tensor"') >= 2
