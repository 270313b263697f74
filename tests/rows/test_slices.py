"""Operands and results that begin anywhere in memory: XLA hands a kernel the slice of a buffer in place.

Programs cut their operands out of flat arrays at every element of 16 bytes, and write results into the midst of others.
Whether XLA copies a slice is its own choice; what it leaves in place a kernel has to serve.
"""

import functools
import math

import cases
import gemm_cases
import jax
import jax.numpy as jnp
import masked_cases
import numpy as np
import oracle
import pytest
import row_parts_cases
from jax import lax
from slice_cases import check_at_every_offset, cut, flat_arrays, lanes_of, offsets

import jaxkernels as jk

# Rows that are staged, by one lane and by several, and rows of each tier behind them. A CPU has one way for all.
STAGED = ((67, 3), (67, 8), (35, 17), (33, 64))
LONG = ((5, 1000), (5, 1024), (3, 4096), (2, 20001), (2, 70016))
SHAPES = STAGED + LONG if cases.ON_GPU else ((35, 17), (5, 1024))


@cases.dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operands_at_every_offset(dtype, shape):
    """x and the cotangent begin at different places, and the result at the beginning of a buffer."""
    check_at_every_offset(dtype, shape)


def write(flat, y, offset):
    return lax.dynamic_update_slice(flat, y.reshape(-1), (offset,))


@functools.partial(jax.jit, donate_argnums=0, static_argnames="shape")
def in_place(flat, start, shape):
    x = lax.dynamic_slice(flat, (start,), (math.prod(shape),)).reshape(shape)
    return write(flat, jk.softmax(x), start)


@cases.dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_in_the_midst_of_an_array(dtype, shape):
    """In place of the operand, so that both share their place, and in place of others."""

    @functools.partial(jax.jit, donate_argnums=0)
    def beside(target, flat):
        for offset in offsets(dtype):
            target = write(target, jk.log_softmax(cut(flat, offset, shape)), offset)
        return target

    flat, target = flat_arrays(dtype, shape, 2)
    lanes = lanes_of(shape[-1])
    with cases.x64(dtype):
        for offset in offsets(dtype):
            got = np.asarray(in_place(jnp.array(flat), offset, shape))
            size = math.prod(shape)
            np.testing.assert_array_equal(got[:offset], flat[:offset])
            np.testing.assert_array_equal(got[offset + size :], flat[offset + size :])
            x = cut(flat, offset, shape)
            y = got[offset : offset + size].reshape(shape)
            oracle.check(y, "softmax_fwd", x, accumulators=lanes)
        last = offsets(dtype)[-1]
        got = np.asarray(beside(jnp.array(target), flat))
        np.testing.assert_array_equal(got[last + size :], target[last + size :])
        y = got[last : last + size].reshape(shape)
        oracle.check(y, "log_softmax_fwd", cut(flat, last, shape), accumulators=lanes)


# Rows of odd lengths, which a GPU stages.
SAME_BITS = ((67, 3), (35, 17), (19, 197), (11, 255))


@cases.dtypes
@pytest.mark.parametrize("shape", SAME_BITS if cases.ON_GPU else SAME_BITS[:3], ids=str)
def test_staged_rows_give_the_same_bits_anywhere(dtype, shape):
    """At every offset, in place of the operand, alone and among others."""
    assert jk.plan_softmax(shape, dtype, device="h200").staged
    flat, _ = flat_arrays(dtype, shape, 3)

    with cases.x64(dtype):
        x = cut(flat, 0, shape)
        want = np.asarray(jk.softmax(x))
        np.testing.assert_array_equal(np.asarray(jk.softmax(x[1:2])), want[1:2])
        for offset in offsets(dtype):
            moved = jnp.array(np.roll(flat, offset))
            got = cut(np.asarray(in_place(moved, offset, shape)), offset, shape)
            np.testing.assert_array_equal(got, want)


def moved(x, offset):
    return cut(jnp.pad(x.reshape(-1), (offset, 32)), offset, x.shape)


