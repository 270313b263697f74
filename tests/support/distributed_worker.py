"""One of the two processes of test_distributed.py, with four of the eight devices.

    python distributed_worker.py PROCESS_ID PORT

Runs the programs on global arrays that are spread over both processes, and compares this process's shards
with the true result. Both processes run the same programs in the same order, even after a failure, because each waits
for the other in every collective.
"""

import os
import sys
import traceback

import hlo
import jax
import numpy as np
from jax.sharding import NamedSharding


def run(program, mesh, specs, collectives):
    """Runs one layout of a program and checks the parts of its results that are in this process."""
    arrays = [
        jax.make_array_from_callback(
            x.shape, NamedSharding(mesh, spec), lambda index, x=x: x[index]
        )
        for x, spec in zip(program.operands, specs, strict=True)
    ]
    compiled = jax.jit(program.function).lower(*arrays).compile()
    found = set(hlo.collectives(compiled.as_text()))
    results = compiled(*arrays)
    # A mesh axis of one device costs nothing.
    same = found == collectives if min(mesh.devices.shape) > 1 else found <= collectives
    assert same, f"collectives {found}, not {collectives}"
    here = len([d for d in mesh.devices.flat if d.process_index == jax.process_index()])
    for number, (result, want) in enumerate(zip(results, program.results, strict=True)):
        assert len(result.addressable_shards) == here
        for shard in result.addressable_shards:
            error = np.abs(np.asarray(shard.data) - want[shard.index])
            right = error <= program.error
            assert right.all(), (
                f"result {number}, part {shard.index} on {shard.device}: wrong at "
                f"{np.argwhere(~right).tolist()} by {error[~right]}"
            )


def run_all(process):
    """Runs programs in all their layouts, and returns how many failed."""
    # Importing this asks JAX for its devices, on which the programs depend.
    from sharded_programs import LAYOUTS, meshes, program

    failed = passed = 0
    over = meshes(jax.devices())
    processes = [{d.process_index for d in mesh.devices[0]} for mesh in over.values()]
    assert processes == [{0}, {0, 1}]
    for name in LAYOUTS:
        some = program(name)
        for where, mesh in over.items():
            for specs, collectives in some.layouts:
                try:
                    run(some, mesh, specs, collectives)
                    passed += 1
                except Exception:
                    failed += 1
                    print(f"FAILED: {name}, {where}, {specs}")
                    traceback.print_exc(file=sys.stdout)
    print(f"process {process}: {passed} layouts are right, {failed} failed")
    return failed


def main(process, port):
    """Joins the other process and runs the programs; returns the exit code."""
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{port}", num_processes=2, process_id=int(process)
    )
    failed = run_all(process)
    jax.distributed.shutdown()
    return 1 if failed else 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    # All is done. The threads of gloo sometimes take minutes to end by themselves.
    os._exit(code)
