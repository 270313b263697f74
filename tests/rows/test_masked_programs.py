"""scaled_masked_softmax in programs: what they keep in memory, and what its kernels refuse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ffi_calls import ffi_call
from masked_cases import case
from memory_stats import SLACK, stats

import jaxkernels as jk

FULL = (4, 2, 64, 128)
CASE = case(FULL, "float32", mask=(4, 1, 1, 128), bias=(1, 2, 64, 128))
ours = functools.partial(jk.scaled_masked_softmax, scale=0.5, causal=True)


def operands(c, dtype="float32"):
    return jnp.asarray(c.scores, dtype), jnp.asarray(c.mask), jnp.asarray(c.bias, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forward_needs_no_temporary(dtype):
    """Neither mask, bias nor band are materialised, mapped or not."""
    x, mask, bias = operands(CASE, dtype)
    for function, arrays in (
        (ours, (x, mask, bias)),
        (ours, (x, mask[0, 0])),
        (ours, (x, None, bias[0])),
        (jax.vmap(ours, (0, 0, None)), (x, mask, bias[0])),
        (jax.vmap(ours, (1, None, 1), 1), (x, mask[:, 0], bias)),
    ):
        analysis = stats(function, *arrays)
        assert analysis.temp_size_in_bytes <= SLACK
        assert analysis.output_size_in_bytes <= x.nbytes + SLACK


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_backward_keeps_y_only(dtype):
    """One array of the size of the scores between the passes, and no other within them."""
    x, mask, bias = operands(CASE, dtype)
    y, pull = jax.vjp(lambda x: ours(x, mask, bias), x)
    (kept,) = jax.tree.leaves(pull)
    np.testing.assert_array_equal(kept, y)
    backward = stats(lambda pull, t: pull(t)[0], pull, x)
    assert backward.temp_size_in_bytes <= SLACK
    step = stats(lambda x, m, b, t: jax.vjp(lambda x: ours(x, m, b), x)[1](t)[0], x, mask, bias, x)
    assert step.temp_size_in_bytes <= x.nbytes + SLACK


def test_gradient_of_a_bias_needs_one_more_array():
    """The array is the gradient of the scores; its sum is the gradient of the bias."""
    x, mask, bias = operands(CASE)
    step = stats(lambda x, m, b, t: jax.vjp(lambda b: ours(x, m, b), b)[1](t)[0], x, mask, bias, x)
    # y, the gradient, and where XLA's CPU sums in parts, a few of the size of the bias
    assert step.temp_size_in_bytes <= 2 * x.nbytes + 2 * bias.nbytes + SLACK


BAND = {"scale": 1.0, "left": 0, "right": 0, "from_end": True, "all_sums": False}
MASKED, BIASED = "masked_softmax_fwd", "biased_softmax_fwd"


@pytest.mark.parametrize(
    ("shapes", "operation", "has_mask", "texts"),
    [
        ([((2, 3), "bool")], MASKED, True, ()),
        ([((3, 3), "bool")], MASKED, True, ("mask", "(3, 3)")),
        ([((2, 1), "bool")], MASKED, True, ("mask", "(2, 1)")),
        ([((1, 2, 3), "bool")], MASKED, True, ("mask", "(1, 2, 3)")),
        ([((2, 3), "float32")], MASKED, True, ("mask", "bool", "float32")),
        ([((2, 3), "bfloat16")], BIASED, False, ("bias", "float32", "bfloat16")),
        ([((3,), "float32")], BIASED, False, ("bias", "(3,)")),
        ([((2, 3), "bool")], MASKED, False, ("number", "1", "2")),
        ([], BIASED, True, ("number", "3", "1")),
    ],
    ids=str,
)  # fmt: skip
def test_handlers_check_masks_and_biases(shapes, operation, has_mask, texts):
    """As only a broken Python layer could call them: an error that names the operand, not a crash."""
    result = ((2, 3), "float32")
    attributes = {"operation": operation, **BAND, "has_mask": has_mask}
    if not texts:  # the right call, so that the wrong ones fail for their own reason
        made = [jnp.ones(shape, dtype) for shape, dtype in (result, *shapes)]
        run = jax.ffi.ffi_call("jaxkernels_rows", jax.ShapeDtypeStruct(*result))
        assert jax.jit(lambda *a: run(*a, tier="auto", **attributes))(*made).shape == (2, 3)
        return
    text = ffi_call("jaxkernels_rows", [result, *shapes], result, **attributes)
    assert "INVALID_ARGUMENT" in text
    assert all(part in text for part in texts), text
