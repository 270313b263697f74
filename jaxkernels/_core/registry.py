"""Loads the extension modules and registers their FFI targets with XLA.

Owns: which targets exist, on which platforms they can be called, and why not. Importing this module
registers them, warns if no GPU of the machine can run them, and initialises no JAX backend; only the
functions that look for devices do. Must not know: what a target computes.
"""

import ctypes
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform as python_platform
import re
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np

from jaxkernels._core import compat

_PACKAGE = Path(__file__).parent.parent
# Row operations have one target for whole rows and two for column-sharded rows.
ROWS_TARGET = "jaxkernels_rows"
STATISTICS_TARGET = "jaxkernels_row_statistics"
FINISH_TARGET = "jaxkernels_row_finish"
SGEMM_TARGET = "jaxkernels_sgemm"
ATTENTION_TARGET = "jaxkernels_attention"
ATTENTION_BACKWARD_TARGET = "jaxkernels_attention_backward"
ATTENTION_TARGETS = (ATTENTION_TARGET, ATTENTION_BACKWARD_TARGET)
_ROW_TARGETS = (ROWS_TARGET, STATISTICS_TARGET, FINISH_TARGET)
# Targets by JAX's platform name. XLA computes matrix products on CPUs.
TARGETS = {"cpu": _ROW_TARGETS, "cuda": (*_ROW_TARGETS, SGEMM_TARGET, *ATTENTION_TARGETS)}

try:
    VERSION = importlib.metadata.version("jaxkernels")
except importlib.metadata.PackageNotFoundError as error:
    raise ImportError(
        f"jaxkernels was imported from {_PACKAGE}, but is not installed, so its kernels are not "
        "compiled. Run 'pip install .' in its source tree"
    ) from error

# XLA's platform names by JAX's. register_ffi_target also accepts "cuda" in lower case, but XLA never
# looks that name up.
_XLA_PLATFORM = {"cpu": "cpu", "cuda": "CUDA"}


@dataclasses.dataclass(frozen=True)
class TargetStatus:
    """Whether one FFI target can be called on one platform."""

    target: str  # such as "jaxkernels_rows"
    platform: str  # "cpu" or "CUDA", as XLA spells them
    live: bool  # whether a jitted program can call it on this platform in this process
    why: str  # the reason if it is not live, else empty


def _dotted(version: tuple[int, int] | None) -> str:
    return "unknown" if version is None else f"{version[0]}.{version[1]}"


def check_api_version(module: str, built: tuple[int, int], running: tuple[int, int] | None) -> None:
    """Raises ImportError for a module that the running jaxlib (None: unknown) would reject.

    XLA rejects its handlers only when a backend starts, and then the whole backend fails. A module
    that was built with the headers of an older minor version works.
    """
    if running is None or (built[0] == running[0] and built[1] <= running[1]):
        return
    raise ImportError(
        f"{module} was built for XLA FFI {_dotted(built)}, but the installed jaxlib "
        f"{importlib.metadata.version('jaxlib')} speaks XLA FFI {_dotted(running)}. Upgrade "
        "jaxlib, or rebuild jaxkernels against this one: "
        "pip install --no-build-isolation --force-reinstall --no-deps <path of jaxkernels>"
    )


def _load_cuda(why_not_built: str) -> tuple[ModuleType | None, str]:
    """The CUDA module, or None and the reason."""
    name = "jaxkernels._cuda"
    try:
        return importlib.import_module(name), ""
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return (
                None,
                f"jaxkernels was built without CUDA ({why_not_built or 'no reason is known'})",
            )
        return None, f"{name} cannot be imported: {error}"


def _register(module: ModuleType, platform: str, running: tuple[int, int] | None) -> None:
    check_api_version(module.__name__, tuple(module.ffi_api_version()), running)
    registrations = module.registrations()
    missing = sorted(set(TARGETS[platform]) - set(registrations))
    if missing:
        raise ImportError(
            f"{module.__name__} lacks the targets {', '.join(missing)}: it is older than the "
            "Python files around it. Install jaxkernels again."
        )
    for target in TARGETS[platform]:
        jax.ffi.register_ffi_target(target, registrations[target], _XLA_PLATFORM[platform])


