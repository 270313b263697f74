"""jaxkernels.flax.dot_product_attention against Flax's own functions: argument by argument, and inside Flax's layers.

Flax computes in the dtype of its inputs, so float32 results are compared to within float32 rounding, and equality is
asserted where it is meant: which weights dropout drops, what hooks are given, what is sown.
"""

import functools
import inspect

import attention_cases as cases
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import SIZES, Truth, check

from jaxkernels.flax import dot_product_attention

pytestmark = pytest.mark.usefixtures("exact_products")

MEAN = functools.partial(dot_product_attention, empty_rows="mean")
LINEN, NNX = flax.linen.dot_product_attention, flax.nnx.dot_product_attention
FEATURES, HEADS, LENGTH = 16, 4, 6
X = np.random.default_rng(0).standard_normal((2, LENGTH, FEATURES)).astype(np.float32)
# Masks as people make them: the last key of the second example is padding, all heads in common.
PADDING = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]], np.float32)
KEY = jax.random.key(7)
FLOAT32, BFLOAT16 = 64 * 2.0**-24, 8 * 2.0**-8  # some roundings one after the other


def close(got, want, tolerance=FLOAT32):
    """Equal structure, shapes and types; values within the tolerance.

    It is relative to the largest value of all leaves, because gradients that are zero in exact arithmetic, like those
    of the biases of keys, are rounding errors of the size of others.
    """
    a, b = jax.tree.leaves(got), jax.tree.leaves(want)
    assert [(x.shape, x.dtype) for x in a] == [(x.shape, x.dtype) for x in b]
    a, b = ([np.asarray(x).astype(np.float64) for x in leaves] for leaves in (a, b))
    largest = max((np.abs(x).max(initial=0) for x in b), default=0)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * largest)


def masks():
    causal = flax.linen.make_causal_mask(X[..., 0])
    padding = flax.linen.make_attention_mask(np.ones_like(PADDING), PADDING)
    assert padding.dtype == jnp.float32
    return {
        "none": None,
        "float": flax.linen.combine_masks(causal, padding),
        "int": 3 * flax.linen.combine_masks(causal, padding, dtype=jnp.int32),
        "empty-rows": padding * (np.arange(LENGTH) > 1)[:, None],
    }


def linen_layer(attention_fn, **options):
    return flax.linen.MultiHeadDotProductAttention(HEADS, attention_fn=attention_fn, **options)


@functools.cache
def linen_variables():
    return linen_layer(LINEN).init(jax.random.key(1), X)


def differentiated(run, parameters):
    """The output, the gradients of the parameters and what is sown."""

    def loss(parameters):
        y, sown = run(parameters)
        return jnp.sum(jnp.sin(y.astype(jnp.float32))), (y, sown)

    gradients, (y, sown) = jax.jit(jax.grad(loss, has_aux=True))(parameters)
    return y, gradients, sown


def run_linen(attention_fn, mask=None, **options):
    layer = linen_layer(attention_fn, **options)
    training = {"deterministic": False, "rngs": {"dropout": KEY}}
    sowing = {"sow_weights": True, "mutable": ["intermediates"]}

    def run(variables):
        return layer.apply(variables, X, mask=mask, **training, **sowing)

    return differentiated(run, linen_variables())


def run_nnx(attention_fn, mask=None, is_causal=False, sow_weights=False, **options):
    layer = flax.nnx.MultiHeadAttention(
        HEADS, FEATURES, attention_fn=attention_fn, decode=False, rngs=flax.nnx.Rngs(3), **options
    )
    graph, parameters, rest = flax.nnx.split(layer, flax.nnx.Param, ...)
    training = {"deterministic": False, "sow_weights": sow_weights}

    def run(parameters):
        layer = flax.nnx.capture(flax.nnx.merge(graph, parameters, rest), flax.nnx.Intermediate)
        rngs = flax.nnx.Rngs(dropout=5)
        return layer(X, mask=mask, is_causal=is_causal, rngs=rngs, **training)

    y, *states = differentiated(run, parameters)
    return y, *map(flax.nnx.to_pure_dict, states)


