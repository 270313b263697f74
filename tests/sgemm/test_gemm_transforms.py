"""Matrix products under every transformation of JAX, against XLA's product at the highest precision."""

import functools
import warnings

import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk

HIGHEST = functools.partial(jnp.matmul, precision="highest")
NUMBERS = (((1,), (0,)), ((), ()))


def transposed(x):
    return jnp.swapaxes(x, -1, -2)


def exact_sgemm(a, b, c=None, alpha=1.0, beta=0.0, trans_a=False, trans_b=False):
    product = HIGHEST(transposed(a) if trans_a else a, transposed(b) if trans_b else b)
    return alpha * product + (0 if c is None else beta * c)


FIXED_C = cases.operand("normal", (4, 5), seed=7)


def all_flags(sgemm, x, w):
    """Both operands transposed in memory, and a C that is differentiated too."""
    c = jnp.sin(x @ w)
    return sgemm(x.T, w.T, c, alpha=-0.5, beta=2.0, trans_a=True, trans_b=True)


# Functions of x (4, 3) and w (3, 5): ours, and the same with XLA's product.
PAIRS = {
    "matmul": (jk.matmul, HIGHEST),
    "dot_general": (
        lambda x, w: jk.dot_general(w, x, (((0,), (1,)), ((), ()))).T,
        HIGHEST,
    ),
    "sgemm": (
        lambda x, w: jk.sgemm(x, w, alpha=3.0),
        lambda x, w: exact_sgemm(x, w, alpha=3.0),
    ),
    "sgemm-c": (
        lambda x, w: jk.sgemm(x, w, FIXED_C, alpha=0.5, beta=-1.0),
        lambda x, w: exact_sgemm(x, w, FIXED_C, alpha=0.5, beta=-1.0),
    ),
    "sgemm-transposed-c": (
        functools.partial(all_flags, jk.sgemm),
        functools.partial(all_flags, exact_sgemm),
    ),
}
X = cases.operand("normal", (2, 6, 4, 3))
W = cases.operand("normal", (2, 6, 3, 5), seed=1)
S = cases.operand("normal", (6, 3, 3), seed=2)  # steps of a scan
x0, w0 = X[0, 0], W[0, 0]


def loss(f, x, w):
    return jnp.sum(jnp.sin(f(x, w)) * jnp.arange(1.0, 6.0))


def both(f):
    return jax.grad(functools.partial(loss, f), argnums=(0, 1))


def scan(f, x, w):
    def step(carry, s):
        return jnp.tanh(carry @ s), f(carry, w)

    return jax.lax.scan(step, x, S)


def cond(f, x, w):
    return jax.lax.cond(x[0, 0] > 100, lambda x, w: x @ w, f, x, w)


def linearize(f, x, w):
    y, linear = jax.linearize(f, x, w)
    return y, linear(jnp.cos(x), jnp.cos(w))


def linear_transpose(f, x, w):
    _, linear = jax.linearize(lambda x: f(x, w), x)
    return jax.linear_transpose(linear, x)(jnp.ones((4, 5)))


def wrapped(f):
    g = jax.custom_vjp(lambda x, w: f(x, w))
    g.defvjp(lambda x, w: (f(x, w), (x, w)), lambda res, t: jax.vjp(f, *res)[1](t))
    return g


