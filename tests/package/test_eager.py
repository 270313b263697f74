"""Calls outside of jit: one compiled program each, with the results of a traced call."""

import functools

import flax.nnx
import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from public_functions import FUNCTIONS, NAMES
from transformations import TRANSFORMS, loss, mapped, numbers

import jaxkernels as jk
import jaxkernels.optax
from jaxkernels._linear_loss import primitive as linear_loss
from jaxkernels._rows.contract import RowKernel
from jaxkernels._sgemm import primitive

DOT = (((1,), (0,)), ((), ()))


def array(*shape, seed=0):
    """Whole numbers, whose products are exact in any order."""
    return jnp.asarray(cases.operand("integers", shape, seed))


A, B, C = array(4, 3), array(3, 5, seed=1), array(4, 5, seed=2)
BT = np.asarray(B.T)
X, LABEL, BIAS, MASK = array(4, 5, seed=3) / 3, jnp.array([4, 0, -1, 1]), array(5), array(4, 5) > 0
TWO, Y = jnp.float32(2), array(4, 5, seed=4)
Q, WINDOW_MASK = array(2, 5, 2, 3) / 3, array(1, 5) > 0
LENGTHS = jnp.array([2, 4], jnp.int32)
IDS_64 = np.array([4, 0, -(1 << 32) + 1, 1])  # cut off at 32 bits the third one would be 1
# Calls by other kinds of arguments than those of the table of functions: numbers, names, NumPy's arrays.
ROWS = {
    "softmax-axis": lambda: jk.softmax(X, 0),
    "softmax-numpy": lambda: jk.softmax(np.asarray(X), where=np.asarray(MASK)),
    "logsumexp-b": lambda: jk.logsumexp(X, b=TWO, return_sign=True),
    "rms_norm-number": lambda: jk.rms_norm(X, axis=0, epsilon=np.float32(1)),
    "masked-number": lambda: jk.scaled_masked_softmax(X, bias=BIAS, scale=np.float32(2)),
    "cross_entropy-names": lambda: jk.cross_entropy(labels=LABEL, logits=X, reduction="mean"),
    "cross_entropy-number": lambda: jk.cross_entropy(X, 2, weights=2.0, reduction="sum"),
    "cross_entropy-wide": lambda: jk.cross_entropy(np.asarray(X), IDS_64),
    "cross_entropy-numbers": lambda: jk.cross_entropy(
        *(X, LABEL),
        **{"weights": 2.0, "label_smoothing": 0.1, "z_loss": np.float32(0.1)},
        **{"temperature": 2, "logit_soft_cap": 9.0},
    ),
    "token_log_probs-numbers": lambda: jk.token_log_probs(X, LABEL, temperature=0.7),
    "kl-numbers": lambda: jk.softmax_kl_divergence(
        X, Y, temperature=2, weights=2.0, reduction="sum"
    ),
    "linear_token_log_probs-numbers": lambda: jk.linear_token_log_probs(
        A, B, LABEL, bias=BIAS, temperature=0.7, return_entropy=True
    ),
    "linear_cross_entropy-wide": lambda: jk.linear_cross_entropy(
        A, BT, IDS_64, trans_w=True, reduction="mean", z_loss=0.1, max_bytes=1 << 20
    ),
    "optax-wide": lambda: jaxkernels.optax.softmax_cross_entropy_with_integer_labels(X, IDS_64),
    "attention-window": lambda: jk.dot_product_attention(
        *(Q, Q, Q), mask=WINDOW_MASK, scale=0.5, local_window_size=(1, 2), return_residual=True
    ),
    "attention-scale": lambda: jk.dot_product_attention(
        *(Q, Q, Q), scale=TWO, key_value_seq_lengths=LENGTHS
    ),
}
PRODUCTS = {
    "matmul-vector": lambda: jk.matmul(A[0], B),
    "matmul-numpy": lambda: jk.matmul(np.asarray(A), np.asarray(B)),
    "matmul-numpy-64": lambda: jk.matmul(np.asarray(A, np.float64), np.asarray(B, np.float64)),
    "matmul-16": lambda: jk.matmul(
        A.astype(jnp.bfloat16), B.astype(jnp.float16), preferred_element_type=jnp.float32
    ),
    "matmul-xla": lambda: jk.matmul(A, B, implementation="xla"),
    "matmul-precision": lambda: jk.matmul(A, B, precision="high"),
    "matmul-rung": lambda: jk.matmul(A, B, algorithm="warp_tile"),
    "dot_general-lists": lambda: jk.dot_general(A, B, [[[1], [0]], [[], []]]),
    "dot_general-precision": lambda: jk.dot_general(A, B, DOT, ("high", "default")),
    "dot_general-precisions": lambda: jk.dot_general(A, B, DOT, ["high", "default"]),
    "sgemm-numbers": lambda: jk.sgemm(A, B, C, alpha=2.0, beta=np.float32(3)),
    "sgemm-alpha": lambda: jk.sgemm(A, B, C, alpha=TWO, beta=1.0),
    "sgemm-beta": lambda: jk.sgemm(A, B, C, alpha=1.0, beta=TWO),
    "sgemm-no-c": lambda: jk.sgemm(A, B, alpha=TWO),
    "sgemm-transposed": lambda: jk.sgemm(A.T, B.T, trans_a=1, trans_b=2),
    "sgemm-numpy": lambda: jk.sgemm(
        np.asarray(A), np.asarray(B), np.asarray(C), beta=np.array(1.0)
    ),
    "tensordot": lambda: jk.tensordot(A, B, 1),
    "tensordot-axes": lambda: jk.tensordot(A, B, ([1], [0])),
}
TABLE = {
    name: functools.partial(FUNCTIONS[name].ours, *map(jnp.asarray, FUNCTIONS[name].draw()))
    for name in (*NAMES, "softmax-axes", "rms_norm-axis", "optax", "matmul-batched")
}
CALLS = PRODUCTS | ROWS | TABLE
# Those that are no program: a list cannot be looked up, and 64 bits may be too many.
NEVER = ("dot_general-precisions", *(name for name in CALLS if "wide" in name))


