"""Public functions under JAX's flags: strict promotion of ranks and dtypes, with 64 bits and without; jax_debug_nans."""

import contextlib
import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from public_functions import FUNCTIONS, Function
from transformations import TRANSFORMS, orders

import jaxkernels as jk
import jaxkernels.flax as jkflax
import jaxkernels.optax as jkoptax

X = FUNCTIONS["softmax"].draw()[0][0]
# The second row sees nothing.
WHERE = np.array([[True] * 5, [False] * 5, [True, False, True, False, True], [True] * 5])
SOME = WHERE | (np.arange(5) == 4)
LABEL = np.array([2, -1, 0, 4])
NONE = np.full(4, -1)
LENGTHS = np.array([0, 2], np.int32)
EVEN = np.full((4, 5), 0.25)
MINUS_INF = np.where(np.arange(4) == 1, -np.inf, X.T).T.astype(np.float32)
WIDTHS = ("bfloat16", "float64")


def rows(function, *operands, **options):
    """A function of four rows of five columns, and of further operands."""
    return Function(functools.partial(function, **options), None, ("normal rc", *operands), WIDTHS)


def scores(*operands, **options):
    """A function of rows, and of a bias if there are more operands."""
    call = lambda x, bias=None: jk.scaled_masked_softmax(x, bias=bias, **options)  # noqa: E731
    return rows(call, *operands)


def heads(function, *operands, pick=lambda result: result, **options):
    def call(q, k, bias=None):
        return pick(function(q, k, k, bias, **options))

    return Function(call, None, ("normal bqhd", "normal bkgd", *operands), WIDTHS)


