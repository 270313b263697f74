"""Records: what was measured of one contender in one case, one line of JSON each.

A file of ``--json`` has a line for the run (suite, environment, settings) and then a line for each
record. Tables, pictures, bars and comparisons are made of records alone, so they are the same from
a run and from its file.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 2

# The fields that say what was measured: text and numbers by name.
Case = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """What was measured of one contender in one case.

    Attributes:
        suite: name of the benchmark.
        case: the fields that say what was measured.
        contender: who did it, such as "xla", "copy" or "ours".
        seconds: median time of one operation; None without a time.
        samples: the times behind the median.
        extra: what else is known of the contender, by name.
        refused: why there is no time, or why something of `extra` is not there; else empty.
    """

    suite: str
    case: Case
    contender: str
    seconds: float | None = None
    samples: Sequence[float] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    refused: str = ""

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of the samples; of one sample, that."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return first, third

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a part of the median."""
        first, third = self.quartiles
        return (third - first) / statistics.median(self.samples)


@dataclass(frozen=True)
class Measured:
    """One case with the records of all its contenders.

    Attributes:
        case: the fields that say what was measured.
        records: by contender.
        contender: the one that a line of a table is about; empty where it is about all of them.
    """

    case: Case
    records: Mapping[str, Record]
    contender: str = ""

    def __getitem__(self, name: str) -> Any:
        """A field of the case; None if it has none of this name."""
        return self.case.get(name)

    def seconds(self, contender: str = "") -> float | None:
        """The median time of a contender, or of the line's own; None if it has none."""
        record = self.records.get(contender or self.contender)
        seconds = None if record is None else record.seconds
        return seconds if seconds is not None and 0 < seconds < math.inf else None

    def rate(self, amount: float, contender: str = "") -> float | None:
        """An amount per second of a contender's, or of the line's own; None without a time."""
        seconds = self.seconds(contender)
        return None if seconds is None else amount / seconds

    def ratio(self, peer: str, contender: str = "") -> float | None:
        """How many times faster than a peer a contender, or the line's own, is; None without both."""
        slow, fast = self.seconds(peer), self.seconds(contender)
        return None if slow is None or fast is None else slow / fast

    def extra(self, contender: str, name: str) -> Any:
        """What else is known of a contender, or, where it is empty, of the line's own; or None."""
        record = self.records.get(contender or self.contender)
        return None if record is None else record.extra.get(name)


@dataclass(frozen=True)
class Run:
    """One run: where, how, and what came out.

    Attributes:
        suite: name of the benchmark.
        environment: as `environment.describe_environment` gives it.
        settings: the options by which it was measured.
        records: all that was measured.
    """

    suite: str
    environment: dict[str, str]
    settings: dict[str, Any]
    records: tuple[Record, ...]

    @property
    def platform(self) -> str:
        """The platform of the run's device: "cpu" or "gpu"."""
        return self.environment["platform"]

    @property
    def measured(self) -> list[Measured]:
        """The cases of the run, in the order in which they were measured."""
        return by_case(self.records)


def key_of(case: Case) -> str:
    """A text that equal cases have in common."""
    return json.dumps(case, sort_keys=True)


def by_case(records: Iterable[Record]) -> list[Measured]:
    """Brings the records of each case together.

    Example:
        >>> a, b = (Record("s", {"cols": 8}, name, seconds) for name, seconds in (("a", 2.0), ("b", 1.0)))
        >>> [m.ratio("a", "b") for m in by_case([a, b])]
        [2.0]
    """
    found: dict[str, dict[str, Record]] = {}
    for record in records:
        found.setdefault(key_of(record.case), {})[record.contender] = record
    return [Measured(next(iter(group.values())).case, group) for group in found.values()]


def write(run: Run, path: Path) -> None:
    """Writes a run: a line of JSON about it, then one for each record."""
    about = {"schema": SCHEMA, "suite": run.suite}
    about |= {"environment": run.environment, "settings": run.settings}
    lines = [about, *(asdict(record) for record in run.records)]
    path.write_text("".join(json.dumps(line, default=str) + "\n" for line in lines))


def read(path: Path, suite: str | None = None) -> Run:
    """Reads what `write` wrote.

    Args:
        path: the file.
        suite: name of the benchmark that it has to be of; None for any.

    Raises:
        ValueError: if it is no file of that benchmark.
        OSError: if it cannot be read.
    """
    text = path.read_text()
    try:
        about, *lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        about, lines = _first_schema(json.loads(text))
    found = (about.get("suite"), about.get("schema")) if isinstance(about, dict) else None
    if found is None or found[1] != SCHEMA or suite not in (None, found[0]):
        wanted = f"a {suite} benchmark" if suite else "a benchmark"
        raise ValueError(f"expected {wanted} of schema {SCHEMA}, got {found}")
    try:
        records = tuple(Record(**line) for line in lines)
        return Run(about["suite"], about["environment"], about["settings"], records)
    except (KeyError, TypeError) as error:
        raise ValueError(f"damaged: {error}") from error


def _first_schema(content: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A run of regress as version 0.1's first files kept it, so that old kernels can be compared.

    Anything else is returned as it is, for `read` to refuse.
    """
    kind = (content.get("benchmark"), content.get("schema")) if isinstance(content, dict) else None
    if kind != ("regress", 1):
        return {"suite": kind and kind[0], "schema": kind and kind[1]}, []
    lines = [
        {
            "suite": "regress",
            "case": {"group": cell["group"], "cell": cell["label"]},
            "contender": "ours",
            "seconds": statistics.median(cell["samples"]) if cell["samples"] else None,
            "samples": cell["samples"],
            "refused": cell["refused"],
        }
        for cell in content["cells"]
    ]
    return {**content, "suite": "regress", "schema": SCHEMA}, lines
