"""Bad input raises jax.nn's class of error, with the offending value in the text."""

import functools
import itertools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from wrong_arguments import WRONG_CALLS

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._core import registry
from jaxkernels._rows import contract

X = jnp.ones((4, 8))
F32 = "float32"


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
    "rms_norm": jk.rms_norm,
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
        with pytest.raises(ValueError, match=f"tier '{tier}' cannot hold a row.* Leave tier= out"):
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


ROW, HALF_ROW, MASK, NO_COLUMNS = (
    ((2, 3), F32),
    ((2, 3), "bfloat16"),
    ((2, 3), "bool"),
    ((2, 0), F32),
)
LABEL, LABELS = ((2, 1), "int32"), ((2, 3), "int32")
KEPT, SIX, PAIR = ((2, 7), F32), ((2, 6), F32), ((2, 2), F32)
HALF_PAIR, HALVES = ((2, 2), "bfloat16"), ((2, 4), "bfloat16")
PART = {"scale": 1.0, "has_mask": False, "all_sums": False}
WHOLE = {**PART, "left": -(1 << 30), "right": 1 << 30, "from_end": True, "tier": "auto"}
# Calls of each target: the operation, operands, the result, changes of attributes, and what the handler says.
REFUSED_BY_ROWS = (
    ("softmin", [ROW], ROW, {}, "unknown operation 'softmin'"),
    ("softmax_fwd", [ROW], ROW, {"tier": "wrap"}, "unknown tier 'wrap'. Leave tier= out"),
    ("softmax_fwd", [ROW], ROW, {"scale": 2.0}, "softmax_fwd: it takes no scale and no band"),
    ("softmax_fwd", [ROW], ROW, {"left": -1}, "softmax_fwd: it takes no scale and no band"),
    ("softmax_fwd", [ROW], ROW, {"right": 0}, "softmax_fwd: it takes no scale and no band"),
    ("softmax_grad", [ROW, MASK, ROW], ROW, {"has_mask": True}, "softmax_grad: it takes no mask"),
    ("masked_softmax_fwd", [ROW, ((3, 3), "bool")], ROW, {"has_mask": True}, r"mask.*\(3, 3\)"),
    ("masked_softmax_fwd", [ROW, ((2, 1), "bool")], ROW, {"has_mask": True}, r"mask.*\(2, 1\)"),
    ("masked_softmax_fwd", [ROW, ROW], ROW, {"has_mask": True}, "mask.*bool.*float32"),
    ("masked_softmax_fwd", [ROW, MASK], ROW, {}, "number of the operands: expected 1, got 2"),
    ("biased_softmax_fwd", [ROW, HALF_ROW], ROW, {}, "bias.*float32.*bfloat16"),
    ("biased_softmax_fwd", [ROW, ((3,), F32)], ROW, {}, r"bias.*\(3,\)"),
    ("biased_softmax_fwd", [ROW], ROW, {"has_mask": True}, "number.*expected 3, got 1"),
    ("cross_entropy_fwd", [ROW, ((2, 1), "int16")], KEPT, {}, "dtype of label: expected int32"),
    ("cross_entropy_fwd", [ROW, LABELS], KEPT, {}, r"label: expected \(2, 3\) with 1 in pl"),
    ("cross_entropy_fwd", [ROW, LABEL], SIX, {}, r"result: expected \(2, 3\) with 7 in pl"),
    ("cross_entropy_fwd", [ROW], KEPT, {}, "number of the operands: expected 2, got 1"),
    ("cross_entropy_fwd", [NO_COLUMNS, LABEL], KEPT, {}, "columns of x: expected 1 or more, got 0"),
    ("cross_entropy_fwd", [ROW, LABEL, ROW], KEPT, {}, "scales: expected .* with 1"),
    ("cross_entropy_fwd", [ROW, LABEL, PAIR, PAIR], KEPT, {}, "operands: expected 3, got 4"),
    ("cross_entropy_fwd", [HALF_ROW, LABEL, HALF_PAIR], KEPT, {}, "scales: expected float32, got"),
    ("cross_entropy_grad", [ROW, LABEL, KEPT, ROW], ROW, {}, "cotangent: expected .* with 4 in pl"),
    ("cross_entropy_grad", [ROW, LABEL, KEPT, HALVES], ROW, {}, "cotangent: expected float32 or"),
    ("cross_entropy_fwd_grad", [ROW, LABEL, PAIR], ROW, {}, "results: expected 2, got 1"),
    ("softmax_fwd", [ROW, PAIR], ROW, {}, "number of the operands: expected 1, got 2"),
    ("rms_norm_fwd", [ROW], ROW, {}, "number of the operands: expected 2, got 1"),
    ("rms_norm_fwd", [ROW, ROW], ROW, {}, r"shape of scale: expected \(3,\), got \(2, 3\)"),
    ("rms_norm_fwd", [ROW, ((2,), F32)], ROW, {}, r"shape of scale: expected \(3,\), got \(2,\)"),
    ("rms_norm_fwd", [ROW, ((3,), "float16")], ROW, {}, "dtype of scale: expected float32 or"),
    ("rms_norm_jvp", [ROW, ((3,), F32), PAIR], ROW, {}, r"shape of dx: expected \(2, 3\)"),
    ("rms_norm_fwd", [ROW, ((3,), F32)], ROW, {"right": 0}, "takes no scale and no band"),
)
REFUSED_BY_STATISTICS = (
    ("tanh", [ROW], PAIR, {}, "unknown operation 'tanh'"),
    ("softmax_grad", [ROW], PAIR, {}, "number of the operands: expected 2, got 1"),
    ("softmax_grad", [ROW, PAIR], PAIR, {}, r"shape of dy: expected \(2, 3\)"),
    ("softmax_fwd", [ROW], ROW, {}, r"shape of the statistics: expected \(2, 3\) with 2"),
    ("softmax_fwd", [ROW], HALF_PAIR, {}, "dtype of the statistics: expected float32"),
    ("softmax_fwd", [NO_COLUMNS], PAIR, {}, "columns of x: expected 1 or more"),
    ("softmax_fwd", [((), F32)], PAIR, {}, "rank of x"),
)
REFUSED_BY_FINISH = (
    ("tanh", [PAIR, ROW], ROW, {}, "unknown operation 'tanh'"),
    ("softmax_fwd", [PAIR, ROW], PAIR, {}, r"shape of the result: expected \(2, 3\)"),
    ("softmax_fwd", [PAIR, ROW], HALF_ROW, {}, "dtype of the result: expected float32"),
    ("softmax_fwd", [ROW, ROW], ROW, {}, r"shape of the statistics: expected \(2, 3\) with 2"),
)
REFUSED_CALLS = [
    pytest.param(target, operands, result, {**right, "operation": operation, **more}, text)
    for target, right, calls in (
        (registry.ROWS_TARGET, WHOLE, REFUSED_BY_ROWS),
        (registry.STATISTICS_TARGET, PART, REFUSED_BY_STATISTICS),
        (registry.FINISH_TARGET, PART, REFUSED_BY_FINISH),
    )
    for operation, operands, result, more, text in calls
]


