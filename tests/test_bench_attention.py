"""The benchmark of attention runs at a small size.

Nothing here depends on how long anything takes.
"""

import json

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

import jax
import numpy as np

from jaxkernels.bench.__main__ import main
from jaxkernels.bench.attention import cases, contenders

# Most tests here need one run of the benchmark, half a minute.
pytestmark = pytest.mark.xdist_group("bench attention")
QUICK = ["--repeats", "2", "--min-sample-ms", "0.1"]
SMALL = ["--shapes", "2x2x16", "1x3x24", "--layer-shapes", "1x2x32x8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attention")
    written = ["--json", str(folder / "b.json"), "--plot", str(folder / "b.png")]
    assert main(["attention", *SMALL, *QUICK, *written]) == 0
    return folder


def test_json_of_scores(run):
    data = json.loads((run / "b.json").read_text())
    assert data["benchmark"] == "attention"
    assert "--shapes" in data["environment"]["command"]
    found = [
        (m["dtype"], m["variant"], m["direction"], m["batch"], m["heads"], m["length"])
        for m in data["scores"]
    ]
    assert len(found) == len(set(found)) == 2 * 3 * 2 * 2
    assert ("bfloat16", "causal", "both", 1, 3, 24) in found
    for m in data["scores"]:
        assert {"copy", "xla", "ours"} == set(m["seconds"])
        assert m["refused"] == {}
        assert set(m["temp_bytes"]) == ({"xla", "ours"} if m["direction"] == "both" else set())
        for name, seconds in m["seconds"].items():
            samples = m["samples"][name]
            assert len(samples) == 2
            assert min(samples) <= seconds <= max(samples)


def test_json_of_layers(run):
    layers = json.loads((run / "b.json").read_text())["layers"]
    found = [(m["dtype"], m["causal"], m["direction"]) for m in layers]
    assert len(found) == len(set(found)) == 2 * 2 * 2
    for m in layers:
        assert (m["batch"], m["heads"], m["length"], m["depth"]) == (1, 2, 32, 8)
        assert {"xla", "ours"} <= set(m["seconds"])
        # cuDNN has a time or a reason, and is not asked in float32.
        has_cudnn = "cudnn" in {**m["seconds"], **m["refused"]}
        assert has_cudnn == (m["dtype"] == "bfloat16")


def test_plot_and_tables_again_from_json(run, capsys):
    assert (run / "b.png").read_bytes().startswith(b"\x89PNG")
    assert main(["attention", "--from-json", str(run / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| 24 x1x3 causal |" in out
    assert "| float32 both causal (1, 32, 2, 8) |" in out
    for word in ("forward and backward, bfloat16", "of model", "temp MiB"):
        assert word in out


@pytest.mark.parametrize("group", cases.GROUPS)
def test_one_group_and_one_kind(group, tmp_path, capsys):
    """Less than everything is measured, drawn and shown all the same."""
    written = ["--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png")]
    less = ["--groups", group, "--dtypes", "float32", "--variants", "causal", "--directions", "fwd"]
    assert main(["attention", *SMALL, *QUICK, *less, *written]) == 0
    data = json.loads((tmp_path / "b.json").read_text())
    assert (len(data["scores"]), len(data["layers"])) == ((2, 0) if group == "scores" else (0, 1))
    title = "scale, mask and softmax" if group == "scores" else "attention layers"
    assert title in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong", [["--shapes", "4x4"], ["--layer-shapes", "0x1x2"], ["--groups", "round"]]
)
def test_wrong_arguments(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["attention", *wrong])
    assert stopped.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def test_a_cpu_gets_a_sixteenth():
    for large, small in zip(cases.GPU_SCORES, cases.CPU_SCORES, strict=True):
        assert np.prod(large.scores) == 16 * np.prod(small.scores)
        assert large.length == small.length
    assert [shape.layer for shape in cases.CPU_LAYERS] == [(1, 2048, 4, 64)]


@pytest.mark.parametrize("variant", cases.VARIANTS)
@pytest.mark.parametrize("group", cases.GROUPS)
def test_contenders_compute_the_same(group, variant):
    """Results and gradients: a comparison of different things is none."""
    shape = cases.Shape(2, 3, 8, 4)
    if group == "scores":
        functions, inputs = contenders.SCORES, 1
        arguments = contenders.score_arguments(shape, "float32", variant)[0]
        assert len(arguments) == (3 if variant == "mask" else 2)
    else:
        functions, inputs = contenders.LAYERS, 3
        arguments = contenders.layer_arguments(shape, "float32")[0]
    found = {
        name: jax.jit(contenders.both(function, variant, inputs))(*arguments)
        for name, function in functions.items()
    }
    assert len(found["ours"]) == 1 + inputs
    # Sums of some ten terms of size 1: a few roundings of 6e-8 each.
    for ours, theirs in zip(found["ours"], found["xla"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)
    forward = jax.jit(contenders.forward(functions["xla"], variant))(*arguments)
    np.testing.assert_allclose(forward, found["xla"][0], rtol=1e-5, atol=2e-6)
    if variant != "plain" and group == "scores":
        assert (found["ours"][0] == 0).any()


def test_mask_is_padding_of_different_lengths():
    mask = np.asarray(contenders.padding(cases.Shape(16, 2, 32)))
    assert mask.shape == (16, 1, 32, 32)
    lengths = mask[:, 0, 0].sum(axis=-1)
    assert lengths.min() >= 8
    assert len(set(lengths.tolist())) > 3
    assert (mask == (np.arange(32) < lengths[:, None, None, None])).all()


@pytest.mark.parametrize("where", ["score_arguments", "jk.scaled_masked_softmax", "memory"])
def test_run_survives_a_refusal(where, monkeypatch, tmp_path, capsys):
    def failing(*arguments, **options):
        raise ValueError("out of memory")

    if where == "score_arguments":
        monkeypatch.setattr(contenders, where, failing)
    elif where == "memory":
        monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda self: None)
    else:
        monkeypatch.setattr(contenders.jk, "scaled_masked_softmax", failing)
    written = tmp_path / "b.json"
    less = ["--groups", "scores", "--shapes", "1x1x8", "--variants", "mask", "--dtypes", "float32"]
    drawn = ["--json", str(written), "--plot", str(tmp_path / "b.png")]
    assert main(["attention", *less, *QUICK, *drawn]) == 0
    forward, both = json.loads(written.read_text())["scores"]
    expected = {
        "score_arguments": ({"copy", "xla", "ours"}, {"copy", "xla", "ours"}),
        "jk.scaled_masked_softmax": ({"ours"}, {"ours"}),
        "memory": (set(), {"xla", "ours"}),
    }[where]
    assert (set(forward["refused"]), set(both["refused"])) == expected
    out = capsys.readouterr().out
    said = "memory not measured" if where == "memory" else "out of memory"
    assert f"ours: {said}" in out


def test_model_bytes_of_every_kind():
    """By hand: 2 sequences, 3 heads, 4 x 4 scores, of which causal attention sees 10."""
    shape = cases.Shape(2, 3, 4)
    elements, seen, mask = 96, 60, 32
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        expected = {
            ("plain", "fwd"): size * 2 * elements,
            ("mask", "fwd"): size * 2 * elements + mask,
            ("causal", "fwd"): size * (seen + elements),
            ("plain", "both"): size * 5 * elements,
            ("mask", "both"): size * 5 * elements + mask,
            ("causal", "both"): size * (3 * seen + 2 * elements),
        }
        for (variant, direction), wanted in expected.items():
            assert cases.model_bytes(shape, dtype, variant, direction) == wanted