def assert_same(got, want, **options):
    """Equal types, and equal values up to the roundings of XLA's constant folding."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6, **options)


@pytest.fixture
def refusing(monkeypatch):
    """Makes every trace of a function of ours an error, once it is called."""

    def start():
        def refuse(*operands, **options):
            raise AssertionError("traced again")

        monkeypatch.setattr(primitive, "multiply", refuse)
        monkeypatch.setattr(primitive, "reference", refuse)
        monkeypatch.setattr(linear_loss, "_bind", refuse)
        monkeypatch.setattr(RowKernel, "__call__", refuse)
        monkeypatch.setattr(jax, "eval_shape", refuse)

    return start


@functools.cache
def traced():
    """The results under jit, from one program."""
    return jax.jit(lambda: {name: call() for name, call in CALLS.items()})()


one_program = pytest.mark.xdist_group("traced calls")


@one_program
@pytest.mark.parametrize("order", [list, reversed])
def test_the_results_of_traced_calls(order):
    """With an empty cache, in both orders: no call may use the entry of another one."""
    wanted = traced()
    jax.clear_caches()
    for name in order(list(CALLS)):
        assert_same(CALLS[name](), wanted[name], err_msg=name)


@one_program
@pytest.mark.parametrize("name", CALLS)
def test_the_result_without_jit(name):
    with jax.disable_jit():
        assert_same(CALLS[name](), traced()[name])


@pytest.mark.parametrize("name", [n for n in CALLS if n not in NEVER])
def test_a_second_call_traces_nothing(name, refusing):
    CALLS[name]()
    refusing()
    CALLS[name]()


def test_numbers_are_not_part_of_the_program(refusing):
    """As schedules of temperatures and smoothings change them from call to call."""

    def loss(x, number):
        options = {"label_smoothing": number / 9, "z_loss": number, "temperature": number}
        return jk.cross_entropy(x, LABEL, reduction="mean", logit_soft_cap=number, **options)

    for call in (loss, jax.value_and_grad(loss)):
        assert_same(call(X, 2.0), jax.jit(call)(X, 2.0))
    wanted = jax.jit(jax.value_and_grad(loss))(X, 3.0)
    refusing()
    assert_same(jax.value_and_grad(loss)(X, 3.0), wanted)


number = jax.jit(lambda ys: loss(lambda: ys)())


def gradient(f, *xs):
    """The gradient of a number that one program makes of the results: this test is of our calls, not of jnp's."""
    return jax.value_and_grad(lambda *xs: number(f(*xs)), numbers(xs))(*xs)


