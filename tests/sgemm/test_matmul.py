"""matmul, dot_general, einsum, tensordot: true float32 products in any layout, and other dtypes as XLA has them."""

import functools
import inspect
import itertools
import re

import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from public_functions import alike

import jaxkernels as jk
from jaxkernels._sgemm import primitive
from jaxkernels.verify.families import layouts

EQUATIONS = {
    "ij,jk->ik": ((33, 20), (20, 17)),
    "ij,jk": ((33, 20), (20, 17)),
    "bij,bjk->bik": ((3, 9, 20), (3, 20, 7)),
    "bhqd,bhkd->bhqk": ((2, 3, 5, 8), (2, 3, 6, 8)),
    "...ij,jk->...ik": ((2, 3, 9, 20), (20, 7)),
    "ij,kj->ki": ((9, 20), (7, 20)),
    "i,i->": ((40,), (40,)),
    "i,j->ij": ((9,), (7,)),
    "ij,jk,kl->il": ((9, 20), (20, 7), (7, 11)),
    "ii->i": ((6, 6),),
    "ij->j": ((9, 7),),
    "bi,bi->b": ((4, 30), (4, 30)),
    "ij,jk->k": ((9, 20), (20, 7)),
    "bij,jk->bik": ((1, 9, 20), (20, 7)),
}
# (shape of a, of b, axes)
CONTRACTIONS = (
    ((3, 4), (5,), 0),
    ((3, 4, 5), (5, 2), 1),
    ((3, 4, 5), (4, 5, 2), 2),
    ((3, 4, 5), (4, 5, 2), ((1, 2), (0, 1))),
    ((3, 4, 5), (5, 4, 2), [[2, 1], [0, 1]]),
    ((3, 4, 5), (2, 5), (-1, 1)),
    ((3, 4, 5), (2, 5), ((2,), (-1,))),
    ((0, 4), (4, 3), 1),
)
MATMUL_SHAPES = (
    ((3,), (3,)),
    ((3,), (3, 5)),
    ((4, 3), (3,)),
    ((4, 3), (3, 5)),
    ((3,), (6, 3, 5)),
    ((6, 4, 3), (3,)),
    ((6, 4, 3), (3, 5)),
    ((4, 3), (6, 3, 5)),
    ((6, 4, 3), (6, 3, 5)),
    ((2, 1, 4, 3), (6, 3, 5)),
    ((2, 6, 4, 3), (1, 3, 5)),
    ((7, 1, 2, 4, 3), (6, 1, 3, 5)),
    ((0, 3), (3, 5)),
    ((4, 0), (0, 5)),
    ((0, 4, 3), (3, 5)),
)
# The name of a function, its first arguments, shapes, and its last arguments.
CALLS = [
    *(("einsum", (equation,), shapes, ()) for equation, shapes in EQUATIONS.items()),
    *(("tensordot", (), (a, b), (axes,)) for a, b, axes in CONTRACTIONS),
    *(("matmul", (), shapes, ()) for shapes in MATMUL_SHAPES),
]


def operands(shapes, dtype="float32"):
    return [cases.operand("normal", s, seed=i).astype(dtype) for i, s in enumerate(shapes)]


def products(function, *arguments):
    """How many are ours, and how many XLA's."""
    text = str(jax.make_jaxpr(function)(*arguments))
    return text.count(f" {primitive.sgemm_p.name}["), text.count(" dot_general[")


@pytest.mark.smoke
@pytest.mark.parametrize(("name", "first", "shapes", "last"), CALLS)
def test_values(name, first, shapes, last):
    arrays = operands(shapes)

    def call(library, *x):
        return getattr(library, name)(*first, *x, *last)

    ours, peer, exact = (functools.partial(call, library) for library in (jk, jnp, np))
    got, like = ours(*arrays), peer(*arrays)
    assert (got.shape, got.dtype) == (like.shape, like.dtype)
    want = exact(*(x.astype(np.float64) for x in arrays))
    size = exact(*(np.abs(x).astype(np.float64) for x in arrays))
    assert np.all(np.abs(got - want) <= 60 * 2.0**-24 * size)
    assert products(ours, *arrays) == (len(arrays) - 1, 0)


