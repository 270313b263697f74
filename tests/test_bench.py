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
