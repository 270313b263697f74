"""The map of softmax runs at a small size. Nothing here depends on how long anything takes."""

import argparse

import jax
import numpy as np
import pytest

pytest.importorskip("rich")

from bench_cases import QUICK, measured, text_of

from jaxkernels.bench import maps, records, rows, softmax
from jaxkernels.bench.__main__ import main

SUITE = maps.suite_of(softmax.SUITE)
SEEDS = range(20)
FEW = {"group": "few_rows", "dtype": "float32", "rows": 4, "cols": 33}
OPTIONS = argparse.Namespace(bytes=2**18)


@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_of_a_seed(seed):
    found = maps.lengths(seed)
    assert found == maps.lengths(seed) == sorted(set(found))
    assert found[0] > 0
    assert found[-1] <= 1_000_000
    assert sum(n <= 128 for n in found) == 12
    assert sum(128 < n <= 4096 for n in found) == 12
    long = {n for n in found if n > 4096}
    assert len(long) == 16
    assert {32000, 50257, 128256, 151936} < long
    drawn = long - {32000, 50257, 128256, 151936}
    assert [sum(n % 8 == 0 for n in drawn), sum(n % 2 for n in drawn)] == [6, 6]
    assert min(long) < 8192
    assert max(long) > 500_000


def test_no_length_of_tuning_is_published_but_vocabularies():
    tuned, published = map(maps.lengths, (maps.TUNING, maps.PUBLISHED))
    shared = {n for n in tuned if n > 128} & set(published)
    assert shared == set(maps.VOCABULARIES)


def cases(seed=1, size=2**28, **options):
    given = {"dtypes": ["float32", "bfloat16"], "directions": ["fwd", "grad"], "cols": None}
    return SUITE.cases(argparse.Namespace(**given | options, seed=seed, bytes=size))


