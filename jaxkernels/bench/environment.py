"""What a measured number depends on: device, driver, versions, date and command."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path

import jax
import jaxlib
import numpy

import jaxkernels


def _nvidia_driver() -> str:
    """The version of the NVIDIA driver; empty where it cannot be asked."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(answer.stdout.split()), "")


def _cpu() -> str:
    """The CPU and how many of its cores this process may use."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1].strip() if found else platform.processor() or platform.machine()
    may_use = getattr(os, "sched_getaffinity", None)
    return f"{name}, {len(may_use(0)) if may_use else os.cpu_count()} cores"


def describe(command: str) -> dict[str, str]:
    """Describes the machine and the software of a run, and the command that makes it again."""
    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    return {
        "device": _cpu() if on_cpu else device.device_kind,
        "platform": device.platform,
        "driver": "" if on_cpu else _nvidia_driver(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        "python": platform.python_version(),
        **{module.__name__: module.__version__ for module in (jaxkernels, jax, jaxlib, numpy)},
    }


def summarise(environment: dict[str, str]) -> str:
    """One line: device, driver, versions and date.

    Example:
        >>> summarise({"device": "H200", "driver": "580", "jax": "0.11.2", "date": "2026-11-21"})
        'H200, driver 580, JAX 0.11.2, 2026-11-21'
    """
    heads = {"device": "", "driver": "driver ", "jax": "JAX ", "jaxkernels": "jaxkernels "}
    names = {**heads, "date": ""}
    return ", ".join(f"{head}{environment[n]}" for n, head in names.items() if environment.get(n))
