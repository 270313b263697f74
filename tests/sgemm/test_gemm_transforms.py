"""The residuals of derivatives of matrix products, and their number of products."""

import gemm_cases as cases
import jax
import jax.numpy as jnp

import jaxkernels as jk

X = cases.operand("normal", (6, 4, 3))
W = cases.operand("normal", (3, 5), seed=1)


def test_reverse_mode_does_not_keep_c():
    """The backward pass gets only a and b, so that c can be overwritten."""
    c = jnp.ones((4, 5))
    _, pull = jax.vjp(lambda a, b, c: jk.sgemm(a, b, c, beta=2.0), X[0], W, c)
    kept = sorted(x.shape for x in jax.tree.leaves(pull) if hasattr(x, "shape") and x.shape)
    assert kept == [(3, 5), (4, 3)]


def test_gradient_of_shared_weights_is_one_deep_product():
    """The sum over the batch is part of the contraction: no array of one gradient for each member."""
    loss_of = lambda w: jnp.sum(jax.vmap(jk.matmul, (0, None))(X, w))  # noqa: E731
    jaxpr = jax.make_jaxpr(jax.grad(loss_of))(W)
    last = [e for e in jaxpr.eqns if str(e.primitive) == "jaxkernels_sgemm"][-1]
    assert [v.aval.shape for v in last.invars] == [(1, 24, 3), (1, 24, 5)]
    assert last.outvars[0].aval.shape == (1, 3, 5)
