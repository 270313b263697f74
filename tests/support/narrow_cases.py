"""Weights that the softmax of float32 scores stores in a 16-bit dtype, compared with those that it stores in float32."""

import cases
import jax
import jax.numpy as jnp
import masked_cases
import numpy as np

from jaxkernels._rows import masked, masked_kernels


def weights(scores, mask=None, bias=None, *, dtype=None, causal=False):
    """The softmax of float32 scores, times a half, in `dtype`."""
    band = masked_kernels.band_of(causal, None, from_end=True)
    options = {"result_dtype": dtype, "implementation": "ffi" if cases.ON_GPU else None}
    return masked.apply("weights", scores, mask, bias, scale=0.5, band=band, **options)


def of_length(cols, **options):
    rows = 3 if cols > 4096 else 17
    shape = (2, rows, cols)
    return masked_cases.case(shape, "float32", mask=shape, bias=(1, rows, cols), **options)


def results_of(scores, mask, bias, *, dtype, causal):
    """In float32 and in `dtype`: without mask and bias, with the mask, with both."""
    some = ((scores,), (scores, mask), (scores, mask, bias))
    return [
        (weights(*operands, causal=causal), weights(*operands, causal=causal, dtype=dtype))
        for operands in some
    ]


def check(cols, dtype, causal):
    c = of_length(cols)
    for wide, got in results_of(c.scores, c.mask, c.bias, dtype=dtype, causal=causal):
        assert_rounded(got, wide, dtype)


def assert_rounded(got, wide, dtype):
    """`got` is `wide` rounded; a few elements near a tie may be rounded the other way."""
    assert got.dtype == jnp.dtype(dtype)
    got, want = np.asarray(got), np.asarray(jax.device_get(wide)).astype(jnp.dtype(dtype))
    bits = np.abs(got.view(np.int16).astype(int) - want.view(np.int16).astype(int))
    assert bits.max(initial=0) <= 1
    assert np.count_nonzero(bits) <= 1e-3 * bits.size
