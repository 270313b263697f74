"""einsum and tensordot: jax.numpy's functions, with products that are true float32; and other dtypes as XLA has them."""

import functools
import inspect
import itertools
import re

import flax.linen
import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels._sgemm import primitive

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
PRODUCT = f" {primitive.sgemm_p.name}["


def operands(shapes, dtype="float32"):
    return [cases.operand("normal", s, seed=i).astype(dtype) for i, s in enumerate(shapes)]


def products(function, *arguments):
    """How many are ours, and how many XLA's."""
    text = str(jax.make_jaxpr(function)(*arguments))
    return text.count(PRODUCT), text.count(" dot_general[")


@pytest.mark.smoke
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation):
    arrays = operands(EQUATIONS[equation])
    got, like = jk.einsum(equation, *arrays), jnp.einsum(equation, *arrays)
    assert (got.shape, got.dtype) == (like.shape, like.dtype)
    want = np.einsum(equation, *(x.astype(np.float64) for x in arrays))
    size = np.einsum(equation, *(np.abs(x).astype(np.float64) for x in arrays))
    assert np.all(np.abs(got - want) <= 60 * 2.0**-24 * size)
    ours, xlas = products(functools.partial(jk.einsum, equation), *arrays)
    assert (ours, xlas) == (len(arrays) - 1, 0)


def test_einsum_of_arrays_and_labels_as_numbers():
    a, b = operands(((9, 20), (20, 7)))
    assert np.array_equal(jk.einsum(a, [0, 1], b, [1, 2], [0, 2]), jk.einsum("ij,jk->ik", a, b))


@pytest.mark.smoke
@pytest.mark.parametrize(("a_shape", "b_shape", "axes"), CONTRACTIONS)
def test_tensordot(a_shape, b_shape, axes):
    a, b = operands((a_shape, b_shape))
    got, like = jk.tensordot(a, b, axes), jnp.tensordot(a, b, axes)
    assert (got.shape, got.dtype) == (like.shape, like.dtype)
    want = np.tensordot(a.astype(np.float64), b.astype(np.float64), axes)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert products(lambda a, b: jk.tensordot(a, b, axes), a, b) == (1, 0)


@pytest.mark.parametrize("name", ["einsum", "tensordot"])
def test_signatures_are_jax_numpys(name):
    theirs = dict(inspect.signature(getattr(jnp, name)).parameters)
    theirs.pop("_dot_general", None)
    ours = inspect.signature(getattr(jk, name)).parameters
    assert list(ours) == list(theirs)
    for x in ours:
        assert (ours[x].kind, ours[x].default) == (theirs[x].kind, theirs[x].default), x


FUNCTIONS = (
    (functools.partial(jk.einsum, "ij,jk->ik"), functools.partial(jnp.einsum, "ij,jk->ik")),
    (functools.partial(jk.tensordot, axes=1), functools.partial(jnp.tensordot, axes=1)),
    (functools.partial(jk.matmul, other_dtypes="xla"), jnp.matmul),
)
functions = pytest.mark.parametrize(
    ("ours", "theirs"), FUNCTIONS, ids=("einsum", "tensordot", "matmul")
)


def of_dtype(dtype):
    """Two matrices that have something of all that a dtype holds."""
    a, b = operands(((9, 20), (20, 7)))
    if dtype == "bool":
        return a > 0.5, b > 0.5
    if dtype == "complex64":
        return (a + 1j * a[::-1]).astype(dtype), (b - 1j * b[::-1]).astype(dtype)
    return (4 * a).astype(dtype), (4 * b).astype(dtype)


@functions
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "bool", "complex64"])
def test_other_dtypes_are_xlas(ours, theirs, dtype):
    a, b = of_dtype(dtype)
    got, want = ours(a, b), theirs(a, b)
    assert got.dtype == want.dtype
    assert np.array_equal(got, want)
    assert products(ours, a, b) == (0, 1)