try:
    cpu_module = importlib.import_module("jaxkernels._cpu")
except ImportError as error:
    raise ImportError(
        "jaxkernels has no usable extension module jaxkernels._cpu; build the package with "
        f"'pip install .' ({error})"
    ) from error
cuda_module, _why_no_cuda = _load_cuda(cpu_module.WHY_NO_CUDA)
_running_version = compat.running_ffi_api_version()
_register(cpu_module, "cpu", _running_version)
if cuda_module is not None:
    _register(cuda_module, "cuda", _running_version)
jax.ffi.register_ffi_target_as_batch_partitionable(ROWS_TARGET)

# Bound of a band (causal mask or window) that no index reaches: the side is open. Kernels cap column
# indices, and row indices within a band, at this value.
UNBOUNDED: int = cpu_module.UNBOUNDED
# Most batch dimensions of a matrix product, after adjacent ones that broadcast alike are merged.
MAX_BATCH_DIMS: int = cpu_module.MAX_BATCH_DIMS


def has_cuda_module() -> bool:
    """Whether jaxkernels was built with its CUDA kernels; a GPU may still be missing."""
    return cuda_module is not None


def registered_platforms() -> tuple[str, ...]:
    """JAX's names of the platforms with registered targets; their devices may still be missing."""
    return ("cpu", "cuda") if has_cuda_module() else ("cpu",)


def has_code_for(capability: str, architectures: str) -> bool:
    """Whether a GPU can run code that was compiled for the given architectures.

    Machine code runs on the same major version with the same or a later minor one. Code for "90a" runs
    on 9.0 only. Code for "100f" runs where code for "100" does. PTX ("-virtual") runs on all later
    versions. `architectures` are names in CMake's spelling, e.g. "90a-real 80-virtual"; a name without a
    number, such as "all", counts as code for every GPU.
    """
    major, minor = map(int, capability.split("."))
    for name in architectures.split():
        found = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", name)
        if found is None:
            return True
        of_major, of_minor, feature, kind = int(found[1]), int(found[2]), found[3], found[4]
        if (major, minor) == (of_major, of_minor):
            return True
        if feature != "a" and major == of_major and minor > of_minor:
            return True
        if not feature and kind != "-real" and (major, minor) > (of_major, of_minor):
            return True
    return False


def cuda_devices() -> list[Any]:
    """The CUDA devices of this process. Initialises JAX's backends."""
    try:
        return jax.local_devices(backend="cuda")
    except RuntimeError:
        return []


@functools.cache
def _devices_without_code() -> list[Any]:
    """The GPUs of the machine if JAX may use them and none can run the CUDA module; otherwise empty.

    NVML lists them without initialising CUDA, so the process can still fork.
    """
    platforms = (jax.config.jax_platforms or "cuda").split(",")  # pyright: ignore[reportAttributeAccessIssue]
    if (
        cuda_module is None
        or importlib.util.find_spec("jax_plugins") is None
        or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        or not {"cuda", "gpu"} & set(platforms)
    ):
        return []
    count, major, minor = ctypes.c_uint(), ctypes.c_int(), ctypes.c_int()
    name, byref = ctypes.create_string_buffer(96), ctypes.byref
    devices = []
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetCount_v2(byref(count))
        for index in range(count.value):
            handle = ctypes.c_void_p()  # stays null if this process may not use the GPU
            nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(handle))
            nvml.nvmlDeviceGetName(handle, name, len(name))
            if nvml.nvmlDeviceGetCudaComputeCapability(handle, byref(major), byref(minor)) == 0:
                kind, capability = name.value.decode(), f"{major.value}.{minor.value}"
                devices.append(SimpleNamespace(device_kind=kind, compute_capability=capability))
        nvml.nvmlShutdown()
    except (OSError, AttributeError):  # no NVML, or an old one
        return []
    architectures = cuda_module.architectures()
    runs = (has_code_for(device.compute_capability, architectures) for device in devices)
    return [] if any(runs) else devices