@pytest.mark.parametrize("broadcast", [True, False])
def test_dropout_drops_what_flax_drops(broadcast):
    """One weight is given per value, so that the result shows the weights as they were multiplied."""
    q, k, _ = cases.operands(SIZES["heads"])
    s = SIZES["heads"]
    value = np.broadcast_to(np.eye(s.S, dtype=np.float32)[:, None], (s.B, s.S, s.N, s.S))
    options = {"dropout_rng": KEY, "dropout_rate": 0.4, "broadcast_dropout": broadcast}
    got, want = (np.asarray(f(q, k, value, **options)) for f in (dot_product_attention, LINEN))
    np.testing.assert_array_equal(got == 0, want == 0)
    assert 0.2 < (got == 0).mean() < 0.6
    close(got, want)
    patterns = (got == 0).swapaxes(1, 2).reshape(-1, s.T, s.S)
    assert (patterns == patterns[0]).all() == broadcast
    still = dot_product_attention(q, k, value, **options, deterministic=True)
    close(still, LINEN(q, k, value))


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_result_against_the_truth(dtype):
    """Without the flag of linen, scores and softmax are float32."""
    q, k, v = cases.operands(SIZES["grouped"], dtype)
    options = cases.arguments(SIZES["grouped"])
    options = {name: options["everything"][name] for name in ("bias", "mask", "scale", "is_causal")}
    given = options | {name: jnp.asarray(options[name]) for name in ("bias", "mask")}
    arrays = [jnp.asarray(x) for x in (q, k, v)]
    for mode, function in (("zero", dot_product_attention), ("mean", MEAN)):
        got = function(*arrays, **given, window=(3, 1))
        assert got.dtype == jnp.dtype(dtype)
        want = Truth(q, k, v, dtype, mode, **options, local_window_size=(3, 1))
        check(got, want.result(), mode)


def test_any_batch_dimensions_and_another_value_depth():
    def operands(*batch):
        rng = np.random.default_rng(4)
        shapes = (5, 4, 8), (7, 4, 8), (7, 4, 3), (1, 5, 7)
        *qkv, mask = (rng.standard_normal((*batch, *x)).astype(np.float32) for x in shapes)
        return *qkv, rng.standard_normal((4, 1, 7)).astype(np.float32), mask > -0.5

    batches = operands(), operands(2), operands(2, 3)
    got, want = (
        jax.jit(lambda batches, f=f: [f(*x) for x in batches])(batches)
        for f in (dot_product_attention, LINEN)
    )
    assert [x.shape for x in got] == [(5, 4, 3), (2, 5, 4, 3), (2, 3, 5, 4, 3)]
    for x, y in zip(got, want, strict=True):
        close(x, y)


@pytest.mark.parametrize("sizes", [(0, 5, 7, 4), (2, 0, 7, 4), (2, 5, 0, 4), (2, 5, 7, 0)])
def test_sizes_of_0(sizes):
    """Without examples, queries, keys or heads: results and gradients are those of Flax."""
    b, q, k, n = sizes
    operands = [jnp.ones((b, length, n, 8), jnp.bfloat16) for length in (q, k, k)]
    got, want = (
        jax.value_and_grad(lambda *x, f=f: f(*x).sum(), (0, 1, 2))(*operands) for f in (MEAN, LINEN)
    )
    close(got, want)


def test_masks_go_by_truth():
    """A mask shows every key where it is not zero, as jnp.where would: also if negative or NaN."""
    q, k, v = cases.operands(SIZES["heads"])
    mask = np.array([-0.5, 0.0, 1.0, np.nan, 0.0, 2.0, -0.0], np.float32)
    close(dot_product_attention(q, k, v, mask=mask), LINEN(q, k, v, mask=mask))


def test_dtypes_are_promoted():
    q, k, v = cases.operands(SIZES["heads"])
    mixed = (q.astype(jnp.bfloat16), k, v)
    close(dot_product_attention(*mixed), LINEN(*mixed))
    assert dot_product_attention(q, k, v, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    asked = []

    def promote(arrays, dtype):
        asked.append(dtype)
        return tuple(jnp.asarray(x, jnp.float32) for x in arrays)

    got = dot_product_attention(*mixed, dtype=jnp.float16, promote_dtype=promote)
    assert asked == [jnp.float16]
    close(got, LINEN(*mixed))


def test_einsum_hooks_are_given_what_flax_gives_them():
    calls = {LINEN: [], MEAN: []}

    def hooks(calls):
        def einsum(*args):
            calls.append(args)
            return jnp.einsum(*args) * 1.5

        return {
            "qk_attn_weights_einsum_cls": lambda: einsum,
            "attn_weights_value_einsum_cls": lambda: einsum,
        }

    variables = linen_variables()
    results = [
        linen_layer(f, **hooks(calls[f])).apply(variables, X, mask=masks()["float"]) for f in calls
    ]
    close(results[1], results[0])
    assert [c[0] for c in calls[MEAN]] == ["...qhd,...khd->...hqk", "...hqk,...khd->...qhd"]
    for got, want in zip(calls[MEAN], calls[LINEN], strict=True):
        close(got[1:], want[1:])
    np.testing.assert_array_equal(calls[MEAN][0][1], calls[LINEN][0][1])  # the scaled queries


def test_einsum_dot_general_is_used():
    q, k, v = cases.operands(SIZES["heads"])
    seen = []

    def dot_general(lhs, rhs, dimension_numbers, precision=None, **options):
        seen.append(precision)
        return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision, **options) * 1.5

    options = {"einsum_dot_general": dot_general, "precision": "highest"}
    got = dot_product_attention(q, k, v, **options)
    assert seen == ["highest", "highest"]
    close(got, LINEN(q, k, v, **options))


