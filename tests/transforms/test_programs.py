"""Programs of public functions: kernels, types, export, implementations."""

import functools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from public_functions import FUNCTIONS, MAIN, SIZES
from transformations import pulled

import jaxkernels as jk
from jaxkernels._core import registry

pytestmark = pytest.mark.usefixtures("exact_products", "small_chunks")


def kernels_of(function, *operands):
    """Names of the primitives of this package in a program, and its text."""
    text = str(jax.make_jaxpr(function)(*operands))
    return re.findall(r"jaxkernels_(\w+)\[", text), text


# The family of a function's primitives, and those of a call, of its pullback and of its tangent.
KERNELS = {
    "softmax": ("softmax", "fwd", "fwd grad", "fwd grad"),
    "log_softmax": ("log_softmax", "fwd", "fwd grad", "fwd jvp"),
    "logsumexp": ("logsumexp", "fwd", "fwd grad", "fwd jvp"),
    "rms_norm": ("rms_norm", "fwd", "fwd grad", "fwd jvp fwd"),
    "masked": ("masked_softmax", "fwd", "fwd grad", "fwd grad"),
    "cross_entropy-mean": ("cross_entropy", "fwd", "fwd_grad", "fwd_grad loss_jvp"),
    "cross_entropy-scaled": ("cross_entropy", "fwd", "fwd grad", "fwd jvp"),
    "cross_entropy-none": ("cross_entropy", "fwd", "fwd grad", "fwd jvp"),
    "matmul": ("", "sgemm", "sgemm sgemm sgemm", "sgemm sgemm sgemm"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name):
    """A call, a pullback and a tangent run the fewest kernels, and transpose nothing."""
    function = FUNCTIONS[name]
    f, xs = function.of_moving(function.ours, function.draw())
    y = jax.eval_shape(f, *xs)
    programs = (
        f,
        lambda *xs: jax.vjp(f, *xs)[1](jnp.ones(y.shape, y.dtype)),
        lambda *xs: jax.jvp(f, xs, xs),
    )
    family, *kernels = KERNELS[name]
    for program, expected in zip(programs, kernels, strict=True):
        found, text = kernels_of(program, *xs)
        assert found == [f"{family}_{kernel}".strip("_") for kernel in expected.split()], text
        assert not re.search(r"= (transpose|scan|while)\[", text), text


MAPPED = [
    ("softmax", (1,)),
    ("log_softmax", (1,)),
    ("logsumexp", (0,)),
    ("logsumexp", (1,)),
    ("rms_norm", (1, None)),
    ("masked", (0, None, None)),
    ("masked", (0, 0, None)),
    ("masked", (1, None, 1)),
    ("matmul", (0, 0)),
    ("matmul", (0, None)),
]


@pytest.mark.parametrize(("name", "axes"), MAPPED, ids=str)
def test_a_mapped_call_is_one_kernel(name, axes):
    """A mapped dimension is more rows or one more batch; what is not mapped is not repeated."""
    function = FUNCTIONS[name]
    operands = [
        x if axis is None else np.stack([x] * 3, axis)
        for x, axis in zip(function.draw(), axes, strict=True)
    ]
    jaxpr = jax.make_jaxpr(jax.vmap(function.ours, axes, axes[0]))(*operands)
    (kernel,) = (e for e in jaxpr.eqns if "jaxkernels" in e.primitive.name)
    assert [v.aval.size for v in kernel.invars] == [x.size for x in operands]
    if name != "matmul":
        assert kernel.invars[0] is jaxpr.jaxpr.invars[0]
    assert "scan" not in str(jaxpr)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_types_alone(name):
    """The arrays are larger than any machine's memory; nothing runs."""
    function = FUNCTIONS[name]
    sizes = dict.fromkeys("brcqkmn", 1 << 17) | {"b": 1 << 10}
    huge = function.abstract(**sizes)
    got, want = (jax.eval_shape(f, *huge) for f in (function.ours, function.peer))
    about = lambda tree: jax.tree.map(lambda y: (y.shape, y.dtype, y.weak_type), tree)  # noqa: E731
    assert about(got) == about(want)


@pytest.mark.parametrize("name", [*MAIN, "linear_cross_entropy", "attention"])
def test_export(name):
    """From any machine for every platform, with its gradient, for sizes that are left open."""
    function = FUNCTIONS[name]
    letters = sorted({*"".join(function.dims)}.difference(function.closed, "1"))
    open_sizes = jax.export.symbolic_shape(", ".join(letters)) if letters else ()
    abstract = function.abstract(**dict(zip(letters, open_sizes, strict=True)))
    platforms = ["cpu", "cuda", "tpu"]
    with warnings.catch_warnings(action="ignore"):  # a build without CUDA says so, once
        export = jax.export.export(
            jax.jit(function.ours), platforms=platforms, disabled_checks=jk.export_checks()
        )
        exported = export(*abstract)
        reloaded = jax.export.deserialize(exported.serialize(vjp_order=1))
    has_kernels = registry.has_cuda_module() or function.has_cpu_kernel
    assert ("@jaxkernels_" in exported.mlir_module()) == has_kernels
    assert list(reloaded.platforms) == platforms

    def value_and_pullback(f, operands):
        moving, xs = function.of_moving(f, operands)
        return pulled(moving, *xs)

    for more in (0, 3):
        operands = function.draw(**{dim: SIZES[dim] + more for dim in letters})
        got = value_and_pullback(reloaded.call, operands)
        want = jax.jit(lambda xs: value_and_pullback(function.ours, xs))(operands)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, want)


