"""The conditions of a run: device, driver, clock, power, versions, commit, date and command."""

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy

import jaxkernels

# Fields to query from nvidia-smi, by their names in the file of a run.
_GPU_STATE = {
    "driver": "driver_version",
    "sm_clock": "clocks.sm",
    "most_sm_clock": "clocks.max.sm",
    "power": "power.draw",
    "power_limit": "enforced.power.limit",
}
# Packages that suites compare with.
_PEERS = ("flax", "optax", "torch")


def _answer(*command: str) -> str:
    """The output of a program; empty if it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return ran.stdout.strip()
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""


def _gpu_state() -> dict[str, str | None]:
    """The driver, and the SM clock and power of the first visible GPU.

    CUDA and nvidia-smi number GPUs of one model in the same order. Each field has its own query, so that
    one failure does not hide others. The driver's query names no GPU.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"

    def ask(name: str, field: str) -> str | None:
        of_gpu = [] if name == "driver" else [f"--id={first}"]
        command = ("nvidia-smi", *of_gpu, f"--query-gpu={field}", "--format=csv,noheader")
        found = _answer(*command).partition("\n")[0]
        # A value starts with a digit; nvidia-smi prints reasons in brackets and errors as sentences.
        return found if re.match(r"\d", found) else None

    return {name: ask(name, field) for name, field in _GPU_STATE.items()}


def _nvcc() -> str | None:
    """The version of the CUDA compiler on the path, or else in /usr/local/cuda."""
    for command in ("nvcc", "/usr/local/cuda/bin/nvcc"):
        if found := re.search(r"\bV([\d.]+)", _answer(command, "--version")):
            return found[1]
    return None


def _cpu() -> str:
    """The CPU, and the number of cores that this process may use."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1].strip() if found else platform.processor() or platform.machine()
    may_use = getattr(os, "sched_getaffinity", None)
    return f"{name}, {len(may_use(0)) if may_use else os.cpu_count()} cores"


def describe(command: str) -> dict[str, Any]:
    """Describes the machine and the software of a run, and the command that repeats it; None: unknown.

    It is called at the end of a run, when clock and power are those of a busy GPU, though of no
    particular program.
    """
    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    return {
        "device": _cpu() if on_cpu else device.device_kind,
        "platform": device.platform,
        **(dict.fromkeys(_GPU_STATE) if on_cpu else _gpu_state()),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        # git describes the current folder, which is expected to be a clone.
        "commit": _answer("git", "describe", "--always", "--dirty", "--abbrev=10") or None,
        "nvcc": None if on_cpu else _nvcc(),
        "python": platform.python_version(),
        **{module.__name__: module.__version__ for module in (jaxkernels, jax, jaxlib, numpy)},
        **dict.fromkeys(_PEERS),
        **{d.name: d.version for d in importlib.metadata.distributions() if d.name in _PEERS},
    }


def summarise(environment: dict[str, Any]) -> str:
    """One line with the device, its clock and power, the driver, versions and the date.

    Example:
        >>> clock = {"sm_clock": "1830 MHz", "most_sm_clock": "1980 MHz"}
        >>> power = {"power": "612 W", "power_limit": "700 W"}
        >>> summarise({"device": "H200", **clock, **power, "driver": "580", "jax": "0.11.2"})
        'H200, SMs at 1830 MHz of 1980 MHz, 612 W of 700 W, driver 580, JAX 0.11.2'
    """
    heads = {"device": "", "sm_clock": "SMs at ", "power": "", "driver": "driver ", "jax": "JAX "}
    heads |= {"jaxkernels": "jaxkernels ", "date": ""}
    limits = {"sm_clock": "most_sm_clock", "power": "power_limit"}
    said = []
    for name, head in heads.items():
        if value := environment.get(name):
            limit = environment.get(limits.get(name, ""))
            said.append(f"{head}{value}" + (f" of {limit}" if limit else ""))
    return ", ".join(said)
