"""Every public function under JAX's strict flags: no implicit promotion of ranks or dtypes, with 64 bits and without."""

import contextlib
import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxkernels as jk
import jaxkernels.flax as jkflax
import jaxkernels.optax as jkoptax

MASK = np.tril(np.ones((4, 5), bool))
LABEL = np.array([1, 4, 0, 2], np.int32)
ROW = np.stack([LABEL, LABEL])
EVEN = np.full((4, 5), 0.25)
LENGTHS = np.array([1, 4], np.int32)
ROWS = [(2, 4, 5)]
BIASED = [(2, 4, 5), (4, 5)]
HEADS = [(2, 4, 4, 3), (2, 5, 2, 3), (2, 5, 2, 3)]
SQUARE = [(4, 3), (3, 4)]


def scores(**options):
    def function(x, bias=None):
        return jk.scaled_masked_softmax(x, bias=bias, **options)

    return function


def attention(function=jk.dot_product_attention, *, pick=lambda result: result, **options):
    def of_operands(q, k, v, bias=None):
        return pick(function(q, k, v, bias, **options))

    return of_operands


# Functions of arrays of one dtype, and the shapes of these.
CASES = {
    "softmax": (jk.softmax, ROWS),
    "softmax-axes": (functools.partial(jk.softmax, axis=(0, 2)), ROWS),
    "softmax-where": (functools.partial(jk.softmax, where=MASK[None]), ROWS),
    "log_softmax": (jk.log_softmax, ROWS),
    "log_softmax-where": (functools.partial(jk.log_softmax, axis=1, where=MASK[None]), ROWS),
    "cross_entropy": (functools.partial(jk.cross_entropy, labels=ROW), ROWS),
    "cross_entropy-options": (
        functools.partial(
            jk.cross_entropy,
            labels=LABEL[None].astype(np.uint8),
            where=MASK[None] | (LABEL[:, None] == np.arange(5)),
            weights=np.arange(4, dtype=np.float32)[None],
            label_smoothing=0.1,
            z_loss=0.01,
            logit_soft_cap=3.0,
            temperature=2.0,
            reduction="mean",
        ),
        ROWS,
    ),
    "cross_entropy-sum": (functools.partial(jk.cross_entropy, labels=1, reduction="sum"), ROWS),
    "cross_entropy-probabilities": (
        lambda x: jk.cross_entropy(x, jnp.asarray(EVEN[None], x.dtype), return_lse=True)[1],
        ROWS,
    ),
    "token_log_probs": (
        lambda x: sum(jk.token_log_probs(x, ROW, temperature=0.5, return_entropy=True)),
        ROWS,
    ),
    "optax-ids": (lambda x: jkoptax.softmax_cross_entropy_with_integer_labels(x, ROW), ROWS),
    "optax-narrow-ids": (
        lambda x: jkoptax.softmax_cross_entropy_with_integer_labels(x, ROW.astype(np.int8)),
        ROWS,
    ),
    "optax": (lambda x: jkoptax.softmax_cross_entropy(x, jnp.asarray(EVEN, x.dtype)), [(4, 5)]),
    "scores": (scores(), ROWS),
    "scores-scale": (lambda x, scale: jk.scaled_masked_softmax(x, scale=scale), [(4, 5), ()]),
    "scores-mask": (scores(mask=MASK, causal=True), ROWS),
    "scores-bias": (scores(mask=MASK, scale=0.5, window=(1, 2)), BIASED),
    "scores-mean": (scores(mask=MASK, causal=True, empty_rows="mean"), ROWS),
    "scores-xla": (scores(mask=MASK, causal=True, implementation="xla"), BIASED),
    "attention": (attention(), HEADS),
    "attention-bias": (attention(is_causal=True), [*HEADS, (4, 5)]),
    "attention-mask": (attention(mask=MASK, local_window_size=1, empty_rows="mean"), HEADS),
    "attention-lengths": (
        attention(query_seq_lengths=LENGTHS, key_value_seq_lengths=LENGTHS),
        HEADS,
    ),
    "attention-residual": (
        attention(
            pick=lambda result: result[1] + result[0].sum(-1),
            return_residual=True,
            is_causal=True,
            mask=MASK,
            key_value_seq_lengths=LENGTHS,
        ),
        [*HEADS, (4, 5)],
    ),
    "flax": (attention(jkflax.dot_product_attention), HEADS),
    "flax-mask": (
        attention(jkflax.dot_product_attention, mask=MASK, is_causal=True, empty_rows="mean"),
        [*HEADS, (4, 5)],
    ),
    "flax-wide": (attention(jkflax.dot_product_attention, force_fp32_for_softmax=True), HEADS),
    "flax-narrow": (attention(jkflax.dot_product_attention, force_fp32_for_softmax=False), HEADS),
    "flax-dropout": (
        lambda q, k, v: jkflax.dot_product_attention(
            q, k, v, dropout_rate=0.5, dropout_rng=jax.random.key(0)
        ),
        HEADS,
    ),
    "flax-hooks": (
        attention(jkflax.dot_product_attention, einsum_dot_general=jax.lax.dot_general),
        [HEADS[0], HEADS[0], HEADS[0]],
    ),
}
PRODUCTS = {
    "matmul": (jk.matmul, SQUARE),
    "matmul-vector": (jk.matmul, [(3,), (3, 4)]),
    "matmul-batch": (jk.matmul, [(2, 1, 4, 3), (5, 3, 4)]),
    "matmul-rows": (jk.matmul, [(2, 4, 3), (3, 4)]),
    "dot_general": (
        lambda a, b: jk.dot_general(a, b, (((2,), (0,)), ((), ()))),
        [(2, 4, 3), (3, 4)],
    ),
    "sgemm": (lambda a, b, c: jk.sgemm(a, b, c, alpha=2.0, beta=0.5), [*SQUARE, (4, 4)]),
    "sgemm-traced": (
        lambda a, b, c, s: jk.sgemm(a, b, c, alpha=s, beta=s),
        [*SQUARE, (4, 4), ()],
    ),
}


