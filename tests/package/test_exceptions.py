"""No C++ exception leaves a handler: it becomes an error of JAX, and the process goes on."""

import sys

import pytest
from programs import run_python


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses by what /proc says")
@pytest.mark.parametrize("rows", [1, 3], ids=("caller", "pool"))
def test_out_of_memory(rows):
    """In the thread that XLA calls the handler in, and in those of the pool that share the rows."""
    printed, _ = run_python("out_of_memory_worker.py", rows, JAX_PLATFORMS="cpu")
    assert printed == "RESOURCE_EXHAUSTED: out of memory\nright again\n"
