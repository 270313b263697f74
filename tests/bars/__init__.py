"""What this project asks of a benchmark's numbers: ``python -m tests.bars FILE.json ...``

The benchmarks of the package measure, and judge nothing; the JSON file of a run (``--json``) is what is held against
the bars here. They are for the machines that they were set on: a GPU of a data centre, and a CPU.

* ``verdict``: one bar, and what was reached.
* ``softmax``, ``sgemm``, ``attention``, ``scaling``: the bars of a benchmark.
* ``__main__``: the command. Its exit status is 1 if a bar is not reached, 2 if a file cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from jaxkernels.bench import runner
from jaxkernels.bench.attention.command import BENCHMARK as ATTENTION
from jaxkernels.bench.scaling.command import BENCHMARK as SCALING
from jaxkernels.bench.sgemm.command import BENCHMARK as SGEMM
from jaxkernels.bench.softmax.command import BENCHMARK as SOFTMAX

from . import attention, scaling, sgemm, softmax
from .verdict import Verdict

_JUDGES: dict[str, tuple[runner.Benchmark, Callable[..., list[Verdict]]]] = {
    "softmax": (SOFTMAX, softmax.judge),
    "sgemm": (SGEMM, sgemm.judge),
    "attention": (ATTENTION, attention.judge),
    "scaling": (SCALING, scaling.judge),
}


def judge_file(path: Path) -> list[Verdict]:
    """All verdicts on the run that a JSON file keeps.

    Raises:
        ValueError: if there are no bars for it, or it is no file of a benchmark.
    """
    text = path.read_text()
    content = json.loads(text)
    name = content.get("benchmark") if isinstance(content, dict) else None
    if name not in _JUDGES:
        raise ValueError(f"no bars for a benchmark {name!r}")
    benchmark, judge = _JUDGES[name]
    run = benchmark.from_json(text)
    # A run of few rows, which have no bars, has a section of its own.
    sections = [members for section, members in run.sections.items() if section != "few_rows"]
    return judge(*sections, run.environment["platform"])