@cases.dtypes
def test_scores_masks_and_biases_at_every_offset(dtype):
    """Masks and biases that broadcast begin at other offsets than the scores."""
    shapes = ((2, 17, 7), (2, 9, 64), (2, 5, 1030), (2, 3, 4096), (1, 2, 20001))
    for shape in shapes if cases.ON_GPU else shapes[:2]:
        c = masked_cases.case(
            shape, dtype, mask=shape, bias=(1, *shape[1:]), scale=0.5, causal=True
        )

        @jax.jit
        def program(scores, dy, mask, bias, c=c):
            results = []
            for offset in offsets(dtype):
                x, t = moved(scores, offset), moved(dy, offset)
                m, z = moved(mask, 1 + offset), moved(bias, 1 + offset)
                for biased in (z, None):
                    function = functools.partial(
                        jk.scaled_masked_softmax, mask=m, bias=biased, scale=c.scale, causal=True
                    )
                    y, pull = jax.vjp(function, x)
                    results.append((y, pull(t)[0]))
            return results

        with cases.x64(dtype):
            results = jax.device_get(program(c.scores, c.dy, c.mask, c.bias))
        for index, (y, dx) in enumerate(results):
            of = c if index % 2 == 0 else masked_cases.dataclasses.replace(c, bias=None)
            truth = masked_cases.Truth(of, None)
            truth.check(y)
            truth.check_gradients({"scores": dx}, ("scores",))


@cases.dtypes
def test_parts_at_every_offset(dtype):
    """Statistics of rows, and results from given statistics."""
    for shape in ((35, 37), (5, 1024), (2, 20001)):
        flat_x, flat_t = flat_arrays(dtype, shape, 3)

        @jax.jit
        def program(flat_x, flat_t, shape=shape):
            return [
                row_parts_cases.in_parts(op, *operands)
                for offset in offsets(dtype)
                for op, operands in (
                    ("softmax_fwd", (cut(flat_x, offset, shape),)),
                    ("log_softmax_grad", (cut(flat_x, offset, shape), cut(flat_t, 1, shape))),
                )
            ]

        with cases.x64(dtype):
            results = iter(jax.device_get(program(flat_x, flat_t)))
        t = cut(flat_t, 1, shape)
        for offset in offsets(dtype):
            x = cut(flat_x, offset, shape)
            oracle.check(next(results), "softmax_fwd", x, accumulators=8)
            oracle.check(next(results), "log_softmax_grad", x, t, accumulators=8)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize(("trans_a", "trans_b"), gemm_cases.TRANSPOSES)
@pytest.mark.parametrize(
    "size", [(33, 40, 52), (129, 132, 68), (516, 508, 36), (64, 64, 8192)], ids=str
)
def test_products_at_every_offset(size, trans_a, trans_b):
    """All rungs; k that is split; tiles that the tensor memory accelerator fetches; C and the result in place."""
    m, n, k = size
    shapes = {"a": (k, m) if trans_a else (m, k), "b": (n, k) if trans_b else (k, n), "c": (m, n)}
    flat = {
        name: gemm_cases.operand("normal", (math.prod(shape) + 8,), seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    flags = {"trans_a": trans_a, "trans_b": trans_b}

    def operands(flat, offset):
        places = {"a": offset, "b": (3 * offset + 1) % 4, "c": offset}
        return [cut(flat[name], places[name], shapes[name]) for name in shapes]

    @jax.jit
    def program(flat):
        results = []
        for offset in range(4):
            a, b, c = operands(flat, offset)
            plain = [jk.sgemm(a, b, algorithm=rung, **flags) for rung in gemm_cases.ALGORITHMS]
            out = jk.sgemm(a, b, c, alpha=0.5, beta=-1.0, **flags)
            target = lax.dynamic_update_slice(flat["c"], out.reshape(-1), (offset,))
            results.append((plain, cut(target, offset, (m, n))))
        return results

    for offset, (plain, with_c) in enumerate(jax.device_get(program(flat))):
        a, b, c = map(np.asarray, operands(flat, offset))
        a, b = a.T if trans_a else a, b.T if trans_b else b
        for result in plain:
            gemm_cases.check(result, a, b)
        gemm_cases.check(with_c, a, b, c, alpha=0.5, beta=-1.0)
