"""One bar: what was asked for, what was reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """One bar: what was asked for, what was reached."""

    what: str
    reached: str
    bar: str
    passed: bool
