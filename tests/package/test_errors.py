"""Bad input raises jax.nn's class of error, with the offending value in the text."""

import dataclasses
import functools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import raw_calls
from public_functions import FUNCTIONS
from wrong_arguments import WRONG_CALLS

import jaxkernels as jk
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


ROWS = ("softmax", "log_softmax", "logsumexp", "rms_norm", "masked", "cross_entropy-none")
each_row_function = pytest.mark.parametrize("name", [*ROWS, "token_log_probs"])


def call_of(name, **options):
    """A function of its first operand, and that."""
    function = FUNCTIONS[name]
    x, *others = function.draw()
    return lambda x: function.ours(x, *others, **options), x


def gradient_of(function):
    return jax.grad(lambda x: sum(map(jnp.sum, jax.tree.leaves(function(x)))))


@pytest.mark.skipif(cases.ON_GPU, reason="there is the tier")
@each_row_function
def test_a_tier_that_a_cpu_does_not_have(name):
    """Without effect, unless a kernel is insisted on."""
    (plain, x), (forced, _) = call_of(name), call_of(name, tier="warp")
    jax.tree.map(np.testing.assert_array_equal, forced(x), plain(x))
    asked, _ = call_of(name, tier="warp", implementation="ffi")
    for call in (asked, gradient_of(asked)):
        with pytest.raises(
            NotImplementedError,
            match=r"tier='warp' has no kernel for platform 'cpu'. Drop tier= or impl",
        ):
            call(x)


@pytest.mark.skipif(cases.ON_GPU, reason="there is the rung")
def test_a_rung_that_a_cpu_does_not_have():
    for asked in ({"algorithm": "naive"}, {}):
        with pytest.raises(
            NotImplementedError, match="no kernel of jaxkernels_sgemm for platform 'cpu'"
        ):
            jk.matmul(X, X.T, implementation="ffi", **asked)


@each_row_function
def test_forced_tier_that_cannot_hold_the_row(name):
    """A ValueError while tracing, the plan's own words, on any device."""
    long = FUNCTIONS[name].abstract(c=100_000, k=100_000)
    for tier in ("warp", "block"):
        call = functools.partial(FUNCTIONS[name].ours, tier=tier)
        with pytest.raises(ValueError, match=f"tier '{tier}' cannot hold a row.* Leave tier= out"):
            jax.eval_shape(call, *long)


@pytest.mark.parametrize(
    ("function", "family"),
    [
        (jk.softmax, "softmax"),
        (jk.log_softmax, "log_softmax"),
        (jk.scaled_masked_softmax, "masked_softmax"),
    ],
)
def test_forced_tier_that_only_the_gradient_cannot_hold(function, family):
    """The gradient keeps two rows; the text says so by naming the larger need."""

    def fits(cols, direction):
        operation = f"{family}_{direction}"
        return cases.plan_or_none((2, cols), F32, operation, "warp", device="h200") is not None

    cols = next(c for c in range(256, 100_000, 4) if fits(c, "fwd") and not fits(c, "grad"))
    x = jax.ShapeDtypeStruct((2, cols), jnp.float32)
    forced = functools.partial(function, tier="warp")
    jax.eval_shape(forced, x)
    with pytest.raises(ValueError, match="tier 'warp' cannot hold a row"):
        jax.eval_shape(gradient_of(forced), x)