@contextlib.contextmanager
def strict(x64):
    with (
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
        jax.enable_x64(x64),
    ):
        yield


def transformed(function, count):
    """The function, its derivatives and its mapped form, all of the same arrays."""

    def loss(*arrays):
        return jnp.sum(function(*arrays) ** 2)

    every = tuple(range(count))
    yield function
    yield jax.grad(loss, every)
    yield lambda *arrays: jax.jvp(function, arrays, arrays)
    yield lambda *arrays: jax.vmap(function)(*(jnp.stack([x, x]) for x in arrays))
    yield lambda *arrays: jax.vmap(jax.grad(loss, every), in_axes=(0, *[None] * (count - 1)))(
        jnp.stack([arrays[0]] * 2), *arrays[1:]
    )
    yield lambda *arrays: jax.jvp(jax.grad(loss), arrays, arrays)


def lower(function, shapes, dtype):
    """Traces and lowers everything, which is when the flags speak up."""
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    programs = list(transformed(function, len(shapes)))
    # One module of all of them is lowered in half of the time.
    traced = jax.jit(lambda *arrays: [program(*arrays) for program in programs]).trace(*arrays)
    traced.lower(lowering_platforms=("cpu", "tpu"))  # on a TPU the kernels' plain-JAX form runs


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize(
    ("dtype", "x64"),
    [
        ("float32", False),
        ("bfloat16", False),
        ("float16", False),
        ("float32", True),
        ("bfloat16", True),
        ("float64", True),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_row_functions_and_attention(name, dtype, x64):
    function, shapes = CASES[name]
    with strict(x64):
        lower(function, shapes, dtype)


@pytest.mark.parametrize("x64", [False, True], ids=("x32", "x64"))
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, x64):
    function, shapes = PRODUCTS[name]
    with strict(x64):
        lower(function, shapes, "float32")


@pytest.mark.parametrize("x64", [False, True], ids=("x32", "x64"))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_16_bit_operands(dtype, x64):
    with strict(x64):
        wide = functools.partial(jk.matmul, preferred_element_type=jnp.float32)
        lower(wide, SQUARE, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_bias_of_another_dtype(dtype):
    """jax.nn's attention takes a float32 bias beside 16-bit queries under these flags."""
    q, k, v = (jnp.ones(shape, dtype) for shape in HEADS)
    bias = jnp.ones((4, 5), jnp.float32)
    with strict(False):
        result, residual = jk.dot_product_attention(q, k, v, bias, return_residual=True)
        assert result.dtype == residual.dtype == q.dtype
        scores = jnp.ones((2, 4, 5), dtype)
        assert jk.scaled_masked_softmax(scores, None, bias[None]).dtype == scores.dtype


@pytest.mark.parametrize("function", [jk.dot_product_attention, jkflax.dot_product_attention])
def test_the_flags_do_not_change_results(function):
    rng = np.random.default_rng(5)
    operands = [jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in HEADS]

    def loss(q, k, v):
        return jnp.sum(function(q, k, v) ** 2)

    free = jax.jit(jax.grad(loss, (0, 1, 2)))(*operands)
    with strict(False):
        bound = jax.jit(jax.grad(loss, (0, 1, 2)))(*operands)
    for x, y in zip(free, bound, strict=True):
        x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
        # XLA's products on a GPU round their operands to bfloat16 in another way when they are float32.
        last_bits = 2 * float(jnp.finfo(jnp.bfloat16).eps) * abs(x).max() if cases.ON_GPU else 0
        np.testing.assert_allclose(x, y, rtol=0, atol=last_bits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_of_flax(dtype):
    x = jnp.ones((2, 4, 8), dtype)
    mask = linen.make_causal_mask(x[..., 0])
    types = {"dtype": dtype, "param_dtype": dtype, "attention_fn": jkflax.dot_product_attention}
    ours = linen.MultiHeadDotProductAttention(2, **types)
    other = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0), **types)

    def loss(parameters, x):
        return jnp.sum(jnp.square(ours.apply(parameters, x, mask=mask)))

    with strict(False):
        y, parameters = ours.init_with_output(jax.random.key(0), x, mask=mask)
        assert y.dtype == x.dtype
        jax.grad(loss, (0, 1))(parameters, x)
        assert other(x, mask=mask).dtype == x.dtype
        nnx.grad(lambda layer, x: jnp.sum(layer(x, mask=mask) ** 2))(other, x)
