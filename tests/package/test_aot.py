"""Programs that are compiled ahead of time, from shapes and shardings alone, and loaded by another process."""

import gc
import pickle

import cases
import gemm_cases
import jax
import jax.numpy as jnp
import masked_cases
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import run_python

import jaxkernels as jk

FULL = (8, 4, 16, 24)
SCORES = masked_cases.case(FULL, "float32", mask=(8, 1, 1, 24), bias=(1, 4, 16, 24))
X = cases.logits("normal", 8 * 4 * 16, 24, "float32").reshape(FULL)
A, B = (
    gemm_cases.operand("normal", shape, seed) for seed, shape in enumerate([(16, 24), (24, 32)])
)


def masked(x, mask, bias):
    return jk.scaled_masked_softmax(x, mask, bias, scale=0.6)


LABEL = np.arange(X.size // 24, dtype=np.int32).reshape(FULL[:-1]) % 24 - 1


def mean(x, label):
    return jk.cross_entropy(x, label, label_smoothing=0.1, reduction="mean")


ROWS = P("x", "y")
# By name a function, its operands and how they are split over a mesh of 4 by 2.
PROGRAMS = {
    "softmax": (cases.with_gradient(jk.softmax), (X, SCORES.dy), (ROWS, ROWS)),
    "log_softmax": (
        cases.with_gradient(jk.log_softmax),
        (X, SCORES.dy),
        (P("x", None, None, "y"), P("x", None, None, "y")),
    ),
    "scaled_masked_softmax": (
        cases.with_gradient(masked),
        (SCORES.scores, SCORES.mask, SCORES.bias, SCORES.dy),
        (ROWS, P("x"), P(None, "y"), ROWS),
    ),
    "cross_entropy": (jax.value_and_grad(mean), (X, LABEL), (ROWS, ROWS)),
    "cross_entropy-classes": (
        jax.value_and_grad(mean),
        (X, LABEL),
        (P("x", None, None, "y"), P("x")),
    ),
    "matmul": (jk.matmul, (A, B), (P("y", "x"), P("x"))),
}


def compile_ahead(name, devices):
    """The executable of a program, from what is known before there are operands; and the operands."""
    function, operands, specs = PROGRAMS[name]
    shape = (len(devices) // 2, 2) if len(devices) > 1 else (1, 1)
    mesh = jax.make_mesh(shape, ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=devices)
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    abstract = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        for x, sharding in zip(operands, shardings, strict=True)
    ]
    compiled = jax.jit(function).lower(*abstract).compile()
    return compiled, [jax.device_put(x, s) for x, s in zip(operands, shardings, strict=True)]


def check(name, got, device):
    """Holds results against those of one device; a split contraction or softmax axis adds in another order."""
    function, operands, _ = PROGRAMS[name]
    with jax.default_device(device):
        want = jax.tree.leaves(jax.jit(function)(*operands))
    got = jax.tree.leaves(got)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        if name == "matmul":
            gemm_cases.check(g, *operands)
        elif name == "log_softmax" or name.startswith("cross_entropy"):
            np.testing.assert_allclose(g, w, rtol=2e-6, atol=4e-6)
        else:
            np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("devices", [1, 8])
def test_compiled_from_shapes_and_shardings(name, devices, cpu_devices):
    """The executable holds all that it needs: JAX may forget what it traced and lowered."""
    compiled, arrays = compile_ahead(name, cpu_devices[:devices])
    jax.clear_caches()
    gc.collect()
    got = compiled(*arrays)
    if name == "softmax":
        for result in got:
            assert result.sharding.is_equivalent_to(arrays[0].sharding, 4)
    check(name, got, cpu_devices[0])
    with pytest.raises(TypeError, match="float32"):
        compiled(*(jnp.zeros((2, 2)) for _ in arrays))


LOADER = """
import pickle, sys
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
from jax.experimental import serialize_executable
import jaxkernels  # all that the executables need
with open(sys.argv[1], "rb") as file:
    programs = pickle.load(file)
results = {}
for name, (serialized, operands) in programs.items():
    compiled = serialize_executable.deserialize_and_load(*serialized, backend="cpu")
    for i, result in enumerate(jax.tree.leaves(compiled(*operands))):
        results[f"{name} {i}"] = np.asarray(result)
np.savez(sys.argv[2], **results)
"""


@pytest.mark.parametrize("count", [1, 8])
def test_another_process_loads_an_executable(count, tmp_path, cpu_devices):
    """It finds the kernels by the names of their targets, and asks nothing about shardings again."""
    devices, programs = cpu_devices[:count], {}
    for name in PROGRAMS:
        compiled, _ = compile_ahead(name, devices)
        programs[name] = (serialize_executable.serialize(compiled), PROGRAMS[name][1])
    stored, results = tmp_path / "programs", tmp_path / "results.npz"
    stored.write_bytes(pickle.dumps(programs))
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": None}
    run_python("-c", LOADER, stored, results, len(devices), **environment)
    with np.load(results) as arrays:
        for name in PROGRAMS:
            got = [arrays[key] for key in arrays if key.startswith(f"{name} ")]
            check(name, got, devices[0])
