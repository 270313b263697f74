"""The comparison of two runs, of made-up times."""

import dataclasses
import re

import pytest

pytest.importorskip("rich")

from bench_cases import run_of

from jaxkernels.bench import records, regress
from jaxkernels.bench.__main__ import main
from jaxkernels.bench.records import Measured, Record

CELLS = [f"cell {n}" for n in range(6)]
NONE = {"seconds": None, "samples": [], "refused": "out of memory"}


def written(folder, name, device="H200", cells=CELLS, **changed):
    """The file of a run without spread; `_n` of `changed` has fields of the n-th record."""
    found = []
    for number, cell in enumerate(cells, 1):
        case = {"group": "rows", "cell": cell}
        record = Record(case, "ours", number * 1e-6, [number * 1e-6] * 3)
        record = dataclasses.replace(record, **changed.get(f"_{number}", {}))
        found.append(Measured(case, {"ours": record}))
    run = dataclasses.replace(run_of(found, device=device), suite="regress")
    records.write(run, folder / f"{name}.json")
    return folder / f"{name}.json"


def times(factor, number):
    return {"seconds": factor * number * 1e-6, "samples": [factor * number * 1e-6] * 3}


def against(old, new, *options):
    return main(["regress", "--from-json", str(new), "--against", str(old), *options])


def test_a_run_is_not_slower_than_itself(tmp_path, capsys):
    same = written(tmp_path, "same")
    assert against(same, same, "--markdown") == 0
    out = capsys.readouterr().out
    assert "no cell slower, of 6" in out
    assert "| cell | us | spread |" in out
    assert "| cell 0 | 1.00 | 0.00% |" in out


@pytest.mark.parametrize("options", [(), ("--markdown",)])
def test_changed_cells_are_listed(options, tmp_path, capsys):
    """A slower one fails, and one that is refused now; one that came back does not."""
    old = written(tmp_path, "old")
    new = written(tmp_path, "new", _1=NONE, _4=times(1.2, 4), _6=times(1 / 1.2, 6))
    assert against(old, new, *options) == 1
    table = capsys.readouterr().out.split("against ")[1]
    assert re.findall(r"^(?:\| )?(cell \d)", table, re.MULTILINE) == ["cell 3", "cell 5"]
    assert "1 cell slower, of 5" in table
    assert table.index("slower") < table.index("faster")
    assert "lost: cell 0: out of memory" in table
    assert against(old, written(tmp_path, "refused", _1=NONE)) == 1
    back = written(tmp_path, "back", _4=times(1.2, 4), _6=times(1 / 1.2, 6))
    assert against(new, back) == 0


def test_runs_that_have_other_cells_or_machines(tmp_path, capsys):
    same, less = written(tmp_path, "same"), written(tmp_path, "less", cells=CELLS[:1])
    assert against(same, less) == 0
    assert "in one of the runs only: cell 1 and 4 more" in capsys.readouterr().out
    assert against(same, written(tmp_path, "other", cells=["another"])) == 2
    assert "no cell in common" in capsys.readouterr().err
    assert against(written(tmp_path, "other", device="another"), same) == 2
    assert "different machines" in capsys.readouterr().err
    records.write(dataclasses.replace(records.read(same), suite="sgemm"), same)
    assert against(same, same) == 2


@pytest.mark.parametrize(
    ("old", "new", "slower"),
    [
        ([1.0] * 5, [1.019] * 5, False),
        ([1.0] * 5, [1.021] * 5, True),
        ([0.98, 1.0, 1.0, 1.0, 1.02], [1.021] * 5, True),  # one far sample is not the quartile
        ([0.95, 0.97, 1.0, 1.03, 1.05], [1.07] * 5, False),  # 2 % and 6 % of spread
        ([0.95, 0.97, 1.0, 1.03, 1.05], [1.09] * 5, True),
        ([1.0] * 5, [0.8, 0.95, 1.07, 1.2, 1.5], False),  # the later run's spread counts as well
        ([1.0], [1.03], True),
    ],
)
def test_slower_means_beyond_two_percent_and_the_spread(old, new, slower):
    def ours(samples):
        return Record({"cell": "a"}, "ours", sorted(samples)[len(samples) // 2], samples)

    assert (regress.change(ours(old), ours(new)) == "slower") == slower
    assert (regress.change(ours(new), ours(old)) == "faster") == slower
