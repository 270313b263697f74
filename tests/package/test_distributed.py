"""Two processes, as on two hosts: global arrays over the devices of both, forward and gradient.

Devices of different processes communicate through sockets. `distributed_worker.py` has the programs; it reads the
compiled HLO for collectives, and holds the parts of the results that its process has against the truth.
"""

import functools
import re
import socket
from concurrent import futures

import distributed_worker
import jax
import pytest
import sharded_programs
from programs import run_python


def test_programs_of_two_processes():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    # The worker says how many devices it wants, and needs no GPU.
    run = functools.partial(run_python, timeout=120, JAX_PLATFORMS="cpu", XLA_FLAGS=None)
    with futures.ThreadPoolExecutor() as pool:
        found = [pool.submit(run, "distributed_worker.py", process, port) for process in range(2)]
    # The other process of one that fails waits for it until its time is over.
    failures = [str(future.exception()) for future in found if future.exception()]
    assert not failures, "\n".join(failures)
    for process, future in enumerate(found):
        text, _ = future.result()
        assert re.search(rf"process {process}: [1-9]\d* layouts are right, 0 failed", text), text


@pytest.mark.parametrize("name", sharded_programs.LAYOUTS)
def test_several_gpus(name, gpu):
    """Values over all GPUs of this machine, where there are several, and what they cost."""
    gpus = jax.devices(gpu.platform)
    if len(gpus) < 2 or len(gpus) % 2:
        pytest.skip(f"needs 2, 4, ... GPUs, and there are {len(gpus)}")
    program = sharded_programs.program(name)
    for mesh in sharded_programs.meshes(gpus).values():
        for specs, collectives in program.layouts:
            distributed_worker.run(program, mesh, specs, collectives)
