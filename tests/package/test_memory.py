"""Memory of the compiled programs: nothing beyond the output, and y alone for the backward pass.

A matrix product needs the scratch that its plan states, no more, and none for a C that it may overwrite.
"""

import functools

import cases
import gemm_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from memory_stats import SLACK, stats

import jaxkernels as jk

dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
SHAPE = (512, 1024)


def masked(x):
    """With a mask and a bias that all rows share."""
    columns = np.arange(x.shape[-1])
    mask, bias = columns % 5 > 0, columns.astype(x.dtype)
    return jk.scaled_masked_softmax(x, mask, bias, scale=0.5, causal=True)


FUNCTIONS = (jk.softmax, jk.log_softmax, masked)
each = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)


@each
@dtypes
@pytest.mark.parametrize("cols", [64, 1024, 65536, 400_000])
def test_no_temporary_buffer(function, dtype, cols):
    """In any tier that keeps a row."""
    x = jnp.zeros((4, cols), dtype)
    analysis = stats(function, x)
    assert analysis.temp_size_in_bytes <= SLACK
    assert analysis.output_size_in_bytes <= x.nbytes + SLACK


@each
@dtypes
def test_derivatives_keep_one_array(function, dtype):
    """The backward pass reads dy and one array: y, or x for 16-bit log_softmax."""
    x = jnp.asarray(cases.logits("normal", *SHAPE, dtype))
    y, pull = jax.vjp(function, x)
    kept = jax.tree.leaves(pull)
    assert [(a.shape, a.dtype) for a in kept] == [(y.shape, y.dtype)]
    keeps_x = function is jk.log_softmax and x.dtype.itemsize == 2
    assert jnp.array_equal(kept[0], x if keeps_x else y)
    # A program, its operands, and the arrays that it may have as operands, temporary ones and results.
    for program, operands, arrays in (
        (lambda x: jax.vjp(function, x), (x,), (1, 0, 2)),
        (lambda pull, t: pull(t)[0], (pull, x), (2, 0, 1)),
        (lambda x, t: jax.vjp(function, x)[1](t)[0], (x, x), (2, 1, 1)),
        # XLA may keep the float32 terms of the tangent that it computes.
        (lambda x, t: jax.jvp(function, (x,), (t,)), (x, x), (2, 2 * keeps_x, 2)),
    ):
        found = stats(program, *operands)
        sizes = found.argument_size_in_bytes, found.temp_size_in_bytes, found.output_size_in_bytes
        for size, count in zip(sizes, arrays, strict=True):
            assert size <= count * x.nbytes + SLACK


@pytest.mark.parametrize("function", FUNCTIONS[:2], ids=lambda f: f.__name__)
def test_vmapped_rows_need_no_temporary(function):
    x = jnp.zeros((8, *SHAPE))
    assert stats(jax.vmap(function, in_axes=1, out_axes=1), x).temp_size_in_bytes <= SLACK


DONATED = {
    # Programs of (x, t), and which of the two is donated.
    "forward": (lambda f, x, t: f(x), 0),
    "gradient-x": (lambda f, x, t: jax.vjp(f, x)[1](t)[0], 0),
    "gradient-t": (lambda f, x, t: jax.vjp(f, x)[1](t)[0], 1),
}


@each
@pytest.mark.parametrize("name", DONATED)
def test_result_takes_the_buffer_of_a_donated_operand(function, name):
    """The result lies where the operand was; y takes one temporary array at most, a gradient two."""
    program, donated = DONATED[name]
    program = functools.partial(program, function)
    x = jnp.asarray(cases.logits("normal", *SHAPE, "float32"))
    want = jax.jit(program)(x, jnp.sin(x))
    compiled = (
        jax.jit(program, donate_argnums=donated, keep_unused=True).lower(x, jnp.sin(x)).compile()
    )
    analysis = compiled.memory_analysis()
    assert analysis.alias_size_in_bytes == x.nbytes
    assert analysis.temp_size_in_bytes <= (1 + (name != "forward")) * x.nbytes + SLACK
    arrays = [jnp.copy(x), jnp.sin(x)]
    address = arrays[donated].unsafe_buffer_pointer()
    result = compiled(*arrays)
    assert [array.is_deleted() for array in arrays] == [donated == 0, donated == 1]
    assert result.unsafe_buffer_pointer() == address
    assert jnp.array_equal(result, want)


def test_product_needs_the_stated_padding(gpu):
    _, m, n, k = gemm_cases.PADDED[0]
    plan = jk.plan_sgemm(m, n, k, algorithm="pipelined", device=gpu)
    padded = 4 * (m * (k + plan.pad_a) * (plan.pad_a > 0) + k * (n + plan.pad_b) * (plan.pad_b > 0))
    product = functools.partial(jk.matmul, algorithm="pipelined")
    analysis = stats(product, jnp.zeros((m, k)), jnp.zeros((k, n)))
    assert analysis.temp_size_in_bytes <= padded + 4 * plan.partial_elements + SLACK


@pytest.mark.parametrize("algorithm", gemm_cases.ALGORITHMS)
@pytest.mark.parametrize("with_c", [False, True])
@pytest.mark.parametrize("k", [64, 8192])  # k is split on an H200, or is not
def test_product_needs_the_stated_scratch(algorithm, with_c, k):
    """Transposed operands are not copied either. C is donated, and the result takes its place."""
    m, n = 512, 384
    a, b, c = jnp.zeros((k, m)), jnp.zeros((n, k)), jnp.zeros((m, n))
    flags = {"trans_a": True, "trans_b": True, "algorithm": algorithm}
    product = functools.partial(jk.sgemm, alpha=0.5, beta=2.0 if with_c else 0.0, **flags)
    arrays = (a, b, c) if with_c else (a, b)
    analysis = stats(product, *arrays, donate_argnums=(2,) if with_c else ())
    if gemm_cases.ON_GPU:
        scratch = 4 * jk.plan_sgemm(m, n, k, **flags).partial_elements
    else:
        scratch = c.nbytes if with_c else 0  # XLA's own product, to which C is added
    assert analysis.temp_size_in_bytes <= scratch + SLACK
    assert analysis.output_size_in_bytes <= c.nbytes + SLACK
    assert analysis.alias_size_in_bytes == (c.nbytes if with_c else 0)


def test_this_file_would_notice_a_temporary():
    """A product that has to be kept for the next product."""
    x = jnp.zeros((2048, 64), jnp.float32)
    assert stats(lambda x: (x @ x.T) @ x, x).temp_size_in_bytes > SLACK
