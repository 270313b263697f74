"""Types of command-line options, and their keywords for ``add_argument``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def count(text: str) -> int:
    """An option type: a positive integer, written as 268435456 or as 2^28.

    Example:
        >>> count("2^10"), count("1000")
        (1024, 1000)
    """
    base, _, exponent = text.partition("^")
    value = int(base) ** int(exponent or 1)
    if value < 1:
        raise ValueError(text)
    return value


def sizes(*ranks: int) -> Callable[[str], tuple[int, ...]]:
    """Makes an option type: positive sizes joined by "x"; their number must be one of `ranks`.

    Example:
        >>> sizes(1, 3)("64x4096x8")
        (64, 4096, 8)
    """

    def shape(text: str) -> tuple[int, ...]:
        found = tuple(int(part) for part in text.split("x"))
        if len(found) not in ranks or min(found) < 1:
            raise ValueError(text)
        return found

    return shape


def several(kind: Callable[[str], Any], metavar: str, text: str) -> dict[str, Any]:
    """The keywords of ``add_argument`` for an option with one or more values."""
    return {"nargs": "+", "type": kind, "metavar": metavar, "help": text}


def seeded(of: str, tuning: int, published: int, metavar: str = "N") -> dict[str, Any]:
    """The keywords of ``add_argument`` for a seed; the published seed is never used for tuning."""
    text = f"{of} (default: {tuning}, for tuning; {published} is what is published)"
    return {"type": int, "default": tuning, "metavar": metavar, "help": text}
