"""The benchmark runs at a small size and writes what it says. Nothing here depends on how long anything takes."""

import json

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from jaxkernels.bench.__main__ import main

PEER = "XLA" if jax.default_backend() == "cpu" else "cuBLAS"
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


@pytest.mark.parametrize(
    ("cols", "tier", "direction", "region"),
    [
        (4096, "block", "fwd", "short"),
        (16384, "block", "fwd", "shared"),
        (50257, "cluster", "fwd", "shared"),  # as block_smem would hold it
        (65536, "cluster", "fwd", "cluster"),
        (24576, "cluster", "grad", "shared"),
        (32768, "cluster", "grad", "cluster"),
        (262144, "cluster", "fwd", "cluster"),
        (524288, "cluster", "fwd", "filling"),
        (262144, "cluster", "grad", "filling"),
        (1 << 20, "block_uncached", "fwd", "uncached"),
        (4096, "", "fwd", ""),
    ],
)
def test_regions(cols, tier, direction, region):
    """A row that one SM could hold counts as shared, whatever tier it takes."""
    from jaxkernels.bench.softmax.cases import Measurement

    assert Measurement("float32", direction, 8, cols, tier, {}).region == region


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


def test_sgemm_ladder():
    """Every rung has its line; what it says is not tested here."""
    from jaxkernels.bench.sgemm import cases, measure, report

    ladder = cases.Product("ladder", 1, 64, 64, 64)
    products = [cases.Product("transposed", 1, 64, 64, 64, t) for t in cases.TRANSPOSES]
    products += [cases.Product("square", 1, 1024, 8, 1024), cases.Product("other", 1, 8, 8, 8)]
    settings = measure.Settings((ladder, *products), None, 2, 1e-4)
    found = measure.measure(settings, announce=lambda _: None)
    tables = report.tables(found, "gpu", "NVIDIA H200")
    text = "\n".join(str(table) for table in tables)
    for word in (*cases.RUNGS, "cuBLAS", "of peak", "64^3 NT", "the ladder at 64^3", "relF"):
        assert word in text


def test_sgemm_names_xlas_product_by_platform(products, capsys, monkeypatch):
    """A CPU has no cuBLAS: not in tables, nor in pictures."""
    from jaxkernels.bench.sgemm import plot

    written = (products / "b.json").read_text()
    content = json.loads(written)
    content["measurements"][0]["group"] = "ladder"
    drawn = []
    monkeypatch.setattr(plot.Axes, "set_title", lambda self, text, **_: drawn.append(text))
    monkeypatch.setattr(plot.Axes, "annotate", lambda self, text, *_, **__: drawn.append(text))
    for platform, name, other in (("cpu", "XLA", "cuBLAS"), ("gpu", "cuBLAS", "XLA")):
        content["environment"]["platform"] = platform
        path = products / f"{platform}.json"
        path.write_text(json.dumps(content))
        drawn.clear()
        again = ["--from-json", str(path), "--plot", str(products / "again.png")]
        assert main(["sgemm", *again]) == 0
        out = capsys.readouterr().out
        assert f"of {name}" in out
        assert f"{name} us" in out
        assert other not in out.replace("both are XLA's own product", "")
        assert any(name in text for text in drawn)
        assert not any(other in text for text in drawn)


def test_sgemm_algorithms_are_those_asked_for(tmp_path, capsys):
    written = ["--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png")]
    what = ["--shapes", "32", "2x8x8x8", "--algorithms", "naive", "warp_tile"]
    assert main(["sgemm", *what, "--repeats", "2", "--min-sample-ms", "0.1", *written]) == 0
    for m in json.loads((tmp_path / "b.json").read_text())["measurements"]:
        assert {"xla", "naive", "warp_tile"} == set(m["seconds"]) == set(m["relative_errors"])
    out = capsys.readouterr().out
    for label in ("32^3", "2 x (8, 8, 8)"):
        table = out[out.index(f"the ladder at {label}") :]
        places = [table.index(f"\n{name} ") for name in ("naive", "warp_tile", PEER)]
        assert places == sorted(places)
    assert "pipelined" not in out
    assert "squares" not in out


