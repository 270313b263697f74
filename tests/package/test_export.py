"""jax.export: serialised programs, for this and for other platforms."""

import functools
import inspect
import warnings

import cases
import gemm_cases
import jax
import jax.numpy as jnp
import masked_cases
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from pairs import T, X, both, loss

import jaxkernels as jk
from jaxkernels._attention import cudnn
from jaxkernels._core import registry

CHECKS = jk.export_checks()


def test_the_checks_name_every_target():
    named = {check.is_custom_call() for check in CHECKS}
    ours = {target for targets in registry.TARGETS.values() for target in targets}
    assert named == ours | set(cudnn.TARGETS)
    assert len(CHECKS) == len(named)


def test_docstrings_name_the_checks():
    """Of all functions that lower to a custom call."""
    others = {"default_algorithm", "export_checks", "patch_jax_nn", "patch_optax"}
    functions = [getattr(jk, name) for name in jk.__all__ if name not in others]
    functions = [
        f for f in functions if inspect.isfunction(f) and not f.__name__.startswith("plan")
    ]
    functions += [jk.flax.dot_product_attention, *(getattr(jk.optax, x) for x in jk.optax.__all__)]
    assert len(functions) > 15
    assert [f.__name__ for f in functions if "export_checks()" not in inspect.getdoc(f)] == []


@both
@pytest.mark.parametrize("derivative", [False, True], ids=("forward", "gradient"))
def test_export_and_reload(ours, peer, derivative):
    function = jax.grad(functools.partial(loss, ours)) if derivative else ours
    exported = jax.export.export(jax.jit(function), disabled_checks=CHECKS)(
        jax.ShapeDtypeStruct(X.shape, X.dtype)
    )
    assert "jaxkernels" in exported.mlir_module()
    reloaded = jax.export.deserialize(exported.serialize(vjp_order=0))
    assert np.array_equal(reloaded.call(X), function(jnp.asarray(X)))


@both
def test_export_with_vjp(ours, peer):
    exported = jax.export.export(jax.jit(ours), disabled_checks=CHECKS)(
        jax.ShapeDtypeStruct(X.shape, X.dtype)
    )
    reloaded = jax.export.deserialize(exported.serialize(vjp_order=1))
    got = jax.vjp(reloaded.call, jnp.asarray(X))[1](jnp.asarray(T))[0]
    np.testing.assert_allclose(got, jax.vjp(peer, X)[1](T)[0], rtol=2e-6, atol=2e-6)


@both
def test_export_with_symbolic_dimensions(ours, peer):
    rows, cols = jax.export.symbolic_shape("rows, cols")
    exported = jax.export.export(jax.jit(ours), disabled_checks=CHECKS)(
        jax.ShapeDtypeStruct((rows, cols), jnp.float32)
    )
    reloaded = jax.export.deserialize(exported.serialize())
    for shape in ((1, 3), (17, 40)):
        x = cases.logits("normal", *shape, "float32")
        np.testing.assert_allclose(reloaded.call(x), peer(x), rtol=2e-6, atol=2e-6)


@both
def test_export_for_other_platforms(ours, peer):
    """From any machine for any platform: kernels for cpu and, if they were built, cuda; plain HLO for tpu."""
    del peer
    cuda = registry.has_cuda_module()
    x = jax.ShapeDtypeStruct(X.shape, X.dtype)
    for platforms in (
        ["tpu"],
        ["cpu"],
        *([["cuda"], ["cpu", "cuda", "tpu"]] if cuda else [["cpu", "tpu"]]),
    ):
        exported = jax.export.export(jax.jit(ours), platforms=platforms, disabled_checks=CHECKS)(x)
        assert ("@jaxkernels_" in exported.mlir_module()) == (platforms != ["tpu"])
        reloaded = jax.export.deserialize(exported.serialize())
        assert list(reloaded.platforms) == platforms
    if jax.default_backend() in reloaded.platforms or cuda:
        assert np.array_equal(reloaded.call(X), ours(jnp.asarray(X)))


