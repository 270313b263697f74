"""Compiles the programs of test_aot.py with a persistent cache, and runs them.

    python compilation_cache_worker.py DEVICES FOLDER RESULTS [reversed]

Prints as JSON how often each program was found in the cache in FOLDER and how often it was written there, and writes
the results of the programs to RESULTS.
"""

import collections
import functools
import json
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk

EVENTS = ("/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses")


def programs(devices):
    """A function, its operands and their shardings, by name.

    Some programs with operands of one shape differ only in the operation, or in one of its attributes.
    """
    # Importing these asks JAX for its devices; `main` sets their number before.
    import sharded_programs
    from gemm_partitioning_cases import wrapped

    from jaxkernels._sgemm.options import Options

    found = {}
    for name in ("softmax", "log_softmax", "masked", "matmul"):
        program = sharded_programs.program(name)
        for number in (1, -1) if devices > 1 else (1,):
            specs, _ = program.layouts[number]
            found[f"{name} {number}"] = (program.function, program.operands, specs)
            if name == "softmax":
                # Forward only, because the attributes of a gradient would already tell these apart.
                for options in ({}, {"scale": 0.5}, {"causal": True}):
                    masked = functools.partial(jk.scaled_masked_softmax, **options)
                    found[f"masked {options} {number}"] = (masked, program.operands, specs)
    if devices > 1:
        # The rule of partitioning of the CUDA kernels, around XLA's product.
        operands, specs = program.operands, [P("data", "model"), P("model")]
        for alpha in (1.0, 0.5):
            as_for_cuda = functools.partial(wrapped, Options(alpha=alpha))
            found[f"{alpha} product as for CUDA"] = (as_for_cuda, operands, specs)
    return found


def main(devices, folder, results, order=""):
    devices = int(devices)
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    counts = collections.Counter()
    jax.monitoring.register_event_listener(lambda event, **_: counts.update([event]))
    shape = (devices // 2, 2) if devices > 1 else (1, 1)
    mesh = Mesh(np.array(jax.devices()).reshape(shape), ("data", "model"))
    todo = list(programs(devices).items())
    report, arrays = {}, {}
    for name, (function, operands, specs) in reversed(todo) if order == "reversed" else todo:
        placed = jax.device_put(operands, [NamedSharding(mesh, spec) for spec in specs])

        # All programs have one name, so that cache entries differ only by the computation.
        def program(*operands, function=function):
            return function(*operands)

        counts.clear()
        compiled = jax.jit(program).lower(*placed).compile()
        report[name] = [counts[event] for event in EVENTS]
        for i, result in enumerate(jax.tree.leaves(compiled(*placed))):
            arrays[f"{name} {i}"] = np.asarray(result)
    np.savez(results, **arrays)
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
