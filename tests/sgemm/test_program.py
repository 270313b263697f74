"""float32_matmuls: the products of a whole program, however deep in it they are, and nothing else."""

import functools

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import linear_call
from jax.extend.core.primitives import closed_call_p
from jax.sharding import AxisType, PartitionSpec

import jaxkernels as jk

MATRICES = (((1,), (0,)), ((), ()))
RNG = np.random.default_rng(5)
# Sums of whole numbers are exact at any precision.
X, W = (jnp.asarray(RNG.integers(-4, 5, (4, 4)), jnp.float32) for _ in range(2))
XLAS = functools.partial(lax.dot_general, dimension_numbers=MATRICES)
OURS = functools.partial(jk.dot_general, dimension_numbers=MATRICES)


def names(f, *args):
    """The primitives of a program, those of inner jaxprs too."""

    def inside(jaxpr):
        for eqn in jaxpr.eqns:
            yield eqn.primitive.name
            for inner in jax.extend.core.jaxprs_in_params(eqn.params):
                yield from inside(inner)

    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    jax.extend.core.check_jaxpr(jaxpr)
    return list(inside(jaxpr))


def products(f, *args):
    """How many of our products a program has, and how many of XLA's."""
    return tuple(names(f, *args).count(name) for name in ("jaxkernels_sgemm", "dot_general"))


def programs(dot):
    """Functions of x and w whose every product is `dot`."""

    def once(x, w):
        return jnp.sin(dot(x, w))

    def closed_call(x, w):
        jaxpr = jax.make_jaxpr(lambda *xs: [once(*xs)])(x, w)
        params = closed_call_p.get_bind_params({"call_jaxpr": jaxpr})
        return closed_call_p.bind(x, w, **params)[0]

    def whiled(x, w):
        y = lax.while_loop(lambda s: dot(s, w)[0, 0] > 99, lambda s: once(s, w), x)
        return once(x, w) + lax.stop_gradient(y)

    def with_jvp(symbolic_zeros):
        def rule(xs, ts):
            return once(*xs), dot(*xs) + 2 * dot(ts[0], xs[1])

        f = jax.custom_jvp(once)
        f.defjvp(rule, symbolic_zeros=symbolic_zeros)
        return lambda x, w: f(x, lax.stop_gradient(w))

    def with_vjp(symbolic_zeros):
        def forward(*xs):
            x, w = (x.value if symbolic_zeros else x for x in xs[:2])
            return once(x, w), (x, w)

        def backward(xs, t):
            return dot(t, xs[1]), 3 * dot(xs[0], t), None

        f = jax.custom_vjp(lambda x, w, n: once(x, w))
        f.defvjp(forward, backward, symbolic_zeros=symbolic_zeros)
        return lambda x, w: f(x, w, 7)

    custom_vmap = jax.custom_batching.custom_vmap(once)

    @custom_vmap.def_vmap
    def of_stack(size, mapped, x, w):
        assert mapped == [True, False]
        return jnp.stack([2 * dot(x[i], w) for i in range(size)]), True

    return {
        "alone": once,
        "jit": jax.jit(once),
        "scan": lambda x, w: lax.scan(lambda c, _: (once(c, w), dot(c, c)), x, None, 3)[0],
        "while": whiled,
        "cond": lambda x, w: lax.cond(x[0, 0] > 0, once, dot, x, w),
        "checkpoint": jax.checkpoint(once),
        "vmap": lambda x, w: jax.vmap(once, (0, None))(jnp.stack([x, w]), w).sum(0),
        "custom_jvp": with_jvp(False),
        "custom_jvp_zeros": with_jvp(True),
        "custom_vjp": with_vjp(False),
        "custom_vjp_zeros": with_vjp(True),
        "custom_vmap": custom_vmap,
        "linear_call": lambda x, w: linear_call(
            lambda w, x: dot(x, w), lambda w, t: 2 * dot(t, w.T), w, x
        ),
        "linear_solve": lambda x, w: lax.custom_linear_solve(
            lambda v: v + dot(w, v) / 9, x, lambda f, b: f(b), lambda f, b: 2 * f(b)
        ),
        "closed_call": closed_call,
        "shard_map": jax.shard_map(
            once,
            mesh=jax.sharding.Mesh(jax.devices("cpu")[:2], "i"),
            in_specs=(PartitionSpec("i"), PartitionSpec()),
            out_specs=PartitionSpec("i"),
        ),
    }