@pytest.mark.smoke
@pytest.mark.parametrize("seed", range(40))
def test_any_dot_general(seed):
    """All orders of batch, contracted and free dimensions."""
    rng = np.random.default_rng(seed)
    drawn = layouts.general(*rng.integers(1, 9, 3).tolist(), rng)
    x, y = operands(drawn["shapes"])
    contract, batch = (tuple(map(tuple, pair)) for pair in drawn["numbers"])
    got = jk.dot_general(x, y, (contract, batch))
    want = np.einsum(drawn["labels"], x.astype(np.float64), y.astype(np.float64))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_einsum_of_arrays_and_labels_as_numbers():
    a, b = operands(((9, 20), (20, 7)))
    assert np.array_equal(jk.einsum(a, [0, 1], b, [1, 2], [0, 2]), jk.einsum("ij,jk->ik", a, b))


@pytest.mark.parametrize("name", ["einsum", "tensordot"])
def test_signatures_are_jax_numpys(name):
    theirs = dict(inspect.signature(getattr(jnp, name)).parameters)
    theirs.pop("_dot_general", None)
    ours = inspect.signature(getattr(jk, name)).parameters
    assert list(ours) == list(theirs)
    for x in ours:
        assert (ours[x].kind, ours[x].default) == (theirs[x].kind, theirs[x].default), x


def test_errors_are_jax_numpys():
    a, b = operands(((9, 20), (21, 7)))
    for call in (
        lambda library: library.einsum("ij,jk->ik", a, b),
        lambda library: library.tensordot(a, b, 1),
        lambda library: library.tensordot(a, b, ((0, 1), (0,))),
        lambda library: library.tensordot(a, b, 3),
        lambda library: library.tensordot(a, b, (1.0, 0.0)),
        lambda library: library.tensordot(a, b, (range(1), range(1))),
    ):
        with pytest.raises(Exception) as wanted:  # noqa: PT011
            call(jnp)
        with pytest.raises(wanted.type, match=re.escape(str(wanted.value)[:20])):
            call(jk)


@pytest.mark.parametrize(
    ("numbers", "shapes"),
    [
        ((((1,), (0,)), ((), ())), ((5, 4), (4, 3))),
        ((((0,), (0,)), ((), ())), ((4, 5), (4, 3))),
        ((((1,), (1,)), ((), ())), ((5, 4), (3, 4))),
        ((((0,), (1,)), ((), ())), ((4, 5), (3, 4))),
        ((((2,), (1,)), ((0,), (0,))), ((2, 5, 4), (2, 4, 3))),
        ((((1, 2), (0, 1)), ((), ())), ((5, 4, 2), (4, 2, 3))),
    ],
)
def test_layouts_of_a_plain_product_are_not_transposed(numbers, shapes):
    x, y = (jnp.ones(shape) for shape in shapes)
    product = lambda x, y: jk.dot_general(x, y, numbers)  # noqa: E731
    for function in (product, jax.grad(lambda x, y: product(x, y).sum())):
        assert "transpose[" not in str(jax.make_jaxpr(function)(x, y))


# Ours and JAX's, of two matrices.
FUNCTIONS = {
    "einsum": alike("einsum", jnp, "ij,jk->ik"),
    "tensordot": alike("tensordot", jnp, axes=1),
    "matmul": (functools.partial(jk.matmul, other_dtypes="xla"), jnp.matmul),
    "dot_general": tuple(
        functools.partial(f, dimension_numbers=(((1,), (0,)), ((), ())))
        for f in (functools.partial(jk.dot_general, other_dtypes="xla"), jax.lax.dot_general)
    ),
}
each = pytest.mark.parametrize("name", FUNCTIONS)
promoting = pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "dot_general"])