def test_cells():
    found = cases()
    assert found == cases() != cases(seed=2)
    shapes = [(c["dtype"], c["direction"], c["rows"], c["cols"]) for c in found]
    assert len(set(shapes)) == len(shapes)
    assert {c["cols"] for c in found} == set(maps.lengths(1))
    for dtype, item in (("float32", 4), ("bfloat16", 2)):
        for direction in ("fwd", "grad"):
            of = [c for c in found if (c["dtype"], c["direction"]) == (dtype, direction)]
            many = {c["cols"]: c["rows"] for c in of if c["group"] == "many_rows"}
            assert many == {n: 2**28 // item // n for n in maps.lengths(1)}
            few = {(c["cols"], c["rows"]) for c in of if c["group"] == "few_rows"}
            assert {n for n, _ in few} == {n for n in maps.lengths(1) if n >= 8192}
            assert {n for _, n in few} == {1, 4, 16, 64, 132}
            assert all(2 * n <= many[cols] for cols, n in few)
    parts = [c["part"] for c in found]
    assert parts == sorted(parts)
    assert max(map(parts.count, parts)) == 24


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    small = ["--cols", "33", "8200", "--bytes", "2^18", "--dtypes", "float32"]
    written = ["--json", str(folder / "b.json")]
    assert main(["map", *small, *QUICK, *written]) == 0
    return folder


# XLA of JAX 0.10 fuses across the barriers of a chain on a CPU. The number of kernels in the file shows it.
XLA_KEEPS_APART = jax.__version_info__ >= (0, 11)


def test_json(run):
    found = records.read(run / "b.json", "map")
    assert found.settings["seed"] == maps.TUNING
    cells = {(m["group"], m["direction"], m["rows"], m["cols"]) for m in found.measured}
    many, few = {("many_rows", 1985, 33), ("many_rows", 7, 8200)}, {("few_rows", 1, 8200)}
    assert cells == {(g, d, *shape) for g, *shape in many | few for d in ("fwd", "grad")}
    for m in found.measured:
        assert list(m.records) == ["copy", "xla", "auto"]
        assert not any(record.refused for record in m.records.values())
        assert all(m.seconds(name) for name in m.records)
        for name in m.records:
            calls = m.extra(name, "operations") or 1
            assert (calls == 1) == (m["group"] == "many_rows")
            if name == "auto" or (name == "xla" and XLA_KEEPS_APART):
                assert m.extra(name, "kernels") >= calls


def test_table_from_json(run, capsys):
    assert main(["map", "--from-json", str(run / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out.count("| cols | many | 1 |") == 2
    assert out.count("geometric mean") == 2


def contended(case):
    """The compiled programs of a case, their arguments, and how many calls are in each."""
    programs = SUITE.contenders(case, OPTIONS)
    drawn = {name: program.draw()[0] for name, program in programs.items()}
    made = {name: program.make(drawn[name]) for name, program in programs.items()}
    return made, drawn, programs["auto"].operations


@pytest.mark.parametrize("group", ["many_rows", "few_rows"])
@pytest.mark.parametrize("direction", ["fwd", "grad"])
def test_contenders_compute_the_same(direction, group):
    """A comparison of different things is none. A chain negates what it copies, and twice."""
    case = rows.row_case("softmax", direction, "float32", 4, 33, group)
    made, drawn, _ = contended(case)
    found = {name: jax.tree.leaves(f(*drawn[name])) for name, f in made.items()}
    given = [x for *_, x in drawn["copy"]] if group == "few_rows" else [drawn["copy"][-1]]
    assert len(found["xla"]) == len(found["auto"]) == len(found["copy"]) == len(given)
    for ours, xla, copy, x in zip(found["auto"], found["xla"], found["copy"], given, strict=True):
        np.testing.assert_allclose(ours, xla, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(copy, x)
        assert not np.array_equal(xla, x)


@pytest.mark.parametrize("direction", ["fwd", "grad"])
def test_arrays_of_a_chain_differ(direction):
    case = rows.row_case("softmax", direction, "float32", 4, 33, "few_rows")
    _, drawn, calls = contended(case)
    arrays = [np.asarray(x).tobytes() for x in jax.tree.leaves(drawn["auto"])]
    assert len(set(arrays)) == len(arrays) == 16 * (1 if direction == "fwd" else 2)
    assert calls == 16 * 8


def kernels_of(name, case):
    made, drawn, calls = contended(case)
    return maps.kernels(made[name], drawn[name]), calls


@pytest.mark.parametrize("direction", ["fwd", "grad"])
@pytest.mark.parametrize("name", ["copy", "xla", "auto"] if XLA_KEEPS_APART else ["auto"])
def test_calls_of_a_chain_stay_apart(name, direction, monkeypatch):
    case = rows.row_case("softmax", direction, "float32", 4, 33, "few_rows")
    found, calls = kernels_of(name, case)
    assert found >= calls > 1
    assert found % calls == 0
    if name == "copy":  # without the barrier XLA takes two negations for none
        monkeypatch.setattr(jax.lax, "optimization_barrier", lambda arrays: arrays)
        found, calls = kernels_of(name, case)
        assert found < calls


def made_up(auto, n=50257, height=4, tier="cluster", direction="fwd", **seconds):
    """XLA takes 4 us, a copy 2 us."""
    group = "few_rows" if height else "many_rows"
    case = rows.row_case("softmax", direction, "float32", height or 2**26 // n, n, group)
    times = {"copy": 2e-6, "xla": 4e-6, "auto": auto} | seconds
    return measured({**case, "tier": tier}, times)


CELLS = [
    made_up(8e-6, 50257, height=1),
    made_up(4.11e-6, 50257, height=4, tier="block"),
    made_up(4.13e-6, 100, height=0, tier="warp"),
    made_up(2e-6, 50257, height=0),
]


def test_tables_and_summary_by_hand():
    """The lines are in order whatever the order of the cells; what takes 1.0275 times XLA's time is not slower."""
    text = text_of(SUITE, CELLS[::-1])
    assert "headers=['cols', 'many', '4', '1']" in text
    assert (
        "['100', '0.48 0.97', '-', '-'], ['50257', '1.00 2.00', '0.49 0.97', '0.25 0.50']" in text
    )
    mean = (0.5 * 4 / 4.11 * 4 / 4.13 * 2) ** 0.25
    assert f"2 of 4 cells below 1 by more than 3 %; geometric mean {mean:.2f}" in text
    assert "worst: 0.50 1 x 50257 (cluster), 0.97 many x 100 (warp)" in text


def test_what_is_not_measured_counts_nowhere():
    refused = measured(made_up(1.0, height=16).case, {"xla": 1.0}, refused={"auto": "no"})
    text = text_of(SUITE, [CELLS[0], refused])
    assert "1 of 1 cells" in text
    assert "auto: no" in text
    assert "no cell was measured" in text_of(SUITE, [refused])
