"""This project's demands on a benchmark's numbers: ``python -m tests.bars FILE.json ...``

The benchmarks of the package measure, and judge nothing; the JSON file of a run (``--json``) is
held against the bars here.

* ``bar``: the form of a bar, and the value that was reached.
* ``suites``: the bars of every suite, by platform.
* ``__main__``: the command. It exits with 1 if a bar is not reached, 2 if a file cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxkernels.bench.__main__ import SUITES
from jaxkernels.bench.records import Measured

from .bar import Verdict
from .suites import BARS

_LABELS = {suite.name: suite.label for suite in SUITES}


def judge(suite: str, measured: Iterable[Measured], platform: str) -> list[Verdict]:
    """All verdicts on the cases of a suite; ValueError if there are no bars for it."""
    if suite not in BARS:
        raise ValueError(f"no bars for a benchmark {suite!r}")
    cases = list(measured)
    bars = BARS[suite]["cpu" if platform == "cpu" else "gpu"]
    return [verdict for bar in bars for verdict in bar.verdicts(cases, _LABELS[suite])]
