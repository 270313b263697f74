"""Both operations under every transformation of JAX, against jax.nn under the same one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairs import C, T, X, both, loss, remat

import jaxkernels as jk


def nested_vmap(f, x):
    return jax.vmap(jax.vmap(f))(x)


def scan(f, x):
    return jax.lax.scan(lambda c, row: (f(c + row), f(row)), jnp.zeros(7), x[0])


def fori(f, x):
    return jax.lax.fori_loop(0, 4, lambda i, c: f(c + x[0, 0] * i), jnp.zeros(7))


def while_loop(f, x):
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, f(s[1])), (0, x))[1]


def cond(f, x):
    return jax.lax.cond(x[0, 0, 0] > 5, lambda x: x, f, x), jax.lax.cond(
        x[0, 0, 0] < 5, f, lambda x: x, x
    )


def linearize(f, x):
    y, linear = jax.linearize(f, x)
    return y, linear(T)


def linear_transpose(f, x):
    _, linear = jax.linearize(f, x)
    return jax.linear_transpose(linear, x)(T)


def vmap_of_grad_over_axis_two(f, x):
    return jax.vmap(jax.grad(lambda x: jnp.sum(jnp.sin(f(x)))), in_axes=2, out_axes=1)(x)


def unmapped_y(f, x):
    """The backward kernel with a mapped cotangent and an unmapped residual."""
    _, pull = jax.vjp(f, x[0])
    return jax.vmap(pull)(T)


def unmapped_t(f, x):
    """The backward kernel with a mapped residual and an unmapped cotangent."""
    return jax.vmap(lambda x: jax.vjp(f, x)[1](T[0])[0])(x)


def mapped_along_different_axes(f, x):
    def pull(x, t):
        return jax.vjp(f, x)[1](t)[0]

    return jax.vmap(pull, in_axes=(0, 1))(x, jnp.swapaxes(T, 0, 1))


def mapped_over_the_reduced_axis(f, x):
    return jax.vmap(f, in_axes=2, out_axes=2)(x), jax.vmap(f, in_axes=-1)(x)


def jit_of_static_axis(f, x):
    return jax.jit(f, static_argnames="axis")(x, axis=0)


TRANSFORMS = {
    "eager": lambda f, x: f(x),
    "jit": lambda f, x: jax.jit(f)(x),
    "jit-axis": jit_of_static_axis,
    "jit-axes": lambda f, x: jax.jit(lambda x: f(x, axis=(0, 2)))(x),
    "jvp": lambda f, x: jax.jvp(f, (x,), (T,)),
    "jvp-axis": lambda f, x: jax.jvp(lambda x: f(x, axis=1), (x,), (T,)),
    "vjp": lambda f, x: jax.vjp(f, x)[1](T),
    "vjp-axis": lambda f, x: jax.vjp(lambda x: f(x, axis=0), x)[1](T),
    "grad": lambda f, x: jax.grad(functools.partial(loss, f))(x),
    "value-and-grad": lambda f, x: jax.value_and_grad(functools.partial(loss, f))(x),
    "jacfwd": lambda f, x: jax.jacfwd(f)(x[0]),
    "jacrev": lambda f, x: jax.jacrev(f)(x[0]),
    "hessian": lambda f, x: jax.hessian(functools.partial(loss, f))(x[0, 0]),
    "hessian-of-vector": lambda f, x: jax.hessian(f)(x[0, 0]),
    "forward-over-forward": lambda f, x: jax.jacfwd(jax.jacfwd(f))(x[0, 0]),
    "reverse-over-reverse": lambda f, x: jax.jacrev(jax.jacrev(f))(x[0, 0]),
    "reverse-over-forward": lambda f, x: jax.jacrev(jax.jacfwd(f))(x[0, 0]),
    "grad-of-grad": lambda f, x: jax.grad(
        lambda x: jnp.sum(jax.grad(functools.partial(loss, f))(x) ** 2)
    )(x),
    "third-order": lambda f, x: jax.jacfwd(jax.jacrev(jax.grad(functools.partial(loss, f))))(
        x[0, 0]
    ),
    "grad-of-jvp": lambda f, x: jax.grad(lambda x: jnp.sum(jax.jvp(f, (x,), (T,))[1] * C))(x),
    "jvp-of-grad": lambda f, x: jax.jvp(jax.grad(functools.partial(loss, f)), (x,), (T,)),
    "linearize": linearize,
    "linear-transpose": linear_transpose,
    "vmap-axis-0": lambda f, x: jax.vmap(f)(x),
    "vmap-axis-1": lambda f, x: jax.vmap(f, in_axes=1, out_axes=1)(x),
    "vmap-reduced-axis": mapped_over_the_reduced_axis,
    "vmap-other-axis": lambda f, x: jax.vmap(lambda x: f(x, axis=0), in_axes=1)(x),
    "vmap-nested": nested_vmap,
    "vmap-unmapped": lambda f, x: jax.vmap(lambda x, t: f(x) * t, in_axes=(None, 0))(x[0], T),
    "vmap-grad": vmap_of_grad_over_axis_two,
    "vmap-unmapped-y": unmapped_y,
    "vmap-unmapped-t": unmapped_t,
    "vmap-different-axes": mapped_along_different_axes,
    "vmap-hessian": lambda f, x: jax.vmap(jax.hessian(functools.partial(loss, f)))(x[0]),
    "vmap-jvp": lambda f, x: jax.vmap(lambda x, t: jax.jvp(f, (x,), (t,)), in_axes=(0, 0))(x, T),
    "grad-vmap": lambda f, x: jax.grad(lambda x: jnp.sum(jax.vmap(functools.partial(loss, f))(x)))(
        x
    ),
    "scan": scan,
    "scan-grad": lambda f, x: jax.grad(lambda x: jnp.sum(scan(f, x)[1] * C))(x),
    "scan-jvp": lambda f, x: jax.jvp(functools.partial(scan, f), (x,), (T,)),
    "scan-vmap": lambda f, x: jax.vmap(
        lambda row: jax.lax.scan(lambda c, _: (f(c), c), row, None, length=3)
    )(x),
    "fori-loop": fori,
    "while-loop": while_loop,
    "cond": cond,
    "cond-grad": lambda f, x: jax.grad(lambda x: jnp.sum(cond(f, x)[1] * C))(x),
    "vmap-cond": lambda f, x: jax.vmap(lambda x: jax.lax.cond(x[0, 0] > 0, f, jnp.negative, x))(x),
    "remat": remat,
    "remat-grad": lambda f, x: jax.grad(lambda x: jnp.sum(remat(f, x)))(x),
    "remat-policy-grad": lambda f, x: jax.grad(
        lambda x: jnp.sum(remat(f, x, jax.checkpoint_policies.nothing_saveable))
    )(x),
    "remat-jvp": lambda f, x: jax.jvp(functools.partial(remat, f), (x,), (T,)),
    "remat-hessian": lambda f, x: jax.hessian(lambda x: jnp.sum(remat(f, x)))(x[0, 0]),
    "scan-of-remat-grad": lambda f, x: jax.grad(
        lambda x: jnp.sum(jax.lax.scan(lambda c, r: (remat(f, c + r), None), jnp.zeros(7), x[0])[0])
    )(x),
    "custom-vjp-inside": lambda f, x: jax.grad(lambda x: jnp.sum(wrapped(f)(x) * C))(x),
    "associative-scan": lambda f, x: jax.lax.associative_scan(lambda a, b: f(a + b), x[0]),
    "map": lambda f, x: jax.lax.map(f, x, batch_size=2),
    "jit-grad-jit": lambda f, x: jax.jit(jax.grad(lambda x: loss(jax.jit(f), x)))(x),
}


def wrapped(f):
    g = jax.custom_vjp(lambda x: f(x))
    g.defvjp(lambda x: (f(x), x), lambda x, t: (jax.vjp(f, x)[1](t)[0],))
    return g


EAGER = [TRANSFORMS[name] for name in ("eager", "vjp", "vmap-axis-1", "scan", "cond", "remat")]


def run(transform, functions, x):
    """What each function gives. Within one program: a compilation for each small operation is what costs."""
    if transform in EAGER:
        return [transform(f, x) for f in functions]
    return jax.jit(lambda x: [transform(f, x) for f in functions])(x)


@pytest.mark.smoke
@pytest.mark.half_on_a_cpu
@both
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(ours, peer, name):
    """Equal structure, shapes and dtypes, and values within a few roundings of float32."""
    transform = TRANSFORMS[name]
    got, want = run(transform, (ours, peer), jnp.asarray(X))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        # Values are of order 1 to 10, sums have seven terms: 16 roundings of the largest one.
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6 * max(1.0, float(np.max(np.abs(b)))))


@pytest.mark.half_on_a_cpu
@both
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    "name", ["jvp", "grad", "hessian", "grad-of-grad", "vmap-grad", "scan-grad"]
)
def test_transform_of_other_types(ours, peer, name, dtype):
    """Against jax.nn in float64, from the same rounded input."""

    def jvp(f, x):
        return jax.jvp(f, (x,), (jnp.asarray(T, x.dtype),))

    def scan_grad(f, x):
        def last(x):
            return jax.lax.scan(lambda c, r: (f(c + r), None), jnp.zeros(7, x.dtype), x[0])[0]

        return jax.grad(lambda x: jnp.sum(last(x) ** 2))(x)

    transform = {"jvp": jvp, "scan-grad": scan_grad}.get(name, TRANSFORMS[name])
    with jax.enable_x64(True):
        x = jnp.asarray(X, dtype)
        got = jax.jit(functools.partial(transform, ours))(x)
        want = jax.jit(functools.partial(transform, peer))(x.astype(jnp.float64))
        eps = float(jnp.finfo(dtype).eps)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert a.dtype == jnp.dtype(dtype)
            scale = max(1.0, float(np.max(np.abs(b))))
            np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=0, atol=16 * eps * scale)


@both
def test_eval_shape(ours, peer):
    for dtype in (jnp.float32, jnp.bfloat16):
        x = jax.ShapeDtypeStruct((3, 5, 8), dtype)
        for axis in (-1, 0, (0, 2), None):
            got, want = (jax.eval_shape(functools.partial(f, axis=axis), x) for f in (ours, peer))
            assert (got.shape, got.dtype, got.weak_type) == (want.shape, want.dtype, want.weak_type)
    jax.eval_shape(ours, jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.bfloat16))  # runs nothing


@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reverse_mode_is_two_kernels(ours, peer, dtype):
    """The jaxpr of a gradient holds the forward and the backward primitive, and keeps one array: y, or x."""
    del peer
    x, t = X.astype(dtype), T.astype(dtype)
    jaxpr = jax.make_jaxpr(lambda x, t: jax.vjp(ours, x)[1](t))(x, t)
    names = [str(eqn.primitive) for eqn in jaxpr.eqns]
    stem = f"jaxkernels_{ours.__name__}"
    assert names == [f"{stem}_fwd", f"{stem}_grad"], jaxpr
    forward, backward = jaxpr.eqns
    keeps_x = ours is jk.log_softmax and dtype == "bfloat16"
    assert backward.invars[0] is (forward.invars[0] if keeps_x else forward.outvars[0])


@both
def test_forward_mode_is_two_kernels(ours, peer):
    del peer
    jaxpr = jax.make_jaxpr(lambda x, t: jax.jvp(ours, (x,), (t,)))(X, T)
    linear = "softmax_grad" if ours is jk.softmax else "log_softmax_jvp"
    names = [str(eqn.primitive) for eqn in jaxpr.eqns]
    assert names == [f"jaxkernels_{ours.__name__}_fwd", f"jaxkernels_{linear}"], jaxpr


@both
def test_vmap_adds_no_loop_and_no_transpose(ours, peer):
    """A mapped leading axis is more rows: one custom call, nothing around it."""
    del peer
    jaxpr = jax.make_jaxpr(jax.vmap(ours, in_axes=1, out_axes=1))(X)
    assert [str(eqn.primitive) for eqn in jaxpr.eqns] == [f"jaxkernels_{ours.__name__}_fwd"]


@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_donation(ours, peer, dtype):
    """A donated input gives up its buffer, an input that is not donated stays as it was."""
    x = jnp.asarray(X.repeat(64, 0), dtype)
    before = np.asarray(x).copy()
    want = np.asarray(ours(x))
    kept = jax.jit(ours)(x)
    assert np.array_equal(np.asarray(x), before)
    assert np.array_equal(np.asarray(kept), want)
    given = jnp.copy(x)  # NumPy has seen x, which can keep its buffer alive
    donated = jax.jit(ours, donate_argnums=0)(given)
    assert given.is_deleted()
    assert np.array_equal(np.asarray(donated), want)