TRANSFORMS = {
    "eager": lambda f: f(x0, w0),
    "jit": lambda f: jax.jit(f)(x0, w0),
    "jvp": lambda f: jax.jvp(f, (x0, w0), (jnp.cos(x0), jnp.cos(w0))),
    "jvp-one": lambda f: jax.jvp(lambda w: f(x0, w), (w0,), (jnp.cos(w0),)),
    "vjp": lambda f: jax.vjp(f, x0, w0)[1](jnp.ones((4, 5))),
    "grad": lambda f: both(f)(x0, w0),
    "value-and-grad": lambda f: jax.value_and_grad(functools.partial(loss, f))(x0, w0),
    "jacfwd": lambda f: jax.jacfwd(f, argnums=(0, 1))(x0, w0),
    "jacrev": lambda f: jax.jacrev(f, argnums=(0, 1))(x0, w0),
    "hessian": lambda f: jax.hessian(functools.partial(loss, f), argnums=(0, 1))(x0, w0),
    "forward-over-forward": lambda f: jax.jacfwd(jax.jacfwd(f), argnums=1)(x0, w0),
    "reverse-over-reverse": lambda f: jax.jacrev(jax.jacrev(f), argnums=1)(x0, w0),
    "third-order": lambda f: jax.jacfwd(jax.hessian(functools.partial(loss, f)))(x0, w0),
    "grad-of-jvp": lambda f: jax.grad(
        lambda x: jnp.sum(jnp.sin(jax.jvp(f, (x, w0), (jnp.cos(x), jnp.cos(w0)))[1]))
    )(x0),
    "linearize": lambda f: linearize(f, x0, w0),
    "linear-transpose": lambda f: linear_transpose(f, x0, w0),
    "vmap": lambda f: jax.vmap(f)(X[0], W[0]),
    "vmap-nested": lambda f: jax.vmap(jax.vmap(f))(X, W),
    "vmap-shared-w": lambda f: jax.vmap(f, (0, None))(X[0], w0),
    "vmap-shared-x": lambda f: jax.vmap(f, (None, 0))(x0, W[0]),
    "vmap-outer": lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None))(X[0], W[0]),
    "vmap-other-axes": lambda f: jax.vmap(f, (1, 2), 1)(
        jnp.moveaxis(X[0], 0, 1), jnp.moveaxis(W[0], 0, 2)
    ),
    "vmap-unmapped": lambda f: jax.vmap(lambda t: f(x0, w0) * t)(jnp.arange(3.0)),
    "vmap-grad": lambda f: jax.vmap(both(f))(X[0], W[0]),
    "vmap-grad-shared": lambda f: jax.vmap(both(f), (0, None))(X[0], w0),
    "vmap-jvp": lambda f: jax.vmap(lambda x, w: jax.jvp(f, (x, w), (x, w)))(X[0], W[0]),
    "vmap-hessian": lambda f: jax.vmap(jax.hessian(functools.partial(loss, f)))(X[0], W[0]),
    "grad-vmap-shared": lambda f: jax.grad(
        lambda w: jnp.sum(jnp.sin(jax.vmap(jax.vmap(f, (0, None)), (0, None))(X, w)))
    )(w0),
    "grad-vmap-shared-x": lambda f: jax.grad(
        lambda x: jnp.sum(jnp.sin(jax.vmap(f, (None, 0))(x, W[0])))
    )(x0),
    "scan": lambda f: scan(f, x0, w0),
    "scan-grad": lambda f: jax.grad(lambda x, w: jnp.sum(scan(f, x, w)[1] ** 2), (0, 1))(x0, w0),
    "scan-vmap": lambda f: jax.vmap(functools.partial(scan, f))(X[0], W[0]),
    "fori-loop": lambda f: jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(f(x, w0)[:, :3]), x0),
    "while-loop": lambda f: jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(f(s[1], w0)[:, :3])), (0, x0)
    ),
    "cond": lambda f: cond(f, x0, w0),
    "cond-grad": lambda f: jax.grad(lambda x: jnp.sum(cond(f, x, w0) ** 2))(x0),
    "vmap-cond": lambda f: jax.vmap(functools.partial(cond, f))(X[0], W[0]),
    "map": lambda f: jax.lax.map(lambda xw: f(*xw), (X[0], W[0]), batch_size=2),
    "remat-grad": lambda f: jax.grad(lambda x: loss(jax.checkpoint(f), jnp.cos(x), w0))(x0),
    "remat-policy-grad": lambda f: jax.grad(
        lambda x: loss(
            jax.checkpoint(f, policy=jax.checkpoint_policies.nothing_saveable), jnp.cos(x), w0
        )
    )(x0),
    "remat-jvp": lambda f: jax.jvp(lambda x: jax.checkpoint(f)(x, w0), (x0,), (jnp.cos(x0),)),
    "custom-vjp-inside": lambda f: both(wrapped(f))(x0, w0),
    "jit-grad-jit": lambda f: jax.jit(both(jax.jit(f)))(x0, w0),
}


EAGER = [TRANSFORMS[name] for name in ("eager", "vjp", "linearize", "vmap", "scan", "cond")]


def run(transform, functions):
    """What each function gives. Within one program: a compilation for each small operation is what costs."""
    if transform in EAGER:
        return [transform(f) for f in functions]
    return jax.jit(lambda: [transform(f) for f in functions])()


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name, pair):
    """Equal structure, shapes and dtypes, and values within a few roundings of the largest one."""
    ours, peer = PAIRS[pair]
    transform = TRANSFORMS[name]
    with jax.default_matmul_precision("highest"):
        got, want = run(transform, (ours, peer))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (jnp.shape(a), jnp.result_type(a)) == (jnp.shape(b), jnp.result_type(b))
        scale = max(1.0, float(np.max(np.abs(b))))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * scale)


def equations(jaxpr):
    return [str(e.primitive) for e in jaxpr.eqns if str(e.primitive) != "broadcast_in_dim"]


