# pyright: reportUnnecessaryTypeIgnoreComment=error
"""Types that a type checker must infer, and errors that it must find; pyright checks this file, nobody runs it.

If pyright finds no error on a line whose comment says that there is one, the comment is an error.
"""

from typing import assert_type

import jax
import jax.numpy as jnp

import jaxkernels as jk
import jaxkernels.flax

x = jnp.ones((4, 4))
q = jnp.ones((1, 4, 2, 8))
device = jax.devices()[0]


def right(return_residual: bool) -> None:
    jk.softmax(x, tier="warp", implementation="ffi")
    jk.matmul(x, x, algorithm="pipelined", implementation=None)
    jk.dot_product_attention(q, q, q, implementation="cudnn", empty_rows="mean")
    jk.plan_softmax((4, 4), x.dtype, operation="softmax_grad", device=device)
    jk.plan_softmax((4, 4), jnp.float32, device="h200", tier="cluster")
    assert_type(jk.dot_product_attention(q, q, q), jax.Array)
    assert_type(jk.dot_product_attention(q, q, q, return_residual=False), jax.Array)
    assert_type(
        jk.dot_product_attention(q, q, q, return_residual=True), tuple[jax.Array, jax.Array]
    )
    assert_type(
        jk.dot_product_attention(q, q, q, return_residual=return_residual),
        jax.Array | tuple[jax.Array, jax.Array],
    )


def wrong() -> None:
    jk.softmax(x, tier="wrap")  # pyright: ignore[reportArgumentType]
    jk.softmax(x, implementation="cudnn")  # pyright: ignore[reportArgumentType]
    jk.scaled_masked_softmax(x, empty_rows="nan")  # pyright: ignore[reportArgumentType]
    jk.matmul(x, x, algorithm="pipeline")  # pyright: ignore[reportArgumentType]
    jk.dot_product_attention(q, q, q, implementation="flash")  # pyright: ignore[reportArgumentType]
    jaxkernels.flax.dot_product_attention(q, q, q, implementation="cudnn")  # pyright: ignore[reportArgumentType]
    jk.plan_softmax((4, 4), "float23")  # pyright: ignore[reportArgumentType]
    jk.plan_softmax((4, 4), "float32", operation="softmax")  # pyright: ignore[reportArgumentType]
    jk.plan_softmax((4, 4), "float32", device="h2o")  # pyright: ignore[reportArgumentType]
