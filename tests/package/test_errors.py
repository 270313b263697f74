"""Bad input raises jax.nn's class of error, with the offending value in the text."""

import itertools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ffi_calls import ffi_call

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._rows import contract

both = pytest.mark.parametrize("function", [jk.softmax, jk.log_softmax], ids=lambda f: f.__name__)
X = jnp.ones((4, 8))

WRONG = [
    # arguments, error, what its text has to contain
    pytest.param({"axis": 2}, ValueError, "axis 2.*dimension 2", id="axis"),
    pytest.param({"axis": -3}, ValueError, "axis -3.*dimension 2", id="negative-axis"),
    pytest.param({"axis": (0, 5)}, ValueError, "axis 5.*dimension 2", id="axis-in-tuple"),
    pytest.param({"axis": (0, -2)}, ValueError, r"duplicate.*\(0, -2\)", id="duplicate-axis"),
    pytest.param({"axis": 0.5}, TypeError, r"0\.5", id="float-axis"),
    pytest.param({"axis": (0, "1")}, Exception, "1", id="text-axis"),
    pytest.param({"where": jnp.ones((4, 8))}, ValueError, "boolean.*float32", id="float-where"),
    pytest.param(
        {"where": np.ones((3, 8), bool)}, ValueError, r"\(3, 8\).*\(4, 8\)", id="where-shape"
    ),
    pytest.param({"where": "mask"}, TypeError, "mask", id="text-where"),
    pytest.param(
        {"tier": "smem"}, ValueError, "'warp', 'block', 'block_smem', .*'smem'", id="tier"
    ),
    pytest.param({"tier": "auto"}, ValueError, "tier.*'auto'", id="tier-auto"),
    pytest.param(
        {"implementation": "cuda"}, ValueError, "'ffi', 'xla'.*'cuda'", id="implementation"
    ),
    pytest.param(
        {"implementation": "xla", "tier": "warp"}, ValueError, "'warp'", id="xla-with-tier"
    ),
]


@pytest.mark.smoke
@both
@pytest.mark.parametrize(("arguments", "error", "text"), WRONG)
def test_wrong_argument(function, arguments, error, text):
    with pytest.raises(error, match=text):
        function(X, **arguments)
    with pytest.raises(error, match=text):
        jax.jit(lambda x: function(x, **arguments))(X)


@pytest.mark.smoke
@both
@pytest.mark.parametrize(
    ("x", "text"),
    [([1.0, 2.0], "list"), ("text", "str"), (None, "None")],
    ids=("list", "str", "None"),
)
def test_wrong_x(function, x, text):
    with pytest.raises(TypeError, match=text):
        function(x)


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


HALF = X.astype(jnp.bfloat16)
TRIANGLE = np.tril(np.ones((3, 3), bool))
HEADS = np.ones((2, 3, 5, 4), np.float32)


def in_64_bits(call):
    with jax.enable_x64(True):
        return call()