@both
def test_tpu_lowering_computes_the_same(ours, peer):
    """The reference that other platforms lower to, run here through a platform-neutral export of its HLO."""
    from jaxkernels._rows import reference as plain

    for operation in ("fwd", "grad"):
        reference = getattr(plain, f"{ours.__name__}_{operation}")
        if operation == "fwd":
            np.testing.assert_allclose(jax.jit(reference)(X), peer(X), rtol=2e-6, atol=2e-6)
        else:
            y, pull = jax.vjp(peer, X)
            np.testing.assert_allclose(jax.jit(reference)(y, T), pull(T)[0], rtol=2e-6, atol=2e-6)


def scores(batch):
    """Attention scores, a mask that all heads share and a bias that all batches share."""
    full = (batch, 2, 4, 24)
    case = masked_cases.case(full, "float32", mask=(batch, 1, 1, 24), bias=(1, *full[1:]))
    return case.scores, case.mask, case.bias


def factors(batch):
    """Of a batch of products, and one that all share."""
    return gemm_cases.operand("normal", (batch, 5, 24)), gemm_cases.operand("normal", (1, 24, 6))


# What has operands that broadcast: the function, its operands for a batch, its target for jax.export, and how the
# operands are split over a mesh of 4 by 2.
BROADCASTING = [
    pytest.param(
        functools.partial(jk.scaled_masked_softmax, scale=0.5, causal=True),
        scores,
        "jaxkernels_rows",
        [
            (P("x"), P("x"), P()),
            (P("x", "y"), P("x"), P(None, "y")),
            (P("y", None, None, "x"), P("y", None, None, "x"), P(None, None, None, "x")),
        ],
        id="scaled_masked_softmax",
    ),
    pytest.param(
        jk.matmul,
        factors,
        "jaxkernels_sgemm",
        [(P("x"), P()), (P("x"), P(None, None, "y")), (P("y", None, "x"), P(None, "x"))],
        id="matmul",
    ),
]
broadcasting = pytest.mark.parametrize(("function", "operands", "target", "layouts"), BROADCASTING)


def export(function, target, platforms, arguments):
    """What stands in for kernels on CUDA, where this build has none, is said once and no matter here."""
    checks = [jax.export.DisabledSafetyCheck.custom_call(target)]
    with warnings.catch_warnings(action="ignore"):
        return jax.export.export(jax.jit(function), platforms=platforms, disabled_checks=checks)(
            *arguments
        )


@broadcasting
@pytest.mark.parametrize("kind", ["forward", "gradient"])
def test_one_program_for_every_platform_and_batch(function, operands, target, layouts, kind):
    """From any machine; it runs here, for batches of any size."""
    del layouts
    from jaxkernels._core import registry

    def gradient(x, *others):
        return jax.grad(lambda x: jnp.sum(jnp.sin(function(x, *others))))(x)

    run = function if kind == "forward" else gradient
    (batch,) = jax.export.symbolic_shape("batch")
    abstract = [
        jax.ShapeDtypeStruct((batch if x.shape[0] == 3 else 1, *x.shape[1:]), x.dtype)
        for x in operands(3)
    ]
    platforms = ["cpu", "cuda", "tpu"]
    exported = export(run, target, platforms, abstract)
    # On a CPU the product is XLA's own.
    with_kernels = registry.has_cuda_module() or function is not jk.matmul
    assert (f"@{target}" in exported.mlir_module()) == with_kernels
    reloaded = jax.export.deserialize(exported.serialize())
    assert list(reloaded.platforms) == platforms
    for size in (1, 5):
        arrays = operands(size)
        np.testing.assert_allclose(
            reloaded.call(*arrays), jax.jit(run)(*arrays), rtol=2e-6, atol=1e-5
        )


@broadcasting
def test_programs_of_eight_devices(function, operands, target, layouts, cpu_devices):
    """An exported program holds no Python that could split a call, so something may be gathered; it is right."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=cpu_devices)
    arrays = operands(8)
    with jax.default_device(cpu_devices[0]):
        want = jax.jit(function)(*arrays)
    for specs in layouts:
        placed = [
            jax.device_put(x, NamedSharding(mesh, spec))
            for x, spec in zip(arrays, specs, strict=True)
        ]
        exported = export(function, target, ["cpu"], placed)
        assert exported.nr_devices == 8
        reloaded = jax.export.deserialize(exported.serialize())
        got = jax.jit(reloaded.call)(*placed)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-5)
