"""jax.export: serialised programs, for this and for other platforms."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairs import T, X, both, loss


def targets(f, derivative):
    stem = f"jaxkernels_{f.__name__}"
    names = [f"{stem}_fwd", f"{stem}_grad"] if derivative else [f"{stem}_fwd"]
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]


@both
@pytest.mark.parametrize("derivative", [False, True], ids=("forward", "gradient"))
def test_export_and_reload(ours, peer, derivative):
    function = jax.grad(functools.partial(loss, ours)) if derivative else ours
    exported = jax.export.export(jax.jit(function), disabled_checks=targets(ours, derivative))(
        jax.ShapeDtypeStruct(X.shape, X.dtype)
    )
    assert "jaxkernels" in exported.mlir_module()
    reloaded = jax.export.deserialize(exported.serialize(vjp_order=0))
    assert np.array_equal(reloaded.call(X), function(jnp.asarray(X)))


@both
def test_export_with_vjp(ours, peer):
    exported = jax.export.export(jax.jit(ours), disabled_checks=targets(ours, derivative=True))(
        jax.ShapeDtypeStruct(X.shape, X.dtype)
    )
    reloaded = jax.export.deserialize(exported.serialize(vjp_order=1))
    got = jax.vjp(reloaded.call, jnp.asarray(X))[1](jnp.asarray(T))[0]
    np.testing.assert_allclose(got, jax.vjp(peer, X)[1](T)[0], rtol=2e-6, atol=2e-6)


@both
def test_export_with_symbolic_dimensions(ours, peer):
    rows, cols = jax.export.symbolic_shape("rows, cols")
    exported = jax.export.export(jax.jit(ours), disabled_checks=targets(ours, False))(
        jax.ShapeDtypeStruct((rows, cols), jnp.float32)
    )
    reloaded = jax.export.deserialize(exported.serialize())
    for shape in ((1, 3), (17, 40)):
        x = cases.logits("normal", *shape, "float32")
        np.testing.assert_allclose(reloaded.call(x), peer(x), rtol=2e-6, atol=2e-6)


@both
def test_export_for_other_platforms(ours, peer):
    """From any machine for any platform: kernels for cpu and, if they were built, cuda; plain HLO for tpu."""
    from jaxkernels import _registry

    del peer
    cuda = _registry.has_cuda_module()
    x = jax.ShapeDtypeStruct(X.shape, X.dtype)
    for platforms in (
        ["tpu"],
        ["cpu"],
        *([["cuda"], ["cpu", "cuda", "tpu"]] if cuda else [["cpu", "tpu"]]),
    ):
        exported = jax.export.export(
            jax.jit(ours), platforms=platforms, disabled_checks=targets(ours, False)
        )(x)
        assert ("@jaxkernels_" in exported.mlir_module()) == (platforms != ["tpu"])
        reloaded = jax.export.deserialize(exported.serialize())
        assert list(reloaded.platforms) == platforms
    if jax.default_backend() in reloaded.platforms or cuda:
        assert np.array_equal(reloaded.call(X), ours(jnp.asarray(X)))


@both
def test_tpu_lowering_computes_the_same(ours, peer):
    """The reference that other platforms lower to, run here through a platform-neutral export of its HLO."""
    from jaxkernels import _reference

    for operation in ("fwd", "grad"):
        reference = getattr(_reference, f"{ours.__name__}_{operation}")
        if operation == "fwd":
            np.testing.assert_allclose(jax.jit(reference)(X), peer(X), rtol=2e-6, atol=2e-6)
        else:
            y, pull = jax.vjp(peer, X)
            np.testing.assert_allclose(jax.jit(reference)(y, T), pull(T)[0], rtol=2e-6, atol=2e-6)