REMEDIES = {
    # a call, its error, and what its text has to contain: what was given, and what to write instead
    "softmax-bool": (
        lambda: jk.softmax(X > 0),
        *(TypeError, r"^softmax: x must be numbers; got bool\. Write x\.astype\(jnp\.float32\)$"),
    ),
    "log_softmax-bool": (
        lambda: jk.log_softmax(X > 0),
        TypeError,
        "^log_softmax: x must be numbers",
    ),
    "causal-array": (
        lambda: jk.scaled_masked_softmax(X[:3, :3], causal=TRIANGLE),  # pyright: ignore[reportArgumentType]
        *(ValueError, r"^causal must be True or False; got an array of shape \(3, 3\)\. .* mask=$"),
    ),
    "is_causal-array": (
        lambda: jk.dot_product_attention(Q, Q, Q, is_causal=TRIANGLE),  # pyright: ignore[reportArgumentType]
        *(
            ValueError,
            r"^is_causal must be True or False; got an array of shape \(3, 3\)\. .* mask=$",
        ),
    ),
    "flax-is_causal-array": (
        lambda: jk.flax.dot_product_attention(Q, Q, Q, is_causal=jnp.asarray(TRIANGLE)),  # pyright: ignore[reportArgumentType]
        *(
            ValueError,
            r"^is_causal must be True or False; got an array of shape \(3, 3\)\. .* mask=$",
        ),
    ),
    "matmul-16": (
        lambda: jk.matmul(HALF, X.T),
        *(
            TypeError,
            "must be float32; got bfloat16 and float32. Pass preferred_element_type=.*xla",
        ),
    ),
    "matmul-int": (
        lambda: jk.matmul(X.astype(int), X.T),
        *(
            TypeError,
            r"must be float32; got int32 and float32. Write a\.astype\(jnp\.float32\), or .*xla",
        ),
    ),
    "dot_general-complex": (
        lambda: jk.dot_general(X, X * 1j, (((1,), (1,)), ((), ()))),
        *(TypeError, 'got float32 and complex64. Pass other_dtypes="xla" for XLA'),
    ),
    "matmul-64": (
        lambda: in_64_bits(lambda: jk.matmul(np.ones((2, 2)), np.ones((2, 2)))),
        *(TypeError, r"Write a\.astype\(jnp\.float32\) and b\.astype\(jnp\.float32\), or pass oth"),
    ),
    "sgemm-64": (
        lambda: in_64_bits(lambda: jk.sgemm(X, np.ones((8, 2)))),
        *(TypeError, r"got float64. Write b\.astype\(jnp\.float32\), or use jnp\.matmul$"),
    ),
    "sgemm-complex": (
        lambda: jk.sgemm(X * 1j, X.T),
        *(TypeError, r"a must be float32; got complex64\. For complex products use jnp\.matmul$"),
    ),
    "algorithm-64": (
        lambda: jk.matmul(X, X.T, precision="F64_F64_F64"),
        *(ValueError, r"Drop precision=, or multiply float64 operands with jnp\.matmul$"),
    ),
    "matmul-preferred": (
        lambda: jk.matmul(HALF, HALF.T, preferred_element_type=jnp.bfloat16),
        *(TypeError, r"got bfloat16. Pass float32, and write \.astype\(jnp\.bfloat16\)"),
    ),
    "sgemm-16": (
        lambda: jk.sgemm(X, HALF.T),
        *(TypeError, r"sgemm: b must be float32; got bfloat16. Write b\.astype\(jnp\.float32\)"),
    ),
    "float-labels": (
        lambda: jk.cross_entropy(X, np.zeros(4, "f")),
        *(TypeError, r"labels are float32 of shape \(4,\).* write labels\.astype\(jnp\.int32\)$"),
    ),
    "float-ids": (
        lambda: jk.token_log_probs(X, np.zeros(4, "f")),
        *(TypeError, r"ids are float32 of shape \(4,\).* write ids\.astype\(jnp\.int32\)$"),
    ),
    "float-id": (lambda: jk.token_log_probs(X[0], 1.0), TypeError, r"ids\.astype\(jnp\.int32\)$"),
    "linear-float-labels": (
        lambda: jk.linear_cross_entropy(X, X.T, np.zeros(4, "f")),
        *(TypeError, r"labels must be integers; got float32\. For probabilities"),
    ),
    "one-hot-labels": (
        lambda: jk.cross_entropy(X, np.eye(4, 8, dtype=int)),
        *(ValueError, r"labels are int32 of shape \(4, 8\).* write labels\.argmax\(-1\)$"),
    ),
    "one-hot-ids": (
        lambda: jk.token_log_probs(X.T, np.eye(8, 4, dtype=int), axis=0),
        *(ValueError, r"For one-hot ids write ids\.argmax\(0\)$"),
    ),
    "linear-one-hot": (
        lambda: jk.linear_cross_entropy(X, X.T, np.eye(4, dtype=int)),
        *(ValueError, r"For one-hot labels write labels\.argmax\(-1\)$"),
    ),
    "one-hot-bool": (
        lambda: jk.cross_entropy(X.T, np.eye(8, 4, dtype=bool), axis=0),
        *(TypeError, r"labels are bool of shape \(8, 4\), .* write labels\.argmax\(0\)$"),
    ),
    "linear-one-hot-bool": (
        lambda: jk.linear_cross_entropy(X, X.T, np.eye(4, dtype=bool)),
        *(TypeError, r"For one-hot labels write labels\.argmax\(-1\)$"),
    ),
    "column-of-labels": (
        lambda: jk.cross_entropy(X, np.zeros((4, 1), int)),
        *(ValueError, r"labels has shape \(4, 1\), .* \(4,\): write labels\.squeeze\(-1\)$"),
    ),
    "row-of-ids": (
        lambda: jk.token_log_probs(X.T, np.zeros((1, 4), int), axis=0),
        *(ValueError, r"ids has shape \(1, 4\), .*: write ids\.squeeze\(0\)$"),
    ),
    "column-of-weights": (
        lambda: jk.linear_cross_entropy(X, X.T, np.zeros(4, int), weights=np.ones((4, 1))),
        *(ValueError, r"write weights\.squeeze\(-1\)$"),
    ),
    "where-of-rows": (
        lambda: jk.cross_entropy(X, np.zeros(4, int), where=np.ones(4, bool)),
        *(
            ValueError,
            r"\(4, 8\): where hides classes. To leave rows out, give them a negative label$",
        ),
    ),
    "logits-of-bool": (
        lambda: jk.cross_entropy(X > 0, np.zeros(4, int)),
        *(
            TypeError,
            r"logits must be real numbers; got bool\. Write logits\.astype\(jnp\.float32\)$",
        ),
    ),
    "logits-of-one-number": (
        lambda: jk.cross_entropy(3, X[0]),
        *(ValueError, "logits must have an axis of classes; got a number. They come first$"),
    ),
    "scores-of-bool": (
        lambda: jk.scaled_masked_softmax(X > 0),
        *(TypeError, r"got bool\. Write scores\.astype\(jnp\.float32\)$"),
    ),
    "scale-as-mask": (
        lambda: jk.scaled_masked_softmax(X, 0.125),  # pyright: ignore[reportArgumentType]
        *(ValueError, r"got float\d\d\. Write mask != 0\. A factor of scores is scale=$"),
    ),
    "scale-as-bias": (
        lambda: jk.scaled_masked_softmax(HEADS, None, 0.125),
        *(ValueError, r"bias must be .* got a number, .* A factor of the scores is scale=$"),
    ),
    "scores-mask-of-keys": (
        lambda: jk.scaled_masked_softmax(HEADS, np.ones((2, 4), bool)),
        *(ValueError, r"of scores: write mask\[:, None, None, :\] for \(batch, keys\)$"),
    ),
    "scores-bias-of-queries": (
        lambda: jk.scaled_masked_softmax(X, X[0] > 0, X[:, 0]),
        *(
            ValueError,
            r"bias has shape \(4,\), .* of scores: write bias\[:, None\] for \(queries\)$",
        ),
    ),
    "mask-of-numbers": (
        lambda: jk.dot_product_attention(*[HEADS] * 3, mask=np.ones((1, 1, 2, 2))),
        *(ValueError, r"got float\d\d\. Write mask != 0\. Numbers to add are bias=$"),
    ),
    "labels-of-bool": (
        lambda: jk.cross_entropy(X, np.ones(4, bool)),
        *(TypeError, r"got bool\. Write labels\.astype\(jnp\.int32\)$"),
    ),
    "weights-of-classes": (
        lambda: jk.cross_entropy(X, np.zeros(4, int), weights=np.ones(8)),
        *(ValueError, r"\(4,\)\. For a weight of each class write weights\[labels\]$"),
    ),
    "one-hot-ids-float": (
        lambda: jk.token_log_probs(X, np.eye(4, 8, dtype=F32)),
        *(TypeError, r"For one-hot ids write ids\.argmax\(-1\)$"),
    ),
    "optax-one-hot": (
        lambda: jk.optax.softmax_cross_entropy_with_integer_labels(X, np.eye(4, 8, dtype=F32)),
        *(TypeError, r"float32\. For probabilities use softmax_cross_entropy$"),
    ),
    "optax-classes": (
        lambda: jk.optax.softmax_cross_entropy(X, np.zeros(4, int)),
        *(TypeError, r"For classes use softmax_cross_entropy_with_integer_labels$"),
    ),
    "swapped": (
        lambda: jk.cross_entropy(np.zeros(4, int), X),
        *(ValueError, r"labels are float32 of shape \(4, 8\), .* \(4,\)\. The logits come first$"),
    ),
    "swapped-ids": (lambda: jk.token_log_probs(np.zeros(4, int), X), ValueError, "come first$"),
    "linear-w": (
        lambda: jk.linear_cross_entropy(HALF, X.T, np.zeros(4, int)),
        *(TypeError, r"got bfloat16 and float32\. Write w\.astype\(x\.dtype\)"),
    ),
    "linear-order": (
        lambda: jk.linear_cross_entropy(X, np.zeros(4, int), X.T),
        *(TypeError, r"got float32 and int32\. The order is linear_cross_entropy\(x, w, labels\)$"),
    ),
    **{
        f"linear-swapped-{rows}-{table.shape}": (
            lambda rows=rows, table=table: jk.linear_cross_entropy(
                table, np.ones((*rows, 8), "f"), np.zeros(rows, int), trans_w=table.shape[1] == 8
            ),
            *(
                ValueError,
                r"fit w, .*4, 8\), and not x, .* order is linear_cross_entropy\(x, w, labels\)$",
            ),
        )
        for rows, table in itertools.product(
            [(4,), (1, 4)], [np.ones((8, 9), "f"), np.ones((9, 8), "f")]
        )
    },
    "linear-trans_w": (
        lambda: jk.linear_cross_entropy(X, jnp.ones((9, 8)), np.zeros(4, int)),
        *(ValueError, r"w\.shape \(H, V\); got \(4, 8\) and \(9, 8\)\. Write trans_w=True$"),
    ),
    "plan-trans_w": (
        lambda: jk.plan_linear_cross_entropy((4, 8), (8, 9), "float32", trans_w=True),
        *(ValueError, r"w_shape \(V, H\) .* got \(4, 8\) and \(8, 9\)\. Write trans_w=False$"),
    ),
    "logits_dtype": (
        lambda: jk.linear_cross_entropy(X, X.T, np.zeros(4, int), logits_dtype="bfloat16"),  # pyright: ignore[reportArgumentType, reportCallIssue]
        *(ValueError, "logits_dtype must be None or 'float32'; got 'bfloat16'$"),
    ),
    "logits_dtype-64": (
        lambda: in_64_bits(
            lambda: jk.linear_cross_entropy(
                *[np.eye(4)] * 2, np.zeros(4, int), logits_dtype="float32"
            )
        ),
        *(ValueError, "narrower than x, float64. Drop logits_dtype=$"),
    ),
    "mask-of-keys": (
        lambda: jk.dot_product_attention(*[HEADS] * 3, mask=np.ones((2, 3), bool)),
        *(ValueError, r"got \(2, 3\): write mask\[:, None, None, :\] for \(batch, keys\)$"),
    ),
    "mask-of-anything": (
        lambda: jk.dot_product_attention(*[np.ones((3, 3, 3, 4))] * 3, mask=TRIANGLE),
        *(
            ValueError,
            r"^dot_product_attention: mask has shape \(3, 3\), whose first dimension may be the batch: write "
            r"mask\[:, None, None, :\] for \(batch, keys\), or mask\[None, None, :, :\] for \(queries, keys\)$",
        ),
    ),
    "heads-before-lengths": (
        lambda: jk.dot_product_attention(HEADS, *[np.ones((2, 3, 7, 4), "f")] * 2),
        *(
            ValueError,
            r"got 5 and 7\. For arrays of shape \(batch, heads, .* query.swapaxes\(-3, -2\)",
        ),
    ),
    "heads-before-masked": (
        lambda: jk.dot_product_attention(*[HEADS] * 3, mask=np.ones((5, 5), bool)),
        *(
            ValueError,
            r"got \(5, 5\)\. For arrays of shape \(batch, heads, .* query.swapaxes\(-3, -2\)",
        ),
    ),
}


