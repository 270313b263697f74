"""Arrays over all GPUs of this machine, where there are several: values, and what they cost."""

import jax
import pytest
import sharded_programs
from distributed_worker import run


@pytest.mark.parametrize("name", sharded_programs.LAYOUTS)
def test_several_gpus(name, gpu):
    gpus = jax.devices(gpu.platform)
    if len(gpus) < 2 or len(gpus) % 2:
        pytest.skip(f"needs 2, 4, ... GPUs, and there are {len(gpus)}")
    program = sharded_programs.program(name)
    for mesh in sharded_programs.meshes(gpus).values():
        for specs, collectives in program.layouts:
            run(program, mesh, specs, collectives)
