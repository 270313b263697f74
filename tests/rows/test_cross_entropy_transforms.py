"""Cross entropy under the transformations of JAX, against plain JAX under the same ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads
from pairs import C, T, X

import jaxkernels as jk

LABEL = np.arange(6).reshape(2, 3) % 7
LABEL[1, 0] = -1
COUNTED = LABEL >= 0


def plain(x, label=LABEL, *, reduction="none", e=0.1, z=0.01, returns=False):
    """The formula, operation by operation."""
    label = jnp.asarray(label)
    lse = jax.nn.logsumexp(x, -1)
    log_p = x - lse[..., None]
    nll = -jnp.take_along_axis(log_p, jnp.maximum(label, 0)[..., None], -1)[..., 0]
    loss = (1 - e) * nll - e * jnp.mean(log_p, -1) + z * lse**2
    loss = jnp.where(label >= 0, loss, 0)
    if reduction != "none":
        loss = jnp.sum(loss) / (jnp.maximum(jnp.sum(label >= 0), 1) if reduction == "mean" else 1)
    return (loss, lse, -jnp.sum(jnp.exp(log_p) * log_p, -1)) if returns else loss


def ours(x, label=LABEL, *, reduction="none", e=0.1, z=0.01, returns=False):
    return jk.cross_entropy(
        *(x, label),
        label_smoothing=e,
        z_loss=z,
        reduction=reduction,
        return_lse=returns,
        return_entropy=returns,
    )


def loss(f, x):
    """It feels every result, and every element by its gradient, differently."""
    return sum(jnp.sum(jnp.sin(y * (1.5 + i)) * C[:3]) for i, y in enumerate(f(x, returns=True)))


def mean(f, x):
    return jnp.sin(f(x, reduction="mean"))


def of_vector(f, x):
    """A vector of a vector, so that second derivatives are no symmetric accident."""
    return jnp.sin(C) * f(x, 3) * x + f(x, 2, reduction="sum")


def mapped(in_axes, reduction):
    """The value, the gradient and the tangent, mapped over an axis of x and of the labels."""

    def of(f, x):
        def each(x, label):
            g = functools.partial(f, label=label, reduction=reduction)
            y, pull = jax.vjp(g, x)
            return y, pull(jnp.sin(y))[0], jax.jvp(g, (x,), (jnp.cos(x),))[1]

        return jax.vmap(each, in_axes)(x, LABEL)

    return of


def scan(f, x):
    return jax.lax.scan(lambda c, row: (c + f(row + c, 1), f(row, 2)), jnp.zeros(()), x[0])


def remat(f, x):
    return jax.checkpoint(lambda x: jnp.sin(f(jnp.cos(x), reduction="mean")))(x)


def linear_transpose(f, x):
    _, linear = jax.linearize(f, x)
    return linear(T), jax.linear_transpose(linear, x)(T[..., 0])


TRANSFORMS = {
    "value-and-grad": lambda f, x: jax.value_and_grad(functools.partial(loss, f))(x),
    "value-and-grad-mean": lambda f, x: jax.value_and_grad(functools.partial(mean, f))(x),
    "jvp": lambda f, x: jax.jvp(functools.partial(f, returns=True), (x,), (T,)),
    "jvp-mean": lambda f, x: jax.jvp(functools.partial(f, reduction="mean"), (x,), (T,)),
    "without-terms": lambda f, x: jax.value_and_grad(
        lambda x: jnp.sum(f(x, e=0.0, z=0.0) ** 2) + f(x, e=0.0, z=0.0, reduction="sum") ** 2
    )(x),
    "of-options": lambda f, x: jax.value_and_grad(
        lambda x, e, z: f(x, e=e, z=z, reduction="mean") + jnp.sum(f(x, e=e, z=z) ** 2), (0, 1, 2)
    )(x, 0.2, 0.03),
    "jacfwd": lambda f, x: jax.jacfwd(functools.partial(of_vector, f))(x[0, 0]),
    "jacrev": lambda f, x: jax.jacrev(functools.partial(of_vector, f))(x[0, 0]),
    "hessian": lambda f, x: jax.hessian(functools.partial(loss, f))(x),
    "hessian-mean": lambda f, x: jax.hessian(functools.partial(mean, f))(x),
    "forward-over-forward": lambda f, x: jax.jacfwd(jax.jacfwd(functools.partial(of_vector, f)))(
        x[0, 0]
    ),
    "reverse-over-reverse": lambda f, x: jax.jacrev(jax.jacrev(functools.partial(of_vector, f)))(
        x[0, 0]
    ),
    "third-order": lambda f, x: jax.jacfwd(jax.jacrev(jax.grad(functools.partial(f, label=1))))(
        x[0, 0]
    ),
    "grad-of-jvp": lambda f, x: jax.grad(
        lambda x: (
            jnp.sum(jnp.sin(jax.jvp(f, (x,), (T,))[1]))
            + jax.jvp(functools.partial(mean, f), (x,), (T,))[1]
        )
    )(x),
    "linear-transpose": linear_transpose,
    "vmap-0": mapped((0, 0), "none"),
    "vmap-0-mean": mapped((0, 0), "mean"),
    "vmap-1": mapped((1, 1), "none"),
    "vmap-1-mean": mapped((1, 1), "mean"),
    "vmap-logits": lambda f, x: jax.vmap(lambda x: f(x, LABEL[0], reduction="mean"))(x),
    "vmap-labels": lambda f, x: jax.vmap(lambda label: f(x[0], label))(LABEL),
    "vmap-grad-labels": lambda f, x: jax.vmap(
        lambda label: jax.grad(lambda x: f(x, label, reduction="sum"))(x[0])
    )(LABEL),
    "vmap-hessian": lambda f, x: jax.vmap(jax.hessian(functools.partial(f, label=2)))(x[0]),
    "scan": scan,
    "scan-grad": lambda f, x: jax.grad(lambda x: jnp.sum(scan(f, x)[1]) + scan(f, x)[0])(x),
    "cond-grad": lambda f, x: jax.grad(
        lambda x: jax.lax.cond(x[0, 0, 0] < 9, lambda x: mean(f, x), lambda x: x[0, 0, 0], x)
    )(x),
    "remat-grad": lambda f, x: jax.grad(functools.partial(remat, f))(x),
    "remat-hessian": lambda f, x: jax.hessian(functools.partial(remat, f))(x),
    "jit-grad-jit": lambda f, x: jax.jit(
        jax.grad(lambda x: jax.jit(functools.partial(mean, f))(x))
    )(x),
}


@functools.cache
def results():
    """Of both functions, in one program: compiling is what costs."""

    def program(x):
        return [{name: of(f, x) for name, of in TRANSFORMS.items()} for f in (ours, plain)]

    return jax.jit(program)(X)


@pytest.mark.smoke
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name):
    """Equal structure, shapes and dtypes, and values within a few roundings of float32."""
    got, want = (of[name] for of in results())
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        scale = max(1.0, float(np.max(np.abs(b))))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * scale)


def test_without_jit():
    """Operation by operation, where kernels are called by themselves."""
    for name in ("value-and-grad", "value-and-grad-mean", "jvp", "vmap-1-mean"):
        got, want = TRANSFORMS[name](ours, X), results()[1][name]
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_types(dtype):
    """Against plain JAX in float64, from the same rounded input; gradients in the type of x, losses in float32."""

    def program(f, x):
        return (
            f(x, returns=True),
            jax.grad(functools.partial(loss, f))(x),
            jax.grad(functools.partial(mean, f))(x),
            jax.jvp(functools.partial(f, reduction="mean"), (x,), (jnp.asarray(T, x.dtype),))[1],
        )

    eps = float(jnp.finfo(dtype).eps)
    with jax.enable_x64(True):
        x = jnp.asarray(X, dtype)
        (y, *gradients, tangent) = jax.jit(functools.partial(program, ours))(x)
        want = jax.jit(functools.partial(program, plain))(x.astype(jnp.float64))
        wide = jnp.float64 if dtype == "float64" else jnp.float32
        assert all(a.dtype == wide for a in (*y, tangent))
        assert all(dx.dtype == dtype for dx in gradients)
        wide_eps = float(jnp.finfo(wide).eps)
        for a, b in zip(y, want[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=16 * wide_eps, atol=16 * wide_eps)
        for a, b in zip((*gradients, tangent), want[1:], strict=True):
            np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=0, atol=8 * eps)


def test_differences():
    """Independent of any formula for the derivatives: numerical ones, in float64, of orders 1 and 2."""
    with jax.enable_x64(True):
        x = jnp.asarray(X, jnp.float64)
        for f in (functools.partial(mean, ours), functools.partial(loss, ours)):
            check_grads(jax.jit(f), (x,), order=2, atol=1e-6, rtol=1e-6)


def arguments_program(f, x, weights, temperature, probabilities):
    t = 4 * jnp.tanh(x / 4) / jnp.reshape(temperature, (-1, 1))
    soft = {"logit_soft_cap": 4.0, "temperature": temperature}
    if f is ours:
        of_ids = jk.cross_entropy(x, LABEL, weights=weights, reduction="mean", **soft)
        of_all = jk.cross_entropy(
            x, probabilities, weights=weights, label_smoothing=0.1, z_loss=0.01, **soft
        )
    else:
        each = jnp.where(COUNTED, weights * plain(t, e=0.0, z=0.0), 0)
        of_ids = jnp.sum(each) / jnp.sum(jnp.where(COUNTED, weights, 0))
        smooth = optax.smooth_labels(probabilities, 0.1)
        log_p = jax.nn.log_softmax(t)
        of_all = -jnp.sum(smooth * log_p, -1) + 0.01 * jax.nn.logsumexp(t, -1) ** 2
        of_all = weights * of_all
    return of_ids + jnp.sum(jnp.sin(of_all))


def test_derivatives_of_other_arguments():
    """Logits behind a soft cap, weights, temperatures of rows and probabilities."""
    weights = np.linspace(0.5, 2, 6, dtype=np.float32).reshape(2, 3)
    temperature = np.array([[0.5, 1, 2]], np.float32)
    probabilities = np.asarray(jax.nn.softmax(T))
    arguments = X, weights, temperature, probabilities
    got, want = (
        jax.jit(jax.value_and_grad(functools.partial(arguments_program, f), (0, 1, 2, 3)))(
            *arguments
        )
        for f in (ours, plain)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", [jax.jacrev, jax.jacfwd])
@pytest.mark.parametrize("options", [{}, {"logit_soft_cap": 3.0}], ids=str)
@pytest.mark.parametrize("hidden", [-np.inf, np.nan])
def test_derivatives_of_a_temperature_with_hidden_classes(mode, options, hidden):
    """They are those of the classes that are seen."""
    label = np.array([0, 1, 3])
    x = T.reshape(-1, T.shape[-1])[:3]
    seen = np.arange(x.shape[-1]) < 4
    where = None if hidden == -np.inf and not options else seen

    def loss(x, temperature, where=None):
        found = jk.cross_entropy(
            *(x, label), where=where, temperature=temperature, reduction="mean", **options
        )
        return jnp.sum(found)

    of_seen = mode(loss, (0, 1))(x[:, :4], 0.7)
    of_all = mode(functools.partial(loss, where=where), (0, 1))(np.where(seen, x, hidden), 0.7)
    np.testing.assert_allclose(of_all[0][:, :4], of_seen[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(of_all[0][:, 4:], 0)
    np.testing.assert_allclose(of_all[1], of_seen[1], rtol=1e-5, atol=1e-6)


def kernels_in(function, *arguments):
    text = str(jax.make_jaxpr(function)(*arguments))
    names = ("fwd", "fwd_grad", "grad", "jvp")
    return {name: text.count(f"jaxkernels_cross_entropy_{name}[") for name in names}


def test_kernels_of_each_reduction():
    """A mean makes its gradient with its loss, in one read; alone, no gradient. Otherwise x is read again."""
    value = jax.value_and_grad(functools.partial(ours, reduction="mean"))
    assert kernels_in(value, X) == {"fwd": 0, "fwd_grad": 1, "grad": 0, "jvp": 0}
    assert kernels_in(functools.partial(ours, reduction="mean"), X)["fwd"] == 1
    value = jax.value_and_grad(lambda x: jnp.sum(ours(x)))
    assert kernels_in(value, X) == {"fwd": 1, "fwd_grad": 0, "grad": 1, "jvp": 0}
    half = X.astype(np.float16)
    assert kernels_in(jax.grad(functools.partial(ours, reduction="mean")), half)["fwd_grad"] == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cotangent_of_one_costs_nothing(dtype):
    """XLA multiplies the gradient of a mean by nothing, and converts it to nothing."""
    x = jnp.zeros((4, 6, 70), dtype)
    label = jnp.zeros((4, 6), int)
    value = jax.jit(jax.value_and_grad(lambda x, label: ours(x, label, reduction="mean")))
    lines = value.lower(x, label).compile().as_text().splitlines()
    made = [line for line in lines if "[4,6,70]" in line.split("=")[-1].split("(")[0]]
    assert sum("custom-call" in line for line in lines) == 1
    assert not [
        line for line in made if "fusion" in line or "multiply" in line or "convert" in line
    ]


def test_implementations():
    """Plain JAX gives the same, and "ffi" is what runs on a CPU and on CUDA."""
    for reduction in ("none", "mean"):
        by = {
            implementation: jax.jit(
                jax.value_and_grad(
                    lambda x: jnp.sum(
                        jk.cross_entropy(
                            *(x, LABEL),
                            label_smoothing=0.1,
                            reduction=reduction,  # noqa: B023
                            implementation=implementation,  # noqa: B023
                        )
                    )
                )
            )(X)
            for implementation in ("ffi", "xla")
        }
        for a, b in zip(*(jax.tree.leaves(value) for value in by.values()), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert "jaxkernels" not in str(
        jax.make_jaxpr(functools.partial(jk.cross_entropy, implementation="xla"))(X, LABEL)
    )


def test_eval_shape_runs_nothing():
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 18), jnp.bfloat16)
    label = jax.ShapeDtypeStruct((1 << 20,), jnp.uint32)
    loss, dx = jax.eval_shape(
        jax.value_and_grad(lambda x, label: jk.cross_entropy(x, label, reduction="mean")),
        huge,
        label,
    )
    assert (loss.shape, loss.dtype) == ((), jnp.float32)
    assert (dx.shape, dx.dtype) == (huge.shape, jnp.bfloat16)


@pytest.mark.smoke
def test_token_log_probs():
    """Log-probabilities and entropies, both differentiable, as reinforcement learning uses them."""

    def objective(f, x):
        log_probs, entropy = f(x)
        return jnp.sum(jnp.exp(log_probs) * C[:3]) + 0.3 * jnp.sum(entropy * C[1:4])

    def by_hand(x):
        log_p = jax.nn.log_softmax(x / 0.7)
        at_id = jnp.take_along_axis(log_p, np.maximum(LABEL, 0)[..., None], -1)[..., 0]
        entropy = -jnp.sum(jnp.exp(log_p) * log_p, -1)
        return jnp.where(COUNTED, at_id, 0), jnp.where(COUNTED, entropy, 0)

    def of_kernels(x):
        return jk.token_log_probs(x, LABEL, temperature=0.7, return_entropy=True)

    got, want = (
        jax.jit(jax.value_and_grad(functools.partial(objective, f)))(X)
        for f in (of_kernels, by_hand)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(jk.token_log_probs(X, LABEL), -jk.cross_entropy(X, LABEL))


def test_a_loss_that_is_infinite_has_a_tangent():
    """That of weights which do not vary is no 0 times infinity."""
    x = jnp.array([[0.0, -jnp.inf, 1.0], [1.0, 2.0, 3.0]])
    for reduction in ("none", "mean", "sum"):
        loss = functools.partial(ours, label=np.array([1, 0]), reduction=reduction, e=0.0)
        y, tangent = jax.jvp(loss, (x,), (jnp.ones_like(x).at[0, 1].set(0),))
        assert np.isinf(y).any()
        assert np.isfinite(tangent).all()


def test_derivatives_of_weights_alone_make_no_gradient():
    weights = jnp.arange(1.0, 7).reshape(2, 3)
    mean = functools.partial(jk.cross_entropy, X, LABEL, reduction="mean")
    counts = kernels_in(jax.grad(lambda w: mean(weights=w)), weights)
    assert counts == {"fwd": 1, "fwd_grad": 0, "grad": 0, "jvp": 0}
