"""Types of options: counts, and sizes joined by "x"."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def count(text: str) -> int:
    """Parses a positive integer written as 268435456 or as 2^28.

    Raises:
        argparse.ArgumentTypeError: if the text is neither, or the number is not positive.

    Example:
        >>> count("2^10"), count("1000")
        (1024, 1000)
    """
    base, _, exponent = text.replace("**", "^").partition("^")
    try:
        value = int(base) ** int(exponent) if exponent else int(base)
    except ValueError:
        value = 0
    if value < 1:
        expected = "expected a positive count such as 4096 or 2^12"
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return value


def sizes(form: str, *ranks: int) -> Callable[[str], tuple[int, ...]]:
    """Returns a parser of sizes joined by "x".

    Args:
        form: what is expected, for the message of an error.
        ranks: how many sizes there may be.

    Example:
        >>> sizes("mxnxk", 3)("64x4096x8")
        (64, 4096, 8)
    """

    def parse(text: str) -> tuple[int, ...]:
        parts = text.split("x")
        if len(parts) in ranks and all(part.isdigit() and int(part) > 0 for part in parts):
            return tuple(int(part) for part in parts)
        raise argparse.ArgumentTypeError(f"expected {form}, got {text!r}")

    return parse


def several(kind: Callable[[str], Any], metavar: str, text: str) -> dict[str, Any]:
    """What ``add_argument`` takes for an option of one value or more."""
    return {"nargs": "+", "type": kind, "metavar": metavar, "help": text}