@pytest.mark.parametrize("pair", ["matmul", "sgemm"])
def test_derivatives_are_products_without_transposes(pair):
    """A gradient is one product forward, and one for each operand backward; no array is transposed."""
    f = PAIRS[pair][0]
    jaxpr = jax.make_jaxpr(lambda x, w, t: jax.vjp(f, x, w)[1](t))(x0, w0, jnp.ones((4, 5)))
    assert equations(jaxpr) == ["jaxkernels_sgemm"] * 3, jaxpr
    jaxpr = jax.make_jaxpr(lambda x, w: jax.jvp(f, (x, w), (x, w)))(x0, w0)
    assert sorted(equations(jaxpr)) == ["add", *["jaxkernels_sgemm"] * 3], jaxpr


def test_reverse_mode_does_not_keep_c():
    """What the backward pass gets are a and b, so that c can be overwritten."""
    c = jnp.ones((4, 5))
    _, pull = jax.vjp(lambda a, b, c: jk.sgemm(a, b, c, beta=2.0), x0, w0, c)
    kept = sorted(x.shape for x in jax.tree.leaves(pull) if hasattr(x, "shape") and x.shape)
    assert kept == [(3, 5), (4, 3)]


@pytest.mark.parametrize(
    ("in_axes", "shapes"),
    [((0, 0), ((6, 4, 3), (6, 3, 5))), ((0, None), ((6, 4, 3), (1, 3, 5)))],
    ids=("both", "shared"),
)
def test_a_mapped_product_is_one_launch(in_axes, shapes):
    """One strided-batched call; a shared operand is not repeated in memory."""
    w = W[0] if in_axes[1] == 0 else w0
    jaxpr = jax.make_jaxpr(jax.vmap(jk.matmul, in_axes))(X[0], w)
    calls = [e for e in jaxpr.eqns if str(e.primitive) == "jaxkernels_sgemm"]
    assert len(calls) == 1, jaxpr
    assert tuple(v.aval.shape for v in calls[0].invars) == shapes


def test_gradient_of_shared_weights_is_one_deep_product():
    """The sum over the batch is part of the contraction: no array of one gradient for each member."""
    loss_of = lambda w: jnp.sum(jax.vmap(jk.matmul, (0, None))(X[0], w))  # noqa: E731
    jaxpr = jax.make_jaxpr(jax.grad(loss_of))(w0)
    last = [e for e in jaxpr.eqns if str(e.primitive) == "jaxkernels_sgemm"][-1]
    assert [v.aval.shape for v in last.invars] == [(1, 24, 3), (1, 24, 5)]
    assert last.outvars[0].aval.shape == (1, 3, 5)


def test_eval_shape():
    big = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)
    out = jax.eval_shape(jk.matmul, big, big)  # runs nothing
    assert (out.shape, out.dtype) == ((1 << 20, 1 << 20), jnp.float32)


def test_export_with_a_symbolic_batch():
    """For every platform from any machine; sizes that are open are not split."""
    from jaxkernels._core import registry

    if not registry.has_cuda_module():  # lowering for CUDA would say so, once
        with warnings.catch_warnings(action="ignore"):
            registry.warn_missing_cuda()
    rows = jax.export.symbolic_shape("rows")[0]
    check = jax.export.DisabledSafetyCheck.custom_call("jaxkernels_sgemm")
    exported = jax.export.export(
        jax.jit(jax.grad(lambda w, x: jnp.sum(jk.matmul(x, w) ** 2))),
        platforms=("cpu", "cuda", "tpu"),
        disabled_checks=[check],
    )(jax.ShapeDtypeStruct((3, 5), jnp.float32), jax.ShapeDtypeStruct((rows, 3), jnp.float32))
    reloaded = jax.export.deserialize(exported.serialize())
    assert ("jaxkernels_sgemm" in exported.mlir_module()) == registry.has_cuda_module()
    leading = jax.export.symbolic_shape("members")[0]
    batched = jax.export.export(
        jax.jit(jax.vmap(jk.matmul, (0, None))), platforms=("cuda",), disabled_checks=[check]
    )(jax.ShapeDtypeStruct((leading, 4, 3), jnp.float32), jax.ShapeDtypeStruct((3, 5), jnp.float32))
    assert batched.out_avals[0].shape == (leading, 4, 5)
    for n in (1, 17):
        x = cases.operand("normal", (n, 3))
        want = 2 * x.astype(np.float64).T @ (x.astype(np.float64) @ w0)
        np.testing.assert_allclose(reloaded.call(w0, x), want, rtol=1e-4, atol=1e-4)