def of_dtype(dtype):
    """Two matrices that have something of all that a dtype holds."""
    a, b = operands(((9, 20), (20, 7)))
    if dtype == "bool":
        return a > 0.5, b > 0.5
    if dtype == "complex64":
        return (a + 1j * a[::-1]).astype(dtype), (b - 1j * b[::-1]).astype(dtype)
    return (4 * a).astype(dtype), (4 * b).astype(dtype)


@promoting
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "bool", "complex64"])
def test_other_dtypes_are_xlas(name, dtype):
    (ours, theirs), (a, b) = FUNCTIONS[name], of_dtype(dtype)
    got, want = ours(a, b), theirs(a, b)
    assert got.dtype == want.dtype
    assert np.array_equal(got, want)
    assert products(ours, a, b) == (0, 1)


@promoting
@pytest.mark.parametrize("other", ["bfloat16", "float16", "int32", "int8", "bool"])
def test_operands_that_promote_to_float32_are_ours(name, other):
    ours, theirs = FUNCTIONS[name]
    a, b = of_dtype("float32")[0], of_dtype(other)[1]
    got = ours(a, b)
    assert got.dtype == theirs(a, b).dtype == jnp.float32
    cases.check(np.asarray(got), a, np.asarray(b).astype(np.float32))
    assert products(ours, a, b) == products(ours, b.T, a.T) == (1, 0)


NARROW = (
    *("int2", "int4", "uint4", "int8", "uint8", "bool"),
    *("float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e8m0fnu"),
    *("bfloat16", "float16", "float32"),
)


def dtype_or_error(function, a, b, preferred):
    try:
        return jax.eval_shape(functools.partial(function, preferred_element_type=preferred), a, b)
    except Exception as error:
        return type(error)


