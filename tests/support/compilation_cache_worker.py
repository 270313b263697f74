"""Compiles the programs of test_compilation_cache.py with a persistent cache, and runs them.

    python compilation_cache_worker.py DEVICES FOLDER RESULTS [reversed]

Prints as JSON how often each program was found in the cache in FOLDER and how often it was written there, and leaves
what the programs computed in RESULTS.
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


def masked(**options):
    return functools.partial(jk.scaled_masked_softmax, **options)


def product_as_for_cuda(**options):
    """With the rule of partitioning of the CUDA kernels, around XLA's product."""
    # Importing this asks JAX for its devices; `main` sets their number before.
    from gemm_partitioning_cases import wrapped

    from jaxkernels._sgemm.options import Options

    return functools.partial(wrapped, Options(**options))


def programs(devices):
    """By name a function, its operands and their shardings.

    Operands of one shape serve programs that differ in the operation, or in an attribute of it alone.
    """
    # Asks for devices, as above.
    from cases import with_gradient

    rng = np.random.default_rng(0)
    x, t = (rng.standard_normal((8, 4, 16, 24)).astype(np.float32) for _ in range(2))
    mask = rng.random((8, 1, 1, 24)) < 0.7
    a, b = x[0, 0], rng.standard_normal((24, 32)).astype(np.float32)
    rows, columns = P("x", "y"), P("x", None, None, "y")
    split_k = ((a, P("y", "x")), (b, P("x")))
    found = {}
    for where, spec in {"rows": rows, "columns": columns}.items():
        scores, cotangent = (x, spec), (t, spec)
        hidden = (mask, P("x", None, None, spec[3] if len(spec) > 3 else None))
        found |= {
            f"softmax, {where}": (with_gradient(jk.softmax), scores, cotangent),
            f"log_softmax, {where}": (with_gradient(jk.log_softmax), scores, cotangent),
            f"masked, {where}": (with_gradient(masked()), scores, hidden, cotangent),
            # Forward alone, as the attributes of a gradient would tell these apart already.
            f"masked forward, {where}": (masked(), scores, hidden),
            f"masked and scaled, {where}": (masked(scale=0.5), scores, hidden),
            f"masked and causal, {where}": (masked(causal=True), scores, hidden),
        }
        if devices == 1:
            break
    found["matmul"] = (jk.matmul, *split_k)
    if devices > 1:
        found["matmul as for CUDA"] = (product_as_for_cuda(), *split_k)
        found["scaled matmul as for CUDA"] = (product_as_for_cuda(alpha=0.5), *split_k)
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
    mesh = Mesh(np.array(jax.devices()).reshape(shape), ("x", "y"))
    todo = list(programs(devices).items())
    report, arrays = {}, {}
    for name, (function, *operands) in reversed(todo) if order == "reversed" else todo:
        placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in operands]

        def program(
            *operands, function=function
        ):  # one name, so that entries differ by what they do
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
