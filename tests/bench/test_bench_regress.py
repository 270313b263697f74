"""The comparison of two runs: small cells of every group, and comparisons of made-up times."""

import argparse
import dataclasses
import itertools
import json
import re

import pytest

pytest.importorskip("rich")

import cases
from bench_cases import QUICK

import jaxkernels as jk
from jaxkernels.bench import __main__ as command
from jaxkernels.bench import (
    attention,
    attention_programs,
    logsumexp,
    losses,
    records,
    regress,
    sgemm,
    sgemm_programs,
    softmax,
)
from jaxkernels.bench.__main__ import main
from jaxkernels.bench.products import product
from jaxkernels.bench.records import Record

OPERATIONS = (softmax.SUITE, logsumexp.SUITE, losses.SUITE, attention.SUITE, sgemm.SUITE)


def small(suite, keep):
    """The suite with a few of the cells that it watches on a CPU."""
    kept = [cell for cell in suite.watched("cpu") if keep(cell[1])]
    return dataclasses.replace(suite, watched=lambda platform: kept)


def keep_row(case):
    return case["cols"] == 512 or (case["cols"] == 1001 and case["dtype"] != "float16")


def products(platform):
    options = argparse.Namespace(algorithms=None)
    for case in (product("square", 1, 16, 16, 16), product("other", 3, 8, 8, 8)):
        yield "products", case, sgemm_programs.contenders(case, options)["auto"]


SUITE = regress.suite_of(
    (
        small(softmax.SUITE, keep_row),
        small(
            attention.SUITE, lambda case: case["dtype"] == "float32" and case["direction"] == "both"
        ),
        dataclasses.replace(sgemm.SUITE, watched=products),
    )
)
COUNT = {"rows": 8, "few_rows": 4, "scores": 3, "layers": 1, "products": 2}


@pytest.fixture(autouse=True)
def few_cells(monkeypatch):
    others = [suite for suite in command.SUITES if suite.name != "regress"]
    monkeypatch.setattr(command, "SUITES", (*others, SUITE))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("regress") / "b.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "SUITES", (SUITE,))
        assert main(["regress", *QUICK, "--repeats", "3", "--json", str(path)]) == 0
    return path


def changed(run, name, change):
    """A copy of the run's file, in which `change` was applied to the records."""
    found = records.read(run)
    path = run.with_name(f"{name}.json")
    records.write(dataclasses.replace(found, records=tuple(change(list(found.records)))), path)
    return path


def timed(record, seconds):
    return dataclasses.replace(record, seconds=seconds, samples=[seconds] * 3)


def steady(found):
    """Times without any spread: a test does not depend on how long anything takes."""
    return [timed(record, number * 1e-6) for number, record in enumerate(found, 1)]


def against(old, new, *options):
    return main(["regress", "--from-json", str(new), "--against", str(old), *options])


def test_json_has_every_cell_with_its_samples_and_the_device(run):
    found = records.read(run, "regress")
    assert found.environment["device"]
    groups = [record.case["group"] for record in found.records]
    assert groups == [group for group in regress.GROUPS for _ in range(COUNT[group])]
    for record in found.records:
        assert record.contender == "ours"
        assert record.refused == ""
        assert len(record.samples) == 3
        assert min(record.samples) > 0
        assert set(record.extra) <= {"operations"}


def test_tables_show_median_and_spread(run, capsys):
    assert main(["regress", "--from-json", str(run), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| cell | us | spread |" in out
    for record in records.read(run).records:
        assert f"| {record.case['cell']} |" in out


def test_a_run_is_not_slower_than_itself(run, capsys):
    same = changed(run, "same", steady)
    assert against(same, same) == 0
    assert "no cell slower, of 18" in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("--markdown",)])
def test_a_slower_cell_is_listed_and_fails(run, capsys, options):
    def slow(found):
        found = steady(found)
        found[3] = timed(found[3], found[3].seconds * 1.2)
        found[5] = timed(found[5], found[5].seconds / 1.2)
        return found

    old, new = changed(run, "old", steady), changed(run, "new", slow)
    assert against(old, new, *options) == 1
    table = capsys.readouterr().out.split("against ")[1]
    labels = [record.case["cell"] for record in records.read(old).records]
    listed = [
        label for label in labels if re.search(rf"^(\| )?{re.escape(label)} ", table, re.MULTILINE)
    ]
    assert listed == [labels[3], labels[5]]
    assert "1 cell slower, of 18" in table
    assert table.index("slower") < table.index("faster")
    assert against(new, new) == 0


def test_a_cell_that_is_refused_now_fails(run, capsys):
    def refuse(found):
        first, *rest = steady(found)
        return [
            dataclasses.replace(first, seconds=None, samples=[], refused="out of memory"),
            *rest,
        ]

    same, refused = changed(run, "same", steady), changed(run, "refused", refuse)
    assert against(same, refused) == 1
    assert "out of memory" in capsys.readouterr().out
    assert against(refused, same) == 0  # it came back


def test_cells_of_one_run_only_are_said(run, capsys):
    def other(found):
        return [dataclasses.replace(steady(found)[0], case={"group": "rows", "cell": "another"})]

    same = changed(run, "same", steady)
    assert against(same, changed(run, "less", lambda found: steady(found)[:1])) == 0
    assert "in one of the runs only: " in capsys.readouterr().out
    assert against(same, changed(run, "other", other)) == 2
    assert "no cell in common" in capsys.readouterr().err


