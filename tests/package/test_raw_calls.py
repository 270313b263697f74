"""Wrong calls of the FFI targets are errors: none ends the process, whatever a program asks of them."""

import re
import sys

import jax
import pytest
from programs import run_python

from jaxkernels._core import registry

ON_GPU = jax.default_backend() == "gpu"
TARGETS = registry.TARGETS["cuda" if ON_GPU else "cpu"]


# A GPU has twice the targets and more calls of each, so there each target has a program of its own.
@pytest.mark.parametrize("targets", [[t] for t in TARGETS] if ON_GPU else [TARGETS], ids=" ".join)
def test_wrong_calls(targets):
    """In a program of its own, so that a crash is a failure of this test, with its stack."""
    if ON_GPU and not registry.has_cuda_module():
        pytest.skip("jaxkernels was built without CUDA")
    count = 200 if ON_GPU else 80  # on a CPU .ci/sanitize runs 200
    printed, _ = run_python("raw_calls.py", count, *targets, JAX_PLATFORMS=None)
    served = re.findall(r"(\w+): (\d+) of (\d+) calls served", printed)
    assert [name for name, _, _ in served] == list(targets)
    for name, fits, calls in served:
        assert 0 < int(fits) < int(calls), name


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses by what /proc says")
@pytest.mark.parametrize("rows", [1, 3], ids=("caller", "pool"))
def test_out_of_memory(rows):
    """An exception becomes an error of JAX, in the thread that calls the handler, and in those of the pool that share rows."""
    printed, _ = run_python("out_of_memory_worker.py", rows, JAX_PLATFORMS="cpu")
    assert printed == "RESOURCE_EXHAUSTED: out of memory\nright again\n"
