"""When a build has CUDA kernels, and for which GPUs: cmake/JaxKernelsCuda.cmake, with stubs for driver and compiler."""

import os
import shutil
import subprocess

import pytest
from programs import ROOT, run_python

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")

PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(stub LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_SOURCE_DIR} ${JK_ROOT}/cmake)
function(enable_language)
endfunction()
include(JaxKernelsCuda)
message(STATUS "[${JK_HAVE_CUDA}|${CMAKE_CUDA_ARCHITECTURES}|${JK_WHY_NO_CUDA}]")
"""
NO_GPU = "no GPU was found at build time"
OF_8_0 = "GPU of compute capability 8.0 or later"
NO_COMPILER = "no CUDA compiler (nvcc) was found at build time"
DEFAULT = "90a-real;80-virtual"


@pytest.mark.parametrize(
    ("switch", "environment", "gpus", "has_compiler", "expected"),
    [
        ("AUTO", {}, "9.0\n9.0", True, "TRUE|90a-real|"),
        ("AUTO", {}, "8.6\n12.0", True, "TRUE|86-real;120a-real|"),
        ("AUTO", {}, "9.0", False, f"FALSE|90a-real|{NO_COMPILER}"),
        ("AUTO", {}, "", True, f"FALSE||{NO_GPU}"),
        ("AUTO", {}, "7.5", True, f"FALSE||{NO_GPU.replace('GPU', OF_8_0)}"),
        ("AUTO", {}, "", False, f"FALSE||{NO_GPU}"),
        ("AUTO", {"CUDAARCHS": "80-real"}, "", True, "TRUE||"),  # CMake itself reads it
        ("AUTO", {"CUDAARCHS": "80-real"}, "", False, f"FALSE||{NO_COMPILER}"),
        ("AUTO", {"JK_CUDA_RELEASE": "ON"}, "", True, "TRUE|80-real;90a-real;100-real;120-real|"),
        ("AUTO", {"CMAKE_CUDA_ARCHITECTURES": "86"}, "9.0", True, "TRUE|86|"),
        ("ON", {}, "", True, f"TRUE|{DEFAULT}|"),
        ("ON", {}, "10.3", True, "TRUE|103a-real|"),
        ("ON", {}, "9.0", False, "JK_CUDA=ON, but no CUDA compiler was found"),
        ("OFF", {"CUDAARCHS": "90a"}, "9.0", True, "FALSE||JK_CUDA=OFF at build time"),
        ("MAYBE", {}, "9.0", True, "JK_CUDA must be AUTO, ON or OFF"),
    ],
)
def test_choice(switch, environment, gpus, has_compiler, expected, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    compiler = "/stub/nvcc" if has_compiler else "NOTFOUND"
    (tmp_path / "CheckLanguage.cmake").write_text(
        f"macro(check_language)\n  set(CMAKE_CUDA_COMPILER {compiler})\nendmacro()\n"
    )
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '{gpus}'\n")
    python.chmod(0o755)
    defined = {name: value for name, value in environment.items() if name != "CUDAARCHS"}
    defined |= {"JK_CUDA": switch, "JK_ROOT": ROOT, "Python_EXECUTABLE": python}
    inherited = {name: value for name, value in os.environ.items() if name != "CUDAARCHS"}
    definitions = [f"-D{name}={value}" for name, value in defined.items()]
    found = subprocess.run(
        ["cmake", "-S", tmp_path, "-B", tmp_path / "build", *definitions],
        env={**inherited, **{n: v for n, v in environment.items() if n == "CUDAARCHS"}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert expected in found.stdout + found.stderr
    assert (found.returncode == 0) == ("|" in expected)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_driver_tells_compute_capabilities(tmp_path):
    """Held against a stub of the driver with two GPUs; without any driver nothing is printed."""
    source = tmp_path / "driver.c"
    source.write_text(
        "int cuInit(unsigned flags) { return (int)flags; }\n"
        "int cuDeviceGetCount(int* count) { *count = 2; return 0; }\n"
        "int cuDeviceGetAttribute(int* to, int which, int device) {\n"
        "  *to = which == 75 ? 8 + device : which == 76 ? 6 - 6 * device : -1; return 0; }\n"
    )
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    program = ROOT / "cmake" / "compute_capabilities.py"
    found, _ = run_python(program, LD_LIBRARY_PATH=str(tmp_path))
    assert found.split() == ["8.6", "9.0"]
