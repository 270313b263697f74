"""patch_jax_nn: what it reaches, that it goes away again, and that our own fall-backs do not call themselves."""

import contextlib
import importlib
import sys
import threading
import types

import flax.linen
import flax.nnx
import hlo
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxkernels as jk

NAMES = ("softmax", "log_softmax", "logsumexp")
HOLDERS = (
    jax.nn,
    jax.scipy.special,
    flax.linen,
    flax.linen.activation,
    flax.nnx,
    flax.nnx.nn.activations,
    importlib.import_module("flax.core.nn"),
)
HELD = [
    (module, name)
    for module in HOLDERS
    for name in NAMES
    if getattr(module, name, None) is getattr(jax.nn, name)
]
BEFORE = {(module.__name__, name): getattr(module, name) for module, name in HELD}


def is_ours():
    return all(getattr(module, name) is getattr(jk, name) for module, name in HELD)


def is_as_before():
    return all(
        getattr(sys.modules[module], name) is original
        for (module, name), original in BEFORE.items()
    )


@pytest.fixture(autouse=True)
def restored():
    assert is_as_before()
    yield
    assert is_as_before()


def lowered(function, *args):
    return jax.jit(function).lower(*args).as_text()


def test_the_names_that_there_are():
    """Flax has all of jax.nn's under its public names; of those of jax.scipy.special, logsumexp is jax.nn's."""
    for module in (jax.nn, flax.linen, flax.linen.activation, flax.nnx, flax.nnx.nn.activations):
        assert {name for holder, name in HELD if holder is module} == set(NAMES)
    assert [name for holder, name in HELD if holder is jax.scipy.special] == ["logsumexp"]


def test_inside_and_outside():
    with jk.patch_jax_nn():
        assert is_ours()
    assert is_as_before()


def test_restored_after_an_exception():
    with pytest.raises(KeyError), jk.patch_jax_nn():
        raise KeyError
    assert is_as_before()


def test_blocks_nest():
    with jk.patch_jax_nn():
        with jk.patch_jax_nn():
            assert is_ours()
        assert is_ours()


def test_blocks_may_end_in_any_order():
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(jk.patch_jax_nn())
    second.enter_context(jk.patch_jax_nn())
    first.close()
    assert is_ours()
    second.close()
    assert is_as_before()


def test_decorator():
    @jk.patch_jax_nn()
    def inside():
        assert is_ours()

    inside()
    inside()
    assert is_as_before()


