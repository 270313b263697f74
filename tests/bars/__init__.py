"""What this project asks of a benchmark's numbers: ``python -m tests.bars FILE.json ...``

The benchmarks of the package measure, and judge nothing; the JSON file of a run (``--json``) is what is held against
the bars here. They are for the machines that they were set on: a GPU of a data centre, and a CPU.

* ``bar``: the form of a bar, and what was reached.
* ``softmax``, ``logsumexp``, ``losses``, ``linear_loss``, ``sgemm``, ``attention``, ``scaling``: the bars of a suite, by platform.
* ``__main__``: the command. Its exit status is 1 if a bar is not reached, 2 if a file cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxkernels.bench.__main__ import SUITES
from jaxkernels.bench.records import Measured, Run

from . import attention, linear_loss, logsumexp, losses, scaling, sgemm, softmax
from .bar import Bar, Verdict

BARS: dict[str, dict[str, Sequence[Bar]]] = {
    "softmax": softmax.BARS,
    "logsumexp": logsumexp.BARS,
    "losses": losses.BARS,
    "linear_loss": linear_loss.BARS,
    "sgemm": sgemm.BARS,
    "attention": attention.BARS,
    "scaling": scaling.BARS,
}
_LABELS = {suite.name: suite.label for suite in SUITES}


def judge(suite: str, measured: Iterable[Measured], platform: str) -> list[Verdict]:
    """All verdicts on the cases of a suite."""
    cases = list(measured)
    bars = BARS[suite]["cpu" if platform == "cpu" else "gpu"]
    return [verdict for bar in bars for verdict in bar.verdicts(cases, _LABELS[suite])]


def judge_run(run: Run) -> list[Verdict]:
    """All verdicts on a run.

    Raises:
        ValueError: if there are no bars for its suite.
    """
    if run.suite not in BARS:
        raise ValueError(f"no bars for a benchmark {run.suite!r}")
    return judge(run.suite, run.measured, run.platform)
