"""The symbols that the extension modules export, and their errors for GPUs that cannot be used."""

import shutil
import subprocess
import sys

import jax
import pytest

from jaxkernels._core import registry

MODULES = [m for m in (registry.cpu_module, registry.cuda_module) if m is not None]


@pytest.mark.skipif(sys.platform != "linux", reason="the symbols of ELF files")
@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_modules_export_nothing_but_their_init_function(module):
    """A C++ library that is linked into a module would otherwise share some of its objects with other copies of it."""
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", module.__file__], capture_output=True, text=True, check=True
    )
    symbols = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert symbols == [f"PyInit_{module.__name__.rpartition('.')[2]}"]


@pytest.mark.skipif(registry.cuda_module is None, reason="jaxkernels was built without CUDA")
def test_a_gpu_that_cannot_be_used_has_a_cause():
    count = len(jax.devices()) if jax.default_backend() == "gpu" else 0
    why = f"sees {count} of them" if count else "driver|no CUDA-capable device"
    for _ in range(2):  # the second call asks again
        with pytest.raises(RuntimeError, match=f"CUDA device 99 cannot be used: .*({why})"):
            registry.cuda_module.device_limits(99)
