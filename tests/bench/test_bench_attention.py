"""The benchmark of attention runs at a small size.

Nothing here depends on how long anything takes.
"""

import argparse

import pytest

pytest.importorskip("rich")

import cases
import jax
import numpy as np
from bench_cases import QUICK

from jaxkernels._core import registry
from jaxkernels.bench import attention_programs, records
from jaxkernels.bench.__main__ import main
from jaxkernels.bench.attention import model_bytes
from jaxkernels.bench.attention_programs import heads_case

# Most tests here need one run of the benchmark, half a minute.
pytestmark = pytest.mark.xdist_group("bench attention")
TWO = ("2x2x16", "1x3x24")
SHAPES = TWO if cases.ON_GPU else TWO[1:]
SMALL = ["--shapes", *SHAPES, "--layer-shapes", "1x2x32x8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attention")
    written = ["--json", str(folder / "b.json")]
    assert main(["attention", *SMALL, *QUICK, *written]) == 0
    return folder


def _of_group(folder, group):
    return [m for m in records.read(folder / "b.json", "attention").measured if m["group"] == group]


def test_json_of_scores(run):
    scores = _of_group(run, "scores")
    names = ("dtype", "variant", "direction", "batch", "heads", "length")
    found = [tuple(m[name] for name in names) for m in scores]
    assert len(found) == len(set(found)) == 2 * 3 * 2 * len(SHAPES)
    assert ("bfloat16", "causal", "both", 1, 3, 24) in found
    for m in scores:
        assert {"copy", "xla", "ours"} == set(m.records)
        for name, record in m.records.items():
            assert record.refused == ""
            has_memory = m["direction"] == "both" and name != "copy"
            assert ("temp_bytes" in record.extra) == has_memory
            assert len(record.samples) == 2
            assert min(record.samples) <= record.seconds <= max(record.samples)


def test_json_of_layers(run):
    layers = _of_group(run, "layers")
    found = [(m["dtype"], m["variant"], m["direction"]) for m in layers]
    assert len(found) == len(set(found)) == 2 * 2 * 2
    for m in layers:
        assert (m["batch"], m["heads"], m["length"], m["depth"]) == (1, 2, 32, 8)
        assert m.seconds("xla")
        assert m.seconds("ours")
        # The products of other dtypes, and all products of a CPU, are XLA's own.
        backward = ["masked_softmax_grad"] if m["direction"] == "both" else []
        products = ["sgemm"] if registry.has_kernels("cuda") and m["dtype"] == "float32" else []
        kernels = ["masked_softmax_fwd", *backward, *(products if cases.ON_GPU else [])]
        assert m.records["ours"].extra["kernels"] == kernels
        # cuDNN has a time or a reason, and is not asked in float32.
        assert ("cudnn" in m.records) == (m["dtype"] == "bfloat16")


