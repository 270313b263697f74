"""The edge cases of jax.nn: axis, where, promotion, weak types, empty arrays, rank 0."""

import functools
import warnings

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ON_GPU, close
from hypothesis.extra import numpy as hnp

import jaxkernels as jk

PAIRS = [
    pytest.param(jk.softmax, jax.nn.softmax, id="softmax"),
    pytest.param(jk.log_softmax, jax.nn.log_softmax, id="log_softmax"),
]
LOGSUMEXP = [functools.partial(f, axis=-1) for f in (jk.logsumexp, jax.nn.logsumexp)]
both = pytest.mark.parametrize(("ours", "peer"), PAIRS)
all_three = pytest.mark.parametrize(
    ("ours", "peer"), [*PAIRS, pytest.param(*LOGSUMEXP, id="logsumexp")]
)


def quietly(peer, *args, **kwargs):
    """jax.nn, without the warning it gives when it casts -inf to an integer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return peer(*args, **kwargs)


def peer_of_mask(peer, x, axis, mask):
    """jax.nn with a mask, on x broadcast against it.

    jax.nn itself counts the axis within x for the maximum and within the result for the sum, and so gives nonsense
    where a mask adds dimensions. We count it within the result throughout.
    """
    if mask is not None and mask.ndim > jnp.ndim(x):
        for index in axis if isinstance(axis, tuple) else () if axis is None else (axis,):
            if not -jnp.ndim(x) <= index < jnp.ndim(x):
                raise ValueError("axis is out of bounds of x")
        x = jnp.broadcast_to(x, jnp.broadcast_shapes(jnp.shape(x), mask.shape))
    return quietly(peer, x, axis=axis, where=mask)


def same(ours, peer, *args, **kwargs):
    """The same result as jax.nn, or the same class of error."""
    try:
        want = quietly(peer, *args, **kwargs)
    except Exception as error:
        with pytest.raises(type(error)):
            ours(*args, **kwargs)
        return
    close(ours(*args, **kwargs), want)


@pytest.mark.half_on_a_cpu
@both
@pytest.mark.parametrize(
    "axis", [0, 1, 2, 3, -1, -2, -4, (0,), (1, 3), (3, 1), [0, 2], (-1, 0), (0, 1, 2, 3), (), None]
)
def test_axis(ours, peer, axis):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    hashable = tuple(axis) if isinstance(axis, list) else axis  # jax.nn.log_softmax takes no list
    close(ours(x, axis=axis), peer(x, axis=hashable))
    close(ours(x, axis), peer(x, hashable))

    @jax.jit
    def gradients(x):
        return [jax.grad(lambda x, f=f: jnp.sum(f(x, hashable) * x))(x) for f in (ours, peer)]

    close(*gradients(x))


@all_three
@pytest.mark.parametrize("axis", [4, -5, (0, 4), (0, 0), (0, -4), (1, -3), 1.5, (0, 1.5)])
def test_wrong_axis_raises_as_jax_nn_does(ours, peer, axis):
    x = jnp.zeros((2, 3, 4, 5))
    with pytest.raises((TypeError, ValueError)) as theirs:
        peer(x, axis=axis)
    with pytest.raises(type(theirs.value)):
        ours(x, axis=axis)


@both
def test_rank_zero(ours, peer):
    x = jnp.float32(3)
    close(ours(x, axis=None), peer(x, axis=None))
    close(ours(x, axis=()), peer(x, axis=()))
    assert float(ours(x, axis=None)) == (1.0 if ours is jk.softmax else 0.0)
    with pytest.raises(ValueError, match="-1"):
        ours(x)
    assert float(jax.grad(lambda x: ours(x, axis=None))(x)) == 0


@both
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 0), -1),
        ((0, 2), -1),
        ((0,), 0),
        ((0,), None),
        ((2, 0, 3), 1),
        ((2, 0, 3), (1, 2)),
        ((0, 0), None),
        ((3, 0), ()),
    ],
)
def test_zero_size(ours, peer, shape, axis):
    close(ours(jnp.zeros(shape), axis=axis), peer(jnp.zeros(shape), axis=axis))
    x = jnp.zeros(shape, jnp.bfloat16)
    assert jax.jit(functools.partial(ours, axis=axis))(x).shape == shape
    assert jax.grad(lambda x: ours(x, axis=axis).sum().astype(jnp.float32))(x).shape == shape


@all_three
@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "int16", "int32", "float16", "bfloat16", "float32", "complex64"],
)
def test_promotion(ours, peer, dtype):
    x = jnp.asarray([[3, 1, 2], [0, 5, 5]], dtype)
    same(ours, peer, x)


@both
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_unsigned_integers(ours, peer, dtype):
    """Better than jax.nn, which takes -inf for the initial maximum, casts it to unsigned and gives NaN."""
    x = np.array([[3, 1, 2], [0, 5, 5]], dtype)
    close(ours(jnp.asarray(x)), peer(jnp.asarray(x, jnp.float32)))


@all_three
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_promotion_with_x64(ours, peer, dtype):
    x = np.array([[3, 1, 2], [0, 5, 5]], dtype)
    assert ours(x).dtype == jnp.float32  # as everywhere in JAX, 64 bits have to be asked for
    with jax.enable_x64(True):
        same(ours, peer, jnp.asarray(x))


@all_three
def test_float8_goes_to_jax_nn(ours, peer):
    x = jnp.asarray([[1, 2, 3]], jnp.float8_e4m3fn)
    got, want = ours(x), peer(x)
    assert got.dtype == want.dtype
    assert np.array_equal(np.asarray(got).view(np.uint8), np.asarray(want).view(np.uint8))


@all_three
@pytest.mark.parametrize(
    "value", [2.0, 2, True, [1.0, 2.0], (1.0, 2.0), "text", None, np.float64(2), np.int32(2)]
)
def test_python_values(ours, peer, value):
    same(ours, peer, value, axis=None)


@both
def test_weak_types(ours, peer):
    weak = jnp.asarray(1.0) * jnp.ones((), jnp.float32)
    for x in (2.0, jnp.asarray(2.0), weak, jax.lax.full((3,), 1.0)):
        close(ours(x, axis=None), peer(x, axis=None))


# Shapes of x and of the mask, and the axis.
WHERE = [
    ((4, 7), (4, 7), -1),
    ((4, 7), (7,), -1),
    ((4, 7), (4, 1), -1),
    ((4, 7), (), -1),
    ((4, 7), (1, 7), 0),
    ((7,), (4, 7), -1),
    ((7,), (4, 7), 0),
    ((1, 7), (4, 1), -1),
    ((1, 7), (4, 1), 0),
    ((4, 1), (4, 7), -1),
    ((4, 1), (4, 7), 0),
    ((4, 7), (4, 7), None),
    ((2, 4, 7), (4, 1), (0, 2)),
    ((4, 7), (2, 4, 7), (-1, -2)),
    ((4, 7), (2, 4, 7), None),
    ((), (3,), None),
]


@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_where(ours, peer, dtype):
    rng = np.random.default_rng(1)
    xs = [jnp.asarray(rng.standard_normal(shape), dtype) for shape, _, _ in WHERE]
    masks = [rng.random(shape) < 0.6 for _, shape, _ in WHERE]

    @jax.jit
    def of_both(xs, masks):
        return [
            (ours(x, axis=axis, where=mask), ours(x, axis, mask), peer_of_mask(peer, x, axis, mask))
            for x, mask, (_, _, axis) in zip(xs, masks, WHERE, strict=True)
        ]

    for *found, want in of_both(xs, masks):
        for y in found:
            close(y, want)


@both
def test_fully_masked_row(ours, peer):
    """0, or -inf; and zero gradients in every mode, no NaN."""
    x = jnp.asarray([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    mask = jnp.asarray([[False] * 3, [True, False, True]])
    want = 0.0 if ours is jk.softmax else -np.inf
    assert np.array_equal(ours(x, where=mask)[0], [want] * 3)
    assert ours(x, where=mask)[1, 1] == want
    assert not jnp.isnan(ours(x, where=mask)).any()
    _, pull = jax.vjp(lambda x: ours(x, where=mask), x)
    dx = pull(jnp.full_like(x, 2.0))[0]
    assert np.array_equal(dx[0], [0, 0, 0])
    assert dx[1, 1] == 0
    _, tangent = jax.jvp(lambda x: ours(x, where=mask), (x,), (jnp.ones_like(x),))
    assert np.array_equal(tangent[0], [0, 0, 0])
    close(dx, jax.vjp(lambda x: peer(x, where=mask), x)[1](jnp.full_like(x, 2.0))[0])


@both
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_nothing_under_the_mask_leaks(ours, peer, poison):
    """Neither into values nor into gradients of first and second order."""
    mask = jnp.asarray([[True, True, False, True]])
    clean = jnp.asarray([[0.5, -1.0, 7.0, 2.0]])
    poisoned = clean.at[0, 2].set(poison)

    def loss(x):
        y = ours(x, where=mask)
        return jnp.sum(jnp.where(mask, y, 0.0) ** 2)

    assert np.array_equal(ours(clean, where=mask), ours(poisoned, where=mask))
    assert np.array_equal(jax.grad(loss)(clean), jax.grad(loss)(poisoned))
    assert np.array_equal(jax.hessian(loss)(clean), jax.hessian(loss)(poisoned))
    assert jax.grad(loss)(poisoned)[0, 2] == 0
    close(ours(poisoned, where=mask), peer(poisoned, where=mask))


@both
def test_rows_of_infinities(ours, peer):
    x = jnp.asarray([[-np.inf] * 3, [1.0, np.inf, 2.0], [1.0, -np.inf, 2.0], [np.nan, 1.0, 2.0]])
    close(ours(x), peer(x))
    gradients = [
        jax.grad(lambda x, f=f: jnp.sum(f(x)[2] * jnp.asarray([1.0, 0.0, 3.0])))(x)
        for f in (jk.softmax, jax.nn.softmax)
    ]
    np.testing.assert_allclose(gradients[0][2], gradients[1][2], rtol=1e-6, atol=1e-7)


def test_signature_takes_jax_nns_calls():
    """Positional axis and where as in jax.nn; what is ours is keyword-only."""
    x = jnp.ones((2, 3))
    jk.softmax(x, -1, None)
    jk.softmax(x=x, axis=0, where=None)
    with pytest.raises(TypeError):
        jk.softmax(x, -1, None, "warp")  # pyright: ignore[reportCallIssue]


# One shape each for hypothesis to fuzz costs compilations; eager jax.nn dominates. Few dimensions, small sizes.
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def calls(draw):
    """Arguments of softmax: shape, dtype, axis (often invalid) and where."""
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from(("float32", "bfloat16", "float16", "int32", "bool")))
    index = st.integers(-4, 3)
    axis = draw(st.one_of(st.none(), index, st.lists(index, max_size=3).map(tuple)))
    mask_shape = draw(
        st.one_of(
            st.none(),
            hnp.broadcastable_shapes(shape, min_side=1, max_side=4, max_dims=3),
            hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3),
        )
    )
    return shape, dtype, axis, mask_shape, draw(st.integers(0, 2**31))


@both
@hypothesis.settings(max_examples=60 if ON_GPU else 30, deadline=None, derandomize=True)
@hypothesis.given(call=calls())
def test_fuzz_against_jax_nn(ours, peer, call):
    shape, dtype, axis, mask_shape, seed = call
    rng = np.random.default_rng(seed)
    x = jnp.asarray((4 * rng.standard_normal(shape)).astype(np.float32), dtype)
    mask = None if mask_shape is None else jnp.asarray(rng.random(mask_shape) < 0.7)
    try:
        want = peer_of_mask(peer, x, axis, mask)
    except Exception as error:
        with pytest.raises(type(error)):
            ours(x, axis=axis, where=mask)
        return
    close(ours(x, axis=axis, where=mask), want)
