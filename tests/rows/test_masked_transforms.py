"""scaled_masked_softmax with mask, bias and a causal structure under every transformation of JAX, against plain JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from masked_cases import case

import jaxkernels as jk

B, H, Q, K = FULL = (2, 3, 4, 5)
CASE = case(FULL, "float32", mask=(B, 1, Q, K), bias=(H, 1, K))
CASE.mask[0, 0, 1] = False  # a row that sees nothing
X, M, BIAS = CASE.scores / 3, CASE.mask, CASE.bias
T = CASE.dy
# Coefficients with which a scalar loss feels every element differently.
C = np.linspace(-1, 2, Q * K, dtype=np.float32).reshape(Q, K)


def ours(x, mask=None, bias=None):
    return jk.scaled_masked_softmax(x, mask, bias, scale=0.6, causal=True)


def peer(x, mask=None, bias=None):
    q, k = x.shape[-2:]
    seen = jnp.tril(jnp.ones((q, k), bool), k - q)
    seen = seen if mask is None else seen & mask
    t = 0.6 * x + (0 if bias is None else bias)
    return jnp.where(seen, jax.nn.softmax(jnp.where(seen, t, -1e30), axis=-1), 0)


def loss(f, x, m, b):
    return jnp.sum(jnp.sin(2 * f(x, m, b)) * C)


def loss_of(f, m):
    return lambda x, b: loss(f, x, m, b)


def small(f):
    """A function of one matrix and of one bias row, for derivatives of all elements by all."""
    return lambda x, b: f(x, M[1, 0], b), X[1, 2], BIAS[2]


def of_small(transform):
    def run(f, x, m, b):
        del x, m, b
        function, *operands = small(f)
        return transform(function, *operands)

    return run


def at(f, **axes):
    """vmap with a mapped axis for each of x, mask and bias."""
    return jax.vmap(f, in_axes=(axes.get("x"), axes.get("m"), axes.get("b")))


def scan(f, x, m, b):
    def step(carry, slices):
        matrix, mask = slices
        y = f(carry + matrix, mask, b)
        return y, jnp.sum(y, 0)

    return jax.lax.scan(step, jnp.zeros((H, Q, K)), (x, m))


def while_loop(f, x, m, b):
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, f(s[1], m, b)), (0, x))[1]


def cond(f, x, m, b):
    def branch(limit):
        return jax.lax.cond(x[0, 0, 0, 0] > limit, lambda x: x, lambda x: f(x, m, b), x)

    return branch(-9), branch(9)


def linearize(f, x, m, b):
    y, linear = jax.linearize(lambda x, b: f(x, m, b), x, b)
    return y, linear(T, b + 1), jax.linear_transpose(linear, x, b)(T)


def remat_grad(f, x, m, b):
    inner = jax.checkpoint(lambda x, b: jnp.sin(f(jnp.cos(x), m, b)))
    return jax.grad(lambda x, b: jnp.sum(inner(x, b) * C), (0, 1))(x, b)


def squares(f, m):
    """Of the gradient of a loss."""
    first = jax.grad(loss_of(f, m), (0, 1))
    return lambda x, b: sum(jnp.sum(g**2) for g in first(x, b))


def unmapped_residual(f, x, m, b):
    """The backward kernel with mapped cotangents, and with mapped residuals, alone."""
    _, pull = jax.vjp(lambda x, b: f(x, m[0], b), x[0], b)
    return jax.vmap(pull)(T), jax.vmap(lambda x, m: jax.vjp(lambda x: f(x, m, b), x)[1](T[0]))(x, m)


TRANSFORMS = {
    "eager": lambda f, x, m, b: f(x, m, b),
    "no-operands": lambda f, x, m, b: f(x),
    "mask-only": lambda f, x, m, b: f(x, m),
    "bias-only": lambda f, x, m, b: f(x, None, b),
    "jit": lambda f, x, m, b: jax.jit(f)(x, m, b),
    "jvp": lambda f, x, m, b: jax.jvp(lambda x, b: f(x, m, b), (x, b), (T, b + 1)),
    "jvp-scores": lambda f, x, m, b: jax.jvp(lambda x: f(x, m, b), (x,), (T,)),
    "jvp-bias": lambda f, x, m, b: jax.jvp(lambda b: f(x, m, b), (b,), (b + 1,)),
    "vjp": lambda f, x, m, b: jax.vjp(lambda x, b: f(x, m, b), x, b)[1](jnp.asarray(T, x.dtype)),
    "vjp-bias": lambda f, x, m, b: jax.vjp(lambda b: f(x, m, b), b)[1](T),
    "grad": lambda f, x, m, b: jax.grad(loss_of(f, m), (0, 1))(x, b),
    "jit-grad-jit": lambda f, x, m, b: jax.jit(jax.grad(loss_of(jax.jit(f), m), (0, 1)))(x, b),
    "jacfwd": of_small(lambda f, x, b: jax.jacfwd(f, (0, 1))(x, b)),
    "jacrev": of_small(lambda f, x, b: jax.jacrev(f, (0, 1))(x, b)),
    "hessian": of_small(lambda f, x, b: jax.hessian(lambda x, b: jnp.sum(f(x, b) ** 2 * C), (0, 1))(x, b)),
    "forward-over-forward": of_small(lambda f, x, b: jax.jacfwd(jax.jacfwd(f, 1), (0, 1))(x, b)),
    "reverse-over-reverse": of_small(lambda f, x, b: jax.jacrev(jax.jacrev(f, 1), (0, 1))(x, b)),
    "reverse-over-forward": of_small(lambda f, x, b: jax.jacrev(jax.jacfwd(f, 1), (0, 1))(x, b)),
    "grad-of-grad": lambda f, x, m, b: jax.grad(squares(f, m), (0, 1))(x, b),
    "grad-of-jvp": lambda f, x, m, b: jax.grad(
        lambda x, b: jnp.sum(jax.jvp(lambda x: f(x, m, b), (x,), (T,))[1] * C), (0, 1)
    )(x, b),
    "jvp-of-grad": lambda f, x, m, b: jax.jvp(jax.grad(loss_of(f, m), (0, 1)), (x, b), (T, b)),
    "linearize": linearize,
    "vmap-all": lambda f, x, m, b: at(f, x=0, m=0, b=0)(x, m, jnp.stack([b, 2 * b])),
    "vmap-scores": lambda f, x, m, b: at(f, x=0)(x, m[0], b),
    "vmap-mask": lambda f, x, m, b: at(f, m=0)(x[0], m, b),
    "vmap-bias": lambda f, x, m, b: at(f, b=0)(x[0, 0], m[0, 0], b),
    "vmap-mask-and-bias": lambda f, x, m, b: at(f, m=0, b=0)(x[0], m, jnp.stack([b, 2 * b])),
    "vmap-axis-1": lambda f, x, m, b: at(f, x=1, b=0)(x, m[:, 0], b),
    "vmap-axis-of-rows": lambda f, x, m, b: at(f, x=2, m=2)(x, m, b[0]),
    "vmap-last-axis": lambda f, x, m, b: at(f, x=-1, m=-1)(jnp.moveaxis(x, 0, -1), jnp.moveaxis(m, 0, -1), b),
    "vmap-different-axes": lambda f, x, m, b: at(f, x=-1, m=0, b=1)(
        jnp.moveaxis(x, 0, -1), m, jnp.stack([b, 2 * b], 1)
    ),
    "vmap-out-axis": lambda f, x, m, b: jax.vmap(f, in_axes=(1, None, 0), out_axes=-1)(x, m[:, 0], b),
    "vmap-nested": lambda f, x, m, b: at(at(f, x=0, b=0), x=0, m=0)(x, m[:, 0], b),
    "vmap-nested-mask-inside": lambda f, x, m, b: at(at(f, m=0), x=0)(x[0], m[:, 0], b[0]),
    "vmap-grad": lambda f, x, m, b: jax.vmap(jax.grad(lambda x, m, b: loss(f, x, m, b), (0, 2)), in_axes=(0, 0, None))(
        x, m, b
    ),
    "vmap-grad-bias": lambda f, x, m, b: jax.vmap(
        jax.grad(lambda x, m, b: loss(f, x, m, b), (0, 2)), in_axes=(1, None, 0)
    )(x, m[:, 0], b),
    "vmap-jvp": lambda f, x, m, b: jax.vmap(
        lambda x, m, t: jax.jvp(lambda x: f(x, m, b), (x,), (t,))
    )(x, m, T),
    "vmap-unmapped-residual": unmapped_residual,
    "grad-vmap": lambda f, x, m, b: jax.grad(
        lambda x, b: jnp.sum(at(f, x=0, m=0)(x, m, b) * C), (0, 1)
    )(x, b),
    "scan": scan,
    "scan-grad": lambda f, x, m, b: jax.grad(lambda x, b: jnp.sum(jnp.cos(scan(f, x, m, b)[1])), (0, 1))(x, b),
    "while-loop": while_loop,
    "cond": cond,
    "cond-grad": lambda f, x, m, b: jax.grad(lambda x, b: sum(jnp.sum(y * C) for y in cond(f, x, m, b)), (0, 1))(
        x, b
    ),
    "remat-grad": remat_grad,
    "map": lambda f, x, m, b: jax.lax.map(lambda xs: f(*xs, b), (x, m), batch_size=2),
}  # fmt: skip


def run(transform, f, *operands):
    """Within one program: a compilation for each small operation is what costs."""
    if transform in EAGER:
        return transform(f, *operands)
    return jax.jit(functools.partial(transform, f))(*operands)


EAGER = [TRANSFORMS[name] for name in ("eager", "no-operands", "vjp", "vmap-all", "scan", "cond")]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name):
    """Equal structure, shapes and dtypes, and values within a few roundings of float32."""
    transform = TRANSFORMS[name]
    operands = [jnp.asarray(a) for a in (X, M, BIAS)]
    got, want = (run(transform, f, *operands) for f in (ours, peer))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        # Values are of order 1 to 10, sums have up to 120 terms.
        np.testing.assert_allclose(a, b, rtol=3e-6, atol=3e-6 * max(1.0, float(np.max(np.abs(b)))))


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["vjp", "grad", "grad-of-grad", "vmap-grad", "scan-grad"])
def test_transform_of_other_types(name, dtype):
    """Against plain JAX in float64, from the same rounded operands."""
    transform = TRANSFORMS[name]
    with jax.enable_x64(True):

        def typed(f, name):
            return lambda x, m=None, b=None: f(x.astype(name), m, b.astype(name)).astype(x.dtype)

        x, b = (jnp.asarray(jnp.asarray(a, dtype), jnp.float64) for a in (X, BIAS))
        got, want = run(transform, typed(ours, dtype), x, M, b), run(transform, peer, x, M, b)
        eps = float(jnp.finfo(dtype).eps)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            scale = max(1.0, float(np.max(np.abs(w))))
            np.testing.assert_allclose(np.asarray(g, np.float64), w, rtol=0, atol=16 * eps * scale)


def names_of(function, *operands):
    jaxpr = jax.make_jaxpr(function)(*operands)
    return [str(e.primitive) for e in jaxpr.eqns if "jaxkernels" in str(e.primitive)], jaxpr


def test_reverse_mode_is_two_kernels():
    """It keeps y; the gradient of the bias comes from that of the scores."""
    names, jaxpr = names_of(
        lambda x, b, t: jax.vjp(lambda x, b: ours(x, M, b), x, b)[1](t), X, BIAS, T
    )
    assert names == ["jaxkernels_masked_softmax_fwd", "jaxkernels_masked_softmax_grad"], jaxpr
    forward, backward = (e for e in jaxpr.eqns if "jaxkernels" in str(e.primitive))
    assert backward.invars[0] is forward.outvars[0]


def test_forward_mode_is_two_kernels():
    names, jaxpr = names_of(
        lambda x, b, t: jax.jvp(lambda x, b: ours(x, M, b), (x, b), (t, b)), X, BIAS, T
    )
    assert names == ["jaxkernels_masked_softmax_fwd", "jaxkernels_masked_softmax_grad"], jaxpr


@pytest.mark.parametrize("axes", [(0, None, None), (0, 0, None), (1, None, 0)], ids=str)
def test_vmap_adds_no_copy(axes):
    """A mapped axis before the rows is more rows, and one that mask or bias lack broadcasts in the kernel."""
    mask = M if axes[1] == 0 else M[0] if axes[0] == 0 else M[:, 0]
    mapped = jax.vmap(ours, in_axes=axes, out_axes=axes[0])
    names, jaxpr = names_of(mapped, X, mask, BIAS)
    assert names == ["jaxkernels_masked_softmax_fwd"], jaxpr
    (call,) = (e for e in jaxpr.eqns if "jaxkernels" in str(e.primitive))
    assert call.invars[0] is jaxpr.jaxpr.invars[0]
    assert call.invars[1].aval.size == mask.size
    assert call.invars[2].aval.size == BIAS.size
    assert call.outvars[0] is jaxpr.jaxpr.outvars[0]


def test_eval_shape():
    """Runs nothing; float32 biases of 16-bit scores leave their type."""
    x = jax.ShapeDtypeStruct((1 << 10, 1 << 20, 1 << 20), jnp.bfloat16)
    mask, bias = (jax.ShapeDtypeStruct((1 << 20,), t) for t in (bool, jnp.float32))
    got = jax.eval_shape(ours, x, mask, bias)
    assert (got.shape, got.dtype, got.weak_type) == (x.shape, x.dtype, False)


def test_donation():
    """Donated scores give up their buffer, scores that are not donated stay as they were."""
    x, mask = jnp.asarray(np.tile(X, (8, 8, 1, 1))), M[0]
    before = np.asarray(x).copy()
    want = np.asarray(jax.jit(ours)(x, mask))
    np.testing.assert_array_equal(x, before)
    given = jnp.copy(x)
    donated = jax.jit(ours, donate_argnums=0)(given, mask)
    assert given.is_deleted()
    np.testing.assert_array_equal(donated, want)