NOT_IN_JAX = {
    "closed_call": ("vmap",),
    "custom_vjp": ("jvp",),
    "custom_vjp_zeros": ("jvp",),
    "custom_vmap": ("grad", "grad_of_grad"),
    "linear_call": ("jvp", "vmap", "grad_of_grad"),
}


def gradient(f):
    return jax.grad(lambda x, w: jnp.sum(jnp.cos(f(x, w))))


TRANSFORMS = {
    "value": lambda f: f,
    "grad": gradient,
    "jvp": lambda f: lambda x, w: jax.jvp(lambda x: f(x, w), (x,), (w,)),
    "vmap": lambda f: lambda x, w: jax.vmap(f, (0, None))(jnp.stack([x, w]), w),
    "grad_of_grad": lambda f: gradient(gradient(f)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", programs(XLAS))
def test_programs(name, transform):
    """The program is that of `jk.dot_general` written by hand, inside and outside of transformations."""
    if transform in NOT_IN_JAX.get(name, ()):
        return
    apply = TRANSFORMS[transform]
    by_hand, plain = apply(jax.jit(programs(OURS)[name])), programs(XLAS)[name]
    inside, outside = apply(jk.float32_matmuls(plain)), jk.float32_matmuls(apply(plain))
    number, others = products(by_hand, X, W)
    assert number > 0 == others
    assert products(inside, X, W) == (number, 0)
    assert products(outside, X, W)[0] > 0 == products(outside, X, W)[1]
    want, got = jax.jit(by_hand)(X, W), jax.jit(inside)(X, W)
    assert all(map(np.array_equal, jax.tree.leaves(got), jax.tree.leaves(want)))


def of(dtype, x=X):
    return x.astype(dtype)


def conv(x, w):
    return lax.conv_general_dilated(x[None, None], w[None, None], (1, 1), "SAME")


def ragged(x, w):
    return lax.ragged_dot(x, w[None], jnp.array([4]))


def kernel(x, w):
    def body(x_ref, w_ref, o_ref):
        o_ref[...] = x_ref[...] @ w_ref[...]

    return pl.pallas_call(body, jax.typeof(x), interpret=True)(x, w)


def halves(x, w):
    return XLAS(of("bfloat16", x), of("bfloat16", w), preferred_element_type=jnp.float32)


LEFT = {
    "bfloat16": (halves, "operands of bfloat16"),
    "int32": (lambda x, w: XLAS(of(int, x), of(int, w)), "operands of int32"),
    "complex64": (lambda x, w: XLAS(x + 1j, w + 1j), "operands of complex64"),
    "mixed": (
        lambda x, w: XLAS(x, of("bfloat16", w), preferred_element_type=jnp.float32),
        "operands of bfloat16 and float32",
    ),
    "result": (
        lambda x, w: XLAS(x, w, preferred_element_type=jnp.bfloat16),
        "preferred_element_type=bfloat16",
    ),
    "preset": (lambda x, w: XLAS(x, w, precision="BF16_BF16_F32_X3"), "precision=BF16_BF16_F32_X3"),
    "conv": (conv, "no kernel; XLA computes it at Precision.HIGHEST"),
    "ragged": (ragged, "no kernel; XLA computes it at Precision.HIGHEST"),
    "pallas": (kernel, "a kernel or custom call, whose products are not visible"),
    "solver": (lambda x, w: lax.linalg.cholesky(x + w), "a solver; JAX's own"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    f, reason = LEFT[name]
    transformed = jk.float32_matmuls(f)
    report = jk.float32_matmuls.report(f, X, W)
    assert report.taken == {}
    assert [(product.reason, count) for product, count in report.left.items()] == [(reason, 1)]
    before, after = (str(jax.make_jaxpr(g)(X, W)) for g in (jax.jit(f), transformed))
    assert ("Precision.HIGHEST" in after) == reason.endswith("HIGHEST")
    assert reason.endswith("HIGHEST") or before == after


@pytest.mark.parametrize("precision", [None, "default", "high", "highest", "tensorfloat32"])
def test_precisions_name_no_algorithm(precision):
    with jax.default_matmul_precision(precision):
        assert products(jk.float32_matmuls(jnp.matmul), X, W) == (1, 0)


def test_report():
    """It has each product once, with its place; shapes suffice as arguments."""

    def f(x, w, *, n):
        x = lax.scan(lambda c, _: (c @ w, None), x, None, n)[0]
        return x @ w, [x[i : i + 1] @ w for i in (0, 1)], halves(x, w)

    shape = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    f = functools.partial(f, n=3)
    lines = str(jk.float32_matmuls.report(f, shape, w=shape)).splitlines()
    assert lines[0] == "4 products by jaxkernels"
    assert lines[1].startswith("  1 x dot_general float32[4,4] float32[4,4] in jit f / scan / ")
    assert "test_program.py:" in lines[1]
    assert lines[3].startswith("  2 x dot_general float32[1,4] float32[4,4] in jit f / ")
    assert lines[4] == "1 left"
    assert lines[5].endswith(": operands of bfloat16")
    assert len(lines) == 6


@pytest.mark.parametrize("f", [jk.matmul, jk.float32_matmuls(jnp.matmul)])
def test_report_of_our_products(f):
    report = jk.float32_matmuls.report(lambda x, w: jax.jit(f)(x, w), X, W)
    ((product, count),) = report.taken.items()
    assert (product.operation, product.operands) == ("jaxkernels_sgemm", ("float32[4,4]",) * 2)
    assert "test_program.py:" in product.where
    assert (count, report.left) == (1, {})


def test_errors_name_the_users_function():
    def wrong(x, w):
        return x @ w if jnp.all(w["weight"] > 0) else x

    for f in (wrong, jax.jit(wrong)):
        with pytest.raises(jax.errors.TracerBoolConversionError) as raised:
            jk.float32_matmuls(f)(X, w={"weight": W})
        assert f"the function wrong at {__file__}:" in str(raised.value)
        assert "the value of the argument w['weight']" in str(raised.value)


def test_arguments_and_results_that_are_no_arrays():
    """Static arguments and results pass unchanged; Python's numbers are traced, or constants in a jit."""

    def f(x, function, number):
        return function(x @ W), {"function": function, "none": None, "text": ["a"]}, number

    ours = jk.float32_matmuls(f)
    result, others, number = ours(X, jnp.sin, 2)
    assert others == f(X, jnp.sin, 2)[1]
    assert number == 2
    assert isinstance(number, jax.Array)
    np.testing.assert_allclose(result, jnp.sin(X @ W), rtol=1e-6)
    got, want = (jax.jit(jax.grad(lambda x, g=g: g(x, jnp.sin, 2)[0].sum()))(X) for g in (ours, f))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    def power(x, n):
        return lax.scan(lambda c, _: (c @ W, None), x, None, n)[0]

    jax.jit(jk.float32_matmuls(power), static_argnames="n")(X, n=2)
    signed = jk.float32_matmuls(jnp.copysign.__wrapped__)
    assert jax.jit(lambda: (signed(1.0, 0.0), signed(1.0, -0.0)))() == (1, -1)
    with pytest.raises(TypeError, match="the value of the argument n"):
        jk.float32_matmuls(power)(X, n=2)
    assert not hasattr(jk.float32_matmuls(jax.jit(power)), "lower")


def test_a_function_is_compiled_once_for_its_shapes_and_static_arguments(exact_products, caplog):
    traced = []

    def f(x, w, scale=1.0, *, by="sum", **others):
        traced.append((type(scale), by))
        return {"product": scale * getattr(jnp, by)(x @ w), **others}

    ours, calls = jk.float32_matmuls(f), 0
    jitted = jax.jit(jk.float32_matmuls(jax.jit(f, static_argnames="by")), static_argnames="by")
    for function in (ours, jitted):
        for args, options in [
            ((X, W), {}),
            ((X[:2], W), {}),
            ((X, W, 2), {}),
            ((np.asarray(X), W, 2.0), {}),
            ((X, W), {"by": "max", "others": [X, (None, 3)]}),
        ]:
            calls += 1
            got, want = function(*args, **options), f(*args, **options)
            traced.pop()
            jax.tree.map(np.testing.assert_allclose, got, want)
            others = [x if isinstance(x, (jax.Array, np.ndarray)) else x + 1 for x in args]
            with jax.log_compiles():
                function(*others, **options)
            assert len(traced) == calls
            assert "Compiling" not in caplog.text


def test_equations_are_bound_once(monkeypatch):
    """Tracing costs little more than that of f: the program is bound as one call."""
    bound, jaxpr_as_fun = [], jax.extend.core.jaxpr_as_fun

    def counted(closed):
        bound.append(len(closed.eqns))
        return jaxpr_as_fun(closed)

    monkeypatch.setattr(jax.extend.core, "jaxpr_as_fun", counted)
    jax.make_jaxpr(jk.float32_matmuls(lambda x, w: jnp.sin(x @ w) + 1))(X, W)
    assert bound == [1]


def test_a_jitted_function_keeps_its_donations():
    for function in (
        jk.float32_matmuls(jax.jit(XLAS, donate_argnums=0)),
        jax.jit(jk.float32_matmuls(XLAS), donate_argnums=0),
    ):
        x = X + 0
        function(x, W)
        assert x.is_deleted()


def test_effects_and_names_are_kept():
    """Callbacks run in their order; equations keep scopes and lines."""
    seen = []

    def f(x, w):
        def step(c, i):
            jax.debug.callback(lambda i: seen.append(int(i)), i, ordered=True)
            return c @ w, None

        jax.debug.callback(lambda: seen.append("first"), ordered=True)
        with jax.named_scope("outer_scope"):
            y = lax.scan(step, x, jnp.arange(3))[0] @ w
        jax.debug.callback(lambda: seen.append("last"), ordered=True)
        return y

    ours = jk.float32_matmuls(f)
    ours(X, W)
    jax.effects_barrier()
    assert seen == ["first", 0, 1, 2, "last"]
    (jitted,) = jax.make_jaxpr(ours)(X, W).jaxpr.eqns
    product = next(e for e in jitted.params["jaxpr"].eqns if "sgemm" in e.primitive.name)
    assert str(product.source_info.name_stack) == "outer_scope"
    assert __file__ in jax.extend.source_info_util.summarize(product.source_info)


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_policies_of_checkpoint_save_our_products(policy):
    """A policy inside saves ours as it saves XLA's."""
    f = jax.checkpoint(lambda x, w: jnp.sin(jnp.sin(x @ w) @ w), policy=policy)
    ours, plain = jax.jit(gradient(jk.float32_matmuls(f))), jax.jit(gradient(jax.jit(f)))
    assert products(ours, X, W) == products(plain, X, W)[::-1]


def test_meshes(mesh):
    """XLA keeps a product whose explicitly sharded dimensions must be merged; derivatives agree."""

    def f(x, w):
        return jnp.sum(jnp.sin(lax.dot_general(x, w, (((x.ndim - 1,), (0,)), ((), ())))))

    is_explicit = mesh.axis_types[0] == AxisType.Explicit
    for shape, spec in (((8, 4), ("a",)), ((2, 8, 4), ("b", "a"))):
        x = jax.device_put(jnp.ones(shape), jax.NamedSharding(mesh, PartitionSpec(*spec)))
        with jax.set_mesh(mesh):
            ours = jk.float32_matmuls(jax.grad(f, (0, 1)))
            got, want = (jax.jit(g)(x, W) for g in (ours, jax.grad(f, (0, 1))))
            report = jk.float32_matmuls.report(jax.grad(f), x, W)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
            assert one.sharding == other.sharding
        assert bool(report.left) == (is_explicit and len(spec) == 2)
        assert all("XLA" in product.reason for product in report.left)
        assert sum((report.taken | report.left).values()) == 2


def test_dtypes_of_the_rest_of_a_program():
    """Under x64 and strict promotion; float64 products do not change."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        wide = of("float64")
        f = lambda x, w, wide: (x @ w, wide @ wide)  # noqa: E731
        ours = jk.float32_matmuls(f)
        assert products(ours, X, W, wide) == (1, 1)
        got, want = ours(X, W, np.asarray(wide)), f(X, W, wide)
        assert [x.dtype for x in got] == [x.dtype for x in want] == [jnp.float32, jnp.float64]
        np.testing.assert_allclose(got[1], want[1], rtol=1e-12)


def test_the_default_algorithm_reaches_the_program():
    def algorithms(rung):
        with jk.default_algorithm(rung):
            return str(jax.make_jaxpr(ours)(X, W)).count(f"algorithm='{rung}'")

    ours = jk.float32_matmuls(programs(XLAS)["scan"])
    assert algorithms("pipelined") == algorithms("naive") == 2
