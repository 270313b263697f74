"""Shows that every planted mistake is noticed, and that results without a mistake pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxkernels.bench.tables import Table
from jaxkernels.verify import draw
from jaxkernels.verify.mistakes import MISTAKES
from jaxkernels.verify.run import Ran, judge, run

_PROGRAMS = 6  # that a mistake is planted into
_DRAWS = (0, 1, 2, 3, 4, 5)
_MOST_BUNDLES = 60


def check(seed: int, announce: Callable[[str], None] = lambda text: None) -> Table:
    """Plants every mistake into a few programs that have what it spoils.

    Programs run once; mistakes are planted into what they gave. Bundles are drawn until every mistake has its programs.

    Returns:
        A table with one row a mistake; its last cell is "pass", or "FAIL" if no program showed it.
    """
    noticed = dict.fromkeys(MISTAKES, 0)
    planted = dict.fromkeys(MISTAKES, 0)
    false_alarms = programs = 0
    for index in range(_MOST_BUNDLES):
        missing = [name for name, count in planted.items() if count < _PROGRAMS]
        if not missing:
            break
        announce(f"bundle {index}, {len(missing)} mistakes still lack programs")
        some = [
            dataclasses.replace(p, draws=len(_DRAWS))
            for p in draw.bundle(seed, index)
            if p.draws > len(_DRAWS) and any(MISTAKES[name].fits(p) for name in missing)
        ]
        for ran in run(some, threads=1, draws=_DRAWS) if some else ():
            programs += 1
            false_alarms += bool(judge(ran).failures)
            for name in missing:
                if MISTAKES[name].fits(ran.problem) and planted[name] < _PROGRAMS:
                    planted[name] += 1
                    noticed[name] += _is_noticed(name, ran)
    rows = [
        (name, str(planted[name]), str(noticed[name]), "pass" if noticed[name] else "FAIL")
        for name in MISTAKES
    ]
    verdict = "FAIL" if false_alarms else "pass"
    rows.append(("none", str(programs), str(false_alarms), verdict))
    return Table("Planted mistakes", ("mistake", "programs", "noticed", ""), tuple(rows))


def _is_noticed(name: str, ran: Ran) -> bool:
    return bool(judge(MISTAKES[name].spoil(ran)).failures)