def test_tables_again_from_json(run, capsys):
    assert main(["attention", "--from-json", str(run / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| 24 | 1 | 3 | causal |" in out
    assert "| float32 | both | causal | 1 | 32 | 2 | 8 |" in out
    for word in ("softmax, both, bfloat16", "of model", "temp MiB"):
        assert word in out


@pytest.mark.parametrize("group", attention_programs.GROUPS)
def test_one_group_and_one_kind(group, tmp_path, capsys):
    """Less than everything is measured and shown."""
    written = ["--json", str(tmp_path / "b.json")]
    less = ["--groups", group, "--dtypes", "float32", "--variants", "causal", "--directions", "fwd"]
    assert main(["attention", *SMALL, "--shapes", *TWO, *QUICK, *less, *written]) == 0
    found = records.read(tmp_path / "b.json").measured
    assert [m["group"] for m in found] == [group] * (2 if group == "scores" else 1)
    assert {(m["dtype"], m["variant"], m["direction"]) for m in found} == {
        ("float32", "causal", "fwd")
    }
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


def test_a_cpu_gets_a_sixteenth(monkeypatch):
    monkeypatch.setattr(attention_programs.jax, "default_backend", lambda: "cpu")
    cases = list(
        attention_programs.cases(argparse.Namespace(shapes=None, layer_shapes=None, drawn=None))
    )
    for group, shapes in attention_programs.GPU_SHAPES.items():
        found = {(m["batch"], m["heads"], m["length"]) for m in cases if m["group"] == group}
        assert len(found) == len(shapes)
        assert 16 * sum(map(np.prod, found)) == sum(np.prod(shape[:3]) for shape in shapes)


def _run(program):
    arguments = program.draw()[0]
    return arguments, program.make(arguments)(*arguments)


@pytest.mark.parametrize(
    ("group", "variant"),
    [
        *(("scores", variant) for variant in attention_programs.VARIANTS),
        *(("layers", variant) for variant in ("plain", "causal")),
    ],
)
def test_contenders_compute_the_same(group, variant):
    """Results and gradients: a comparison of different things is none."""
    found = {}
    for direction in ("fwd", "both"):
        case = heads_case(group, "float32", variant, direction, (2, 3, 8, 4))
        for name, program in attention_programs.contenders(case).items():
            arguments, found[direction, name] = _run(program)
    inputs = 1 if group == "scores" else 3
    assert len(arguments) == 1 + inputs + (variant == "mask")
    assert len(found["both", "ours"]) == 1 + inputs
    # Sums of some ten terms of size 1: a few roundings of 6e-8 each.
    for ours, theirs in zip(found["both", "ours"], found["both", "xla"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)
    for name in ("xla", "ours"):
        forward = found["fwd", name]
        np.testing.assert_allclose(forward, found["both", "xla"][0], rtol=1e-5, atol=2e-6)
    if group == "scores":
        np.testing.assert_array_equal(found["both", "copy"], arguments[1])
        if variant != "plain":
            assert (found["both", "ours"][0] == 0).any()


def test_mask_is_padding_of_different_lengths():
    mask = np.asarray(attention_programs.padding(16, 32))
    assert mask.shape == (16, 1, 32, 32)
    lengths = mask[:, 0, 0].sum(axis=-1)
    assert lengths.min() >= 8
    assert len(set(lengths.tolist())) > 3
    assert (mask == (np.arange(32) < lengths[:, None, None, None])).all()


@pytest.mark.parametrize("where", ["draw_normal", "jk.scaled_masked_softmax", "memory"])
def test_run_survives_a_refusal(where, monkeypatch, tmp_path, capsys):
    def failing(*arguments, **options):
        raise ValueError("out of memory")

    if where == "draw_normal":
        monkeypatch.setattr(attention_programs, where, failing)
    elif where == "memory":
        monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda self: None)
    else:
        monkeypatch.setattr(attention_programs.jk, "scaled_masked_softmax", failing)
    written = tmp_path / "b.json"
    less = ["--groups", "scores", "--shapes", "1x1x8", "--variants", "mask", "--dtypes", "float32"]
    assert main(["attention", *less, *QUICK, "--json", str(written)]) == 0
    found = [{n for n, r in m.records.items() if r.refused} for m in records.read(written).measured]
    assert (
        found
        == {
            "draw_normal": [{"copy", "xla", "ours"}] * 2,
            "jk.scaled_masked_softmax": [{"ours"}] * 2,
            "memory": [set(), {"xla", "ours"}],
        }[where]
    )
    out = capsys.readouterr().out
    said = "temp_bytes not measured" if where == "memory" else "out of memory"
    assert f"ours: {said}" in out


def test_model_bytes_of_every_kind():
    """By hand: 2 sequences, 3 heads, 4 x 4 scores, of which causal attention sees 10."""
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
            assert model_bytes(heads_case("scores", dtype, variant, direction, (2, 3, 4))) == wanted