LAYOUTS = {
    "softmax": ({"b": "a"}, {"b": "a", "c": "b"}),
    "rms_norm": ({"b": "a"}, {"b": "a", "c": "b"}),
    "masked": ({"b": "a"}, {"b": "a", "h": "b"}, {"b": "b", "k": "a"}),
    "cross_entropy": ({"b": "a"}, {"b": "b", "c": "a"}),
    "matmul-batched": ({"b": "a"}, {"b": "a", "n": "b"}, {"b": "b", "d": "a"}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_export_for_eight_devices(name, grid, on_a_cpu):
    """An exported program cannot split a call by Python: XLA may gather, and is right."""
    function = FUNCTIONS[name]
    operands = function.draw(b=8, c=24, h=4, k=24, d=8, n=16)
    want = jax.jit(function.ours)(*operands)
    for layout in LAYOUTS[name]:
        shardings = [NamedSharding(grid, P(*map(layout.get, dims))) for dims in function.dims]
        placed = jax.device_put(operands, shardings)
        export = jax.export.export(
            jax.jit(function.ours), platforms=["cpu"], disabled_checks=jk.export_checks()
        )
        exported = export(*placed)
        assert exported.nr_devices == 8
        got = jax.jit(jax.export.deserialize(exported.serialize()).call)(*placed)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=4e-6, atol=1e-5), got, want)


@pytest.mark.parametrize("name", MAIN)
def test_no_kernels_on_another_platform(name):
    """A program for a TPU is plain HLO."""
    function = FUNCTIONS[name]
    traced = jax.jit(function.ours).trace(*function.abstract())
    assert "@jaxkernels_" not in traced.lower(lowering_platforms=("tpu",)).as_text()


OTHER_NAMES = (
    "softmax-where",
    "softmax_kl_divergence",
    "log_softmax-axis",
    "logsumexp-factors",
    "rms_norm-axis",
)


@pytest.mark.parametrize("name", [*MAIN, *OTHER_NAMES, "token_log_probs", "dot_general"])
def test_implementations(name):
    """Values and gradients of "xla" are ours, without a kernel; "ffi" is what runs where there is one."""
    function = FUNCTIONS[name]
    operands = function.draw()

    def program(xs, implementation):
        chosen = functools.partial(function.ours, implementation=implementation)
        return pulled(function.of_moving(chosen, operands)[0], *xs)

    _, xs = function.of_moving(function.ours, operands)
    xla = functools.partial(program, implementation="xla")
    assert "@jaxkernels_" not in jax.jit(xla).lower(xs).as_text()
    want, got = jax.jit(lambda xs: (xla(xs), program(xs, None)))(xs)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, want)
    ffi = jax.jit(functools.partial(program, implementation="ffi"))
    if function.has_cpu_kernel or jax.default_backend() == "gpu":
        assert "@jaxkernels_" in ffi.lower(xs).as_text()
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), ffi(xs), got
        )
    # Raised when the program is lowered, because only then the platform is known.
    with pytest.raises(NotImplementedError, match=r"ffi.*tpu"):
        ffi.trace(xs).lower(lowering_platforms=("tpu",))
