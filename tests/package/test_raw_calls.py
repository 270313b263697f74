"""Wrong calls of the FFI targets are errors: none ends the process, whatever a program asks of them."""

import re
import sys

import pytest
from programs import run_python

from jaxkernels._core import registry

TARGETS = {"cpu": registry.TARGETS["cpu"], "gpu": registry.TARGETS["cuda"]}


def test_wrong_calls(device):
    """In a program of its own, so that a crash is a failure of this test, with its stack."""
    if device.platform == "gpu" and not registry.has_cuda_module():
        pytest.skip("jaxkernels was built without CUDA")
    targets = TARGETS[device.platform]
    count = 200 if device.platform == "gpu" else 80  # of a CPU the sanitizers see 200
    printed, _ = run_python("raw_calls.py", count, *targets, JAX_PLATFORMS=None)
    served = re.findall(r"(\w+): (\d+) of (\d+) calls served", printed)
    assert [name for name, _, _ in served] == list(targets)
    for name, fits, calls in served:
        assert 0 < int(fits) < int(calls), name


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses by what /proc says")
@pytest.mark.parametrize("rows", [1, 3], ids=("caller", "pool"))
def test_out_of_memory(rows):
    """An exception becomes an error of JAX, in the thread that XLA calls the handler in, and in those of the pool that share the rows."""
    printed, _ = run_python("out_of_memory_worker.py", rows, JAX_PLATFORMS="cpu")
    assert printed == "RESOURCE_EXHAUSTED: out of memory\nright again\n"
