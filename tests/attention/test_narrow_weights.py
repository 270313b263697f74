"""Weights that leave the softmax of float32 scores in a 16-bit dtype, as attention of 16 bits takes them."""

import functools
import re

import cases
import jax
import jax.numpy as jnp
import narrow_cases
import numpy as np
import pytest
from attention_cases import Truth
from jax import lax
from memory_stats import SLACK, stats
from narrow_cases import assert_rounded, of_length, weights

import jaxkernels as jk

each_half = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])

# Rows of all tiers, aligned and not: registers, shared memory, a cluster, twice read.
LENGTHS = [1, 2, 7, 64, 197, 333, 1000, 1030, 4096, 4097, 20001, 65536, 200001, 500000, 500002]


@each_half
@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_those_of_float32_rounded(dtype, causal):
    for cols in LENGTHS if cases.ON_GPU else LENGTHS[:9]:
        narrow_cases.check(cols, dtype, causal)


@each_half
def test_rows_that_see_nothing_and_nan(dtype):
    scores = np.zeros((1, 4, 70), np.float32)
    scores[0, 1, 3] = np.nan
    mask = np.ones((4, 70), bool)
    mask[2], mask[3, :69] = False, False
    y = np.asarray(jax.jit(functools.partial(weights, dtype=dtype))(scores, mask))[0]
    assert np.isnan(y[1]).all()
    assert (y[2] == 0).all()
    assert y[3, 69] == 1
    np.testing.assert_allclose(y[0].astype(float), 1 / 70, rtol=2**-8)


@each_half
def test_the_kernel_itself_rounds(dtype):
    c = of_length(64)
    run = jax.jit(functools.partial(weights, dtype=dtype))
    text = run.lower(c.scores, c.mask, c.bias).compile().as_text()
    (call,) = re.findall(r"= (\w+)\[\S* custom-call\(.*jaxkernels_rows", text)
    assert call == {"bfloat16": "bf16", "float16": "f16"}[dtype]


@each_half
@pytest.mark.parametrize("cols", [7, 64, 1030, 4096])
def test_weights_at_every_offset(dtype, cols):
    """Scores and weights may begin anywhere within buffers of the program."""
    c = of_length(cols)
    size = c.scores.size
    flat = np.pad(c.scores.reshape(-1), (0, 64))
    wide = jax.jit(weights)(c.scores, c.mask, c.bias)

    @functools.partial(jax.jit, donate_argnums=0)
    def write(target, flat, start, offset):
        scores = lax.dynamic_slice(jnp.roll(flat, start), (start,), (size,)).reshape(wide.shape)
        y = weights(scores, c.mask, c.bias, dtype=dtype)
        return lax.dynamic_update_slice(target, y.reshape(-1), (offset,))

    for start, offset in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 3), (3, 2), (4, 7), (5, 13)]:
        target = np.asarray(write(jnp.ones(size + 64, dtype), flat, start, offset))
        assert_rounded(target[offset : offset + size].reshape(wide.shape), wide, dtype)
        assert (target[:offset] == 1).all()
        assert (target[offset + size :] == 1).all()


def attention_of(shape, dtype):
    rng = np.random.default_rng(0)
    query, key, value = (jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(3))
    return functools.partial(jk.dot_product_attention, implementation="ffi"), (query, key, value)


def test_reverse_mode_keeps_bfloat16_weights_alone():
    attention, operands = attention_of((1, 48, 2, 8), "bfloat16")
    _, pull = jax.vjp(attention, *operands)
    kept = {a.dtype.name for a in jax.tree.leaves(pull) if a.shape == (1, 2, 48, 48)}
    assert kept == {"bfloat16"}


@pytest.mark.parametrize("masked", ["all", "causal", "mask"])
@pytest.mark.parametrize(
    ("heads", "sizes"), [((2, 2), (64, 3, 6, 8)), ((4, 2), (3, 32, 48, 16))], ids=["short", "long"]
)
def test_gradients_of_peaked_weights(masked, heads, sizes):
    """In norm at most twice the error of jax.nn, or what five roundings to bfloat16 make.

    They are those of a weight, of the others of its row, of their cotangent, of the scores' cotangent and of
    the result.
    """
    batch, t, s, depth = sizes
    shapes = [(batch, t, heads[0], depth), *((batch, s, heads[1], depth),) * 2]
    shapes += [(batch, heads[0], t, s), (batch, t, heads[0], depth)]

    @jax.jit
    def of_both(*operands, dy, seen):
        options = {"mask": seen} if masked == "mask" else {"is_causal": masked == "causal"}
        ours = functools.partial(jk.dot_product_attention, implementation="ffi", **options)
        peer = functools.partial(jax.nn.dot_product_attention, **options)
        return [jax.vjp(f, *operands)[1](dy) for f in (ours, peer)]

    for scale in (1, 2, 4, 9, 16):
        rng = np.random.default_rng(scale)
        factors = (scale, scale, 1, 1, 1)
        *operands, dy = (
            jnp.asarray(factor * rng.standard_normal(shape), "bfloat16")
            for factor, shape in zip(factors, shapes, strict=True)
        )
        seen = np.ones((batch, 1, t, s), bool)
        if masked == "mask":
            seen = rng.random(seen.shape) < 0.7
            seen[..., 0] = True
        if masked == "causal":
            seen = np.tri(t, s, dtype=bool)[None, None]
        options = {"mask": seen, "bias": operands[3]}
        truth = Truth(*operands[:3], "bfloat16", **options).gradients(np.asarray(dy))
        wanted = [truth[name].value for name in ("q", "k", "v", "scores")]
        for ours, peer, want in zip(*of_both(*operands, dy=dy, seen=seen), wanted, strict=True):
            error, allowed = (
                np.linalg.norm(np.asarray(x).astype(np.float64) - want) / np.linalg.norm(want)
                for x in (ours, peer)
            )
            assert error <= max(2 * allowed, 5**0.5 * 2.0**-9), scale


def test_small_weights_of_float16_keep_their_gradients():
    """Which has few bits for them."""
    x = jnp.array([[[0.0, -12.0, -14.0, -16.0]]], "float32")
    dy = jnp.array([[[0.0, 0.0, 100.0, 1000.0]]], "float16")
    _, pull = jax.vjp(functools.partial(weights, dtype="float16"), x)
    _, exact = jax.vjp(lambda x: jax.nn.softmax(0.5 * x), x)
    np.testing.assert_allclose(pull(dy)[0], exact(dy.astype("float32"))[0], rtol=1e-3)


def test_attention_allocates_one_array_of_float32_scores(gpu):
    """The scores, and weights of half their size."""
    attention, operands = attention_of((2, 512, 4, 64), "bfloat16")
    scores = 2 * 4 * 512 * 512 * 4
    transposed = 4 * operands[0].nbytes
    allocated = stats(attention, *operands).temp_size_in_bytes
    assert scores <= allocated <= 1.5 * scores + transposed + SLACK
