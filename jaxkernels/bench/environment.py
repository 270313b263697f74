"""What a measured number depends on: device, driver, versions, date and command."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jax

_PACKAGES = ("jaxkernels", "jax", "jaxlib", "numpy")


def _nvidia_driver() -> str:
    """Returns the version of the NVIDIA driver, or an empty string where it cannot be asked."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = answer.stdout.split()
    return lines[0] if lines else ""


def _cpu_name() -> str:
    """Returns the model name of the CPU."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _cpu_count() -> int:
    """Returns the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def describe_environment(benchmark: str, command_line: Sequence[str]) -> dict[str, str]:
    """Describes the machine and the software of this run.

    Args:
        benchmark: the sub-command, for the command that makes the run again.
        command_line: the arguments after ``python -m jaxkernels.bench``.

    Returns:
        ``device``, ``platform``, ``driver`` (empty if unknown), ``date`` (UTC), ``command``,
        ``python`` and one entry per package with its version.
    """
    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    name = f"{_cpu_name()}, {_cpu_count()} cores" if on_cpu else device.device_kind
    arguments = list(command_line) or [benchmark]
    return {
        "device": name,
        "platform": device.platform,
        "driver": "" if on_cpu else _nvidia_driver(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": "python -m jaxkernels.bench " + shlex.join(arguments),
        "python": platform.python_version(),
        **{package: _version_of(package) for package in _PACKAGES},
    }


def summarise_environment(environment: dict[str, str]) -> str:
    """Returns one line: device, driver, versions and date.

    Example:
        >>> summarise_environment({"device": "H200", "driver": "580", "jax": "0.11.2",
        ...                        "jaxkernels": "0.1.0", "date": "2026-11-21"})
        'H200, driver 580, JAX 0.11.2, jaxkernels 0.1.0, 2026-11-21'
    """
    parts = [environment["device"]]
    if environment.get("driver"):
        parts.append(f"driver {environment['driver']}")
    parts.append(f"JAX {environment['jax']}")
    if environment.get("jaxkernels"):
        parts.append(f"jaxkernels {environment['jaxkernels']}")
    parts.append(environment["date"])
    return ", ".join(parts)