def test_sgemm_inputs_do_not_stay_in_the_cache(monkeypatch):
    """What is touched before a call has the same inputs again is twice the largest L2, of any GPU, at least."""
    from jaxkernels.bench import timing
    from jaxkernels.bench.sgemm import cases, measure

    settings = measure.Settings((), None, 2, 1e-4)
    handed = {}

    def record(contenders, **_):
        handed.update((contender.name, contender.arguments) for contender in contenders)
        return {}, {}

    gpu_cache = timing.last_level_cache_bytes("gpu")
    monkeypatch.setattr(measure, "measure_together", record)
    monkeypatch.setattr(measure, "last_level_cache_bytes", lambda _: gpu_cache)
    monkeypatch.setattr(measure, "_inputs", lambda product, count: [(i, -1) for i in range(count)])
    monkeypatch.setattr(measure.jax, "default_backend", lambda: "gpu")
    for product in cases.GPU_PRODUCTS:
        count = measure.products_per_call(product, "gpu")
        measure.time_products(product, count, ("xla", "pipelined"), settings)
        for calls in handed.values():
            if product.is_square:  # a chain: the first b, and every a once
                (call,) = calls
                assert len(set(call[1:])) == len(call) - 1 == count
                assert count * 4 * product.m * product.k >= 2 * 126 * 2**20
                continue
            inputs = [pair for call in calls for pair in call]
            assert {len(call) for call in calls} == {count}
            assert len(set(inputs)) == len(inputs)
            assert len(inputs) * product.bytes >= 2 * 126 * 2**20


def test_sgemm_chain_stays_finite():
    """A chain's results keep their size, so that a GPU's switching power is that of any numbers."""
    from jaxkernels.bench.sgemm import cases, measure

    product = cases.Product("square", 1, 64, 64, 64, "NT")
    program = measure._program(product, "pipelined")
    result = program(*measure._arguments(product, measure._inputs(product, 200)))
    assert result.shape == (64, 64)
    assert 1e-3 < float(jnp.linalg.norm(result)) / 64 < 10


@pytest.mark.parametrize("where", ["_inputs", "_errors"])
def test_sgemm_run_survives_a_product_without_memory(where, monkeypatch, tmp_path, capsys):
    from jaxkernels.bench.sgemm import measure

    right = getattr(measure, where)

    def failing(product, *rest):
        if product.n == 24:
            raise ValueError("out of memory")
        return right(product, *rest)

    monkeypatch.setattr(measure, where, failing)
    written = tmp_path / "b.json"
    small = ["--repeats", "2", "--min-sample-ms", "0.1", "--json", str(written)]
    assert main(["sgemm", "--shapes", "16", "24", "32", *small]) == 0
    found = json.loads(written.read_text())["measurements"]
    assert [set(m["refused"]) for m in found] == [set(), {"xla", "pipelined"}, set()]
    assert "24^3: pipelined: " in capsys.readouterr().out


@pytest.mark.parametrize("k", [32, 16])
@pytest.mark.parametrize("name", ["xla", "pipelined"])
def test_sgemm_program_computes_every_product(name, k):
    """Neither merged nor left out: as many products in the compiled program as are divided by."""
    from jaxkernels.bench.sgemm import cases, measure

    if jax.default_backend() != "cpu":
        pytest.skip("on a GPU the calls have other names")
    product = cases.Product("other", 1, 32, 32, k)
    assert product.is_square == (k == 32)  # a chain
    arguments = measure._arguments(product, measure._inputs(product, 8))
    program = measure._program(product, name).lower(*arguments).compile()
    assert program.as_text().count(" dot(") == 8


def test_sgemm_peak_is_of_whole_devices():
    from jaxkernels.bench.sgemm import cases

    assert cases.peak_of("NVIDIA H200") == 66.9e12
    assert cases.peak_of("NVIDIA H200 MIG 1g.18gb") is None
    assert cases.peak_of("cpu") is None


def test_sgemm_wrong_arguments(capsys):
    for wrong in (["--shapes", "4x4"], ["--algorithms", "magic"], ["--groups", "round"]):
        with pytest.raises(SystemExit) as stopped:
            main(["sgemm", *wrong])
        assert stopped.value.code == 2
        assert wrong[1] in capsys.readouterr().err