def test_softmax_is_forced_to_float32_whatever_a_hook_returns():
    q, k, v = (x.astype(jnp.bfloat16) for x in cases.operands(SIZES["heads"]))
    options = {"einsum_dot_general": jax.lax.dot_general, "force_fp32_for_softmax": True}
    got, want = (f(q, k, v, **options) for f in (dot_product_attention, LINEN))
    assert got.dtype == jnp.float32
    close(got, want, BFLOAT16)


def test_precision_goes_to_xla_and_its_absence_means_float32():
    x = jnp.zeros((1, 4, 2, 8))

    def products(precision):
        with jax.default_matmul_precision("bfloat16"):
            f = functools.partial(dot_product_attention, precision=precision)
            lines = jax.jit(f).lower(x, x, x).as_text().splitlines()
        return [line for line in lines if "dot_general" in line or "sgemm" in line]

    assert all("HIGHEST" in line or "sgemm" in line for line in products(None))
    assert all("HIGH," in line for line in products(jax.lax.Precision.HIGH))
    assert len(products(None)) == len(products("high")) == 2


def test_the_layers_see_every_argument():
    """linen's layer passes only what it finds in the signature, and silently leaves out the rest."""
    ours = inspect.signature(dot_product_attention).parameters
    names = list(ours)
    for theirs in (LINEN, NNX):
        parameters = list(inspect.signature(theirs).parameters)
        assert names[:12] == parameters[:12]
        assert set(parameters) <= set(names)
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[12:])
    assert set(inspect.signature(MEAN).parameters) == set(names)


FLOAT16_MASKED = {"mask": "float", "dtype": jnp.bfloat16}
DROPOUT = {"dropout_rate": 0.3}
SHARED = {"num_kv_heads": 2, "is_causal": True}
LAYERS = [
    (run_linen, LINEN, {"mask": "float"}),
    (run_linen, LINEN, {"mask": "empty-rows"}),
    (run_linen, LINEN, DROPOUT),
    (run_linen, LINEN, {**FLOAT16_MASKED, "force_fp32_for_softmax": False, **DROPOUT}),
    (run_linen, LINEN, {**FLOAT16_MASKED, "force_fp32_for_softmax": True, **DROPOUT}),
    (run_nnx, NNX, {"mask": "int"}),
    (run_nnx, NNX, {"mask": "float", **DROPOUT, "broadcast_dropout": False, "sow_weights": True}),
    (run_nnx, NNX, SHARED),
    (run_nnx, NNX, {"mask": "float", **SHARED, **DROPOUT, "sow_weights": True}),
    (run_nnx, NNX, FLOAT16_MASKED),
]


@pytest.mark.parametrize(("run", "theirs", "options"), LAYERS)
def test_layers(run, theirs, options):
    """Output, gradients and what is sown. The layers draw their own keys; forced float32 reaches the result."""
    options = {**options, "mask": masks()[options.get("mask", "none")]}
    tolerance = BFLOAT16 if "dtype" in options else FLOAT32
    results = zip(run(MEAN, **options), run(theirs, **options), strict=True)
    for got, want in results:
        close(got, want, tolerance)


def test_decoding_in_linen():
    """Token by token, with a cache, as all at once under a causal mask."""
    layer = linen_layer(dot_product_attention, decode=True)
    variables = layer.init(jax.random.key(1), X)
    parameters = {"params": variables["params"]}
    step = jax.jit(lambda v, x: layer.apply(v, x, mutable=["cache"]))
    outputs = []
    for i in range(LENGTH):
        y, cache = step(variables, X[:, i : i + 1])
        variables = {**variables, **cache}
        outputs.append(y)
    causal = flax.linen.make_causal_mask(X[..., 0])
    close(jnp.concatenate(outputs, 1), linen_layer(LINEN).apply(parameters, X, mask=causal))
