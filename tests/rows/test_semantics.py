"""The edge cases of jax.nn: axes, masks, factors, promotion, weak types, empty arrays, rank 0."""

import functools
import inspect
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

OURS, PEER = jk.logsumexp, jax.nn.logsumexp
PAIRS = [
    pytest.param(jk.softmax, jax.nn.softmax, id="softmax"),
    pytest.param(jk.log_softmax, jax.nn.log_softmax, id="log_softmax"),
]
both = pytest.mark.parametrize(("ours", "peer"), PAIRS)
all_three = pytest.mark.parametrize(
    ("ours", "peer"), [*PAIRS, pytest.param(OURS, PEER, id="logsumexp")]
)


def quietly(peer, *args, **kwargs):
    """jax.nn, without the warning it gives when it casts -inf to an integer."""
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return peer(*args, **kwargs)


def peer_of_mask(peer, x, axis, mask):
    """jax.nn with a mask, on x broadcast against it.

    jax.nn itself counts the axis within x for the maximum and within the result for the sum, and so gives nonsense
    where a mask adds dimensions. We count it within the result throughout, but softmax refuses one that x lacks.
    """
    if mask is not None and mask.ndim > jnp.ndim(x) and peer is not jax.nn.logsumexp:
        for index in axis if isinstance(axis, tuple) else () if axis is None else (axis,):
            if not -jnp.ndim(x) <= index < jnp.ndim(x):
                raise ValueError("axis is out of bounds of x")
        x = jnp.broadcast_to(x, jnp.broadcast_shapes(jnp.shape(x), mask.shape))
    return quietly(peer, x, axis=axis, where=mask)


def at_once(peer):
    """jax.nn as one program. Without jit each of its operations would be compiled by itself."""
    return lambda x, *args, **kwargs: jax.jit(lambda x: peer(x, *args, **kwargs))(x)


def all_close(got, want, message=""):
    assert jax.tree.structure(got) == jax.tree.structure(want), message
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        close(a, b, message)


def same(ours, peer, *args, **kwargs):
    """The same result as jax.nn, or the same class of error."""
    try:
        want = quietly(peer, *args, **kwargs)
    except Exception as error:
        with pytest.raises(type(error)):
            ours(*args, **kwargs)
        return
    all_close(ours(*args, **kwargs), want, f"{args} {kwargs}")


@all_three
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((), None),
        ((), ()),
        ((2, 0), -1),
        ((0, 2), -1),
        ((0, 2), None),
        ((0,), 0),
        ((2, 0, 3), 1),
        ((2, 0, 3), (1, 2)),
        ((3, 0), ()),
    ],
)
def test_rank_zero_and_zero_size(ours, peer, shape, axis):
    x = jnp.full(shape, 3.0)
    all_close(ours(x, axis=axis), peer(x, axis=axis))
    if ours is OURS:
        all_close(ours(x, axis, None, True, True), peer(x, axis, None, True, True))

    @jax.jit
    def derivatives(x):
        y, dy = jax.jvp(functools.partial(ours, axis=axis), (x,), (x,))
        return y, dy, jax.grad(lambda x: jnp.sum(ours(x, axis=axis)).astype(jnp.float32))(x)

    for dtype in ("float32", "bfloat16", "float16"):
        run = derivatives.__wrapped__ if dtype == "float32" else derivatives
        y, dy, dx = run(x.astype(dtype))
        assert (dy.shape, dy.dtype) == (y.shape, dtype)
        assert x.size or (dy == 0).all()
        assert (dx.shape, dx.dtype) == (shape, dtype)
    assert shape or dx == (1 if ours is OURS else 0)


DTYPES = (
    *("bool", "int8", "int16", "int32", "float16", "bfloat16", "float32", "complex64"),
    *("int64", "float64"),
)
WEAK = jnp.asarray(1.0) * jnp.ones((), jnp.float32)
VALUES = [2.0, 2, True, [1.0, 2.0], (1.0, 2.0), "text", None, np.float64(2), np.int32(2), WEAK]
VALUES += [jnp.asarray(2.0), jnp.ones(3, "float8_e4m3fn"), jax.lax.full((3,), 1.0)]