@each
def test_all_pairs_of_narrow_types(name):
    """The dtype of jax.numpy or jax.lax, or its class of error, whether the pair promotes or not."""
    ours, theirs = FUNCTIONS[name]
    for x, y in itertools.product(NARROW, NARROW):
        a, b = jax.ShapeDtypeStruct((2, 3), x), jax.ShapeDtypeStruct((3, 4), y)
        for preferred in (None, jnp.bfloat16, jnp.float32):
            got, want = (dtype_or_error(f, a, b, preferred) for f in (ours, theirs))
            if name == "dot_general" and preferred is None and {x, y} == {"bfloat16", "float16"}:
                want = jax.ShapeDtypeStruct((2, 4), jnp.float32)  # what they promote to: ours
            assert got == want, (x, y, preferred)
    mixed = (("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "bfloat16"), ("int4", "bfloat16"))
    for x, y in (*mixed, *(pair[::-1] for pair in mixed)):
        a, b = (4 * z for z in operands(((9, 20), (20, 7))))
        got, want = (
            f(a.astype(x), b.astype(y), preferred_element_type=jnp.float32) for f in (ours, theirs)
        )
        assert np.array_equal(got, want), (x, y)


@promoting
def test_preferred_dtypes(name):
    ours, theirs = FUNCTIONS[name]
    wide = functools.partial(ours, preferred_element_type=jnp.float32)
    for dtype in ("bfloat16", "float16"):
        a, b = of_dtype(dtype)
        cases.check(np.asarray(wide(a, b)), a.astype(np.float32), b.astype(np.float32))
        assert products(wide, a, b) == (1, 0)
        assert np.array_equal(wide(a, b.astype(np.float32)), wide(a, b))
        assert jax.grad(lambda a, b=b: wide(a, b).sum())(jnp.asarray(a)).dtype == dtype
    a, b = of_dtype("float32")
    narrow = functools.partial(ours, preferred_element_type=jnp.bfloat16)
    assert narrow(a, b).dtype == jnp.bfloat16
    assert products(narrow, a, b) == (0, 1)
    assert "HIGHEST" in str(jax.make_jaxpr(narrow)(a, b))
    with jax.enable_x64(True):
        a, b = of_dtype("float64")
        assert np.array_equal(ours(a, b), theirs(a, b))
        assert ours(a, b).dtype == jnp.float64


@each
def test_precision(name):
    """It is that of products that XLA makes; neither argument nor flag changes a float32 product."""
    ours, _ = FUNCTIONS[name]
    a, b = of_dtype("bfloat16")
    assert "HIGH" in str(jax.make_jaxpr(functools.partial(ours, precision="high"))(a, b))
    a, b = operands(((50, 300), (300, 20)))
    with pytest.raises(ValueError, match="float32 products are computed in float32"):
        ours(a, b, precision="F64_F64_F64")
    with jax.default_matmul_precision("bfloat16"):
        for precision in (None, "default", "highest", "tensorfloat32", jax.lax.Precision.DEFAULT):
            product = functools.partial(ours, precision=precision)
            assert products(product, a, b) == (1, 0)
            cases.check(np.asarray(product(a, b)), a, b)


@promoting
def test_weak_types_and_strict_promotion(exact_products, name):
    (ours, theirs), (a, b) = FUNCTIONS[name], of_dtype("float32")
    weak = jnp.full((9, 20), 2.0)
    assert weak.weak_type
    got, want = ours(weak, weak.T), theirs(weak, weak.T)
    assert np.array_equal(got, want)
    with jax.numpy_dtype_promotion("strict"):
        np.testing.assert_allclose(ours(weak, b), theirs(weak, b), rtol=1e-5)
        np.testing.assert_allclose(ours(a, b), theirs(a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["einsum", "tensordot"])
def test_on_a_mesh_with_explicit_axes(name):
    mesh = jax.make_mesh(
        (2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu")[:4]
    )
    (ours, theirs), (a, b) = FUNCTIONS[name], operands(((8, 20), (20, 6)))
    with jax.set_mesh(mesh):
        a, b = jax.device_put(a, P("x", None)), jax.device_put(b, P(None, "y"))
        for spec in (None, P("x", "y"), P(None, "y")):
            options = {} if spec is None else {"out_sharding": NamedSharding(mesh, spec)}
            got, want = ours(a, b, **options), theirs(a, b, precision="highest", **options)
            assert got.sharding == want.sharding
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", cases.RUNGS)
def test_a_rung_changes_nothing_on_a_cpu(algorithm, cpu_devices):
    with jax.default_device(cpu_devices[0]):
        a, b = map(jnp.asarray, operands(((40, 50), (50, 60))))
        assert np.array_equal(jk.matmul(a, b, algorithm=algorithm), jk.matmul(a, b))


MEMBERS, W = operands(((6, 4, 3), (3, 5)))


def test_reverse_mode_does_not_keep_c():
    """The backward pass gets only a and b, so that c can be overwritten."""
    c = jnp.ones((4, 5))
    _, pull = jax.vjp(lambda a, b, c: jk.sgemm(a, b, c, beta=2.0), MEMBERS[0], W, c)
    kept = sorted(x.shape for x in jax.tree.leaves(pull) if hasattr(x, "shape") and x.shape)
    assert kept == [(3, 5), (4, 3)]


def test_gradient_of_shared_weights_is_one_deep_product():
    """The sum over the batch is part of the contraction: no array of one gradient for each member."""
    loss_of = lambda w: jnp.sum(jax.vmap(jk.matmul, (0, None))(MEMBERS, w))  # noqa: E731
    jaxpr = jax.make_jaxpr(jax.grad(loss_of))(W)
    last = [e for e in jaxpr.eqns if str(e.primitive) == "jaxkernels_sgemm"][-1]
    assert [v.aval.shape for v in last.invars] == [(1, 24, 3), (1, 24, 5)]
    assert last.outvars[0].aval.shape == (1, 3, 5)
