"""Every public function under JAX's strict flags: no implicit promotion of ranks or dtypes, with 64 bits and without."""

import contextlib
import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from public_functions import FUNCTIONS, Function

import jaxkernels as jk
import jaxkernels.flax as jkflax
import jaxkernels.optax as jkoptax

MASK = np.tril(np.ones((4, 5), bool))
LABEL = np.array([1, 4, 0, 2], np.int32)
EVEN = np.full((4, 5), 0.25)
LENGTHS = np.array([1, 4], np.int32)
HEADS = [(2, 4, 4, 3), (2, 5, 2, 3), (2, 5, 2, 3)]


def attention(function=jk.dot_product_attention, *, pick=lambda result: result, **options):
    def of_operands(q, k, v, bias=None):
        return pick(function(q, k, v, bias, **options))

    return of_operands


def scores(operands=("normal brc",), **options):
    return Function(
        lambda x, bias=None: jk.scaled_masked_softmax(x, bias=bias, **options), None, operands
    )


def of_heads(function, operands=()):
    return Function(function, None, ("normal bqhd", "normal bkgd", "normal bkgd", *operands))


# Other arguments of the functions of the table.
CASES = {
    **FUNCTIONS,
    "cross_entropy-where": Function(
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
        None,
        ("normal brc",),
    ),
    "optax-narrow-ids": Function(
        lambda x: jkoptax.softmax_cross_entropy_with_integer_labels(x, LABEL.astype(np.int8)),
        None,
        ("normal rc",),
    ),
    "optax-probabilities": Function(
        lambda x: jkoptax.softmax_cross_entropy(x, jnp.asarray(EVEN, x.dtype)),
        None,
        ("normal rc",),
    ),
    "scores-mask": scores(mask=MASK, causal=True),
    "scores-bias": scores(("normal brc", "normal rc"), mask=MASK, scale=0.5, window=(1, 2)),
    "scores-mean": scores(mask=MASK, causal=True, empty_rows="mean"),
    "scores-xla": scores(("normal brc", "normal rc"), mask=MASK, causal=True, implementation="xla"),
    "attention-mask": of_heads(attention(mask=MASK, local_window_size=1, empty_rows="mean")),
    "attention-lengths": of_heads(
        attention(query_seq_lengths=LENGTHS, key_value_seq_lengths=LENGTHS)
    ),
    "attention-residual": of_heads(
        attention(
            pick=lambda result: result[1] + result[0].sum(-1),
            return_residual=True,
            is_causal=True,
            mask=MASK,
            key_value_seq_lengths=LENGTHS,
        ),
        ("normal qk",),
    ),
    "flax": of_heads(attention(jkflax.dot_product_attention)),
    "flax-mask": of_heads(
        attention(jkflax.dot_product_attention, mask=MASK, is_causal=True, empty_rows="mean"),
        ("normal qk",),
    ),
    "flax-wide": of_heads(attention(jkflax.dot_product_attention, force_fp32_for_softmax=True)),
    "flax-narrow": of_heads(attention(jkflax.dot_product_attention, force_fp32_for_softmax=False)),
    "flax-dropout": of_heads(
        lambda q, k, v: jkflax.dot_product_attention(
            q, k, v, dropout_rate=0.5, dropout_rng=jax.random.key(0)
        )
    ),
    "flax-hooks": Function(
        attention(jkflax.dot_product_attention, einsum_dot_general=jax.lax.dot_general),
        None,
        ("normal bqhd",) * 3,
    ),
    "matmul-vector": Function(jk.matmul, None, ("normal d", "normal dn"), ("float32",)),
    "matmul-rows": Function(jk.matmul, None, ("normal bmd", "normal dn"), ("float32",)),
    "matmul-half": Function(
        functools.partial(jk.matmul, preferred_element_type=jnp.float32),
        None,
        ("normal md", "normal dn"),
        ("bfloat16", "float16"),
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


def transformed(function):
    """The function, its derivatives and its mapped form, all of the operands that may be differentiated."""

    def loss(*xs):
        return sum(jnp.sum(y**2) for y in jax.tree.leaves(function(*xs)))

    def gradient(*xs):
        return jax.grad(loss, tuple(range(len(xs))))(*xs)

    yield function
    yield gradient
    yield lambda *xs: jax.jvp(function, xs, xs)
    yield lambda *xs: jax.vmap(function)(*(jnp.stack([x, x]) for x in xs))
    yield lambda x, *xs: jax.vmap(lambda x: gradient(x, *xs))(jnp.stack([x] * 2))
    yield lambda *xs: jax.jvp(jax.grad(loss), xs, xs)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize(
    ("name", "dtype", "x64"),
    [
        pytest.param(name, dtype, x64, id=f"{name}-{dtype}-{64 if x64 else 32}")
        for name, function in CASES.items()
        for dtype in function.dtypes
        for x64 in (False, True)
        if x64 or dtype != "float64"
    ],
)
def test_strict_promotion(name, dtype, x64):
    """Traces and lowers everything, which is when the flags speak up."""
    with strict(x64):
        operands = [jnp.asarray(x) for x in CASES[name].draw(dtype, g=2, h=4)]
        function, xs = CASES[name].of_moving(CASES[name].ours, operands)
        programs = list(transformed(function))
        # One module of all of them is lowered in half of the time.
        traced = jax.jit(lambda *xs: [program(*xs) for program in programs]).trace(*xs)
        # On a TPU the kernels' plain-JAX form runs. A linear layer's loss is lowered for one platform at a
        # time: under x64 JAX shares a function of 64-bit numbers with its lowering, which has none.
        is_linear = name.startswith("linear")
        for platforms in [("cpu",), ("tpu",)] if is_linear else [("cpu", "tpu")]:
            traced.lower(lowering_platforms=platforms)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_bias_of_another_dtype(dtype):
    """jax.nn's attention accepts a float32 bias with 16-bit queries under these flags."""
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