@all_three
@pytest.mark.parametrize("x64", [False, True])
def test_promotion(ours, peer, x64):
    """64 bits have to be asked for, as everywhere in JAX."""
    with jax.enable_x64(x64):
        for dtype in DTYPES if x64 else DTYPES[:-2]:
            x = jnp.asarray(np.array([[3, 1, 2], [0, 5, 5]]), dtype)
            same(ours, at_once(peer), x, -1)
            if ours is OURS:
                same(ours, at_once(peer), x, -1, jnp.asarray([[2], [3]], jnp.bfloat16))
                same(ours, at_once(peer), x, -1, jnp.asarray([[2.0], [-1.0]]), return_sign=True)
    if not x64:
        assert ours(np.ones((2, 3)), -1).dtype == jnp.float32
    for dtype in ("uint8", "uint16", "uint32") if ours is not OURS else ():
        # jax.nn takes -inf for the initial maximum, casts it to unsigned and gives NaN.
        x = np.array([[3, 1, 2], [0, 5, 5]], dtype)
        close(ours(jnp.asarray(x)), peer(jnp.asarray(x, jnp.float32)))


@all_three
@pytest.mark.parametrize("value", VALUES)
def test_python_values_and_weak_types(ours, peer, value):
    same(ours, peer, value, axis=None)
    if ours is OURS:
        same(ours, peer, value, b=2.0)


@both
def test_a_list_of_axes(ours, peer):
    """jax.nn.log_softmax takes none."""
    close(ours(A, [3, 1]), peer(A, (3, 1)))


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


