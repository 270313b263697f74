"""matmul, dot_general and sgemm as functions of JAX: shapes, dtypes, layouts, Flax layers."""

import functools

import flax.linen
import flax.nnx
import gemm_cases as cases
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk

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


@pytest.mark.smoke
@pytest.mark.parametrize(("a_shape", "b_shape"), MATMUL_SHAPES)
def test_shapes_of_matmul(a_shape, b_shape):
    a, b = cases.operand("normal", a_shape), cases.operand("normal", b_shape, seed=1)
    got = jk.matmul(a, b)
    want = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert got.shape == jnp.matmul(a, b).shape
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@st.composite
def contractions(draw):
    """Two shapes and dimension numbers that fit, with all orders of batch, contracted and free dimensions."""
    size = st.integers(1, 4)
    batch = draw(st.lists(size, max_size=2))
    contract = draw(st.lists(size, max_size=3))
    sides = []
    for _ in range(2):
        free = draw(st.lists(size, max_size=2))
        labelled = [("b", i, n) for i, n in enumerate(batch)]
        labelled += [("c", i, n) for i, n in enumerate(contract)]
        labelled += [("f", i, n) for i, n in enumerate(free)]
        sides.append(draw(st.permutations(labelled)))

    def positions(side, kind, count):
        where = {label[:2]: d for d, label in enumerate(side)}
        return tuple(where[kind, i] for i in range(count))

    pairs = draw(st.permutations(range(len(contract))))
    numbers = tuple(
        tuple(tuple(positions(side, kind, count)[i] for i in order) for side in sides)
        for kind, count, order in (
            ("c", len(contract), pairs),
            ("b", len(batch), range(len(batch))),
        )
    )
    shapes = [tuple(n for _, _, n in side) for side in sides]
    return shapes, numbers


@pytest.mark.smoke
@hypothesis.settings(max_examples=60 if cases.ON_GPU else 30, deadline=None)
@hypothesis.given(contractions())
def test_any_dot_general(contraction):
    shapes, numbers = contraction
    x, y = cases.operand("normal", shapes[0]), cases.operand("normal", shapes[1], seed=1)
    got = jk.dot_general(x, y, numbers)
    with jax.enable_x64(True):
        want = jax.lax.dot_general(x.astype(np.float64), y.astype(np.float64), numbers)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def transposes(jaxpr):
    return str(jaxpr).count("transpose[")


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
    jaxpr = jax.make_jaxpr(lambda x, y: jk.dot_general(x, y, numbers))(x, y)
    assert transposes(jaxpr) == 0
    gradient = jax.make_jaxpr(jax.grad(lambda x, y: jk.dot_general(x, y, numbers).sum()))(x, y)
    assert transposes(gradient) == 0


def test_half_types_are_widened_when_asked():
    for dtype in (jnp.bfloat16, jnp.float16):
        a = jnp.asarray(cases.operand("normal", (20, 30))).astype(dtype)
        b = jnp.asarray(cases.operand("normal", (30, 10))).astype(dtype)
        got = jk.matmul(a, b, preferred_element_type=jnp.float32)
        cases.check(got, np.asarray(a, np.float32), np.asarray(b, np.float32))
        mixed = jk.matmul(a, b.astype(jnp.float32), preferred_element_type=np.float32)
        assert np.array_equal(got, mixed)
        gradient = jax.grad(lambda a, b=b: jk.matmul(a, b, preferred_element_type="float32").sum())
        assert gradient(a).dtype == dtype


@pytest.mark.parametrize(
    "precision", [None, "default", "highest", "tensorfloat32", jax.lax.Precision.DEFAULT]
)
def test_precision_is_never_lowered(precision):
    a, b = cases.operand("normal", (50, 300)), cases.operand("normal", (300, 20))
    cases.check(jk.dot_general(a, b, (((1,), (0,)), ((), ())), precision), a, b)
    cases.check(jk.matmul(a, b, precision=precision), a, b)


@pytest.mark.parametrize("algorithm", cases.RUNGS)
def test_a_rung_changes_nothing_on_a_cpu(algorithm, cpu_devices):
    with jax.default_device(cpu_devices[0]):
        a = jnp.asarray(cases.operand("normal", (40, 50)))
        b = jnp.asarray(cases.operand("normal", (50, 60)))
        assert np.array_equal(jk.matmul(a, b, algorithm=algorithm), jk.matmul(a, b))


@pytest.mark.parametrize("flag", [0, 1, 2, True, False])
def test_flags_of_blas(flag):
    a, b = cases.operand("normal", (4, 5)), cases.operand("normal", (5, 6))
    cases.check(jk.sgemm(cases.stored(a, bool(flag)), b, trans_a=flag), a, b)
    cases.check(jk.sgemm(a, cases.stored(b, bool(flag)), trans_b=flag), a, b)


class LinenMlp(flax.linen.Module):
    dot_general: object

    @flax.linen.compact
    def __call__(self, x):
        x = flax.linen.Dense(33, dot_general=self.dot_general)(x)
        features = (3, 5)
        return flax.linen.DenseGeneral(features, dot_general=self.dot_general)(jnp.tanh(x))


@pytest.mark.parametrize("shape", [(8, 20), (2, 3, 20)])
def test_flax_linen_layers(shape):
    """Outputs and gradients equal those of the layer with XLA's product; the kernel is in the program."""
    x = jnp.asarray(cases.operand("normal", shape))

    def exact_dot_general(lhs, rhs, dims, precision=None, **options):
        return jax.lax.dot_general(lhs, rhs, dims, precision="highest", **options)

    params = LinenMlp(None).init(jax.random.key(0), x)

    def loss(params, dot_general):
        return jnp.sum(jnp.sin(LinenMlp(dot_general).apply(params, x)))

    ours = jax.value_and_grad(loss)(params, jk.dot_general)
    theirs = jax.value_and_grad(loss)(params, exact_dot_general)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-5), ours, theirs)
    program = str(jax.make_jaxpr(lambda p: loss(p, jk.dot_general))(params))
    assert program.count("jaxkernels_sgemm") == 2


def test_flax_nnx_linear():
    x = jnp.asarray(cases.operand("normal", (4, 20)))
    layers = [
        flax.nnx.Linear(20, 7, rngs=flax.nnx.Rngs(0), **options)
        for options in ({"dot_general": jk.dot_general}, {"precision": "highest"})
    ]

    def loss(layer):
        return jnp.sum(jnp.sin(layer(x)))

    np.testing.assert_allclose(layers[0](x), layers[1](x), rtol=1e-5, atol=1e-5)
    ours, theirs = (flax.nnx.grad(loss)(layer) for layer in layers)
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(compare, ours, theirs)


MEMBERS = cases.operand("normal", (6, 4, 3))
W = cases.operand("normal", (3, 5), seed=1)


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
