"""compute-sanitizer finds nothing in a small sweep of all tiers: no access out of bounds, no race, no read of memory that
nobody wrote, no barrier that some threads miss.

A process for each tool, part of the sweep and dtype, so that none takes longer than some minutes.
"""

import os
import shutil
import subprocess
import sys

import oracle
import pytest
from conftest import skip_or_fail
from programs import SUPPORT
from sanitizer_sweep import OF_DTYPES, PARTS

# After an access out of bounds the sweep goes on, so that one run shows all of them.
OPTIONS = {"memcheck": ("--destroy-on-device-error", "kernel")}
# Looking for races takes ten times as long. The kernels are one template for all dtypes: two stand for the others.
TWO_DTYPES = ("bfloat16", "float32")
DTYPES = {
    "memcheck": oracle.DTYPES,
    "racecheck": TWO_DTYPES,
    "initcheck": TWO_DTYPES,
    "synccheck": TWO_DTYPES,
}
# initcheck does not know that a program's constants are written, as parts of its code: copied into the place of a result
# (C of a product), they are memory that nobody wrote.
ARGUMENTS = {"initcheck": ("--as-arguments",)}
SWEEPS = [
    (tool, part, dtype)
    for tool, dtypes in DTYPES.items()
    for part in PARTS
    for dtype in (dtypes if part in OF_DTYPES else ("float32",))
]


@pytest.mark.parametrize(("tool", "part", "dtype"), SWEEPS)
def test_sweep(gpu, tool, part, dtype):
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if sanitizer is None:
        skip_or_fail("compute-sanitizer is not installed")
    result = subprocess.run(
        [
            *(sanitizer, "--tool", tool, "--error-exitcode", "99", "--show-backtrace", "no"),
            # It tracks children too, unless told otherwise. Then of 16 at once some end by a signal, and leave a target that
            # waits for ever.
            *("--target-processes", "application-only"),
            *(*OPTIONS.get(tool, ()), sys.executable, "sanitizer_sweep.py", "gpu"),
            *(dtype, "--parts", part, *ARGUMENTS.get(tool, ())),
        ],
        cwd=SUPPORT,
        # Every buffer is an allocation of its own, so that its end is the end of what may be touched.
        env={
            **os.environ,
            "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
            "XLA_FLAGS": "--xla_gpu_enable_command_buffer=",
        },
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    output = result.stdout + result.stderr
    if "Device not supported" in output:
        skip_or_fail("compute-sanitizer does not support this device")
    assert result.returncode == 0, f"{output[:3000]}\n...\n{output[-2000:]}"
    assert "shapes right" in output
    summary = "RACECHECK SUMMARY: 0 hazards" if tool == "racecheck" else "ERROR SUMMARY: 0 errors"
    assert summary in output, output[:5000]
