"""Bad input raises jax.nn's class of error, with the offending value in the text."""

import functools
import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ffi_calls import ffi_call
from wrong_arguments import WRONG_CALLS

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._rows import contract

X = jnp.ones((4, 8))
F32 = "float32"


@pytest.mark.smoke
@pytest.mark.parametrize(("call", "error", "text"), WRONG_CALLS)
def test_wrong_arguments(call, error, text):
    """One error outside of jit, under jit and without jit, in words of the function that was called."""
    with pytest.raises(error, match=f"(?s){text}") as eager:
        call()
    with pytest.raises(error) as traced:
        jax.jit(call)()
    assert type(eager.value) is type(traced.value)
    assert str(eager.value) == str(traced.value).partition("\n---")[0]
    assert "lambda" not in str(eager.value)
    with jax.disable_jit(), pytest.raises(error) as unjitted:
        call()
    notes = (getattr(raised.value, "__notes__", []) for raised in (eager, unjitted))
    assert next(notes) == next(notes)  # jit adds none


SWAPPED = np.ones((3, 3), np.float32).astype(">f4")
Q = np.ones((1, 3, 1, 3), np.float32)
REFUSED = {
    "softmax": ("x", lambda x: jk.softmax(x)),
    "log_softmax": ("x", lambda x: jk.log_softmax(x)),
    "scores": ("scores", lambda x: jk.scaled_masked_softmax(x)),
    "bias": ("bias", lambda x: jk.scaled_masked_softmax(X[:3, :3], bias=x)),
    "matmul": ("a", lambda x: jk.matmul(x, X[:3])),
    "dot_general": ("rhs", lambda x: jk.dot_general(X[:3, :3], x, (((1,), (0,)), ((), ())))),
    "sgemm": ("c", lambda x: jk.sgemm(X[:3, :3], X[:3, :3], x, beta=1.0)),
    "query": ("query", lambda x: jk.dot_product_attention(x, x, x)),
    "attention-bias": ("bias", lambda x: jk.dot_product_attention(Q, Q, Q, x)),
    "lengths": (
        "query_seq_lengths",
        lambda x: jk.dot_product_attention(Q, Q, Q, query_seq_lengths=x[0, :1]),
    ),
}


@pytest.mark.parametrize(("name", "function"), REFUSED.values(), ids=REFUSED)
def test_numpy_dtypes_that_jax_does_not_have(name, function):
    """JAX refuses them everywhere; the text says which, and what helps if something does."""
    with pytest.raises(TypeError):
        jnp.asarray(SWAPPED)
    with pytest.raises(TypeError, match=rf"\b{name} has the dtype >f4.*swapped.*astype.*float32"):
        function(SWAPPED)
    for dtype in ("S1", "O", np.longdouble, "M8[D]"):
        with pytest.raises(TypeError, match=rf"\b{name} has the dtype .*JAX does not have$"):
            function(SWAPPED.astype("i8").astype(dtype))


ROWS = {
    "softmax": jk.softmax,
    "log_softmax": jk.log_softmax,
    "logsumexp": functools.partial(jk.logsumexp, axis=-1),
    "scores": jk.scaled_masked_softmax,
    "cross_entropy": lambda x, **options: jk.cross_entropy(x, np.zeros(len(x), int), **options),
    "token_log_probs": lambda x, **options: jk.token_log_probs(x, np.zeros(len(x), int), **options),
}
each_row_function = pytest.mark.parametrize("function", ROWS.values(), ids=ROWS)


def gradient_of(function, **options):
    return jax.grad(lambda x: jnp.sum(function(x, **options)))


@pytest.mark.skipif(cases.ON_GPU, reason="there is the tier")
@each_row_function
def test_a_tier_that_a_cpu_does_not_have(function):
    """Without effect, unless a kernel is insisted on."""
    assert np.array_equal(function(X, tier="warp"), function(X))
    asked = {"tier": "warp", "implementation": "ffi"}
    for call in (functools.partial(function, **asked), gradient_of(function, **asked)):
        with pytest.raises(
            NotImplementedError,
            match=r"tier='warp' has no kernel for platform 'cpu'. Drop tier= or impl",
        ):
            call(X)


@pytest.mark.skipif(cases.ON_GPU, reason="there is the rung")
def test_a_rung_that_a_cpu_does_not_have():
    assert np.array_equal(jk.matmul(X, X.T, algorithm="naive"), jk.matmul(X, X.T))
    for asked in ({"algorithm": "naive"}, {}):
        with pytest.raises(
            NotImplementedError, match="no kernel of jaxkernels_sgemm for platform 'cpu'"
        ):
            jk.matmul(X, X.T, implementation="ffi", **asked)


LAYER = functools.partial(jk.linear_cross_entropy, w=X.T, labels=np.zeros(4, int), reduction="mean")


@pytest.mark.parametrize("function", [*ROWS.values(), LAYER], ids=[*ROWS, "linear"])
def test_ffi_names_the_platform_without_kernels(function):
    """Raised when the program is lowered, because only then the platform is known."""
    traced = jax.jit(functools.partial(function, implementation="ffi")).trace(X)
    with pytest.raises(NotImplementedError, match=r"ffi.*tpu"):
        traced.lower(lowering_platforms=("tpu",))


@each_row_function
def test_forced_tier_that_cannot_hold_the_row(function):
    """A ValueError while tracing, the plan's own words, on any device."""
    long = jax.ShapeDtypeStruct((2, 100_000), jnp.float32)
    for tier in ("warp", "block"):
        with pytest.raises(ValueError, match=f"tier '{tier}' cannot hold a row"):
            jax.eval_shape(functools.partial(function, tier=tier), long)


