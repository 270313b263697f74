"""The arguments of logsumexp, in all their forms: what jax.nn gives, or its class of error."""

import functools
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import close

import jaxkernels as jk

OURS, PEER = jk.logsumexp, jax.nn.logsumexp
RNG = np.random.default_rng(5)
SHAPE = (2, 3, 4, 5)
A = RNG.standard_normal(SHAPE).astype(np.float32)
MASK = RNG.random(SHAPE) < 0.6
MASK[0, 1, 2], MASK[:, :, :, 0] = False, True
MASK[0, 1, 2, 0] = False
FACTORS = RNG.standard_normal((2, 3, 4, 1)).astype(np.float32)
FACTORS[1, 2, 3], FACTORS[0, 0, 0] = 0, -2

# Arguments by name; those that are arrays belong to the program.
CALLS = {
    "all": {},
    **{
        f"axis {axis}": {"axis": axis}
        for axis in (0, 1, 2, 3, -1, -2, -4, (0,), (1, 3), (3, 1), (-1, 0), (0, 1, 2, 3), ())
    },
    "list of axes": {"axis": [0, 2]},
    "keepdims": {"axis": (1, -1), "keepdims": True},
    "keepdims of all": {"keepdims": True},
    "sign": {"axis": 1, "return_sign": True},
    "sign and keepdims": {"axis": (0, 3), "return_sign": True, "keepdims": True},
    "sign of no axis": {"axis": (), "return_sign": True},
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
    "where, all axes": {"where": MASK},
    "where of rows": {"axis": -1, "where": MASK[..., 1:2]},
    "where all hidden": {"axis": -1, "where": np.zeros(SHAPE, bool), "return_sign": True},
    "where one bool": {"axis": -1, "where": True},
    "where of lower rank": {"axis": (0, -1), "where": MASK[1, 0]},
    "where of larger rank": {"axis": -1, "where": np.stack([MASK, ~MASK])},
}


def all_close(got, want, message=""):
    assert jax.tree.structure(got) == jax.tree.structure(want), message
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        close(a, b, message)


def same(*args, **kwargs):
    """The same result as jax.nn, or the same class of error."""

    def traced(f):
        return jax.jit(lambda: f(*args, **kwargs))()  # one program instead of one an operation

    try:
        with warnings.catch_warnings(action="ignore"):
            want = traced(PEER)
    except Exception as error:
        with pytest.raises(type(error)):
            traced(OURS)
        return
    all_close(traced(OURS), want, f"{args} {kwargs}")


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


@functools.cache
def of_every_call():
    """Results and gradients of every call of ours and of jax.nn, from one program."""
    return jax.jit(lambda a: [results_and_gradients(f, a) for f in (OURS, PEER)])(A)


def test_every_call_of_jax_nn():
    for name, (_, got), (_, want) in zip(CALLS, *of_every_call(), strict=True):
        all_close(got, want, name)


def test_every_call_with_half_types():
    def program(f):
        return jax.jit(lambda a: [f(a, **options) for options in CALLS.values()])

    a = jnp.asarray(A, jnp.bfloat16)
    for name, got, want in zip(CALLS, program(OURS)(a), program(PEER)(a), strict=True):
        all_close(got, want, name)


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


def test_gradients_of_every_call():
    """Gradients equal jax.nn's where those are finite; hidden elements have a gradient of 0."""
    got, want = ([gradient for gradient, _ in of] for of in of_every_call())
    for name, ours, theirs in zip(CALLS, got, want, strict=True):
        assert np.isfinite(ours).all(), name
        finite = np.isfinite(theirs)  # jax.nn's are NaN where it takes the logarithm of 0
        np.testing.assert_allclose(ours[finite], theirs[finite], rtol=2e-5, atol=2e-6, err_msg=name)
    hidden = got[list(CALLS).index("where")]
    assert (np.asarray(hidden)[~MASK] == 0).all()


def test_factors_have_gradients():
    """The gradient of log |b s| by b is 1 / b if all elements of a sum have the same factor."""

    def gradient(f, b):
        return jax.grad(lambda b: jnp.sum(f(A, -1, b, False, True)[0] * jnp.cos(A[..., 0])))(b)

    b = np.where(FACTORS == 0, 1, FACTORS)
    got, want = jax.jit(lambda b: [gradient(f, b) for f in (OURS, PEER)])(b)
    np.testing.assert_allclose(got, want, rtol=2e-5)


def test_the_derivative_by_a_factor_of_zero():
    """It is exp(a - log|sum|) times the sign; an element without a number shows nowhere."""
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
        {"axis": "batch"},
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
def test_wrong_arguments_raise_as_jax_nn_does(options):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever it is
        PEER(A, **options)
    with pytest.raises(type(theirs.value)):
        OURS(A, **options)


def test_the_signature_begins_as_jax_nns():
    theirs = list(inspect.signature(PEER).parameters.values())
    ours = list(inspect.signature(OURS).parameters.values())
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [
        (p.name, p.default, p.kind) for p in theirs
    ]
    assert {p.kind for p in ours[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint32", "complex64"])
def test_promotion_with_factors(dtype):
    x = jnp.asarray([[3, 1, 2], [0, 5, 5]], dtype)
    same(x, -1, jnp.asarray([[2], [3]], jnp.bfloat16))


def test_promotion_with_x64():
    x = np.array([[3, 1, 2], [0, 5, 5]])
    for dtype in ("int32", "int64", "float64"):
        with jax.enable_x64(True):
            same(jnp.asarray(x, dtype), -1, jnp.asarray([[2.0], [-1.0]]), return_sign=True)
            same(jnp.asarray(x, dtype), -1, 2.0)


def test_weak_types():
    weak = jnp.asarray(1.0) * jnp.ones((), jnp.float32)
    for x in (2.0, 2, jnp.asarray(2.0), weak, jax.lax.full((3,), 1.0)):
        same(x)
        same(x, b=2.0)


def test_rank_zero_and_no_elements():
    for x, axis in (
        (np.float32(3), None),
        (np.float32(3), ()),
        (np.zeros((2, 0), np.float32), -1),
        (np.zeros((0, 2), np.float32), -1),
        (np.zeros((0, 2), np.float32), None),
        (np.zeros((2, 0, 3), np.float32), (0, 2)),
        (np.zeros((2, 0, 3), np.float32), 1),
        (np.zeros((3, 0), np.float32), ()),
    ):

        def program(f, x, axis=axis):
            return f(x, axis), f(x, axis, return_sign=True, keepdims=True)

        ours, peer = (jax.jit(functools.partial(program, f))(x) for f in (OURS, PEER))
        all_close(ours, peer, f"{x.shape} {axis}")
        loss = jax.grad(lambda x, axis=axis: jnp.sum(OURS(x, axis)))
        assert jax.eval_shape(loss, x).shape == x.shape
    assert float(jax.grad(OURS)(3.0)) == 1


def test_infinities_and_nan():
    x = jnp.asarray([[-np.inf] * 3, [1, np.inf, 2], [1, -np.inf, 2], [np.nan, 1, 2]], jnp.float32)
    same(x, -1)
    same(x, -1, return_sign=True)
    same(x, -1, jnp.asarray([[2.0], [-1.0], [0.0], [0.0]]), return_sign=True)
    same(x, 0)
    same(x)