AT_ONCE = {
    "value-and-grad": gradient,
    "jvp": TRANSFORMS["jvp"],
    "vmap-grad": functools.partial(mapped, gradient, 1),
    "hessian": lambda f, x, *xs: jax.hessian(lambda x: number(f(x, *xs)))(x),
    "vmap": lambda f, x, *xs: jax.vmap(jax.vmap(lambda x: f(x, *xs), axis_name="i"), axis_name="j")(
        jnp.stack([x[None]] * 2)
    ),
}


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("transform", AT_ONCE.values(), ids=AT_ONCE)
@pytest.mark.parametrize("name", NAMES)
def test_transformed_outside_of_jit(name, transform, refusing):
    """The program of a call is transformed, once."""
    function = FUNCTIONS[name]
    f, xs = function.of_moving(function.ours, [*map(jnp.asarray, function.draw())])
    want = jax.jit(functools.partial(transform, f))(*xs)
    assert_same(transform(f, *xs), want)
    refusing()
    assert_same(transform(f, *xs), want)


TRACES = {
    "jit": lambda f: jax.jit(f),
    "grad": lambda f: jax.grad(lambda x: jnp.sum(f(x))),
    "vmap": lambda f: jax.vmap(f),
    "remat": lambda f: jax.checkpoint(f),
}


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
@pytest.mark.parametrize("name", [n for n in CALLS if "xla" not in n])
def test_a_trace_gets_the_primitive_itself(name, trace):
    """And not a call of a compiled program that hides it, even of arrays that are not traced."""
    CALLS[name]()

    def function(x):
        return sum(jnp.sum(x) * jnp.sum(y) for y in jax.tree.leaves(CALLS[name]()))

    jaxpr = jax.make_jaxpr(trace(function))(jnp.ones(2)).jaxpr
    while len(jaxpr.eqns) == 1:  # the program of the transformation, of all operations
        jaxpr = next(v for v in jaxpr.eqns[0].params.values() if hasattr(v, "eqns"))
    names = [e.params.get("name") for e in jaxpr.eqns if "jit" in e.primitive.name]
    assert not {n.strip("_") for n in names}.intersection({*jk.__all__, *jaxkernels.optax.__all__})
    assert "jaxkernels_" in str(jaxpr)


def test_known_labels_are_checked_where_the_logits_are_differentiated():
    """Also of a call whose program there is already."""
    gradient = jax.grad(functools.partial(jk.cross_entropy, reduction="mean"))
    gradient(X, LABEL)
    with pytest.raises(ValueError, match="smaller than 5"):
        gradient(X, LABEL + 1)


def test_what_can_change_is_not_part_of_the_program():
    """Objects that stand for arrays, whose value is another one at the next call."""
    param = flax.nnx.Param(A)
    np.testing.assert_array_equal(jk.matmul(param, B), jk.matmul(A, B))
    param.set_value(2 * A)
    np.testing.assert_array_equal(jk.matmul(param, B), 2 * jk.matmul(A, B))
    factor = flax.nnx.Param(jnp.float32(0.0))
    np.testing.assert_array_equal(jk.sgemm(A, B, C, beta=factor), jk.matmul(A, B))
    factor.set_value(jnp.float32(1.0))
    np.testing.assert_array_equal(jk.sgemm(A, B, C, beta=factor), jk.matmul(A, B) + C)
    writable = np.array(A)
    jk.matmul(writable, B)
    writable[:] = 1
    np.testing.assert_array_equal(jk.matmul(writable, B), jk.matmul(np.ones_like(A), B))


def test_flags_of_jax_are_part_of_the_program():
    x = np.ones((2, 2))
    assert jk.matmul(x, x).dtype == jnp.float32
    with jax.enable_x64(True), pytest.raises(TypeError, match="got float64 and float64"):
        jk.matmul(x, x)
    nan = jnp.full((2, 2), jnp.nan)
    assert np.isnan(jk.matmul(nan, nan)).all()
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jk.matmul(nan, nan)


@pytest.mark.parametrize("name", [*ROWS, *TABLE])
def test_switches_of_jax(name):
    """Strict promotion, and that nothing is sent to a device unasked; of NumPy's arrays every call asks."""
    with jax.numpy_dtype_promotion("strict"):
        want = CALLS[name]()
    if name.partition("-")[2] not in ("numpy", "wide", "number", "xla"):
        CALLS[name]()
        with jax.transfer_guard("disallow"):
            got = CALLS[name]()
        assert_same(got, want)
