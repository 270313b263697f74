"""Two processes, as on two hosts: global arrays over the devices of both, forward and gradient.

Devices of different processes communicate through sockets. `distributed_worker.py` has the programs; it reads the
compiled HLO for collectives, and holds the parts of the results that its process has against the truth.
"""

import re
import socket

import jax
import pytest
import sharded_programs
from distributed_worker import run
from programs import run_python_together


def run_workers(*arguments):
    """Runs the worker in two processes; returns what each printed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    # The worker says how many devices it wants, and needs no GPU.
    return run_python_together(
        *(("distributed_worker.py", process, port, *arguments) for process in range(2)),
        JAX_PLATFORMS="cpu",
        XLA_FLAGS=None,
    )


def test_programs_of_two_processes():
    for process, text in enumerate(run_workers()):
        assert re.search(rf"process {process}: [1-9]\d* layouts are right, 0 failed", text), text


def test_a_mistake_is_shown_with_its_place():
    """One wrong element fails the test, which shows where it is; the layouts that have it are all reported."""
    with pytest.raises(AssertionError) as caught:
        run_workers("mistake")
    text = str(caught.value)
    assert "FAILED: softmax, model side by side" in text
    assert "FAILED: softmax, model far apart" in text
    assert "result 0" in text


def test_a_program_that_ends_early_ends_the_others():
    """One that waits for it is ended, and what both printed is shown."""
    with pytest.raises(AssertionError, match=r"(?s)exit code None.*waits.*exit code 3.*gives up"):
        run_python_together(
            ("-u", "-c", "import time; print('waits'); time.sleep(1000)"),
            ("-c", "import sys; print('gives up'); sys.exit(3)"),
        )


@pytest.mark.parametrize("name", sharded_programs.LAYOUTS)
def test_several_gpus(name, gpu):
    """Values over all GPUs of this machine, where there are several, and what they cost."""
    gpus = jax.devices(gpu.platform)
    if len(gpus) < 2 or len(gpus) % 2:
        pytest.skip(f"needs 2, 4, ... GPUs, and there are {len(gpus)}")
    program = sharded_programs.program(name)
    for mesh in sharded_programs.meshes(gpus).values():
        for specs, collectives in program.layouts:
            run(program, mesh, specs, collectives)