def test_other_machines_and_other_files_are_refused(run, tmp_path, capsys):
    found = records.read(run)
    other = run.with_name("other.json")
    where = {**found.environment, "device": "another"}
    records.write(dataclasses.replace(found, environment=where), other)
    assert against(other, run) == 2
    assert "different machines" in capsys.readouterr().err
    assert against(tmp_path / "none.json", run) == 2
    assert "none.json" in capsys.readouterr().err
    product = tmp_path / "sgemm.json"
    assert main(["sgemm", "--shapes", "8", *QUICK, "--json", str(product)]) == 0
    assert against(product, run) == 2


def of_the_first_schema(run, path):
    """The run as files were before records."""
    found = records.read(run)
    cells = [
        {"group": r.case["group"], "label": r.case["cell"], "samples": r.samples, "refused": ""}
        for r in found.records
    ]
    content = {"schema": 1, "benchmark": "regress", "environment": found.environment}
    path.write_text(json.dumps({**content, "settings": {}, "cells": cells}, indent=1))


def test_runs_of_old_files_are_compared(run, tmp_path, capsys):
    of_the_first_schema(changed(run, "same", steady), tmp_path / "old.json")
    slow = changed(run, "slow", lambda found: [timed(r, r.seconds * 1.1) for r in steady(found)])
    assert against(tmp_path / "old.json", slow) == 1
    assert "18 cells slower, of 18" in capsys.readouterr().out


def test_measuring_and_comparing_is_one_command(run, capsys):
    """The times of the two runs are what they are; only what is compared is tested."""
    code = main(["regress", *QUICK, "--groups", "products", "--against", str(run)])
    out = capsys.readouterr().out
    assert code in (0, 1)
    assert "slower, of 2" in out


def test_a_cell_without_memory_is_refused_and_the_others_measured(monkeypatch, tmp_path):
    def failing(*arguments):
        raise ValueError("out of memory")

    monkeypatch.setattr(attention_programs, "padding", failing)
    path = tmp_path / "b.json"
    assert main(["regress", *QUICK, "--groups", "scores", "--json", str(path)]) == 0
    found = {record.case["cell"]: record.refused for record in records.read(path).records}
    assert len(found) == 3
    assert [why for label, why in found.items() if " mask " in label] == ["out of memory"]
    assert [why for label, why in found.items() if " mask " not in label] == ["", ""]


def test_cells_of_a_group_and_a_dtype_are_sampled_in_turn():
    """And products one after the other, whose inputs are large."""
    parts = regress.suite_of(OPERATIONS).chosen(argparse.Namespace(groups=regress.GROUPS))
    products = 15 if cases.ON_GPU else 2
    groups = [{case["group"] for case in part} for part in parts]
    assert all(len(group) == 1 for group in groups)
    assert [len(p) for p, g in zip(parts, groups, strict=True) if g == {"products"}] == [
        1
    ] * products
    for part, group in zip(parts, groups, strict=True):
        dtypes = {
            re.findall(r" (b?float\d+) ", case["cell"])[0] for case in part if group != {"products"}
        }
        assert len(dtypes) == (0 if group == {"products"} else 1)
    assert len(parts) == 7 + 2 + 2 + 2 + 2 + products


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


def cells(platform):
    watched = [(s, *cell) for s in OPERATIONS for cell in s.watched(platform)]
    return [(group, s.label(case), case) for s, group, case, _ in watched]


@pytest.mark.parametrize(("platform", "count"), [("gpu", 119), ("cpu", 50)])
def test_cells_are_few_enough_and_cover_every_operation(platform, count):
    found = cells(platform)
    assert len(found) == len({label for _, label, _ in found}) == count <= 120
    groups = [group for group, _, _ in found]
    assert list(dict.fromkeys(groups)) == list(regress.GROUPS)
    by_group = {g: [case for group, _, case in found if group == g] for g in regress.GROUPS}
    kinds = set(itertools.product(("softmax", "log_softmax", "logsumexp"), ("fwd", "grad")))
    kinds |= {("losses", direction) for direction in ("loss", "mean", "none")}
    assert {(case["operation"], case["direction"]) for case in by_group["rows"]} == kinds
    assert {case["direction"] for case in by_group["few_rows"]} == {"fwd", "grad"}
    assert {case["variant"] for case in by_group["scores"]} == {"plain", "mask", "causal"}
    heads = [*by_group["scores"], *by_group["layers"]]
    assert {case["direction"] for case in heads} == {"fwd", "both"}
    assert any(case["cols"] % 2 for case in by_group["rows"])
    for dtype in ("float32", "bfloat16"):
        for group in ("rows", "few_rows", "scores", "layers"):
            assert any(case["dtype"] == dtype for case in by_group[group])


def test_names_of_cells_stay():
    """A run is compared with earlier ones by these names."""
    names = {label for _, label, _ in cells("gpu")}
    for name in (
        "softmax fwd float32 2097152x32",
        "log_softmax grad bfloat16 1335x50257",
        "softmax grad bfloat16 8x131072",
        "scores mask both float32 4x16x1024",
        "layers causal fwd bfloat16 4x16x1024x64",
        "product 4096^3",
        "product 512 x (128, 128, 128)",
        "product 1024^3 TN",
    ):
        assert name in names


def test_cells_of_a_gpu_reach_every_tier():
    rows = [case for group, case, _ in softmax.SUITE.watched("gpu") if group == "rows"]
    tiers = {
        str(
            jk.plan_softmax(
                (c["rows"], c["cols"]),
                c["dtype"],
                operation=f"{c['operation']}_{c['direction']}",
                device="h200",
            ).tier
        )
        for c in rows
    }
    assert tiers == {"warp", "block", "block_smem", "cluster", "block_uncached"}
    products = [case for group, _, case in cells("gpu") if group == "products"]
    assert {p["transposes"] for p in products} == {"NN", "NT", "TN", "TT"}
    assert any(p["batch"] > 1 for p in products)