ROW, NO_COLUMNS, LABEL = ((2, 3), F32), ((2, 0), F32), ((2, 1), "int32")
KEPT, PAIR, MASKS = ((2, 7), F32), ((2, 2), F32), ((2, 1), "bool")
HALF_ROW, HALF_PAIR = ((2, 3), "bfloat16"), ((2, 2), "bfloat16")
PART = {"scale": 1.0, "has_mask": False, "all_sums": False}
WHOLE = {**PART, "left": -(1 << 30), "right": 1 << 30, "from_end": True, "tier": "auto"}
# Calls of each target: the operation, operands, the result, changes of attributes, and what the handler says.
REFUSED_BY_ROWS = (
    ("softmin", [ROW], ROW, {}, "unknown operation 'softmin'"),
    ("softmax_fwd", [ROW], ROW, {"tier": "wrap"}, "unknown tier 'wrap'. Leave tier= out"),
    ("softmax_fwd", [ROW], ROW, {"scale": 2.0}, "softmax_fwd: it takes no scale and no band"),
    ("softmax_fwd", [ROW], ROW, {"left": -1}, "softmax_fwd: it takes no scale and no band"),
    ("softmax_fwd", [ROW], ROW, {"right": 0}, "softmax_fwd: it takes no scale and no band"),
    ("softmax_grad", [ROW] * 2, ROW, {"has_mask": True}, "softmax_grad: it takes no mask"),
    ("masked_softmax_fwd", [ROW, MASKS], ROW, {"has_mask": True}, r"mask.*\(2, 1\)"),
    ("biased_softmax_fwd", [ROW, ((3,), F32)], ROW, {}, r"bias.*\(3,\)"),
    ("cross_entropy_fwd", [NO_COLUMNS, LABEL], KEPT, {}, "columns of x: expected 1 or more, got 0"),
    ("cross_entropy_fwd", [ROW, LABEL, ROW], KEPT, {}, "scales: expected .* with 1"),
    ("cross_entropy_fwd", [ROW, LABEL, PAIR, PAIR], KEPT, {}, "operands: expected 3, got 4"),
    ("cross_entropy_fwd", [HALF_ROW, LABEL, HALF_PAIR], KEPT, {}, "scales: expected float32, got"),
)
REFUSED_CALLS = [
    *((registry.ROWS_TARGET, WHOLE, *refused) for refused in REFUSED_BY_ROWS),
    (registry.STATISTICS_TARGET, PART, "tanh", [ROW], PAIR, {}, "unknown operation 'tanh'"),
    (registry.STATISTICS_TARGET, PART, "softmax_fwd", [NO_COLUMNS], PAIR, {}, "columns of x"),
    (registry.STATISTICS_TARGET, PART, "softmax_fwd", [((), F32)], PAIR, {}, "rank of x"),
    (registry.FINISH_TARGET, PART, "tanh", [PAIR, ROW], ROW, {}, "unknown operation 'tanh'"),
]


@pytest.mark.parametrize(
    ("target", "right", "operation", "operands", "result", "more", "text"), REFUSED_CALLS
)
def test_handlers_refuse(target, right, operation, operands, result, more, text):
    """A call that Python would never make is an error that says what is wrong with it, not a crash."""
    call = raw_calls.Call(operands, [result], {**right, "operation": operation, **more})
    assert re.search(text, raw_calls.refusal(target, call))


MAY_NARROW = ("masked_softmax_fwd", "biased_softmax_fwd")


@pytest.mark.parametrize(
    ("target", "operation"),
    [
        (target, operation)
        for target in registry.TARGETS["cpu"]
        for operation in raw_calls.operations_of(target)
    ],
)
def test_handlers_check_every_buffer(target, operation):
    """The number, dtype and shape of operands and results, by name; and the names of attributes."""
    right = raw_calls.right_call(target, np.random.default_rng(0), operation, F32)
    specs = contract.OPERATIONS[operation].operands_of_call(has_mask=right.attributes["has_mask"])
    names, results = [spec.name for spec in specs], ["the result"] * len(right.results)
    if target == registry.STATISTICS_TARGET:
        names = [spec.name for spec in specs if not spec.is_of_row]
        results = ["the statistics"]
    if target == registry.FINISH_TARGET:
        names.insert(0, "the statistics")

    def said(**changes):
        return raw_calls.refusal(target, dataclasses.replace(right, **changes))

    assert not said()
    for kind, some in (("operands", names), ("results", results)):
        for i, name in enumerate(some):
            buffers = getattr(right, kind)
            shape, dtype = buffers[i]
            is_first = name == specs[0].name  # the others are compared with it
            may_be_half = operation in MAY_NARROW and target == registry.ROWS_TARGET
            other = "int32" if is_first or (may_be_half and kind == "results") else "float16"
            text = said(**{kind: (*buffers[:i], (shape, other), *buffers[i + 1 :])})
            assert f"{operation}: dtype of {name}: expected " in text
            assert f"got {'XLA type 4' if other == 'int32' else other}" in text
            if not is_first:
                shape = (*shape[:-1], shape[-1] + 1)
                text = said(**{kind: (*buffers[:i], (shape, dtype), *buffers[i + 1 :])})
                assert f"{operation}: shape of {name}: expected " in text
                assert f"got {shape}" in text
    count = len(names) - (target == registry.FINISH_TARGET)
    number = f"{operation}: number of the operands: expected "
    assert f"{number}{count}, got {count - 1}" in said(operands=right.operands[:-1])
    assert number in said(operands=[*right.operands, *[right.operands[-1]] * 2])
    if target == registry.ROWS_TARGET:
        assert f"{operation}: number of the results: " in said(results=right.results * 2)
    # An attribute is never ignored: it may be what a later version's result depends on.
    fewer = {name: value for name, value in right.attributes.items() if name != "all_sums"}
    for attributes in (fewer, right.attributes | {"new": True}):
        assert "Wrong number of attributes" in said(attributes=attributes)