FITS = {"softmax": "softmax", "log_softmax": "log_softmax", "scores": "masked_softmax"}


@pytest.mark.parametrize("name", FITS)
def test_forced_tier_that_only_the_gradient_cannot_hold(name):
    """The gradient keeps two rows; the text says so by naming the larger need."""

    def fits(cols, direction):
        operation = f"{FITS[name]}_{direction}"
        return cases.plan_or_none((2, cols), F32, operation, "warp", device="h200") is not None

    cols = next(c for c in range(256, 100_000, 4) if fits(c, "fwd") and not fits(c, "grad"))
    x = jax.ShapeDtypeStruct((2, cols), jnp.float32)
    jax.eval_shape(functools.partial(ROWS[name], tier="warp"), x)
    with pytest.raises(ValueError, match="tier 'warp' cannot hold a row"):
        jax.eval_shape(gradient_of(ROWS[name], tier="warp"), x)


OPEN = {
    **{"scale": 1.0, "left": -(1 << 30), "right": 1 << 30, "from_end": True, "has_mask": False},
    "all_sums": False,
}


def _call(operation, *arguments, **attributes):
    return ffi_call("jaxkernels_rows", *arguments, operation=operation, **{**OPEN, **attributes})


def takes_label(operation):
    return contract.OPERATIONS[operation].takes_label


@pytest.mark.parametrize("operation", [*itertools.filterfalse(takes_label, contract.OPERATIONS)])
def test_handlers_check_shapes_and_dtypes_by_name(operation):
    """Handlers return errors that name the operation, what they expected and what they got; nothing crashes."""
    arity = 1 if operation.endswith("fwd") and operation != "biased_softmax_fwd" else 2
    good = ((2, 3), F32)

    text = _call(operation, [good] * arity, ((2, 4), F32))
    assert "INVALID_ARGUMENT" in text
    assert operation in text
    assert "3" in text
    assert "4" in text

    # These may round float32 to 16 bits.
    rounds = operation in ("masked_softmax_fwd", "biased_softmax_fwd")
    for wrong in ("int32",) if rounds else ("int32", "float16"):
        text = _call(operation, [good] * arity, ((2, 3), wrong))
        assert "INVALID_ARGUMENT" in text
        assert operation in text

    text = _call(operation, [((2, 3), "int32")] * arity, ((2, 3), "int32"))
    assert "INVALID_ARGUMENT" in text
    assert operation in text

    text = _call(operation, [((), F32)] * arity, ((), F32))
    assert operation in text

    assert "unknown tier 'wrap'" in _call(operation, [good] * arity, good, tier="wrap")
    for number in (0, arity + 1):
        text = _call(operation, [good] * number, good)
        assert f"number of the operands: expected {arity}, got {number}" in text

    if arity == 2:
        text = _call(operation, [good, ((3, 2), F32)], good)
        assert "INVALID_ARGUMENT" in text
        text = _call(operation, [good, ((2, 3), "bfloat16")], good)
        assert "INVALID_ARGUMENT" in text


def test_handlers_check_labels_and_row_scalars():
    """The handlers check the dtype and columns of each operand, and the number of results."""
    x, label, kept = ((2, 3), F32), ((2, 1), "int32"), ((2, 7), F32)
    fwd, grad = "cross_entropy_fwd", "cross_entropy_grad"
    text = _call(fwd, [x, ((2, 1), "int16")], kept)
    assert "cross_entropy_fwd: dtype of label: expected int32" in text
    text = _call(fwd, [x, ((2, 3), "int32")], kept)
    assert "shape of label: expected (2, 3) with 1 in place of the last dimension" in text
    text = _call(fwd, [x, label], ((2, 6), F32))
    assert "shape of the result: expected (2, 3) with 7 in place of the last dimension" in text
    assert "number of the operands: expected 2, got 1" in _call(fwd, [x], kept)
    text = _call(grad, [x, label, kept, ((2, 3), F32)], x)
    assert "shape of cotangent: expected (2, 3) with 4 in place" in text
    text = _call(grad, [x, label, kept, ((2, 4), "bfloat16")], x)
    assert "dtype of cotangent: expected float32 or float32, got bfloat16" in text
    text = _call("cross_entropy_fwd_grad", [x, label, ((2, 4), F32)], x)
    assert "number of the results: expected 2, got 1" in text
    text = _call(fwd, [((2, 0), F32), label], ((2, 7), F32))
    assert "columns of x: expected 1 or more, got 0" in text


def test_handlers_refuse_what_is_not_of_the_operation():
    good = ((2, 3), F32)
    assert "unknown operation 'softmin'" in _call("softmin", [good], good)
    assert "softmax_grad: it takes no mask" in _call(
        "softmax_grad", [good, ((2, 3), "bool"), good], good, has_mask=True
    )
    for attribute in ({"scale": 2.0}, {"left": -1}, {"right": 0}):
        text = _call("softmax_fwd", [good], good, **attribute)
        assert "softmax_fwd: it takes no scale and no band" in text


def test_the_module_refuses_unknown_names():
    limits = _cpu.named_devices()["h200"]
    for arguments in (
        ("float31", "softmax_fwd", limits, "auto"),
        (F32, "softmin", limits, "auto"),
        (F32, "softmax_fwd", limits, "grid"),
    ):
        with pytest.raises(ValueError, match=r"unknown .*'(float31|softmin|grid)'"):
            _cpu.plan_softmax(2, 3, *arguments)
