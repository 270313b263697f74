"""Which cuDNN a program of this process would run.

Owns: where it is looked for. Must not know: what it is needed for.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import re

# The packages from which JAX takes the library, before any other that the machine has.
_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
_LIBRARY = "libcudnn.so.9"


@functools.cache
def cudnn_version() -> int | None:
    """The version as cuDNN counts it, 91002 for 9.10.2; None where there is no cuDNN 9."""
    for package in _PACKAGES:
        try:
            return number_of(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        return int(ctypes.CDLL(_LIBRARY).cudnnGetVersion())
    except (OSError, AttributeError):
        return None


def number_of(version: str) -> int:
    """The number of a version such as "9.10.2.21".

    Example:
        >>> number_of("9.10.2.21")
        91002
    """
    major, minor, patch = (int(n) for n in (*re.findall(r"\d+", version)[:3], 0, 0)[:3])
    return 10000 * major + 100 * minor + patch