@pytest.mark.parametrize(("call", "error", "text"), REMEDIES.values(), ids=REMEDIES)
def test_errors_name_what_to_write(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.skipif(cases.ON_GPU, reason="there is the tier")
def test_a_tier_that_a_cpu_does_not_have():
    """Without effect, unless a kernel is insisted on."""
    rows = {
        "softmax": jk.softmax,
        "logsumexp": jk.logsumexp,
        "scores": jk.scaled_masked_softmax,
        "cross_entropy": lambda x, **options: jk.cross_entropy(x, np.zeros(4, int), **options),
    }
    for name, function in rows.items():
        assert np.array_equal(function(X, tier="warp"), function(X)), name
        for of in (function, jax.grad(lambda x, f=function, **o: jnp.sum(f(x, **o)))):
            with pytest.raises(
                NotImplementedError,
                match=r"tier='warp' has no kernel for platform 'cpu'. Drop tier= or impl",
            ):
                of(X, tier="warp", implementation="ffi")
    assert np.array_equal(jk.matmul(X, X.T, algorithm="naive"), jk.matmul(X, X.T))
    with pytest.raises(
        NotImplementedError, match="no kernel of jaxkernels_sgemm for platform 'cpu'"
    ):
        jk.matmul(X, X.T, algorithm="naive", implementation="ffi")


@pytest.mark.smoke
@both
@pytest.mark.parametrize("dtype", ["complex64", "float8_e4m3fn"])
def test_ffi_names_the_dtype_without_kernels(function, dtype):
    with pytest.raises(NotImplementedError, match=f"implementation=.ffi.*{dtype}"):
        function(jnp.ones((2, 3), dtype), implementation="ffi")
    with pytest.raises(NotImplementedError, match=f"tier='warp'.*{dtype}"):
        function(jnp.ones((2, 3), dtype), tier="warp")


@both
def test_ffi_names_the_platform_without_kernels(function):
    """Raised when the program is lowered, because only then the platform is known."""
    program = jax.jit(lambda x: function(x, implementation="ffi"))
    assert (
        "jaxkernels" not in jax.jit(function).trace(X).lower(lowering_platforms=("tpu",)).as_text()
    )
    with pytest.raises(NotImplementedError, match=r"ffi.*tpu"):
        program.trace(X).lower(lowering_platforms=("tpu",))


@both
def test_forced_tier_that_cannot_hold_the_row(function):
    """A ValueError while tracing, the plan's own words, on any device."""
    for tier in ("warp", "block"):
        with pytest.raises(ValueError, match=f"tier '{tier}' cannot hold a row.* Leave tier= out"):
            jax.eval_shape(
                lambda x, tier=tier: function(x, tier=tier),
                jax.ShapeDtypeStruct((2, 100_000), jnp.float32),
            )


@both
def test_forced_tier_that_only_the_gradient_cannot_hold(function):
    """The gradient keeps two rows; the text says so by naming the larger need."""
    cols = next(
        c
        for c in range(256, 100_000, 4)
        if not _fits(c, "softmax_grad") and _fits(c, "softmax_fwd")
    )
    x = jax.ShapeDtypeStruct((2, cols), jnp.float32)
    jax.eval_shape(lambda x: function(x, tier="warp"), x)
    with pytest.raises(ValueError, match="tier 'warp' cannot hold a row"):
        jax.eval_shape(jax.grad(lambda x: function(x, tier="warp").sum()), x)


def _fits(cols, operation):
    try:
        jk.plan_softmax((2, cols), "float32", operation=operation, tier="warp", device="h200")
    except ValueError:
        return False
    return True


F32 = "float32"


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

    assert "unknown tier 'wrap'. Leave tier= out" in _call(
        operation, [good] * arity, good, tier="wrap"
    )
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


@pytest.mark.smoke
def test_plan_errors():
    with pytest.raises(ValueError, match=r"operation.*softmax_fwd.*'softmax'"):
        jk.plan_softmax((2, 3), F32, operation="softmax")
    with pytest.raises(ValueError, match=r"device.*h200.*'h2o'"):
        jk.plan_softmax((2, 3), F32, device="h2o")
    with pytest.raises(ValueError, match=r"tier.*'smem'"):
        jk.plan_softmax((2, 3), F32, tier="smem")
    with pytest.raises(TypeError, match="int32"):
        jk.plan_softmax((2, 3), "int32")
    with pytest.raises(ValueError, match=r"-1"):
        jk.plan_softmax((-1, 3), F32)
    with pytest.raises(
        TypeError, match=r"shape must be a sequence of integers; got 5; write \(5,\)"
    ):
        jk.plan_softmax(5, F32)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"shape must be a sequence of integers; got \(2\.0, 3\)$"):
        jk.plan_softmax((2.0, 3), F32)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="132"):
        jk.plan_softmax((2, 3), F32, device=132)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        ValueError, match=r"block_smem.*bytes of shared memory.*h200.*Leave tier= out"
    ):
        jk.plan_softmax((2, 1 << 20), F32, tier="block_smem", device="h200")
    with pytest.raises(ValueError, match="packs"):
        jk.plan_softmax((2, 1 << 40), F32)


def test_the_module_refuses_unknown_names():
    limits = _cpu.named_devices()["h200"]
    for arguments in (
        ("float31", "softmax_fwd", limits, "auto"),
        (F32, "softmin", limits, "auto"),
        (F32, "softmax_fwd", limits, "grid"),
    ):
        with pytest.raises(ValueError, match=r"unknown .*'(float31|softmin|grid)'"):
            _cpu.plan_softmax(2, 3, *arguments)
