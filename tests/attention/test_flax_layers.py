"""jaxkernels.flax.dot_product_attention inside Flax's layers, against the layers with Flax's own functions.

Flax computes in the dtype of its inputs, so float32 results are compared to within float32 rounding, and equality is
asserted where it is meant: what is sown.
"""

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax_layers import (
    BFLOAT16,
    FEATURES,
    HEADS,
    LENGTH,
    LINEN,
    MEAN,
    NNX,
    X,
    all_close,
    close,
    decode_linen,
    linen_layer,
    masks,
    run_linen,
    run_nnx,
)

from jaxkernels.flax import dot_product_attention

pytestmark = pytest.mark.usefixtures("exact_products")


@pytest.fixture(autouse=True, scope="module")
def _little_compiling():
    """Compiling the layers is what these tests cost, and they are not about XLA's optimizations."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", jax.default_backend() == "cpu")
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize("name", ["float", "empty-rows"])
def test_linen_layer(name):
    mask = masks()[name]
    all_close(run_linen(MEAN, mask), run_linen(LINEN, mask))


@pytest.mark.parametrize("name", ["int"])
def test_nnx_layer(name):
    mask = masks()[name]
    all_close(run_nnx(MEAN, mask), run_nnx(NNX, mask))


def test_dropout_in_the_layers():
    """The layers draw their own keys; weights are sown before dropout."""
    all_close(run_linen(MEAN, dropout_rate=0.3), run_linen(LINEN, dropout_rate=0.3))
    options = {"dropout_rate": 0.3, "broadcast_dropout": False, "sow_weights": True}
    got = run_nnx(MEAN, masks()["float"], **options)
    all_close(got, run_nnx(NNX, masks()["float"], **options))
    np.testing.assert_allclose(got[2]["attention_weights"][0].sum(-1), 1, rtol=1e-6)


def test_causal_and_shared_keys_of_nnx():
    options = {"num_kv_heads": 2, "is_causal": True}
    all_close(run_nnx(MEAN, **options), run_nnx(NNX, **options))
    options.update(dropout_rate=0.2, sow_weights=True, mask=masks()["float"])
    all_close(run_nnx(MEAN, **options), run_nnx(NNX, **options))


def test_decoding_in_linen():
    """Token by token, with a cache, as all at once under a causal mask."""
    got, parameters = decode_linen(dot_product_attention)
    close(got, decode_linen(LINEN)[0])
    causal = flax.linen.make_causal_mask(X[..., 0])
    close(got, linen_layer(LINEN).apply({"params": parameters}, X, mask=causal))


def test_decoding_in_nnx():
    def decode(attention_fn):
        layer = flax.nnx.MultiHeadAttention(
            HEADS,
            FEATURES,
            attention_fn=attention_fn,
            decode=True,
            rngs=flax.nnx.Rngs(3),
            num_kv_heads=2,
        )
        layer.init_cache(X.shape)
        step = flax.nnx.jit(lambda layer, x: layer(x))
        return jnp.concatenate([step(layer, X[:, i : i + 1]) for i in range(LENGTH)], 1)

    close(decode(dot_product_attention), decode(NNX))


@pytest.mark.parametrize("force", [False, True])
def test_bfloat16_in_linen(force):
    """Rounded scores or not, the types are those of linen: forced float32 reaches the result."""
    options = {"dtype": jnp.bfloat16, "force_fp32_for_softmax": force, "dropout_rate": 0.2}
    mask = masks()["float"]
    got, want = run_linen(MEAN, mask, **options), run_linen(LINEN, mask, **options)
    all_close(got, want, BFLOAT16)
    assert got[2].dtype == (jnp.float32 if force else jnp.bfloat16)


def test_bfloat16_in_nnx():
    mask = masks()["float"]
    got, want = (run_nnx(f, mask, dtype=jnp.bfloat16) for f in (MEAN, NNX))
    all_close(got, want, BFLOAT16)
