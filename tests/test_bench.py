"""The benchmark runs at a small size and writes what it says. Nothing here depends on how long anything takes."""

import json

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from jaxkernels.bench.__main__ import main

SMALL = [
    "softmax",
    "--cols",
    "64",
    "1001",
    "--elements",
    "2^13",
    "--repeats",
    "2",
    "--min-sample-ms",
    "0.1",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    assert (
        main(
            [
                *SMALL,
                "--no-few-rows",
                "--json",
                str(folder / "b.json"),
                "--plot",
                str(folder / "b.png"),
            ]
        )
        == 0
    )
    return folder


def test_json(run):
    data = json.loads((run / "b.json").read_text())
    assert {"schema", "benchmark", "environment", "settings", "measurements"} <= set(data)
    assert data["benchmark"] == "softmax"
    environment = data["environment"]
    for name in ("device", "platform", "driver", "date", "command", "jax", "jaxlib", "jaxkernels"):
        assert name in environment
    assert "--elements" in environment["command"]
    cases = {(m["dtype"], m["direction"], m["cols"]) for m in data["measurements"]}
    wanted = {
        (d, r, c) for d in ("float32", "bfloat16") for r in ("fwd", "grad") for c in (64, 1001)
    }
    assert cases == wanted
    for m in data["measurements"]:
        assert m["rows"] == 2**13 // m["cols"]
        assert {"copy", "xla", "auto"} <= set(m["seconds"])
        for name, seconds in m["seconds"].items():
            samples = m["samples"][name]
            assert len(samples) == 2
            assert min(samples) <= seconds <= max(samples)


def test_plot(run):
    image = (run / "b.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) > 10_000


def test_table_again_from_json(run, capsys):
    assert main(["softmax", "--from-json", str(run / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "1001" in out
    assert "| --" in out or "|--" in out or "|---" in out


def test_table(capsys):
    arguments = [
        *SMALL[:2],
        "64",
        *SMALL[4:],
        "--dtypes",
        "float32",
        "--directions",
        "fwd",
        "--no-few-rows",
    ]
    assert main(["softmax", *arguments[1:], "--log-softmax"]) == 0
    captured = capsys.readouterr()
    for word in ("log_softmax", "float32", "copy", "jax.nn", "64"):
        assert word in captured.out


@pytest.mark.parametrize(
    "wrong", [["--cols", "0"], ["--cols", "many"], ["--dtypes", "int8"], ["--tiers", "grid"]]
)
def test_wrong_arguments(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["softmax", *wrong])
    assert stopped.value.code == 2
    assert wrong[1] in capsys.readouterr().err


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sgemm")
    written = ["--json", str(folder / "b.json"), "--plot", str(folder / "b.png")]
    shapes = ["--shapes", "32", "16x24x8", "3x8x8x8"]
    how = ["--repeats", "2", "--min-sample-ms", "0.1"]
    assert main(["sgemm", *shapes, *how, *written]) == 0
    return folder


def test_sgemm_json(products):
    data = json.loads((products / "b.json").read_text())
    assert data["benchmark"] == "sgemm"
    found = [(m["batch"], m["m"], m["n"], m["k"]) for m in data["measurements"]]
    assert found == [(1, 32, 32, 32), (1, 16, 24, 8), (3, 8, 8, 8)]
    for m in data["measurements"]:
        assert {"xla", "pipelined"} == set(m["seconds"]) == set(m["relative_errors"])
        assert all(0 < ratio <= 1 for ratio in m["bound_ratios"].values())
        assert all(len(samples) == 2 for samples in m["samples"].values())


def test_sgemm_plot_and_table_again_from_json(products, capsys):
    assert (products / "b.png").read_bytes().startswith(b"\x89PNG")
    assert main(["sgemm", "--from-json", str(products / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| 32^3 |" in out
    assert "3 x (8, 8, 8)" in out


def test_sgemm_ladder_and_verdicts():
    """Every rung and every bar has its line; what they say is not tested here."""
    from jaxkernels.bench.sgemm import cases, measure, report

    ladder = cases.Product("ladder", 1, 64, 64, 64)
    products = [cases.Product("transposed", 1, 64, 64, 64, t) for t in cases.TRANSPOSES]
    products += [cases.Product("square", 1, 1024, 8, 1024), cases.Product("other", 1, 8, 8, 8)]
    settings = measure.Settings((ladder, *products), cases.RUNGS, 2, 1e-4)
    found = measure.measure(settings, announce=lambda _: None)
    tables = report.tables(found, "gpu", "NVIDIA H200")
    text = "\n".join(str(table) for table in tables)
    for word in (*cases.RUNGS, "cuBLAS", "of peak", "NT over NN", "ladder, TFLOP/s", "relF"):
        assert word in text


def test_sgemm_wrong_arguments(capsys):
    for wrong in (["--shapes", "4x4"], ["--algorithms", "magic"], ["--groups", "round"]):
        with pytest.raises(SystemExit) as stopped:
            main(["sgemm", *wrong])
        assert stopped.value.code == 2
        assert wrong[1] in capsys.readouterr().err
