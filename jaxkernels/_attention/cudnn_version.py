"""The version of cuDNN that programs of this process use.

Owns: the search for cuDNN. Must not know: who needs it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import re

# The packages from which JAX loads cuDNN, in preference to the system's.
_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
_LIBRARY = "libcudnn.so.9"


@functools.cache
def cudnn_version() -> int | None:
    """The version in cuDNN's format, 91002 for 9.10.2; None without cuDNN 9."""
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
    """Converts a version such as "9.10.2.21" to cuDNN's format.

    Example:
        >>> number_of("9.10.2.21")
        91002
    """
    major, minor, patch = (int(n) for n in (*re.findall(r"\d+", version)[:3], 0, 0)[:3])
    return 10000 * major + 100 * minor + patch
