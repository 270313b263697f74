"""The GPU that a plan targets: one of this machine, or a model known by name.

Owns: the default GPU. Must not know: what is planned.
"""

from typing import Any

import jax

from jaxkernels._core import registry
from jaxkernels._cpu import DeviceLimits
from jaxkernels.typing import Device, DeviceName

# The default on a machine without a CUDA device.
DEFAULT: DeviceName = "h200"
# Compute capabilities of well-known GPUs that are too old for the kernels.
_WITHOUT_KERNELS = {"t4": "7.5", "v100": "7.0"}


def limits_of(device: DeviceName | Device | None) -> DeviceLimits:
    """The limits of a device; None means the first CUDA device, or an H200 on a machine without one."""
    chosen: Any = default_device() if device is None else device
    if isinstance(chosen, str):
        known = registry.cpu_module.named_devices()
        name = chosen.lower()
        if name in _WITHOUT_KERNELS:
            raise ValueError(
                f"device {chosen!r} has compute capability {_WITHOUT_KERNELS[name]}, and kernels need "
                "8.0 or later: XLA's own operations run there"
            )
        if name not in known:
            raise ValueError(f"device must be one of {', '.join(sorted(known))}; got {chosen!r}")
        return known[name]
    if not isinstance(chosen, jax.Device):
        raise TypeError(f"device must be a name, a jax.Device or None; got {chosen!r}")
    if chosen.platform != "gpu" or registry.cuda_module is None:
        raise ValueError(
            f"device must be a CUDA device, and jaxkernels must be built for CUDA; got {chosen!r}"
        )
    limits = registry.cuda_module.device_limits(chosen.local_hardware_id)
    return registry.cpu_module.DeviceLimits(**limits)


def default_device() -> DeviceName | Device:
    """The first CUDA device if it has kernels, otherwise the name of an H200."""
    if not registry.has_cuda_module():
        return DEFAULT
    devices = registry.cuda_devices()
    return devices[0] if devices and registry.has_kernels("cuda") else DEFAULT
