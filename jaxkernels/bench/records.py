"""Records: the measurements of one contender in one case, one line of JSON each.

A file of ``--json`` has a line for the run (suite, environment, settings), then a line for each record.
Tables, plots and comparisons use only records.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 2

# The fields of a problem, text and numbers, by name.
Case = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """The measurement of one contender in one case."""

    case: Case
    contender: str  # such as "xla", "copy" or "ours"
    seconds: float | None = None  # median time of one operation
    samples: Sequence[float] = ()  # the times from which the median comes
    extra: dict[str, Any] = field(default_factory=dict)  # further values by name
    refused: str = ""  # the reason why the time, or a value of `extra`, is missing

    @property
    def spread(self) -> float:
        """The interquartile range of the samples, relative to the median."""
        if len(self.samples) < 2:
            return 0.0
        first, median, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (third - first) / median


@dataclass(frozen=True)
class Measured:
    """One case with the records of all contenders; `contender` is that of a table's line, if any."""

    case: Case
    records: Mapping[str, Record]
    contender: str = ""

    def __getitem__(self, name: str) -> Any:
        """A field of the case; None if it has no such field."""
        return self.case.get(name)

    def seconds(self, contender: str = "") -> float | None:
        """The median time of a contender; None if it was not timed."""
        record = self.records.get(contender or self.contender)
        seconds = None if record is None else record.seconds
        return seconds if seconds is not None and 0 < seconds < math.inf else None

    def rate(self, amount: float, contender: str = "") -> float | None:
        """An amount per second; None without a time."""
        seconds = self.seconds(contender)
        return None if seconds is None else amount / seconds

    def ratio(self, peer: str, contender: str = "") -> float | None:
        """The peer's time divided by the contender's; None without both times."""
        slow = self.seconds(peer)
        return None if slow is None else self.rate(slow, contender)

    def extra(self, contender: str, *names: str) -> Any:
        """A value of a contender's `extra`, at a path of names; None if unknown."""
        record = self.records.get(contender or self.contender)
        found: Any = {} if record is None else record.extra
        for name in names:
            found = (found or {}).get(name)
        return found


@dataclass(frozen=True)
class Run:
    """One run: its environment, settings and records."""

    suite: str
    environment: dict[str, Any]  # from `environment.describe`
    settings: dict[str, Any]  # the options of the measurement
    records: tuple[Record, ...]

    @property
    def platform(self) -> str:
        """The platform of the run's device: "cpu" or "gpu"."""
        return self.environment["platform"]

    @property
    def measured(self) -> list[Measured]:
        """The cases of the run, in the order in which they were measured."""
        found: dict[str, dict[str, Record]] = {}
        for record in self.records:
            found.setdefault(key_of(record.case), {})[record.contender] = record
        return [Measured(next(iter(group.values())).case, group) for group in found.values()]


def key_of(case: Case) -> str:
    """A text that is equal for equal cases."""
    return json.dumps(case, sort_keys=True)


def write(run: Run, path: Path) -> None:
    """Writes a run as lines of JSON: one about the run, then one for each record's nonempty fields."""
    about = {"schema": SCHEMA, "suite": run.suite}
    about |= {"environment": run.environment, "settings": run.settings}
    of_records = ({k: v for k, v in asdict(r).items() if v} for r in run.records)
    lines = (json.dumps(line, default=str) + "\n" for line in (about, *of_records))
    path.write_text("".join(lines))


def read(path: Path, suite: str | None = None) -> Run:
    """Reads the file of a run; raises ValueError if it is not a run of the suite (None: of any)."""
    try:
        about, *lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        if about["schema"] != SCHEMA or suite not in (None, about["suite"]):
            found = f"{about['suite']} of schema {about['schema']}"
            raise ValueError(f"expected {suite or 'a benchmark'} of schema {SCHEMA}, got {found}")
        records = tuple(Record(**line) for line in lines)
        return Run(about["suite"], about["environment"], about["settings"], records)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no run of a benchmark: {error!r}") from error
