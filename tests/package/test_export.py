"""jax.export: serialised programs, for this and for other platforms."""

import inspect

import cases
import jax
import numpy as np
import pytest

import jaxkernels as jk
from jaxkernels._attention import cudnn
from jaxkernels._core import registry
from jaxkernels._rows import reference

CHECKS = jk.export_checks()
X, T = cases.logits("normal", 6, 7, "float32"), cases.cotangents(6, 7, "float32")


def test_the_checks_name_every_target():
    named = {check.is_custom_call() for check in CHECKS}
    ours = {target for targets in registry.TARGETS.values() for target in targets}
    assert named == ours | set(cudnn.TARGETS)
    assert len(CHECKS) == len(named)


def test_docstrings_name_the_checks():
    """The docstring of each function that lowers to a custom call names `export_checks()`."""
    others = {"default_algorithm", "export_checks", "patch_jax_nn", "patch_optax"}
    functions = [getattr(jk, name) for name in jk.__all__ if name not in others]
    functions = [
        f for f in functions if inspect.isfunction(f) and not f.__name__.startswith("plan")
    ]
    functions += [jk.flax.dot_product_attention, *(getattr(jk.optax, x) for x in jk.optax.__all__)]
    assert len(functions) > 15
    assert [f.__name__ for f in functions if "export_checks()" not in inspect.getdoc(f)] == []


@pytest.mark.parametrize("function", [jk.softmax, jk.log_softmax])
def test_export_for_other_platforms(function):
    """From any machine for any platform: kernels for cpu and, if they were built, cuda; plain HLO for tpu."""
    cuda = registry.has_cuda_module()
    abstract = jax.ShapeDtypeStruct(X.shape, X.dtype)
    for platforms in (
        ["tpu"],
        ["cpu"],
        *([["cuda"], ["cpu", "cuda", "tpu"]] if cuda else [["cpu", "tpu"]]),
    ):
        export = jax.export.export(jax.jit(function), platforms=platforms, disabled_checks=CHECKS)
        exported = export(abstract)
        assert ("@jaxkernels_" in exported.mlir_module()) == (platforms != ["tpu"])
        reloaded = jax.export.deserialize(exported.serialize())
        assert list(reloaded.platforms) == platforms
    if jax.default_backend() in reloaded.platforms or cuda:
        np.testing.assert_array_equal(reloaded.call(X), function(X))


@pytest.mark.parametrize("peer", [jax.nn.softmax, jax.nn.log_softmax])
def test_other_platforms_compute_the_same(peer):
    """The references that they lower to."""
    forward = getattr(reference, f"{peer.__name__}_fwd")
    np.testing.assert_allclose(jax.jit(forward)(X), peer(X), rtol=2e-6, atol=2e-6)
    y, pull = jax.vjp(peer, X)
    backward = getattr(reference, f"{peer.__name__}_grad")
    np.testing.assert_allclose(jax.jit(backward)(y, T), pull(T)[0], rtol=2e-6, atol=2e-6)
