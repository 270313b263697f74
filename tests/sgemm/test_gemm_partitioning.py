"""Matrix products sharded over devices: rows, columns and batch need no communication, a sharded contraction one sum.

On meshes with explicit axes the types say how results are sharded.
"""

import contextlib
import functools

import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gemm_partitioning_cases import (
    SHARDINGS,
    A,
    B,
    C,
    collectives_of,
    product_p,
    products,
    split,
    wrapped,
)
from hlo import collectives
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels._sgemm import primitive
from jaxkernels._sgemm.options import Options

pytestmark = pytest.mark.usefixtures("on_a_cpu")
forms = pytest.mark.parametrize("form", ["primitive", "partitioned"])


@pytest.mark.half_on_a_cpu
@forms
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize(("trans_a", "trans_b"), cases.TRANSPOSES)
def test_what_a_sharding_costs(form, name, trans_a, trans_b, grid):
    spec_a, spec_b, expected = SHARDINGS[name]
    options = Options(trans_a=trans_a, trans_b=trans_b, alpha=-0.5)
    a = split(grid, cases.stored(A, trans_a), *(spec_a[::-1] if trans_a else spec_a))
    b = split(grid, cases.stored(B, trans_b), *(spec_b[::-1] if trans_b else spec_b))
    found, got = collectives_of(products(options)[form], a, b)
    if form == "primitive" and name == "contraction-of-one":
        assert set(found) <= {"all-reduce", "all-gather"}  # XLA's own choice
    else:
        assert found == expected
    cases.check(got, A, B, alpha=-0.5)


@forms
@pytest.mark.parametrize("name", ["rows", "contraction", "contraction-and-rows"])
def test_c_is_added_once(form, name, grid):
    spec_a, spec_b, expected = SHARDINGS[name]
    a, b = split(grid, A, *spec_a), split(grid, B, *spec_b)
    c = split(grid, C, spec_a[0], spec_b[1])
    options = Options(alpha=2.0, beta=-3.0)
    found, got = collectives_of(products(options)[form], a, b, c)
    assert found == expected
    cases.check(got, A, B, C, alpha=2.0, beta=-3.0)


@pytest.mark.parametrize(
    ("k", "out", "expected"),
    [
        ("a", P("a", None), "reduce-scatter"),
        ("a", P(None, "a"), "reduce-scatter"),
        ("a", P("a", "b"), "reduce-scatter"),
        ("a", P("b", None), "all-reduce"),
        ("a", P(), "all-reduce"),
        (("b", "a"), P(("a", "b"), None), "reduce-scatter"),
    ],
    ids=str,
)
@pytest.mark.parametrize("beta", [0.0, -3.0])
def test_sums_are_scattered_where_the_result_is_split(k, out, expected, beta, grid):
    """One reduce-scatter, where rows or columns are to be split over the devices of the contraction; c as the result."""
    a, b, c = split(grid, A, None, k), split(grid, B, k, None), split(grid, C, *out)
    options = Options(alpha=2.0, beta=beta)
    operands = (a, b, c) if beta else (a, b)
    function = functools.partial(wrapped, options)
    program = jax.jit(function, out_shardings=NamedSharding(grid, out))
    compiled = program.lower(*operands).compile()
    assert collectives(compiled.as_text()) == [expected]
    cases.check(compiled(*operands), A, B, C if beta else None, alpha=2.0, beta=beta)