@all_three
def test_the_signature_begins_as_jax_nns(ours, peer):
    """Further arguments are keyword-only."""
    mine, theirs = (list(inspect.signature(f).parameters.values()) for f in (ours, peer))
    about = [[(p.name, p.default, p.kind) for p in some] for some in (mine, theirs)]
    assert about[0][: len(theirs)] == about[1]
    assert {p.kind for p in mine[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}


# Each shape that hypothesis draws is compiled, so dimensions are few and sizes small.
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


# Shapes of x and of the mask, and the axis.
WHERE = [
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
    ((), (1,), 0),
    ((7,), (4, 7), 1),
]


def with_examples(test):
    for number, (shape, mask_shape, axis) in enumerate(WHERE):
        dtype = ("float32", "bfloat16", "float16")[number % 3]
        test = hypothesis.example(call=(shape, dtype, axis, mask_shape, number))(test)
    return test


@all_three
@hypothesis.settings(max_examples=60 if ON_GPU else 30, deadline=None, derandomize=True)
@hypothesis.given(call=calls())
@with_examples
def test_fuzz_against_jax_nn(ours, peer, call):
    shape, dtype, axis, mask_shape, seed = call
    rng = np.random.default_rng(seed)
    x = jnp.asarray((4 * rng.standard_normal(shape)).astype(np.float32), dtype)
    mask = None if mask_shape is None else jnp.asarray(rng.random(mask_shape) < 0.7)
    try:
        want = at_once(functools.partial(peer_of_mask, peer))(x, axis, mask)
    except Exception as error:
        with pytest.raises(type(error)):
            ours(x, axis=axis, where=mask)
        return
    close(ours(x, axis=axis, where=mask), want)


RNG = np.random.default_rng(5)
SHAPE = (2, 3, 4, 5)
A = RNG.standard_normal(SHAPE).astype(np.float32)
MASK = RNG.random(SHAPE) < 0.6
MASK[0, 1, 2], MASK[:, :, :, 0] = False, True
MASK[0, 1, 2, 0] = False
FACTORS = RNG.standard_normal((2, 3, 4, 1)).astype(np.float32)
FACTORS[1, 2, 3], FACTORS[0, 0, 0] = 0, -2

# Arguments by name; arrays become operands of the program.
CALLS = {
    "all": {},
    **{
        f"axis {axis}": {"axis": axis}
        for axis in (0, 1, 2, 3, -1, -2, -4, (0,), (1, 3), (3, 1), (-1, 0), (0, 1, 2, 3), ())
    },
    "list of axes": {"axis": [0, 2]},
    "sign": {"axis": 1, "return_sign": True},
    "sign and keepdims": {"axis": (0, 3), "return_sign": True, "keepdims": True},
    "b one number": {"axis": -1, "b": np.float32(0.25)},
    "b a number of Python": {"axis": -1, "b": 3},
    "b negative": {"axis": -1, "b": -2.0},
    "b negative, sign": {"axis": -1, "b": -2.0, "return_sign": True},
    "b zero": {"axis": (2, 3), "b": 0.0},
    "b zero, sign": {"axis": -1, "b": 0, "return_sign": True},
    "b of rows": {"axis": -1, "b": FACTORS},
    "b of rows, sign": {"axis": -1, "b": FACTORS, "return_sign": True, "keepdims": True},
    "b of rows, another axis": {"axis": 1, "b": FACTORS[:, :1, :, :1], "return_sign": True},
    "b of lower rank": {"axis": 1, "b": FACTORS[0, :1, :, 0, None]},
    "b of no dimension along the axes": {"axis": (0, 1), "b": FACTORS[1, 1]},
    "b of integers": {"axis": -1, "b": np.array([[1], [2], [0], [-3]]), "return_sign": True},
    "b of bool": {"axis": -1, "b": np.array([[True], [False], [True], [True]])},
    "b of elements": {"axis": -1, "b": A, "return_sign": True},
    "b of elements, all axes": {"b": A, "return_sign": True},
    "b of larger rank": {"axis": -1, "b": np.abs(RNG.standard_normal((2, *SHAPE))) + 0.5},
    "b and where": {"axis": -1, "b": FACTORS, "where": MASK, "return_sign": True},
    "where": {"axis": -1, "where": MASK},
    "where all hidden": {"axis": -1, "where": np.zeros(SHAPE, bool), "return_sign": True},
    "where of larger rank": {"axis": -1, "where": np.stack([MASK, ~MASK])},
}


def is_served(options):
    """Whether the factors of a sum are one."""
    return not (isinstance(options.get("b"), np.ndarray) and options["b"].shape[-4:] == SHAPE)


def results_and_gradients(f, a):
    """The results of every call, and the gradient of those that are finite."""

    def loss(a, options):
        results = f(a, **options)
        finite = [jnp.where(jnp.isfinite(y), y, 0) for y in jax.tree.leaves(results)]
        return sum(jnp.sum(jnp.sin(y)) for y in finite), results

    return [jax.grad(loss, has_aux=True)(a, options) for options in CALLS.values()]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_call_of_logsumexp(dtype):
    """Gradients equal jax.nn's where those are finite; hidden elements have a gradient of 0."""
    program = jax.jit(lambda a: [results_and_gradients(f, a) for f in (OURS, PEER)])
    for name, (dx, got), (peer_dx, want) in zip(CALLS, *program(A.astype(dtype)), strict=True):
        all_close(got, want, name)
        assert np.isfinite(dx).all(), name
        if dtype == jnp.float32:
            finite = np.isfinite(peer_dx)  # jax.nn's are NaN where it takes the logarithm of 0
            close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
            close(dx[finite], peer_dx[finite], err_msg=name)
        assert name != "where" or (np.asarray(dx)[~MASK] == 0).all()


def test_which_calls_have_kernels():
    for name, options in CALLS.items():
        jaxpr = str(jax.make_jaxpr(functools.partial(OURS, **options))(A))
        assert ("jaxkernels_logsumexp_fwd" in jaxpr) == is_served(options), name
        insists = functools.partial(OURS, implementation="ffi", **options)
        if is_served(options):
            jax.eval_shape(insists, A)
        else:
            with pytest.raises(NotImplementedError, match=r"b has (the shape|5 dimensions)"):
                insists(A)


def test_the_derivative_by_a_factor_of_zero():
    """It is exp(a - log|sum|) times the sign; NaN or infinity in an element with the factor 0 shows nowhere."""
    a = A[0, 0].copy()
    a[0, 1], a[1, 2], a[2, 3] = np.nan, np.inf, 200
    b = A[1, 0] * (A[1, 1] > 0)
    b[0, 1] = b[1, 2] = b[2, 3] = b[3, 0] = 0
    value, gradient = jax.value_and_grad(lambda b: jnp.sum(OURS(a, -1, b, False, True)[0]))(b)
    shown = np.where((b == 0) & (~np.isfinite(a) | (a == 200)), -np.inf, a).astype(np.float64)
    total = (b * np.exp(shown)).sum(-1)
    np.testing.assert_allclose(value, np.log(np.abs(total)).sum(), rtol=1e-5)
    want = np.exp(shown) / total[:, None]
    assert abs(gradient[2, 3]) > 1e37  # as far as float32 goes
    np.testing.assert_allclose(gradient.at[2, 3].set(0), want, rtol=2e-5)
    assert (want[b == 0] != 0).sum() > 3
    by_a = jax.grad(lambda a: jnp.sum(OURS(a, -1, b, False, True)[0]))(a)
    np.testing.assert_allclose(by_a, b * want, rtol=2e-5)
    again = jax.jvp(lambda a: jax.grad(lambda b: OURS(a, b=b))(b[3]), (a[3],), (np.ones(5, "f"),))
    np.testing.assert_allclose(again[1], 0, atol=1e-5)  # a shift of all a changes no ratio
    hidden = jax.grad(lambda b: OURS(A[0, 0], b=b, where=b != 0))(b)
    assert (np.asarray(hidden)[b == 0] == 0).all()
    assert (jax.grad(lambda b: OURS(A[0, 0, 0], b=b))(jnp.zeros(5)) == 0).all()


def test_a_negative_sum_is_nan_under_debug_nans_too():
    """Outside of jit, as jax.nn's is: the NaN is the documented result."""
    with jax.debug_nans(True):
        for b in (-2.0, -np.ones((2, 3, 4, 1), np.float32), -np.abs(A)):
            assert np.isnan(OURS(A, -1, b)).all()


@pytest.mark.parametrize(
    "options",
    [
        *({"axis": axis} for axis in ("batch", 4, -5, (0, 4), (0, 0), (0, -4), 1.5, (0, 1.5))),
        {"where": np.ones((2, 3), bool)},
        {"where": np.ones(SHAPE, np.int32)},
        {"where": np.ones(SHAPE, np.int32), "b": A},
        {"b": np.ones((7, 1), np.float32), "axis": -1},
        {"b": np.ones((7, 5), np.float32), "axis": -1},
        {"b": [1.0, 2.0], "axis": 0},
        {"b": "text"},
    ],
    ids=str,
)
def test_wrong_arguments_of_logsumexp(options):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever it is
        PEER(A, **options)
    with pytest.raises(type(theirs.value)):
        OURS(A, **options)


def test_infinities_and_nan():
    x = jnp.asarray([[-np.inf] * 3, [1, np.inf, 2], [1, -np.inf, 2], [np.nan, 1, 2]], jnp.float32)
    for options in (
        {"axis": -1, "return_sign": True},
        {"axis": -1, "b": jnp.asarray([[2.0], [-1.0], [0.0], [0.0]]), "return_sign": True},
        {"axis": 0},
        {},
    ):
        same(OURS, PEER, x, **options)