@functools.cache  # once per process: a program is lowered many times
def _why_no_code() -> str:
    """The reason if a GPU of this process cannot run the CUDA module; empty if all GPUs can."""
    if cuda_module is None:
        return _why_no_cuda
    architectures = cuda_module.architectures()
    for device in _devices_without_code() or cuda_devices():
        if not has_code_for(device.compute_capability, architectures):
            return (
                f"the CUDA kernels of jaxkernels are compiled for {architectures}, not for the "
                f"{device.device_kind} (compute capability {device.compute_capability})"
            )
    return ""


def _remedy() -> str:
    """How to build for the GPUs of this process, or for an H100 or H200 if it has none."""
    devices = _devices_without_code() or cuda_devices()
    capabilities = [device.compute_capability for device in devices] or ["9.0"]
    versions = [tuple(map(int, capability.split("."))) for capability in capabilities]
    if min(versions) < (8, 0):
        return "GPUs below compute capability 8.0 are not supported"
    names = [f"{major}{minor}{'a' * (major >= 9)}-real" for major, minor in dict.fromkeys(versions)]
    return f"Reinstall jaxkernels with JK_CUDA=ON CUDAARCHS='{';'.join(names)}'"


def has_kernels(platform: str) -> bool:
    """Whether a platform (JAX's lower-case name) has kernels; on CUDA it initialises JAX's backends."""
    return platform == "cpu" or (platform == "cuda" and not _why_no_code())


def why_no_kernels(platform: str) -> str:
    """The reason why `has_kernels(platform)` is False, and what to do."""
    if platform != "cuda":
        return f"jaxkernels has kernels for cpu and cuda, not for {platform}"
    return f"{_why_no_code()}. {_remedy()}"


def why_not_live(target: str, platform: str) -> str:
    """The reason why a target cannot be called on a platform; empty if it can."""
    if not has_kernels(platform):
        return why_no_kernels(platform)
    if target in ATTENTION_TARGETS and platform == "cpu":
        return "attention that stores its scores serves this platform"
    if target not in TARGETS[platform]:
        return "XLA's product at highest precision serves this platform"
    return ""


@functools.cache
def fingerprint() -> str:
    """A hash of the package's version and Python sources, for compilation cache keys."""
    digest = hashlib.sha256(VERSION.encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache  # once per process: a program is lowered many times
def warn_missing_cuda() -> None:
    """Warns once that CUDA programs run the pure-JAX reference, and why."""
    warnings.warn(
        f"jaxkernels runs its pure-JAX reference on CUDA devices: {why_no_kernels('cuda')}",
        stacklevel=2,
    )


if _devices_without_code():
    warn_missing_cuda()


def status() -> list[TargetStatus]:
    """State of every target on every platform with kernels. Initialises JAX's backends."""
    found = []
    for platform, xla_platform in _XLA_PLATFORM.items():
        try:
            jax.devices(platform)
            no_device = ""
        except RuntimeError:
            no_device = f"JAX finds no {platform} device"
        for target in TARGETS["cuda"]:
            why = why_not_live(target, platform) or no_device
            found.append(TargetStatus(target, xla_platform, live=not why, why=why))
    return found


def versions() -> dict[str, str]:
    """Versions of all components that must be compatible, by name.

    `ffi_api_cuda` and `cuda_architectures` are absent without a CUDA module.
    """
    found = {
        "jaxkernels": VERSION,
        "python": python_platform.python_version(),
        "numpy": np.__version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "ffi_api_running": _dotted(_running_version),
        "ffi_api_cpu": _dotted(cpu_module.ffi_api_version()),
    }
    if cuda_module is not None:
        found["ffi_api_cuda"] = _dotted(cuda_module.ffi_api_version())
        found["cuda_architectures"] = cuda_module.architectures()
    return found
