"""Unusual arguments that jax.nn's attention accepts: ours accepts all of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk

PEER = jax.nn.dot_product_attention

SIZES = {
    "depth": [(2, 3, 2, 0), (2, 5, 2, 0)],
    "depth-of-groups": [(2, 3, 4, 0), (2, 5, 2, 0)],
    "queries": [(2, 0, 2, 4), (2, 5, 2, 4)],
    "keys": [(2, 3, 2, 4), (2, 0, 2, 4)],
    "queries-and-keys": [(2, 0, 2, 4), (2, 0, 2, 4)],
    "batch": [(0, 3, 2, 4), (0, 5, 2, 4)],
    "query-heads": [(2, 3, 0, 4), (2, 5, 2, 4)],
    "unbatched-depth": [(3, 2, 0), (5, 2, 0)],
}
ARGUMENTS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 2.0},
    "window": {"local_window_size": (1, 0)},
}


def empty_operands(name, dtype):
    query, key = SIZES[name]
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in (query, key, key)]


def with_gradients(function, operands):
    def loss(*operands):
        return jnp.sum(jnp.sin(function(*operands))).astype(jnp.float32)

    return [function(*operands), *jax.grad(loss, (0, 1, 2))(*operands)]


@pytest.mark.half_on_a_cpu
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # jax.nn's, for no depth
@pytest.mark.parametrize("implementation", [None, "ffi", "xla"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_0_give_what_they_give_for_jax_nn(name, dtype, implementation):
    function = functools.partial(jk.dot_product_attention, implementation=implementation)

    @jax.jit
    def program(*operands):
        return [
            [with_gradients(functools.partial(f, **arguments), operands) for f in (function, PEER)]
            for arguments in ARGUMENTS.values()
        ]

    for ours, peer in program(*empty_operands(name, dtype)):
        for x, y in zip(ours, peer, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def test_scores_without_depth_are_0():
    """jax.nn gives NaN here, by 0 times the infinite 1 / sqrt(0)."""
    operands = empty_operands("depth", "float32")
    _, residual = jk.dot_product_attention(*operands, return_residual=True)
    np.testing.assert_allclose(residual, np.log(5.0), rtol=1e-6)


def test_no_heads_at_all():
    none = jnp.ones((1, 2, 0, 4))
    assert jk.dot_product_attention(none, none, none).shape == none.shape


WHOLE = np.arange(-6, 6).reshape(1, 3, 2, 2)
OPERANDS = {
    "lists": (WHOLE / 7).tolist(),
    "tuples": tuple((WHOLE / 7).tolist()),
    "list-of-arrays": list((WHOLE / 7).astype(np.float32)),
    "numpy-float64": WHOLE / 7,
    "lists-of-integers": WHOLE.tolist(),
    "int32": WHOLE.astype(np.int32),
    "uint8": np.abs(WHOLE).astype(np.uint8),
}
OPTIONS = {
    "plain": {},
    "mask": {"mask": [[True, False, False], [True, True, False], [True, False, True]]},
    "bias": {"bias": [[0.5, 1, 2]] * 3, "is_causal": True},
    "integer-bias": {"bias": [[0, 1, 2]] * 3},
    "lengths": {"query_seq_lengths": [2], "key_value_seq_lengths": (1,)},
    "residual": {"return_residual": True},
    "window": {"local_window_size": [1, 0]},
    "scale": {"scale": 2},
}


@pytest.mark.half_on_a_cpu
@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("operand", OPERANDS.values(), ids=OPERANDS)
def test_what_jax_nn_takes_is_taken(operand, options):
    ours = jk.dot_product_attention(operand, operand, operand, **options)
    # XLA multiplies no integers into floats on a GPU: jax.nn ends the process there.
    with jax.default_device(jax.devices("cpu")[0]):
        peer = jax.nn.dot_product_attention(operand, operand, operand, **options)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(peer), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("empty_rows", ["zero", "mean"])
def test_integers_have_kernels_and_every_choice_of_empty_rows(empty_rows):
    def attention(x):
        return jk.dot_product_attention(
            x, x, 9 * x, implementation="ffi", empty_rows=empty_rows, key_value_seq_lengths=[0]
        )

    ours = attention(jnp.asarray(WHOLE))
    assert ours.dtype == jnp.int32
    # A mean has weights below 1, and integers keep none of them.
    np.testing.assert_array_equal(ours, np.zeros_like(WHOLE))
    assert "jaxkernels_" in jax.jit(attention).lower(jnp.asarray(WHOLE)).as_text()


def test_what_only_kernels_can_do_is_refused_where_there_is_none():
    x = jnp.asarray(WHOLE / 8, jnp.float8_e4m3fn)
    with pytest.raises(NotImplementedError, match=r"implementation=.ffi.*float8_e4m3fn"):
        jk.dot_product_attention(x, x, x, implementation="ffi")
    with pytest.raises(ValueError, match=r"float8_e4m3fn.*'zero'"):
        jk.dot_product_attention(x, x, x, empty_rows="zero")


def test_lists_can_hold_traced_numbers():
    q = WHOLE / 7
    of_list = lambda x: jk.dot_product_attention([x[0]], q.tolist(), q.tolist())  # noqa: E731
    x = jnp.asarray(q)
    np.testing.assert_array_equal(jax.jit(of_list)(x), jk.dot_product_attention(x, x, x))


@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize(
    ("heads", "shape", "texts"),
    [
        (3, (3, 1, 6), ["[:, None, :, :] for (batch", "[None, :, :, :] for (heads, "]),
        (3, (3, 5, 6), ["[:, None, :, :] for (batch", "[None, :, :, :] for (heads, "]),
        (2, (3, 1, 6), ["[:, None, :, :] for (batch, queries, keys)"]),
        (2, (3, 5), ["[:, None, :, None] for (batch, queries)"]),
        (2, (2, 6), ["[None, :, None, :] for (heads, keys)"]),
        (2, (3, 2, 6), ["[:, :, None, :] for (batch, heads, keys)"]),
    ],
    ids=str,
)
def test_a_first_dimension_that_may_be_the_batch_is_an_error(name, heads, shape, texts):
    q, k = jnp.ones((3, 5, heads, 4)), jnp.ones((3, 6, heads, 4))
    side = jnp.ones(shape, bool if name == "mask" else None)
    with pytest.raises(ValueError, match="dot_product_attention") as error:
        jk.dot_product_attention(q, k, k, **{name: side})
    assert f"{name} " in str(error.value)
    for text in (str(shape), *(name + text for text in texts)):
        assert text in str(error.value)
    assert str(error.value).count(f"{name}[") == len(texts)


@pytest.mark.parametrize("shape", [(4, 5, 6), (1, 5, 6), (5, 6), (1, 6), (6,), ()], ids=str)
def test_other_shapes_of_lower_rank_are_those_of_jax_nn(shape):
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.standard_normal((3, n, 4, 8)), "float32") for n in (5, 6))
    bias = jnp.asarray(rng.standard_normal(shape), "float32")
    for given in ((q, k, k, bias), (q[0], k[0], k[0], bias)):
        np.testing.assert_allclose(jk.dot_product_attention(*given), PEER(*given), 2e-5, 2e-6)