@pytest.mark.parametrize("form", ["public", "as on cuda"])
@pytest.mark.parametrize("spec", [("a", "b"), (None, "a"), ("b", "a")], ids=str)
def test_rows_of_several_dimensions(form, spec, grid, monkeypatch):
    """Batch and sequence are both rows, and either may be sharded: no operand is gathered."""
    if form == "as on cuda":
        monkeypatch.setattr(primitive, "sgemm_p", product_p)
    a = cases.operand("normal", (8, 12, 24))
    t = cases.operand("normal", (8, 12, 32), seed=3)

    def program(a, b, t):
        y, pull = jax.vjp(lambda a: jk.matmul(a, b), a)
        return y, pull(t)[0]

    operands = split(grid, a, *spec), split(grid, B), split(grid, t, *spec)
    if form == "public":
        found, got = collectives_of(program, *operands)
        cases.check(got[1], t, B.T)
    else:
        found, got = collectives_of(lambda a, b, t: (jk.matmul(a, b),), *operands)
    assert found == []
    assert tuple(got[0].sharding.spec)[:2] == spec
    cases.check(got[0], a, B)


def test_a_mesh_axis_that_a_reshape_splits(line):
    a = split(line, cases.operand("normal", (8, 8, 24)), "a")
    b = split(line, cases.operand("normal", (8, 24, 8)), "a")

    def program(a, b):
        product = wrapped(Options(), a.reshape(2, 4, 8, 24), b.reshape(2, 4, 24, 8))
        return product.reshape(8, 8, 8)

    found, got = collectives_of(program, a, b)
    assert found == []
    cases.check(got, np.asarray(a), np.asarray(b))


def test_sums_that_do_not_divide_are_not_scattered(grid):
    """A reduce-scatter does not pad: 13 rows over 4 devices are summed everywhere and cut."""
    a, b = split(grid, A[:13], None, "a"), split(grid, B, "a", None)

    def program(a, b):
        product = wrapped(Options(), a, b)
        return jax.lax.with_sharding_constraint(product, NamedSharding(grid, P("a", None)))

    found, got = collectives_of(program, a, b)
    assert "reduce-scatter" not in found
    cases.check(got, A[:13], B)


@forms
@pytest.mark.parametrize("shared", [False, True], ids=("batched", "shared-b"))
def test_sharded_batch_runs_without_collectives(form, shared, grid):
    a = cases.operand("normal", (8, 5, 6))
    b = cases.operand("normal", (1 if shared else 8, 6, 7), seed=1)
    spec_b = (None,) if shared else ("a",)
    found, got = collectives_of(
        products(Options())[form], split(grid, a, "a"), split(grid, b, *spec_b)
    )
    assert found == []
    cases.check(got, a, b)


@forms
def test_axes_in_conflict_are_right(form, grid):
    """One mesh axis cannot split rows and columns at once: something is gathered, nothing is wrong."""
    for spec_a, spec_b in ((("a", None), (None, "a")), (("a", None), ("a", None))):
        _, got = collectives_of(
            products(Options())[form], split(grid, A, *spec_a), split(grid, B, *spec_b)
        )
        cases.check(got, A, B)


UNEVEN = [
    *((A[:, :k], B[:k], P(None, "a"), P("a", None)) for k in (2, 22, 23)),
    (A[:13], B[:, :31], P("a", None), P(None, "b")),
]


@pytest.mark.parametrize(("a", "b", "of_a", "of_b"), UNEVEN)
def test_uneven_parts_are_right(a, b, of_a, of_b, grid):
    """XLA pads uneven parts with anything, which may not come into a sum."""

    @jax.jit
    def product(a, b):
        a = jax.lax.with_sharding_constraint(a, NamedSharding(grid, of_a))
        b = jax.lax.with_sharding_constraint(b, NamedSharding(grid, of_b))
        return wrapped(Options(), a, b)

    cases.check(product(a, b), a, b)


PROGRAMS = {
    "gradient": lambda a, b: jax.grad(lambda a, b: jnp.sum(jk.matmul(a, b) ** 2), (0, 1))(a, b),
    "vmapped": lambda a, b: jax.vmap(jk.matmul, (0, None))(a.reshape(4, 4, 24), b),
    "vmapped-gradient": lambda a, b: jax.vmap(
        jax.grad(lambda a, b: jnp.sum(jk.matmul(a, b) ** 2)), (0, None)
    )(a.reshape(4, 4, 24), b),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_sharded_rows(name, grid):
    """Data parallelism: the gradient of the shared operand is the only sum over devices."""
    a, b = split(grid, A, "a"), split(grid, B)
    found, got = collectives_of(PROGRAMS[name], a, b)
    assert found == (["all-reduce"] if name == "gradient" else [])
    want = PROGRAMS[name](jnp.asarray(A), jnp.asarray(B))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3), got, want)