def ffi_call(target, shapes, result, **attributes):
    """Calls a target as only a broken Python layer could, and returns what the handler says."""
    operands = [jnp.ones(shape, dtype) for shape, dtype in shapes]
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(*result))
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(lambda *a: call(*a, **attributes))(*operands))
    return str(raised.value)


@pytest.mark.parametrize(("target", "operands", "result", "attributes", "text"), REFUSED_CALLS)
def test_handlers_refuse(target, operands, result, attributes, text):
    """A call that Python would never make is an error that says what is wrong with it, not a crash."""
    said = ffi_call(target, operands, result, **attributes)
    assert "INVALID_ARGUMENT" in said
    assert re.search(text, said), said


def takes_more(operation):
    return any(x.role in ("label", "column") for x in contract.OPERATIONS[operation].operands)


@pytest.mark.parametrize("operation", [*itertools.filterfalse(takes_more, contract.OPERATIONS)])
def test_handlers_check_shapes_and_dtypes_by_name(operation):
    """Handlers return errors that name the operation, what they expected and what they got."""
    arity = 1 if operation.endswith("fwd") and operation != "biased_softmax_fwd" else 2
    refused = [([ROW] * arity, ((2, 4), F32), "3.*4|4.*3"), ([ROW] * arity, ((2, 3), "int32"), "")]
    if operation not in ("masked_softmax_fwd", "biased_softmax_fwd"):  # these may round to 16 bits
        refused.append(([ROW] * arity, ((2, 3), "float16"), ""))
    refused.append(([((2, 3), "int32")] * arity, ((2, 3), "int32"), ""))
    refused.append(([((), F32)] * arity, ((), F32), ""))
    for number in (0, arity + 1):
        text = f"number of the operands: expected {arity}, got {number}"
        refused.append(([ROW] * number, ROW, text))
    if arity == 2:
        refused += [([ROW, ((3, 2), F32)], ROW, ""), ([ROW, HALF_ROW], ROW, "")]
    for operands, result, text in refused:
        said = ffi_call(registry.ROWS_TARGET, operands, result, **WHOLE, operation=operation)
        assert "INVALID_ARGUMENT" in said
        assert operation in said
        assert re.search(text, said), said


def test_the_module_refuses_unknown_names():
    limits = _cpu.named_devices()["h200"]
    for arguments in (
        ("float31", "softmax_fwd", limits, "auto"),
        (F32, "softmin", limits, "auto"),
        (F32, "softmax_fwd", limits, "grid"),
    ):
        with pytest.raises(ValueError, match=r"unknown .*'(float31|softmin|grid)'"):
            _cpu.plan_softmax(2, 3, *arguments)
