"""logsumexp under the transformations of JAX, against jax.nn under the same ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from pairs import C, T, X

import jaxkernels as jk

OURS, PEER = jk.logsumexp, jax.nn.logsumexp


def last(f, x):
    return f(x, -1)


def loss(f, x):
    """It feels every result, and every element by its gradient, differently."""
    return jnp.sum(jnp.sin(f(x, -1) * jnp.arange(1.0, 1 + x[..., 0].size).reshape(x.shape[:-1])))


def of_vector(f, x):
    """A vector of a vector, so that second derivatives are no symmetric accident."""
    return jnp.sin(C) * f(x) * x


def scan(f, x):
    return jax.lax.scan(lambda c, row: (c + f(row + c), f(row)), jnp.zeros(()), x[0])


def remat(f, x):
    return jax.checkpoint(lambda x: jnp.sin(f(jnp.cos(x), -1)))(x)


def linear_transpose(f, x):
    _, linear = jax.linearize(functools.partial(last, f), x)
    return linear(T), jax.linear_transpose(linear, x)(T[..., 0])


def mapped(in_axes, axis=-1):
    """The value, the gradient and the tangent, mapped over an axis of x."""

    def of(f, x):
        t = jnp.cos(x)

        def each(x, t):
            y, pull = jax.vjp(lambda x: f(x, axis), x)
            return y, pull(jnp.sin(y))[0], jax.jvp(lambda x: f(x, axis), (x,), (t,))[1]

        return jax.vmap(each, in_axes)(x, t)

    return of


def unmapped_parts(f, x):
    """Of the kernels of two operands, each mapped over one of them alone."""
    _, pull = jax.vjp(functools.partial(last, f), x[0])
    tangent = jax.vmap(lambda t: jax.jvp(functools.partial(last, f), (x[0],), (t,))[1])(T)
    of_one_t = jax.vmap(lambda x: jax.jvp(functools.partial(last, f), (x,), (T[0],))[1])(x)
    one_cotangent = jax.vmap(lambda x: jax.vjp(functools.partial(last, f), x)[1](T[0, :, 0])[0])
    return jax.vmap(pull)(T[..., 0]), tangent, of_one_t, one_cotangent(x)


TRANSFORMS = {
    "value-and-grad": lambda f, x: jax.value_and_grad(functools.partial(loss, f))(x),
    "jvp": lambda f, x: jax.jvp(lambda x: (f(x, 1), f(x, (0, 2))), (x,), (T,)),
    "vjp": lambda f, x: jax.vjp(lambda x: f(x, 0, keepdims=True), x)[1](T[:1]),
    "factors": lambda f, x: jax.value_and_grad(
        lambda x: jnp.sum(f(x, -1, C[:3, None], return_sign=True)[0] * C[4:])
    )(x),
    "where": lambda f, x: jax.value_and_grad(lambda x: jnp.sum(f(x, -1, where=C > 0) ** 2))(x),
    "jacfwd": lambda f, x: jax.jacfwd(functools.partial(of_vector, f))(x[0, 0]),
    "jacrev": lambda f, x: jax.jacrev(functools.partial(of_vector, f))(x[0, 0]),
    "hessian": lambda f, x: jax.hessian(functools.partial(loss, f))(x[0, :2]),
    "forward-over-forward": lambda f, x: jax.jacfwd(jax.jacfwd(functools.partial(of_vector, f)))(
        x[0, 0]
    ),
    "reverse-over-reverse": lambda f, x: jax.jacrev(jax.jacrev(functools.partial(of_vector, f)))(
        x[0, 0]
    ),
    "third-order": lambda f, x: jax.jacfwd(jax.jacrev(jax.grad(f)))(x[0, 0]),
    "grad-of-jvp": lambda f, x: jax.grad(
        lambda x: jnp.sum(jnp.sin(jax.jvp(functools.partial(last, f), (x,), (T,))[1]))
    )(x),
    "linear-transpose": linear_transpose,
    "vmap-0": mapped((0, 0)),
    "vmap-1": mapped((1, 1)),
    "vmap-reduced-axis": mapped((2, 2)),
    "vmap-other-axis": mapped((-1, -1), 0),
    "vmap-unmapped": (lambda f, x: jax.vmap(lambda x, t: f(x, -1) * t, (None, 0))(x[0], T[..., 0])),
    "vmap-unmapped-parts": unmapped_parts,
    "vmap-nested": lambda f, x: jax.vmap(jax.vmap(f))(x),
    "vmap-hessian": lambda f, x: jax.vmap(jax.hessian(f))(x[0]),
    "scan": scan,
    "scan-grad": lambda f, x: jax.grad(lambda x: jnp.sum(scan(f, x)[1]) + scan(f, x)[0])(x),
    "while": lambda f, x: jax.lax.fori_loop(0, 3, lambda i, c: f(c + x[0], 0), jnp.zeros(7)),
    "cond-grad": lambda f, x: jax.grad(
        lambda x: jax.lax.cond(x[0, 0, 0] < 9, f, lambda x: x[0, 0, 0], x)
    )(x),
    "remat-grad": lambda f, x: jax.grad(lambda x: jnp.sum(remat(f, x)))(x),
    "remat-hessian": lambda f, x: jax.hessian(lambda x: jnp.sum(remat(f, x)))(x[0, 0]),
    "jit-grad-jit": lambda f, x: jax.jit(jax.grad(lambda x: jax.jit(f)(x)))(x),
}


@functools.cache
def results():
    """Of both functions, in one program: compiling is what costs."""

    def program(x):
        return [{name: of(f, x) for name, of in TRANSFORMS.items()} for f in (OURS, PEER)]

    return jax.jit(program)(X)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name):
    """Equal structure, shapes and dtypes, and values within a few roundings of float32."""
    got, want = (of[name] for of in results())
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=4e-6, atol=4e-6 * max(1.0, float(np.max(np.abs(b)))))


def test_without_jit():
    """Operation by operation, where kernels are called by themselves."""
    for name in ("value-and-grad", "vmap-1"):
        for a, b in zip(
            jax.tree.leaves(TRANSFORMS[name](OURS, X)),
            jax.tree.leaves(results()[1][name]),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_types(dtype):
    """Against jax.nn in float64, from the same rounded input."""

    def program(f, x):
        t = jnp.asarray(T, x.dtype)
        return (
            jax.value_and_grad(lambda x: jnp.sum(jnp.sin(f(x, -1))))(x),
            jax.jvp(lambda x: f(x, 1), (x,), (t,)),
            jax.hessian(f)(x[0, 0]),
            jax.vmap(jax.grad(f), 2)(x),
        )

    eps = float(jnp.finfo(dtype).eps)
    with jax.enable_x64(True):
        x = jnp.asarray(X, dtype)
        got = jax.jit(functools.partial(program, OURS))(x)
        want = jax.jit(functools.partial(program, PEER))(x.astype(jnp.float64))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert a.dtype == jnp.dtype(dtype)
            scale = max(1.0, float(np.max(np.abs(b))))
            np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=0, atol=16 * eps * scale)


def test_differences():
    """Independent of any formula for the derivatives: numerical ones, in float64, of orders 1 and 2."""
    with jax.enable_x64(True):
        x = jnp.asarray(X, jnp.float64)
        compiled = jax.jit(lambda x: OURS(x, (0, 2)))
        check_grads(compiled, (x,), order=2, atol=1e-6, rtol=1e-6)


def test_reverse_mode_keeps_x_alone():
    """Two kernels, of which neither needs a result of the other."""
    jaxpr = jax.make_jaxpr(lambda x, t: jax.vjp(lambda x: OURS(x, -1), x)[1](t))(X, T[..., 0])
    text = str(jaxpr)
    assert text.count("jaxkernels_logsumexp_grad") == 1
    assert "jaxkernels_logsumexp_jvp" not in text
    gradient = jax.jit(lambda x, t: jax.vjp(lambda x: OURS(x, -1), x)[1](t))
    compiled = gradient.lower(X, T[..., 0]).compile().as_text()
    assert "logsumexp_grad" in compiled
    assert "logsumexp_fwd" not in compiled


def test_vmap_adds_no_loop():
    """A mapped leading axis is more rows: one kernel."""
    for in_axes in (0, 1):
        jaxpr = str(jax.make_jaxpr(jax.vmap(lambda x: OURS(x, -1), in_axes))(X))
        assert jaxpr.count("jaxkernels_logsumexp_fwd") == 1
        assert "scan" not in jaxpr
        assert "while" not in jaxpr


def test_eval_shape():
    for dtype in (jnp.float32, jnp.bfloat16):
        x = jax.ShapeDtypeStruct((3, 5, 8), dtype)
        for options in ({}, {"axis": (0, 2), "return_sign": True}, {"axis": 1, "keepdims": True}):
            got, want = (jax.eval_shape(functools.partial(f, **options), x) for f in (OURS, PEER))
            assert jax.tree.map(str, got) == jax.tree.map(str, want)
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.bfloat16)
    jax.eval_shape(lambda x: OURS(x, -1), huge)  # runs nothing


def test_donation():
    x = jnp.asarray(X.repeat(64, 0))
    want = np.asarray(OURS(x, -1))
    assert np.array_equal(jax.jit(lambda x: OURS(x, -1))(x), want)
    given = jnp.copy(x)
    pull = jax.jit(lambda x: jax.grad(lambda x: jnp.sum(OURS(x, -1)))(x), donate_argnums=0)
    dx = np.asarray(pull(given))
    assert given.is_deleted()
    np.testing.assert_allclose(dx, jax.nn.softmax(x), rtol=2e-6, atol=1e-8)


def test_shard_map(cpu_devices):
    """Of an operand that varies over devices, and of a replicated one with a cotangent that varies."""
    mesh = jax.make_mesh(
        (8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=cpu_devices
    )
    split, whole = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
    x = np.stack([X[0] + i for i in range(8)])
    t = np.stack([T[0, :, 0] + i for i in range(8)])

    def program(f):
        def body(x, same_x, t):
            y, pull = jax.vjp(lambda x: f(x, -1), x)
            tangent = jax.jvp(lambda x: f(x, -1), (x,), (jnp.cos(x),))[1]
            grad_of_same = jax.grad(lambda x: jnp.sum(f(x, -1) * t[0]))(same_x)
            return y, pull(t)[0], tangent, grad_of_same

        return jax.jit(
            jax.shard_map(
                body,
                mesh=mesh,
                in_specs=(split, whole, split),
                out_specs=(split, split, split, whole),
            )
        )

    with jax.default_device(cpu_devices[0]):
        got, want = (program(f)(x, X[0], t) for f in (OURS, PEER))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=4e-6, atol=2e-5)
