"""patch_jax_nn: what it reaches, that it goes away again, and that our own fall-backs do not call themselves."""

import contextlib
import importlib
import sys
import time
import types
from concurrent import futures

import flax.linen
import flax.nnx
import hlo
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxkernels as jk
from jaxkernels import _patch

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


def test_blocks_may_end_in_any_order():
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(jk.patch_jax_nn())
    second.enter_context(jk.patch_jax_nn())
    first.close()
    assert is_ours()
    second.close()


def test_a_decorator_restores_after_an_exception():
    @jk.patch_jax_nn()
    def inside(fails):
        assert is_ours()
        if fails:
            raise KeyError

    inside(fails=False)
    assert is_as_before()
    with pytest.raises(KeyError):
        inside(fails=True)


def test_many_threads(monkeypatch):
    """The last block to end restores the originals; a replacement is slow, so that threads meet in it."""
    swap = _patch._Patch._swap
    monkeypatch.setattr(_patch._Patch, "_swap", lambda *x: (time.sleep(1e-3), swap(*x)))

    def work(pause):
        for _ in range(50):
            with jk.patch_jax_nn():
                assert jax.nn.softmax is jk.softmax
            time.sleep(pause)

    with futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (1e-3, 1.7e-3)))


def test_a_jitted_function_keeps_its_softmax():
    """`patch_jax_nn` says so: compiled before a block, it keeps jax.nn's; inside, it keeps ours."""
    x = jnp.ones((2, 3))
    before, inside = (jax.jit(lambda x: jax.nn.softmax(x)) for _ in range(2))
    texts = {before: before.lower(x).as_text()}
    with jk.patch_jax_nn():
        texts[inside] = inside.lower(x).as_text()
        assert before.lower(x).as_text() == texts[before]
    assert inside.lower(x).as_text() == texts[inside]
    assert ["softmax_fwd" in hlo.operations(text) for text in texts.values()] == [False, True]


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

    def integer_labels(x):
        labels = jnp.zeros(x.shape[:-1], jnp.int32)
        return optax.softmax_cross_entropy_with_integer_labels(x, labels).sum()

    programs = {
        lambda x: flax.linen.dot_product_attention(x, x, x): "softmax_fwd",
        lambda x: flax.nnx.softmax(x): "softmax_fwd",
        lambda x: optax.softmax_cross_entropy(x, x): "log_softmax_fwd",
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


X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
MASK = X > -0.5
CALLS = (
    ((np.array([1 + 1j, 2j]),), {}),
    ((X[0, 0],), {"implementation": "xla"}),
    ((np.array([1.0, 2.0], jnp.float8_e4m3fn),), {}),
    ((X,), {"axis": 1, "where": MASK}),
)
POSITIONAL = {"logsumexp": (X, (0, 2), None, True, True, MASK)}


@pytest.mark.parametrize("name", NAMES)
def test_every_call_that_the_originals_take(name):
    """Our fall-backs call jax.nn's function; if that were ours again, it would never end."""
    for args, options in (*CALLS, (POSITIONAL.get(name, (X, (0, 2), MASK)), {})):
        theirs = {n: x for n, x in options.items() if n != "implementation"}
        want = BEFORE["jax.nn", name](*args, **theirs)
        with jk.patch_jax_nn():
            holder = jax.scipy.special if name == "logsumexp" else jax.nn
            got = getattr(holder, name)(*args, **options)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            a, b = (np.asarray(x).astype(np.complex128) for x in (a, b))  # knows NaN of float8
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