attention = functools.partial(heads, jk.dot_product_attention)
flax = functools.partial(heads, jkflax.dot_product_attention)
# Arguments that the table of functions does not have.
OPTIONS = {
    "softmax": rows(jk.softmax, where=WHERE),
    "softmax-axis": rows(lambda x: jk.softmax(x.T, axis=0, where=WHERE.T)),
    "softmax-axes": rows(jk.softmax, axis=None, where=np.array([[False]])),
    "softmax-leading": rows(jk.softmax, where=WHERE[None]),
    "log_softmax": rows(jk.log_softmax, where=WHERE),
    "logsumexp": rows(jk.logsumexp, axis=-1, where=WHERE),
    "logsumexp-all": rows(jk.logsumexp, where=np.array([[False]])),
    "logsumexp-minus-inf": rows(jk.logsumexp, axis=-1),
    "logsumexp-columns": rows(jk.logsumexp, axis=0),
    "logsumexp-factors": rows(lambda x: jk.logsumexp(x, -1, jnp.zeros((4, 1), x.dtype))),
    "rms_norm": rows(lambda x: jk.rms_norm(x, jnp.ones(5, x.dtype))),
    "cross_entropy-where": rows(jk.cross_entropy, labels=LABEL, where=SOME),
    "cross_entropy-hidden": rows(jk.cross_entropy, labels=(LABEL + 1) % 5, where=SOME),
    "cross_entropy-nothing": rows(jk.cross_entropy, labels=NONE, reduction="mean"),
    "cross_entropy-probabilities": rows(
        lambda x: jk.cross_entropy(x, jnp.asarray(EVEN, x.dtype), where=SOME)
    ),
    "cross_entropy-options": rows(
        jk.cross_entropy,
        labels=np.maximum(LABEL, 0).astype(np.uint8),
        where=WHERE | (LABEL[:, None] == np.arange(5)) | (np.arange(5) == 0),
        weights=np.arange(4, dtype=np.float32),
        **{"label_smoothing": 0.1, "z_loss": 0.01, "logit_soft_cap": 3.0, "temperature": 2.0},
        reduction="mean",
    ),
    "token_log_probs": rows(jk.token_log_probs, ids=LABEL, where=SOME),
    "kl-where": rows(lambda x: jk.softmax_kl_divergence(x, x[::-1], where=SOME, temperature=0.5)),
    "linear_cross_entropy-mean": rows(
        lambda x: jk.linear_cross_entropy(x, x[:3].T, NONE, reduction="mean")
    ),
    "linear_token_log_probs": rows(lambda x: jk.linear_token_log_probs(x, x[:3].T, NONE)),
    "optax-narrow-ids": rows(
        jkoptax.softmax_cross_entropy_with_integer_labels, labels=LABEL.astype(np.int8)
    ),
    "optax-probabilities": rows(
        lambda x: jkoptax.softmax_cross_entropy(x, jnp.asarray(EVEN, x.dtype))
    ),
    "scores": scores(mask=WHERE, causal=True),
    "scores-mean": scores(mask=WHERE, empty_rows="mean"),
    "scores-xla": scores("normal rc", mask=WHERE, causal=True, implementation="xla"),
    "scores-hidden": rows(
        lambda x: jk.scaled_masked_softmax(x, bias=jnp.where(WHERE, 0, -jnp.inf).astype(x.dtype))
    ),
    "scores-bias": scores("normal rc", mask=WHERE, scale=0.5, window=(1, 2)),
    "attention": attention(mask=WHERE),
    "attention-lengths": attention(query_seq_lengths=LENGTHS, key_value_seq_lengths=LENGTHS),
    "attention-mean": attention(mask=WHERE, local_window_size=1, empty_rows="mean"),
    "attention-residual": attention(
        "normal qk",
        pick=lambda result: result[1] + result[0].sum(-1),
        return_residual=True,
        is_causal=True,
        mask=WHERE,
        key_value_seq_lengths=LENGTHS,
    ),
    "flax": flax(mask=WHERE.astype(np.float32)),  # as Flax makes masks
    "flax-mean": flax("normal qk", mask=WHERE, is_causal=True, empty_rows="mean"),
    "flax-wide": flax(force_fp32_for_softmax=True),
    "flax-narrow": flax(force_fp32_for_softmax=False),
    "flax-dropout": flax(dropout_rate=0.5, dropout_rng=jax.random.key(0)),
    "flax-hooks": Function(
        lambda q: jkflax.dot_product_attention(q, q, q, einsum_dot_general=jax.lax.dot_general),
        None,
        ("normal bqhd",),
    ),
    "matmul-vector": Function(jk.matmul, None, ("normal d", "normal dn"), ("float32",)),
    "matmul-half": Function(
        functools.partial(jk.matmul, preferred_element_type=jnp.float32),
        None,
        ("normal md", "normal dn"),
        ("bfloat16", "float16"),
    ),
}
CASES = FUNCTIONS | {f"{name}, options": function for name, function in OPTIONS.items()}


@contextlib.contextmanager
def strict(x64):
    with (
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
        jax.enable_x64(x64),
    ):
        yield