@functions
@pytest.mark.parametrize("other", ["bfloat16", "float16", "int32", "int8", "bool"])
def test_operands_that_promote_to_float32_are_ours(ours, theirs, other):
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
GENERAL = tuple(
    functools.partial(f, dimension_numbers=(((1,), (0,)), ((), ())))
    for f in (functools.partial(jk.dot_general, other_dtypes="xla"), jax.lax.dot_general)
)


def dtype_or_error(function, a, b, preferred):
    try:
        return jax.eval_shape(functools.partial(function, preferred_element_type=preferred), a, b)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(
    ("ours", "theirs"), [*FUNCTIONS, GENERAL], ids=("einsum", "tensordot", "matmul", "dot_general")
)
def test_all_pairs_of_narrow_types(ours, theirs):
    """The dtype of jax.numpy or jax.lax, or its class of error, whether the pair promotes or not."""
    for x, y in itertools.product(NARROW, NARROW):
        a, b = jax.ShapeDtypeStruct((2, 3), x), jax.ShapeDtypeStruct((3, 4), y)
        for preferred in (None, jnp.bfloat16, jnp.float32):
            got, want = (dtype_or_error(f, a, b, preferred) for f in (ours, theirs))
            if theirs is GENERAL[1] and preferred is None and {x, y} == {"bfloat16", "float16"}:
                want = jax.ShapeDtypeStruct((2, 4), jnp.float32)  # what they promote to: ours
            assert got == want, (x, y, preferred)
    mixed = (("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "bfloat16"), ("int4", "bfloat16"))
    for x, y in (*mixed, *(pair[::-1] for pair in mixed)):
        a, b = (4 * z for z in operands(((9, 20), (20, 7))))
        got, want = (
            f(a.astype(x), b.astype(y), preferred_element_type=jnp.float32) for f in (ours, theirs)
        )
        assert np.array_equal(got, want), (x, y)


@functions
def test_preferred_dtypes(ours, theirs):
    a, b = of_dtype("bfloat16")
    wide = functools.partial(ours, preferred_element_type=jnp.float32)
    cases.check(np.asarray(wide(a, b)), a.astype(np.float32), b.astype(np.float32))
    assert products(wide, a, b) == (1, 0)
    a, b = of_dtype("float32")
    narrow = functools.partial(ours, preferred_element_type=jnp.bfloat16)
    assert narrow(a, b).dtype == jnp.bfloat16
    assert products(narrow, a, b) == (0, 1)
    assert "HIGHEST" in str(jax.make_jaxpr(narrow)(a, b))
    with jax.enable_x64(True):
        a, b = of_dtype("float64")
        assert np.array_equal(ours(a, b), theirs(a, b))
        assert ours(a, b).dtype == jnp.float64


def test_precision_is_that_of_products_that_are_xlas():
    a, b = of_dtype("bfloat16")
    for function, _ in (*FUNCTIONS, GENERAL):
        assert "HIGH" in str(jax.make_jaxpr(functools.partial(function, precision="high"))(a, b))
    a, b = of_dtype("float32")
    for function, _ in (*FUNCTIONS, GENERAL):
        with pytest.raises(ValueError, match="float32 products are computed in float32"):
            function(a, b, precision="F64_F64_F64")


@functions
def test_weak_types_and_strict_promotion(exact_products, ours, theirs):
    a, b = of_dtype("float32")
    weak = jnp.full((9, 20), 2.0)
    assert weak.weak_type
    got, want = ours(weak, weak.T), theirs(weak, weak.T)
    assert np.array_equal(got, want)
    with jax.numpy_dtype_promotion("strict"):
        np.testing.assert_allclose(ours(weak, b), theirs(weak, b), rtol=1e-5)
        np.testing.assert_allclose(ours(a, b), theirs(a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("ours", "theirs"), FUNCTIONS[:2], ids=("einsum", "tensordot"))
def test_on_a_mesh_with_explicit_axes(ours, theirs):
    mesh = jax.make_mesh(
        (2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices("cpu")[:4]
    )
    a, b = operands(((8, 20), (20, 6)))
    with jax.set_mesh(mesh):
        a, b = jax.device_put(a, P("x", None)), jax.device_put(b, P(None, "y"))
        for spec in (None, P("x", "y"), P(None, "y")):
            options = {} if spec is None else {"out_sharding": NamedSharding(mesh, spec)}
            got, want = ours(a, b, **options), theirs(a, b, precision="highest", **options)
            assert got.sharding == want.sharding
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_layer_of_any_dtype():
    x = operands(((4, 6),))[0]
    for dtype in (jnp.float32, jnp.bfloat16):
        layer = flax.linen.Dense(
            3, dtype=dtype, dot_general=functools.partial(jk.dot_general, other_dtypes="xla")
        )
        weights = layer.init(jax.random.key(0), x)
        assert layer.apply(weights, x).dtype == dtype
        assert sum(products(layer.apply, weights, x)) == 1
        assert products(layer.apply, weights, x)[0] == (dtype == jnp.float32)


def test_flags_and_precision_change_no_float32_product():
    a, b = operands(((40, 60), (60, 30)))
    with jax.default_matmul_precision("bfloat16"):
        for function in (FUNCTIONS[0][0], FUNCTIONS[1][0]):
            exact = functools.partial(function, precision="default")
            assert products(exact, a, b) == (1, 0)
        cases.check(np.asarray(jk.einsum("ij,jk->ik", a, b, precision="default")), a, b)
        cases.check(np.asarray(jk.tensordot(a, b, 1, precision="default")), a, b)


@pytest.mark.smoke
def test_transformations():
    a, b = operands(((5, 9, 20), (20, 7)))

    def loss(einsum, a, b):
        return jnp.sum(jnp.sin(einsum("bij,jk->bik", a, b)))

    got = jax.jit(jax.grad(functools.partial(loss, jk.einsum), (0, 1)))(a, b)
    want = jax.grad(
        functools.partial(loss, functools.partial(jnp.einsum, precision="highest")), (0, 1)
    )(a, b)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    mapped = jax.vmap(functools.partial(jk.tensordot, axes=1), (0, None))(a, b)
    np.testing.assert_allclose(mapped, jk.einsum("bij,jk->bik", a, b), rtol=1e-5, atol=1e-5)
    _, tangent = jax.jvp(lambda a: jk.tensordot(a, b, 1), (a,), (jnp.ones_like(a),))
    np.testing.assert_allclose(
        tangent, np.broadcast_to(b.sum(0), tangent.shape), rtol=1e-4, atol=1e-4
    )


def test_errors_are_jax_numpys():
    a, b = operands(((9, 20), (21, 7)))
    for ours, theirs in (
        (lambda: jk.einsum("ij,jk->ik", a, b), lambda: jnp.einsum("ij,jk->ik", a, b)),
        (lambda: jk.tensordot(a, b, 1), lambda: jnp.tensordot(a, b, 1)),
        (lambda: jk.tensordot(a, b, ((0, 1), (0,))), lambda: jnp.tensordot(a, b, ((0, 1), (0,)))),
        (lambda: jk.tensordot(a, b, 3), lambda: jnp.tensordot(a, b, 3)),
        (lambda: jk.tensordot(a, b, (1.0, 0.0)), lambda: jnp.tensordot(a, b, (1.0, 0.0))),
        (
            lambda: jk.tensordot(a, b, (range(1), range(1))),
            lambda: jnp.tensordot(a, b, (range(1), range(1))),
        ),
    ):
        with pytest.raises(Exception) as wanted:  # noqa: PT011
            theirs()
        with pytest.raises(wanted.type, match=re.escape(str(wanted.value)[:20])):
            ours()
