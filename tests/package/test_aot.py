"""Programs that are compiled ahead of time, from shapes and shardings alone, and loaded by another process."""

import gc
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sharded_programs
from jax.experimental import serialize_executable
from jax.sharding import AxisType, NamedSharding
from programs import run_python

# By name of the program the number of its layout: of rows, and with parts of sums.
CASES = {
    "softmax": 1,
    "log_softmax": -1,
    "masked": 1,
    "cross_entropy-none": 1,
    "cross_entropy-none, classes": -1,
    "matmul": 3,
}


def compile_ahead(name, devices):
    """The executable of a program, from what is known before there are operands; operands; and the program."""
    program = sharded_programs.program(name.partition(",")[0])
    specs, _ = program.layouts[CASES[name]]
    shape = (len(devices) // 2, 2) if len(devices) > 1 else (1, 1)
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=devices)
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    abstract = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        for x, sharding in zip(program.operands, shardings, strict=True)
    ]
    compiled = jax.jit(program.function).lower(*abstract).compile()
    return compiled, jax.device_put(program.operands, shardings), program


def check(got, program):
    for x, want in zip(got, program.results, strict=True):
        np.testing.assert_allclose(x, want, rtol=0, atol=program.error)


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
def test_compiled_from_shapes_and_shardings(count, tmp_path, cpu_devices):
    """The executable holds all that it needs: JAX may forget what it traced, and another process may load it.

    The other process finds the kernels by the names of their targets, and asks nothing about shardings again.
    """
    programs, stored = {}, {}
    for name in CASES:
        compiled, arrays, program = compile_ahead(name, cpu_devices[:count])
        jax.clear_caches()
        gc.collect()
        got = compiled(*arrays)
        check(got, program)
        if name == "softmax":
            for result in got:
                assert result.sharding.is_equivalent_to(arrays[0].sharding, 3)
        with pytest.raises(TypeError, match="float32"):
            compiled(*(jnp.zeros((2, 2)) for _ in arrays))
        programs[name] = program
        stored[name] = (serialize_executable.serialize(compiled), program.operands)
    file, results = tmp_path / "programs", tmp_path / "results.npz"
    file.write_bytes(pickle.dumps(stored))
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": None}
    run_python("-c", LOADER, file, results, count, **environment)
    with np.load(results) as arrays:
        for name, program in programs.items():
            check([arrays[f"{name} {i}"] for i in range(len(program.results))], program)


HIT, MISS = [1, 0], [0, 1]


@pytest.mark.parametrize("devices", [1, 8])
def test_a_second_process_finds_what_the_first_compiled(devices, tmp_path):
    """In JAX's persistent cache, in another order, as a key may not depend on what was compiled before; the results are the same bits."""

    def run(number, *order):
        results = tmp_path / f"{number}.npz"
        stdout, _ = run_python(
            "compilation_cache_worker.py",
            devices,
            tmp_path / "cache",
            results,
            *order,
            JAX_PLATFORMS="cpu",
            XLA_FLAGS=None,
        )
        with np.load(results) as arrays:
            return json.loads(stdout.splitlines()[-1]), dict(arrays)

    compiled, first = run(1)
    # No program found an entry of another one, though all have one name and most have one shape.
    assert compiled == dict.fromkeys(compiled, MISS)
    loaded, second = run(2, "reversed")
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert second[name].tobytes() == array.tobytes(), name
    assert loaded.keys() == compiled.keys()
    assert not [name for name, counts in loaded.items() if counts != HIT]