# A number of 64 bits meets every dtype of 16 bits in one mode, and float32 in both.
X64 = {"float32": (False, True), "bfloat16": (True,), "float16": (False,), "float64": (True,)}


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize(
    ("name", "dtype", "x64"),
    [
        pytest.param(name, dtype, x64, id=f"{dtype}-{64 if x64 else 32}-{name}")
        for name, function in CASES.items()
        for dtype in function.dtypes
        for x64 in X64[dtype]
    ],
)
def test_strict_promotion(name, dtype, x64):
    """Traces and lowers everything, which is when the flags speak up."""
    with strict(x64):
        operands = [jnp.asarray(x) for x in CASES[name].draw(dtype, g=2, h=4)]
        function, xs = CASES[name].of_moving(CASES[name].ours, operands)
        programs = orders, TRANSFORMS["vmap-last-axis"], TRANSFORMS["vmap-grad"]
        if not cases.ON_GPU and dtype in ("float16", "float64"):
            programs = programs[:1]  # other dtypes have the rest on a CPU
        # One module of all of them is lowered in half of the time.
        traced = jax.jit(lambda *xs: [of(function, *xs) for of in programs]).trace(*xs)
        # On a TPU the kernels' plain-JAX form runs. A linear layer's loss is lowered for one platform at a
        # time: under x64 JAX shares a function of 64-bit numbers with its lowering, which has none.
        is_linear = name.startswith("linear")
        for platforms in [("cpu",), ("tpu",)] if is_linear else [("cpu", "tpu")]:
            traced.lower(lowering_platforms=platforms)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_bias_of_another_dtype(dtype):
    """jax.nn's attention accepts a float32 bias with 16-bit queries under these flags."""
    q, k = jnp.ones((2, 4, 4, 3), dtype), jnp.ones((2, 5, 2, 3), dtype)
    bias = jnp.ones((4, 5), jnp.float32)
    with strict(False):
        result, residual = jk.dot_product_attention(q, k, k, bias, return_residual=True)
        assert result.dtype == residual.dtype == q.dtype
        scores = jnp.ones((2, 4, 5), dtype)
        assert jk.scaled_masked_softmax(scores, None, bias[None]).dtype == scores.dtype


@pytest.mark.parametrize("name", ["attention", "flax"])
def test_strict_promotion_does_not_change_results(name):
    xs = [jnp.asarray(x) for x in OPTIONS[name].draw("bfloat16", g=2, h=4)]

    def gradients():
        return jax.jit(jax.grad(lambda *xs: jnp.sum(OPTIONS[name].ours(*xs) ** 2), (0, 1)))(*xs)

    free = gradients()
    with strict(False):
        bound = gradients()
    for x, y in zip(free, bound, strict=True):
        x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
        # XLA's products on a GPU round their operands to bfloat16 in another way when they are float32.
        last_bits = 2 * float(jnp.finfo(jnp.bfloat16).eps) * abs(x).max() if cases.ON_GPU else 0
        np.testing.assert_allclose(x, y, rtol=0, atol=last_bits)


# Rows of -inf, whose tangents are -inf, and of 0.
INPUTS = {
    "logsumexp-minus-inf": [MINUS_INF],
    "logsumexp-columns": [MINUS_INF.T],
    "rms_norm": [0 * X],
}

# One program: what is tested comes before it.
number = jax.jit(lambda y: jnp.sum(jnp.where(jnp.isfinite(y), y, 0) ** 2))


@pytest.mark.parametrize("name", [n for n in OPTIONS if not n.startswith("matmul")])
def test_no_nan_is_made(name):
    """By what is masked, eagerly or under jit, forward or backward."""
    function = OPTIONS[name].ours
    xs = INPUTS.get(name) or OPTIONS[name].draw(g=2, h=4)

    def program(*xs):
        gradient = jax.grad(lambda *xs: number(function(*xs)), tuple(range(len(xs))))
        return function(*xs), gradient(*xs), jax.jvp(function, tuple(xs), tuple(xs))

    with jax.debug_nans(True):
        program(*xs)
        jax.jit(program)(*xs)


@pytest.mark.parametrize("function", [jk.softmax, jk.log_softmax])
def test_a_nan_that_the_user_sees_is_reported(function):
    """The NaN comes from a row that is -inf throughout, or from an element that is not masked."""
    for bad in (-np.inf, np.nan):
        x = X.copy()
        x[0] = bad
        with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
            function(x, where=WHERE)


@pytest.mark.parametrize("function", [jk.softmax, jk.log_softmax])
def test_rows_that_see_something_keep_their_bits(function):
    masked = function(jnp.where(WHERE, X, -jnp.inf))
    got = function(X, where=WHERE)
    np.testing.assert_array_equal(got[::2], masked[::2])
    empty = 0.0 if function is jk.softmax else -np.inf
    np.testing.assert_array_equal(got[1], np.full(5, empty, np.float32))