def assert_same(got, want):
    """Equal types, which say how results are sharded, and values."""
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jax.typeof(ours).sharding.spec == jax.typeof(theirs).sharding.spec
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("specs", [(("a", None), (None, None)), (("a", None), (None, "b"))])
@pytest.mark.parametrize("is_set", [True, False])
def test_types_of_results_and_gradients(specs, is_set, explicit_grid):
    """The gradient of the weights contracts over the sharded rows; it is sharded like the weights.

    Without `jax.set_mesh`, the mesh is in the types of the arrays that were placed on it, and not in those of constants.
    """

    def programs(f, a, b):
        gradients = jax.grad(lambda a, b: jnp.sum(f(a, b) ** 2), (0, 1))
        ones = np.ones((3, A.shape[1]), np.float32)
        of_constant = () if is_set else jax.jit(lambda b: f(ones, b))(b)
        return jax.jit(gradients)(a, b), f(a, b), jax.jit(f)(a, b), of_constant

    with jax.set_mesh(explicit_grid) if is_set else contextlib.nullcontext():
        a, b = (split(explicit_grid, x, *spec) for x, spec in zip((A, B), specs, strict=True))
        got = programs(jk.matmul, a, b)
        assert_same(got, programs(functools.partial(jnp.matmul, precision="highest"), a, b))
        for gradient, x in zip(got[0], (a, b), strict=True):
            assert jax.typeof(gradient).sharding.spec == jax.typeof(x).sharding.spec


def test_constants_beside_scores_on_explicit_axes(explicit_grid):
    """The mask and the bias are not on the mesh."""
    scores = split(explicit_grid, np.ones((4, 2, 6, 8), np.float32), "a", "b", None, None)
    mask, bias = jnp.arange(8) < jnp.full((4, 2, 6, 1), 4), jnp.ones((2, 1, 8))
    y = jax.jit(lambda s: jk.scaled_masked_softmax(s, mask, bias=bias))(scores)
    assert jax.typeof(y).sharding.spec == P("a", "b", None, None)
    np.testing.assert_allclose(y, jnp.where(mask, 0.25, 0.0), rtol=1e-6)


def test_batched_contraction_takes_out_sharding(explicit_grid):
    """As jnp.matmul does; a kernel cannot, and says so."""
    a = split(explicit_grid, np.ones((2, 6, 8), np.float32), None, None, "a")
    b = split(explicit_grid, np.ones((2, 8, 4), np.float32), None, "a", None)
    out = jax.jit(functools.partial(jk.matmul, out_sharding=P(None, "b", None)))
    with jax.set_mesh(explicit_grid):
        product = out(a, b)
        assert jax.typeof(product).sharding.spec == P(None, "b", None)
        np.testing.assert_allclose(product, np.full((2, 6, 4), 8.0))
        with pytest.raises(NotImplementedError, match=r"only XLA's product supports"):
            jk.matmul(a, b, out_sharding=P(), implementation="ffi")


def test_explicit_contraction_is_ambiguous(explicit_grid):
    """As for jnp.matmul: an error that names out_sharding, or out_sharding."""
    with jax.set_mesh(explicit_grid):
        a, b = split(explicit_grid, A, None, "a"), split(explicit_grid, B, "a", None)
        with pytest.raises(Exception, match=r"(?i)ambiguous.*out_sharding"):
            jax.jit(jk.matmul)(a, b)
        out = jax.jit(functools.partial(jk.matmul, out_sharding=P("b", None)))(a, b)
        assert jax.typeof(out).sharding.spec == P("b", None)
        cases.check(out, A, B)
