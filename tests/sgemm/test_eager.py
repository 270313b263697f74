"""Calls outside of any trace: one compiled program each, with the results and errors of a traced call."""

import flax.nnx
import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk
from jaxkernels._sgemm import primitive

DOT = (((1,), (0,)), ((), ()))
DOTS = (((2,), (1,)), ((0,), (0,)))


def array(*shape, seed=0):
    """Whole numbers, whose products are exact in any order."""
    return jnp.asarray(cases.operand("integers", shape, seed))


A, B, C = array(4, 3), array(3, 5, seed=1), array(4, 5, seed=2)
BATCHED_A, BATCHED_B = array(2, 4, 3), array(2, 3, 5, seed=1)
TWO = jnp.float32(2)
CALLS = {
    "matmul": lambda: jk.matmul(A, B),
    "matmul-batched": lambda: jk.matmul(BATCHED_A, BATCHED_B),
    "matmul-rows": lambda: jk.matmul(BATCHED_A, B),
    "matmul-columns": lambda: jk.matmul(A, BATCHED_B),
    "matmul-by-turns": lambda: jk.matmul(BATCHED_A[:, None], BATCHED_B),
    "matmul-vector": lambda: jk.matmul(A[0], B),
    "matmul-numpy": lambda: jk.matmul(np.asarray(A), np.asarray(B)),
    "matmul-numpy-64": lambda: jk.matmul(np.asarray(A, np.float64), np.asarray(B, np.float64)),
    "matmul-16": lambda: jk.matmul(
        A.astype(jnp.bfloat16), B.astype(jnp.float16), preferred_element_type=jnp.float32
    ),
    "matmul-xla": lambda: jk.matmul(A, B, implementation="xla"),
    "matmul-precision": lambda: jk.matmul(A, B, precision="high"),
    "matmul-rung": lambda: jk.matmul(A, B, algorithm="warp_tile"),
    "dot_general": lambda: jk.dot_general(A, B, DOT),
    "dot_general-lists": lambda: jk.dot_general(A, B, [[[1], [0]], [[], []]]),
    "dot_general-arrays": lambda: jk.dot_general(A, B, ((np.array([1]), np.array([0])), ((), ()))),
    "dot_general-batched": lambda: jk.dot_general(BATCHED_A, BATCHED_B, DOTS),
    "dot_general-precision": lambda: jk.dot_general(A, B, DOT, ("high", "default")),
    "dot_general-precisions": lambda: jk.dot_general(A, B, DOT, ["high", "default"]),
    "sgemm": lambda: jk.sgemm(A, B),
    "sgemm-c": lambda: jk.sgemm(A, B, C, alpha=2.0, beta=np.float32(3)),
    "sgemm-batched": lambda: jk.sgemm(BATCHED_A, BATCHED_B),
    "sgemm-factors": lambda: jk.sgemm(A, B, C, alpha=TWO, beta=TWO),
    "sgemm-one-factor": lambda: jk.sgemm(A, B, C, alpha=np.array(2), beta=TWO),
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
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@calls
def test_the_result_of_a_traced_call(call):
    got, want = call(), jax.jit(call)()
    assert (got.shape, got.dtype, got.weak_type) == (want.shape, want.dtype, want.weak_type)
    np.testing.assert_array_equal(got, want)
    with jax.disable_jit():
        np.testing.assert_array_equal(call(), want)


@pytest.mark.parametrize("order", [list, reversed])
def test_calls_one_after_another(order):
    """Of any two calls either comes first to a cache that is empty; positions of arrays and numbers change."""
    wanted = {name: jax.jit(call)() for name, call in CALLS.items()}
    jax.clear_caches()
    for name in order(list(CALLS)):
        np.testing.assert_array_equal(CALLS[name](), wanted[name], err_msg=name)


@pytest.mark.parametrize("name", [n for n in CALLS if n != "dot_general-precisions"])
def test_a_second_call_traces_nothing(name, monkeypatch):
    """It goes to a compiled program at once; a list as a precision, alone, cannot be looked up."""
    CALLS[name]()

    def refuse(*operands, **options):
        raise AssertionError("traced again")

    monkeypatch.setattr(primitive, "multiply", refuse)
    monkeypatch.setattr(primitive, "reference", refuse)
    monkeypatch.setattr(jax, "eval_shape", refuse)
    CALLS[name]()


TRACES = {
    "jit": lambda f: jax.jit(f),
    "grad": lambda f: jax.grad(lambda x: jnp.sum(f(x))),
    "vmap": lambda f: jax.vmap(f),
    "remat": lambda f: jax.checkpoint(f),
}


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
@pytest.mark.parametrize("name", [n for n in CALLS if n != "matmul-xla"])
def test_a_trace_gets_the_product_itself(name, trace, monkeypatch):
    """And not a call of a compiled program that hides it, even of arrays that are not traced."""
    CALLS[name]()
    traced = []
    multiply = primitive.multiply
    monkeypatch.setattr(
        primitive, "multiply", lambda *x, **o: traced.append(x) or multiply(*x, **o)
    )
    jaxpr = jax.make_jaxpr(trace(lambda x: x * jnp.sum(CALLS[name]())))(jnp.ones(2)).jaxpr
    assert traced
    while len(jaxpr.eqns) == 1:  # the program of the transformation, of all operations
        jaxpr = next(v for v in jaxpr.eqns[0].params.values() if hasattr(v, "eqns"))
    assert "jaxkernels_sgemm" in [e.primitive.name for e in jaxpr.eqns]


BAD_CALLS = {
    "matmul-shapes": lambda: jk.matmul(A, A),
    "matmul-scalar": lambda: jk.matmul(A[0, 0], B),
    "matmul-batches": lambda: jk.matmul(array(2, 4, 3), array(3, 3, 5)),
    "matmul-list": lambda: jk.matmul([[1.0]], A),
    "matmul-text": lambda: jk.matmul("a", A),
    "matmul-none": lambda: jk.matmul(None, A),
    "matmul-number": lambda: jk.matmul(2.0, A),
    "matmul-objects": lambda: jk.matmul(np.array([[None]]), A),
    "matmul-texts": lambda: jk.matmul(np.array([["a"]]), A),
    "matmul-dates": lambda: jk.matmul(np.array([["2026-01-01"]], "M8[D]"), A),
    "matmul-integers": lambda: jk.matmul(np.ones((2, 2), np.int32), A),
    "matmul-keys": lambda: jk.matmul(jax.random.split(jax.random.key(0), (4, 3)), B),
    "matmul-preferred": lambda: jk.matmul(A, B, preferred_element_type=jnp.bfloat16),
    "matmul-preferred-list": lambda: jk.matmul(A, B, preferred_element_type=["float32"]),
    "matmul-algorithm": lambda: jk.matmul(A, B, algorithm="fastest"),
    "matmul-algorithm-list": lambda: jk.matmul(A, B, algorithm=["naive"]),
    "matmul-implementation": lambda: jk.matmul(A, B, implementation="cublas"),
    "matmul-precision": lambda: jk.matmul(A, B, precision="sloppy"),
    "matmul-precision-64": lambda: jk.matmul(A, B, precision="F64_F64_F64"),
    "dot_general-shapes": lambda: jk.dot_general(A, A, DOT),
    "dot_general-dims": lambda: jk.dot_general(A, B, (((7,), (0,)), ((), ()))),
    "dot_general-precision": lambda: jk.dot_general(A, B, DOT, "sloppy"),
    "dot_general-precision-list": lambda: jk.dot_general(A, B, DOT, [[]]),
    "dot_general-precision-64": lambda: jk.dot_general(
        A, B, DOT, jax.lax.DotAlgorithmPreset.F64_F64_F64
    ),
    "sgemm-shapes": lambda: jk.sgemm(A, A),
    "sgemm-vector": lambda: jk.sgemm(A[0], B),
    "sgemm-c": lambda: jk.sgemm(A, B, A, beta=1.0),
    "sgemm-c-list": lambda: jk.sgemm(A, B, [1.0], beta=1.0),
    "sgemm-no-c": lambda: jk.sgemm(A, B, beta=1.0),
    "sgemm-flag": lambda: jk.sgemm(A, B, trans_a=3),
    "sgemm-flag-list": lambda: jk.sgemm(A, B, trans_a=[1]),
    "sgemm-both": lambda: jk.sgemm(A, B, implementation="xla", algorithm="naive"),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_the_error_of_a_traced_call(call):
    with pytest.raises((TypeError, ValueError)) as eager:
        call()
    with pytest.raises((TypeError, ValueError)) as traced:
        jax.jit(call)()
    assert type(eager.value) is type(traced.value)
    assert str(eager.value).split("\n")[0] == str(traced.value).split("\n")[0]


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
    """A call under another flag gets a program of its own."""
    x = np.ones((2, 2))
    assert jk.matmul(x, x).dtype == jnp.float32
    with jax.enable_x64(True), pytest.raises(TypeError, match="got float64 and float64"):
        jk.matmul(x, x)
    nan = jnp.full((2, 2), jnp.nan)
    assert np.isnan(jk.matmul(nan, nan)).all()
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jk.matmul(nan, nan)