def test_many_threads():
    def work(barrier):
        barrier.wait()
        for _ in range(200):
            with jk.patch_jax_nn():
                assert jax.nn.softmax is jk.softmax

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(barrier,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_as_before()


def test_a_module_imported_inside_is_given_the_originals(monkeypatch):
    """`from jax.nn import softmax`, in a module of Flax that is loaded while the block is open."""
    name = "flax.linen.activation"
    loaded = types.ModuleType(name)
    monkeypatch.delitem(sys.modules, name)
    with jk.patch_jax_nn():
        loaded.softmax, loaded.log_softmax = jax.nn.softmax, jax.nn.log_softmax
        monkeypatch.setitem(sys.modules, name, loaded)
    assert loaded.softmax is BEFORE["jax.nn", "softmax"]
    assert loaded.log_softmax is BEFORE["jax.nn", "log_softmax"]
    monkeypatch.undo()


def test_somebody_elses_patch_of_flax_stays(monkeypatch):
    def other(x):
        return x

    monkeypatch.setattr(flax.linen, "softmax", other)
    with jk.patch_jax_nn():
        assert flax.linen.softmax is other
        assert jax.nn.softmax is jk.softmax
    assert flax.linen.softmax is other
    monkeypatch.undo()


def test_it_reaches_programs():
    """The kernels are called by programs that do not know of this package."""
    x = jnp.ones((2, 3, 4, 8))

    def linen_attention(x):
        return flax.linen.dot_product_attention(x, x, x)

    def loss(x):
        labels = jnp.zeros(x.shape[:-1], jnp.int32)
        return optax.softmax_cross_entropy(x, jax.nn.one_hot(labels, 8)).sum()

    def of_nnx(x):
        return flax.nnx.softmax(x)

    def integer_labels(x):
        labels = jnp.zeros(x.shape[:-1], jnp.int32)
        return optax.softmax_cross_entropy_with_integer_labels(x, labels).sum()

    programs = {
        linen_attention: "softmax_fwd",
        of_nnx: "softmax_fwd",
        loss: "log_softmax_fwd",
        integer_labels: "logsumexp_fwd",
        jax.grad(integer_labels): "logsumexp_grad",
        lambda x: jax.scipy.special.logsumexp(x, axis=(0, 2)): "logsumexp_fwd",
        lambda x: flax.nnx.logsumexp(x): "logsumexp_fwd",
        lambda x: flax.linen.logsumexp(x, axis=1, keepdims=True): "logsumexp_fwd",
    }
    for program, operation in programs.items():
        assert "jaxkernels" not in lowered(lambda x, f=program: f(x), x)
        with jk.patch_jax_nn():
            assert operation in hlo.operations(lowered(lambda x, f=program: f(x), x))


def test_a_jitted_function_keeps_what_it_was_compiled_with():
    """As the docstring says."""
    x = jnp.ones((2, 3))
    outside = jax.jit(lambda x: jax.nn.softmax(x))
    inside = jax.jit(lambda x: jax.nn.softmax(x))
    outside(x)
    with jk.patch_jax_nn():
        inside(x)
        assert "jaxkernels" not in outside.lower(x).as_text()
    assert hlo.operations(inside.lower(x).as_text()) == ["softmax_fwd"]


def test_losses_of_integer_labels_keep_their_values():
    """Padding by -inf and masks included, with gradients."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 4, 7)).astype(np.float32)
    x[1, :, 5:] = -np.inf
    labels, where = rng.integers(0, 5, (3, 4)), rng.random((3, 4, 7)) < 0.7
    np.put_along_axis(where, labels[..., None], True, -1)

    def program(x):
        def loss(x, **options):
            of = optax.softmax_cross_entropy_with_integer_labels
            return jnp.sum(of(x, labels, **options))

        return jax.value_and_grad(loss)(x), jax.value_and_grad(loss)(x, where=where)

    want = jax.jit(lambda x: program(x))(x)
    with jk.patch_jax_nn():
        patched = jax.jit(lambda x: program(x)).lower(x)
    assert hlo.operations(patched.as_text()).count("logsumexp_grad") == 2
    got = patched.compile()(x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


FALL_BACKS = [
    pytest.param(np.array([1 + 1j, 2j]), {}, id="complex"),
    pytest.param(np.array([1.0, 2.0], np.float32), {"implementation": "xla"}, id="xla"),
    pytest.param(np.array([1.0, 2.0], jnp.float8_e4m3fn), {}, id="float8"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("x", "options"), FALL_BACKS)
def test_our_fall_backs_call_jax_nn_itself(name, x, options):
    """Ours calls jax.nn's for these; if that were ours again, it would never end."""
    want = BEFORE["jax.nn", name](x)
    with jk.patch_jax_nn():
        got = getattr(jax.nn, name)(x, **options)
    # NumPy does not know that NaN of float8 are equal.
    got, want = (np.asarray(y).astype(np.complex128) for y in (got, want))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", NAMES[:2])
def test_every_call_that_jax_nn_takes(name):
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    mask = x > -0.5
    calls = [
        ((x,), {}),
        ((x, 0), {}),
        ((x, (0, 2)), {}),
        ((x, None, mask), {}),
        ((x,), {"axis": 1, "where": mask}),
    ]
    for args, options in calls:
        want = BEFORE["jax.nn", name](*args, **options)
        with jk.patch_jax_nn():
            got = getattr(jax.nn, name)(*args, **options)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_every_call_that_logsumexp_takes():
    """In all arguments of jax.nn's by their places, and by those names that jax.scipy.special has."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    for args, options in (
        ((x,), {}),
        ((x, (0, 2), None, True, True, x > -0.5), {}),
        ((x, 1, x), {"return_sign": True}),
        ((x,), {"axis": -1, "b": 0.5, "keepdims": True, "where": x > -0.5}),
    ):
        want = BEFORE["jax.nn", "logsumexp"](*args, **options)
        with jk.patch_jax_nn():
            got = jax.scipy.special.logsumexp(*args, **options)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
