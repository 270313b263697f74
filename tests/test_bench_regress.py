"""The comparison of two runs: small cells of every group, and comparisons of made-up times."""

import itertools
import json

import pytest

pytest.importorskip("rich")

import jaxkernels as jk
from jaxkernels.bench.__main__ import main
from jaxkernels.bench.attention.cases import Shape
from jaxkernels.bench.regress import cases, compare, measure
from jaxkernels.bench.sgemm.cases import Product

QUICK = ["--repeats", "3", "--min-sample-ms", "0.1"]
SMALL = cases.Cells(
    rows=(
        cases.Rows("softmax", "fwd", "float32", 4, 33),
        cases.Rows("log_softmax", "grad", "float32", 4, 33),
        cases.Rows("softmax", "grad", "bfloat16", 4, 33),
    ),
    few_rows=(cases.Rows("softmax", "grad", "float32", 1, 8),),
    scores=tuple(
        cases.Heads("scores", "float32", variant, "both", Shape(1, 2, 8))
        for variant in ("plain", "mask", "causal")
    ),
    layers=(cases.Heads("layers", "bfloat16", "causal", "fwd", Shape(1, 2, 8, 4)),),
    products=(Product("square", 1, 16, 16, 16), Product("other", 3, 8, 8, 8)),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("regress") / "b.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "cells_of", lambda platform: SMALL)
        assert main(["regress", *QUICK, "--json", str(path)]) == 0
    return path


def changed(run, name, change):
    """A copy of the run's file, in which `change` was applied to what the JSON holds."""
    content = json.loads(run.read_text())
    change(content)
    path = run.with_name(f"{name}.json")
    path.write_text(json.dumps(content))
    return path


def steady(content):
    """Times without any spread: a test does not depend on how long anything takes."""
    for number, cell in enumerate(content["cells"], 1):
        cell["samples"] = [number * 1e-6] * 3


def against(old, new, *options):
    return main(["regress", "--from-json", str(new), "--against", str(old), *options])


def test_json_has_every_cell_with_its_samples_and_the_device(run):
    content = json.loads(run.read_text())
    assert content["benchmark"] == "regress"
    assert content["environment"]["device"]
    assert [cell["group"] for cell in content["cells"]] == [
        group for group in cases.GROUPS for _ in getattr(SMALL, group)
    ]
    for cell in content["cells"]:
        assert cell["refused"] == ""
        assert len(cell["samples"]) == 3
        assert min(cell["samples"]) > 0


def test_tables_show_median_and_quartiles(run, capsys):
    assert main(["regress", "--from-json", str(run), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| cell | us | first quartile | third | spread |" in out
    for cell in json.loads(run.read_text())["cells"]:
        assert f"| {cell['label']} |" in out


def test_a_run_is_not_slower_than_itself(run, capsys):
    same = changed(run, "same", steady)
    assert against(same, same) == 0
    assert "no cell slower, of 10" in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("--markdown",)])
def test_a_slower_cell_is_listed_and_fails(run, capsys, options):
    def slow(content):
        steady(content)
        content["cells"][3]["samples"] = [1.03 * s for s in content["cells"][3]["samples"]]
        content["cells"][5]["samples"] = [0.9 * s for s in content["cells"][5]["samples"]]

    assert against(changed(run, "same", steady), changed(run, "slow", slow), *options) == 1
    out = capsys.readouterr().out
    table = out[out.index("against ") :]
    labels = [cell["label"] for cell in json.loads(run.read_text())["cells"]]
    assert [label for label in labels if label in table] == [labels[3], labels[5]]
    assert "1.030" in table
    assert "1 cell slower, of 10" in table


def test_a_cell_that_is_refused_now_fails(run, capsys):
    def refuse(content):
        steady(content)
        content["cells"][0] |= {"samples": [], "refused": "out of memory"}

    same, refused = changed(run, "same", steady), changed(run, "refused", refuse)
    assert against(same, refused) == 1
    assert "out of memory" in capsys.readouterr().out
    assert against(refused, same) == 0  # it came back


def test_cells_of_one_run_only_are_said(run, capsys):
    def less(content):
        steady(content)
        del content["cells"][1:]

    def other(content):
        less(content)
        content["cells"][0]["label"] = "another"

    same = changed(run, "same", steady)
    assert against(same, changed(run, "less", less)) == 0
    assert "in one of the runs only: " in capsys.readouterr().out
    assert against(same, changed(run, "other", other)) == 2
    assert "no cell in common" in capsys.readouterr().err


def test_other_machines_and_other_files_are_refused(run, tmp_path, capsys):
    other = changed(run, "other", lambda content: content["environment"].update(device="another"))
    assert against(other, run) == 2
    assert "different machines" in capsys.readouterr().err
    assert against(tmp_path / "none.json", run) == 2
    assert "none.json" in capsys.readouterr().err
    product = tmp_path / "sgemm.json"
    assert main(["sgemm", "--shapes", "8", *QUICK, "--json", str(product)]) == 0
    assert against(product, run) == 2


def test_measuring_and_comparing_is_one_command(run, monkeypatch, capsys):
    """The times of the two runs are what they are; only what is compared is tested."""
    monkeypatch.setattr(measure, "cells_of", lambda platform: SMALL)
    code = main(["regress", *QUICK, "--groups", "products", "--against", str(run)])
    out = capsys.readouterr().out
    assert code in (0, 1)
    assert "slower, of 2" in out


def test_a_cell_without_memory_is_refused_and_the_others_measured(monkeypatch, tmp_path):
    right = measure.contenders.score_arguments

    def failing(shape, dtype, variant):
        if variant == "mask":
            raise ValueError("out of memory")
        return right(shape, dtype, variant)

    monkeypatch.setattr(measure, "cells_of", lambda platform: SMALL)
    monkeypatch.setattr(measure.contenders, "score_arguments", failing)
    path = tmp_path / "b.json"
    assert main(["regress", *QUICK, "--groups", "scores", "--json", str(path)]) == 0
    found = {c["label"]: c["refused"] for c in json.loads(path.read_text())["cells"]}
    assert len(found) == 3
    assert [why for label, why in found.items() if " mask " in label] == ["out of memory"]
    assert [why for label, why in found.items() if " mask " not in label] == ["", ""]


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
    found = compare.compare(
        [cases.Measurement("rows", "a", old)], [cases.Measurement("rows", "a", new)]
    )
    assert bool(found.slower) == slower
    assert found.passed == (not slower)


@pytest.mark.parametrize("cells", [cases.GPU, cases.CPU])
def test_cells_are_few_enough_and_cover_every_operation(cells):
    assert len(cells) <= 120
    heads = [*cells.scores, *cells.layers]
    labels = [cell.label for cell in (*cells.rows, *cells.few_rows, *heads, *cells.products)]
    assert len(set(labels)) == len(labels)
    kinds = set(itertools.product(("softmax", "log_softmax"), ("fwd", "grad")))
    assert {(cell.operation, cell.direction) for cell in cells.rows} == kinds
    assert {cell.direction for cell in cells.few_rows} == {"fwd", "grad"}
    assert {cell.variant for cell in cells.scores} == {"plain", "mask", "causal"}
    assert {cell.direction for cell in heads} == {"fwd", "both"}
    assert any(cell.cols % 2 for cell in cells.rows)
    for dtype in ("float32", "bfloat16"):
        for members in (cells.rows, cells.few_rows, cells.scores, cells.layers):
            assert any(cell.dtype == dtype for cell in members)


def test_cells_of_a_gpu_reach_every_tier():
    tiers = {
        str(
            jk.plan_softmax(
                (c.rows, c.cols), c.dtype, operation=f"{c.operation}_{c.direction}", device="h200"
            ).tier
        )
        for c in cases.GPU.rows
    }
    assert tiers == {"warp", "block", "block_smem", "cluster", "block_uncached"}
    assert {p.transposes for p in cases.GPU.products} == {"NN", "NT", "TN", "TT"}
    assert any(p.batch > 1 for p in cases.GPU.products)
