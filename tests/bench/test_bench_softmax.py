"""The suite of softmax runs at a small size. Nothing here depends on how long anything takes."""

import argparse

import jax.numpy as jnp
import pytest

pytest.importorskip("rich")

from bench_cases import QUICK, measured, text_of

from jaxkernels.bench import records, softmax
from jaxkernels.bench.__main__ import main

SMALL = ["softmax", "--cols", "64", "1001", "--elements", "2^13", *QUICK]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    written = ["--json", str(folder / "b.json")]
    assert main([*SMALL, "--no-few-rows", *written]) == 0
    return folder


def test_json(run):
    found = records.read(run / "b.json", "softmax")
    for name in ("device", "platform", "driver", "date", "command", "jax", "jaxlib", "jaxkernels"):
        assert name in found.environment
    assert "--elements" in found.environment["command"]
    assert found.settings["elements"] == 2**13
    cases = [(m["dtype"], m["direction"], m["cols"]) for m in found.measured]
    wanted = {
        (d, r, c) for d in ("float32", "bfloat16") for r in ("fwd", "grad") for c in (64, 1001)
    }
    assert set(cases) == wanted
    assert len(cases) == len(wanted)
    for m in found.measured:
        assert m["rows"] == 2**13 // m["cols"]
        assert {"copy", "xla", "auto"} <= set(m.records)
    for record in found.records:
        if not record.refused:
            assert len(record.samples) == 2
            assert min(record.samples) <= record.seconds <= max(record.samples)


def test_table_again_from_json(run, capsys):
    assert main(["softmax", "--from-json", str(run / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| 1001 |" in out
    assert "|---|" in out
    assert "| of copy |" in out
    assert main(["softmax", "--from-json", str(run / "b.json")]) == 0
    assert "softmax grad, bfloat16" in capsys.readouterr().out


def test_table(capsys):
    less = ["--cols", "64", "--dtypes", "float32", "--directions", "fwd", "--no-few-rows"]
    assert main([*SMALL, *less, "--operation", "log_softmax"]) == 0
    captured = capsys.readouterr()
    for word in ("log_softmax", "float32", "copy", "jax.nn", "64"):
        assert word in captured.out
    for word in ("bfloat16", "grad"):
        assert word not in captured.out.replace(captured.out.splitlines()[1], "")


@pytest.mark.parametrize("operation", ["softmax", "log_softmax"])
@pytest.mark.parametrize("direction", ["fwd", "grad"])
def test_contenders_compute_the_same(operation, direction):
    """A comparison of different things is none."""
    case = softmax.row_case(operation, direction, "float32", 4, 33)
    found = {}
    programs = softmax.contenders(case, argparse.Namespace(tiers=["auto"]))
    assert set(programs) == {"copy", "xla", "auto"}
    for name, program in programs.items():
        arguments = program.draw()[0]
        found[name] = program.make(arguments)(*arguments)
    assert jnp.allclose(found["auto"], found["xla"], rtol=1e-5, atol=1e-6)
    assert not jnp.allclose(found["copy"], found["xla"])


def test_few_rows_are_chains():
    case = softmax.row_case("softmax", "fwd", "float32", 2, 8, group="few_rows")
    for name, program in softmax.contenders(case, argparse.Namespace(tiers=None)).items():
        (arguments,) = program.draw()
        text = program.make(arguments).lower(*arguments).as_text()
        assert text.count("optimization_barrier") == program.operations == 64, name


@pytest.mark.parametrize(
    "wrong", [["--cols", "0"], ["--cols", "many"], ["--dtypes", "int8"], ["--tiers", "grid"]]
)
def test_wrong_arguments(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["softmax", *wrong])
    assert stopped.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def _softmax(cols, auto, tier="warp", **times):
    case = softmax.row_case("softmax", "fwd", "float32", 2**20 // cols, cols) | {"tier": tier}
    return measured(case, {"copy": 2e-6, "xla": 4e-6, "auto": auto, **times})


def test_tables_by_hand():
    """8 MiB in 2 microseconds are 4.19 TB/s; ours takes as long, then twice as long."""
    text = text_of(softmax.SUITE, [_softmax(1024, 2e-6), _softmax(8192, 4e-6, "block", warp=3e-6)])
    assert "['1024', '1024', '4.19', '2.10', '4.19', '1.000', '2.00', 'warp', '-']" in text
    assert "['8192', '128', '4.19', '2.10', '2.10', '0.500', '1.00', 'block', '2.80']" in text
    assert "GB/s" in text_of(softmax.SUITE, [_softmax(1024, 2e-6)], "cpu")


def test_gradients_move_three_arrays_and_the_copy_two():
    case = softmax.row_case("softmax", "grad", "float32", 1024, 1024) | {"tier": "warp"}
    text = text_of(softmax.SUITE, [measured(case, {"copy": 2e-6, "xla": 6e-6, "auto": 3e-6})])
    assert "['1024', '1024', '4.19', '2.10', '4.19', '1.000', '2.00', 'warp']" in text
