"""Holds our cuDNN calls to the truth by a model of cuDNN: masks, lengths, queries without keys.

The calls themselves run on a GPU in test_flash.py.
"""

import attention_cases as cases
import cudnn_model
import flash_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import check
from flash_cases import SIZES

from jaxkernels._attention import checks, cudnn, flash_forms, heads
from jaxkernels._attention.problem import Call, names_of, present
from jaxkernels._rows.masked_kernels import band_of


@pytest.fixture(autouse=True)
def _model(monkeypatch):
    for name in ("forward", "backward"):
        monkeypatch.setattr(cudnn, name, getattr(cudnn_model, name))


def call_of(q, k, v, options):
    """A call and its operands, of what a user passes."""
    names = ("bias", "mask", "query_seq_lengths", "key_value_seq_lengths")
    given = checks.as_operands(q, k, v, *map(options.get, names))
    band = band_of(
        options.get("is_causal", False), options.get("local_window_size"), from_end=False
    )
    scale = options.get("scale", heads.default_scale(q.shape[-1]))
    return Call(names_of(given), scale, band, keeps_sums=True), present(given)


def run(forward, backward, arrays, sets):
    """The results of all sets, of two forms that may be of different kinds, in one program."""

    @jax.jit
    def program(q, k, v, dy):
        found = {}
        for name, options in sets.items():
            call, given = call_of(q, k, v, options)
            y, sums = getattr(flash_forms.FORWARD, forward)(call, given)
            kept = [*given, sums, y, dy]
            found[name] = (y, sums, *getattr(flash_forms.BACKWARD, backward)(call, kept))
        return found

    return program(*arrays)


@pytest.mark.parametrize("dtype", flash_cases.DTYPES)
@pytest.mark.parametrize("forms", [("cudnn", "cudnn"), ("plain", "cudnn"), ("cudnn", "plain")])
@pytest.mark.parametrize("sizes", [SIZES["grouped"], SIZES["odd"]], ids=["grouped", "odd"])
def test_values_and_gradients(sizes, forms, dtype):
    """Either form's backward pass accepts the residuals of either form's forward pass."""
    arrays = [*cases.operands(sizes, dtype), cases.operands(sizes, dtype, seed=1)[0]]
    sets = flash_cases.arguments(sizes, dtype)
    for name, (y, sums, *gradients) in run(*forms, arrays, sets).items():
        truth = flash_cases.truth(arrays[:3], dtype, **sets[name])
        check(y, truth.result(), name)
        want = truth.gradients(arrays[3])
        for letter, x in zip("qkv", gradients, strict=True):
            check(x, want[letter], f"{name}: d{letter}")
        alive = np.isfinite(truth.log_sum_exp) & (truth.rows[..., 0] > 0)
        found = np.asarray(sums)[alive]
        np.testing.assert_allclose(found, truth.log_sum_exp[alive], rtol=1e-4, atol=1e-4)


def test_some_queries_see_nothing():
    """The sets of arguments above include queries without keys; else no test would cover them."""
    sizes = SIZES["grouped"]
    operands = cases.operands(sizes, "bfloat16")
    empty = set()
    for name, options in flash_cases.arguments(sizes, "bfloat16").items():
        truth = flash_cases.truth(operands, "bfloat16", **options)
        if np.isneginf(truth.log_sum_exp).any():
            empty.add(name)
    assert {"mask", "mask-keys-causal", "bias-infinite", "key-lengths", "everything"} <= empty


@pytest.mark.parametrize("forms", [("cudnn", "cudnn"), ("plain", "cudnn")])
def test_rows_of_the_smallest_biases(forms):
    """cuDNN takes finfo.min for what hides, so that no gradient is NaN; our form gives the mean of such a row."""
    sizes = cases.Sizes(1, 4, 6, 1, 1, 8)
    arrays = [*cases.operands(sizes, "bfloat16"), cases.operands(sizes, "bfloat16", seed=1)[0]]
    bias = jnp.zeros((1, 1, 4, 6), jnp.bfloat16).at[0, 0, 1].set(jnp.finfo(jnp.bfloat16).min)
    found = run(*forms, arrays, {"least": {"bias": bias}})["least"]
    y, _, *gradients = found
    want = 0 if forms[0] == "cudnn" else np.asarray(arrays[2], np.float32).mean(1)[0]
    np.testing.assert_allclose(np.asarray(y, np.float32)[0, 1], want, atol=2.0**-6)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in gradients)
    assert (np.asarray(gradients[0])[0, 1] == 0).all()
