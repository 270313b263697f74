"""What a measured number depends on: device, driver, clock and power, versions, commit, date and command."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jaxlib
import numpy

import jaxkernels

# Text by name; None where nothing tells.
Environment: TypeAlias = dict[str, Any]

# What nvidia-smi is asked for, by the name in the file of a run.
_DRIVER = {"driver": "driver_version"}
_GPU_STATE = {
    "sm_clock": "clocks.sm",
    "most_sm_clock": "clocks.max.sm",
    "power": "power.draw",
    "power_limit": "enforced.power.limit",
}


# What a suite may compare with.
_PEERS = ("flax", "optax", "torch")


def _answer(*command: str) -> str:
    """What a program prints; nothing where it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return ran.stdout.strip()
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""


def _asked(fields: Mapping[str, str], *of_gpu: str) -> dict[str, str | None]:
    """What nvidia-smi says of a GPU, or of the first; None where nothing tells."""
    query = f"--query-gpu={','.join(fields.values())}"
    values = _answer("nvidia-smi", *of_gpu, query, "--format=csv,noheader").partition("\n")[0]
    if values.count(", ") != len(fields) - 1 or not values:
        return dict.fromkeys(fields)
    found = dict(zip(fields, values.split(", "), strict=True))
    # In brackets it says why there is no value.
    return {name: None if value.startswith("[") else value for name, value in found.items()}


def _gpu_state() -> dict[str, str | None]:
    """The driver, and the clock of the SMs and the power of the first GPU that CUDA may use.

    CUDA and nvidia-smi number GPUs of one kind alike. The driver is asked for alone, so that it is
    known where the rest is not.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    return _asked(_DRIVER) | _asked(_GPU_STATE, f"--id={first}")


def _nvcc() -> str | None:
    """The version of the CUDA compiler, the one on the path or of the usual place."""
    for command in ("nvcc", "/usr/local/cuda/bin/nvcc"):
        if found := re.search(r"\bV([\d.]+)", _answer(command, "--version")):
            return found[1]
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The CPU and how many of its cores this process may use."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1].strip() if found else platform.processor() or platform.machine()
    may_use = getattr(os, "sched_getaffinity", None)
    return f"{name}, {len(may_use(0)) if may_use else os.cpu_count()} cores"


def describe(command: str) -> Environment:
    """Describes the machine and the software of a run, and the command that makes it again.

    Called when all has been measured, so that the clock and the power are those of a GPU that has just
    been busy. They are not those of a certain program.
    """
    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    return {
        "device": _cpu() if on_cpu else device.device_kind,
        "platform": device.platform,
        **(dict.fromkeys((*_DRIVER, *_GPU_STATE)) if on_cpu else _gpu_state()),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        # Of the folder in which the command ran, which is a clone's.
        "commit": _answer("git", "describe", "--always", "--dirty", "--abbrev=10") or None,
        "nvcc": None if on_cpu else _nvcc(),
        "python": platform.python_version(),
        **{module.__name__: module.__version__ for module in (jaxkernels, jax, jaxlib, numpy)},
        **{package: _version(package) for package in _PEERS},
    }


def _of(environment: Environment, head: str, value: str, most: str) -> str | None:
    """A value beside its limit, as far as they are known; None without a value."""
    found, limit = environment.get(value), environment.get(most)
    return found and f"{head}{found}" + (f" of {limit}" if limit else "")


def summarise(environment: Environment) -> str:
    """One line: device, its clock and power, driver, versions and date.

    Example:
        >>> summarise({"device": "H200", "driver": "580", "jax": "0.11.2", "date": "2026-11-21"})
        'H200, driver 580, JAX 0.11.2, 2026-11-21'
        >>> clock = {"sm_clock": "1830 MHz", "most_sm_clock": "1980 MHz"}
        >>> summarise({"device": "H200", **clock, "driver": "580"})
        'H200, SMs at 1830 MHz of 1980 MHz, driver 580'
    """
    state = {
        "clock": _of(environment, "SMs at ", "sm_clock", "most_sm_clock"),
        "watts": _of(environment, "", "power", "power_limit"),
    }
    environment = {**environment, **state}
    heads = {"device": "", "clock": "", "watts": "", "driver": "driver ", "jax": "JAX "}
    names = {**heads, "jaxkernels": "jaxkernels ", "date": ""}
    return ", ".join(f"{head}{environment[n]}" for n, head in names.items() if environment.get(n))
