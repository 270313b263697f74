"""The benchmark of scaling runs at a small size.

Nothing here depends on how long anything takes.
"""

import json

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

import jax
import numpy as np

from jaxkernels.bench.__main__ import main
from jaxkernels.bench.scaling import cases, contenders, measure

QUICK = ["--repeats", "2", "--min-sample-ms", "0.1"]
SMALL = ["--softmax-shape", "4x24", "--attention-shape", "1x2x8x8", "--vocabulary-shape", "4x64"]
SHAPES = {"softmax": (4, 24), "attention": (1, 2, 8, 8), "vocabulary": (4, 64)}


@pytest.fixture(scope="module")
def counts():
    """Numbers of devices that are here: 1, 2 and 8 simulated ones, or what there is of GPUs."""
    return [count for count in (1, 2, 8) if count <= len(jax.devices())]


@pytest.fixture(scope="module")
def run(tmp_path_factory, counts):
    folder = tmp_path_factory.mktemp("scaling")
    written = ["--json", str(folder / "b.json"), "--plot", str(folder / "b.png")]
    # 1 is measured whether it is named or not, and each number once.
    named = [str(count) for count in [counts[-1], *counts[1:]]]
    assert main(["scaling", "--devices", *named, *SMALL, *QUICK, *written]) == 0
    return folder


def _is_whole(measured, names):
    assert set(measured["seconds"]) == set(measured["collectives"]) == set(names)
    assert measured["refused"] == {}
    for name, seconds in measured["seconds"].items():
        samples = measured["samples"][name]
        assert len(samples) == 2
        assert min(samples) <= seconds <= max(samples)


def test_json_of_weak_scaling(run, counts):
    data = json.loads((run / "b.json").read_text())
    assert data["benchmark"] == "scaling"
    assert data["settings"]["devices"] == counts
    found = {(m["group"], m["dtype"], m["direction"]) for m in data["weak"]}
    kinds = {("softmax", "float32"), ("softmax", "bfloat16"), ("attention", "bfloat16")}
    assert found == {(*kind, direction) for kind in kinds for direction in cases.DIRECTIONS}
    assert len(data["weak"]) == len(found)
    for m in data["weak"]:
        assert m["devices"] == counts
        assert tuple(m["shape"]) == SHAPES[m["group"]]
        _is_whole(m, map(str, counts))
        # Rows and batches need nothing of each other.
        assert not any(m["collectives"].values())


def test_json_of_a_vocabulary(run, counts):
    found = json.loads((run / "b.json").read_text())["vocabulary"]
    kinds = [(m["direction"], m["devices"]) for m in found]
    assert sorted(kinds) == sorted((d, count) for d in cases.DIRECTIONS for count in counts)
    for m in found:
        assert (m["rows"], m["cols"], m["dtype"]) == (4, 64, "bfloat16")
        _is_whole(m, cases.CONTENDERS)
        if m["devices"] == 1:
            assert not any(m["collectives"].values())


def test_plot_and_tables_again_from_json(run, counts, capsys):
    assert (run / "b.png").read_bytes().startswith(b"\x89PNG")
    assert main(["scaling", "--from-json", str(run / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert f"| attention bfloat16 1x2x8x8 | {counts[-1]} |" in out
    assert f"| log_softmax bfloat16 both 4x64 on {counts[-1]} |" in out
    for word in ("weak scaling", "strong scaling", "efficiency", "x gathered", "x XLA", "| none |"):
        assert word in out
    assert ("nothing to compare" in out) == (len(counts) == 1)


@pytest.mark.parametrize("group", cases.GROUPS)
def test_one_device_and_one_group(group, tmp_path, capsys):
    """Less than everything is measured, drawn and judged all the same."""
    written = ["--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png")]
    less = ["--groups", group, "--directions", "fwd", "--devices", "1"]
    assert main(["scaling", *SMALL, *QUICK, *less, *written]) == 0
    data = json.loads((tmp_path / "b.json").read_text())
    expected = {"softmax": (2, 0), "attention": (1, 0), "vocabulary": (0, 1)}[group]
    assert (len(data["weak"]), len(data["vocabulary"])) == expected
    assert "one device: there is nothing to compare" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--devices", "0"],
        ["--devices", "4096"],
        ["--groups", "columns"],
        ["--vocabulary-shape", "4x64x2"],
        ["--attention-shape", "1x2x8"],
        ["--softmax-shape", "4x0"],
    ],
)
def test_wrong_arguments(wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["scaling", *wrong])
    assert stopped.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def test_every_step_is_announced(counts):
    said = []
    settings = measure.Settings(tuple(counts), SHAPES, ("fwd",), 1, 1e-6)
    measure.measure_weak(settings, said.append)
    measure.measure_vocabulary(settings, said.append)
    assert len(said) == len(set(said)) == settings.steps == 3 + len(counts)


@pytest.mark.parametrize("direction", cases.DIRECTIONS)
def test_contenders_compute_the_same(direction, cpu_devices):
    """Of a vocabulary that is cut: results and gradients, each cut as the input is."""
    sharding = contenders.last_dimension(cpu_devices[:4])
    (arguments,) = contenders.arguments((8, 256), "float32", sharding, direction, 1)
    assert len(arguments) == (1 if direction == "fwd" else 2)
    found, texts = {}, {}
    for name, function in contenders.vocabulary(sharding).items():
        program = contenders.compiled(contenders.directed(function, direction), arguments)
        results = jax.block_until_ready(program(*arguments))
        found[name] = jax.tree.leaves(results)
        texts[name] = program.as_text()
        assert {r.sharding for r in found[name]} == {sharding}
    assert set(found) == set(cases.CONTENDERS)
    # Values up to 10 and sums of 256 terms of size 1.
    for name in ("gathered", "ours"):
        for result, expected in zip(found[name], found["xla"], strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    # Each operand once: a residual that is gathered again would flatter ours.
    gathered = measure.count_collectives(texts["gathered"])
    assert gathered == {"all-gather": len(arguments)}
    assert "all-gather" not in measure.count_collectives(texts["xla"])


@pytest.mark.parametrize("group", contenders.WEAK)
def test_devices_compute_what_one_does(group, cpu_devices):
    shape = (8, *SHAPES[group][1:])
    found = []
    for devices in (cpu_devices[:1], cpu_devices):
        sharding = contenders.first_dimension(devices)
        ((x, t),) = contenders.arguments(shape, "float32", sharding, "both", 1)
        assert {s.data.shape for s in x.addressable_shards} == {(8 // len(devices), *shape[1:])}
        program = contenders.compiled(contenders.both(contenders.WEAK[group]), (x, t))
        results = jax.block_until_ready(program(x, t))
        found.append([np.asarray(value) for value in (x, t, *results)])
    for one, eight in zip(*found, strict=True):
        np.testing.assert_array_equal(one, eight)
    x, t, *_ = found[0]
    assert (x != t).any()


def test_calls_rotate_through_different_inputs(cpu_devices):
    sharding = contenders.first_dimension(cpu_devices[:2])
    drawn = contenders.arguments((4, 8), "bfloat16", sharding, "both", 3)
    arrays = [np.asarray(x, "float32") for arguments in drawn for x in arguments]
    assert len({x.tobytes() for x in arrays}) == 6
    assert all(x.any() for x in arrays)


def test_collectives_are_counted():
    text = """
      %a = bf16[8,128]{1,0} all-gather(%x), channel_id=1, metadata={op_name="all-gather"}
      %b = (bf16[8], bf16[64]) all-gather-start(%x), channel_id=2
      %c = bf16[64] all-gather-done(%b)
      %d = (f32[8]{0}, f32[8]{0}) all-reduce(%y, %z), to_apply=%add
      ROOT %reduce-scatter.1 = f32[8]{0} reduce-scatter(%y), to_apply=%add
      %fusion = f32[8]{0} fusion(%all-to-all.3), calls=%all-to-all_fusion
      %e = f32[8]{0} all-to-all(%y)
      %f = f32[8]{0} collective-permute-start(%y)
    """
    assert measure.count_collectives(text) == {
        "all-gather": 2,
        "all-reduce": 1,
        "all-to-all": 1,
        "collective-permute": 1,
        "reduce-scatter": 1,
    }
    assert measure.count_collectives("%a = f32[8] add(%x, %y)") == {}


@pytest.mark.parametrize("where", ["arguments", "compiled", "text"])
@pytest.mark.parametrize("group", ["softmax", "vocabulary"])
def test_run_survives_a_refusal(group, where, monkeypatch, tmp_path, capsys):
    def failing(*arguments, **options):
        raise ValueError("out of memory")

    if where == "text":
        monkeypatch.setattr(jax.stages.Compiled, "as_text", lambda self: None)
    else:
        monkeypatch.setattr(contenders, where, failing)
    written = tmp_path / "b.json"
    less = ["--groups", group, "--devices", "1", "--directions", "fwd"]
    drawn = ["--json", str(written), "--plot", str(tmp_path / "b.png")]
    assert main(["scaling", *SMALL, *QUICK, *less, *drawn]) == 0
    data = json.loads(written.read_text())
    m = [*data["weak"], *data["vocabulary"]][0]
    assert set(m["refused"]) == ({"1"} if group == "softmax" else set(cases.CONTENDERS))
    assert m["seconds"] == m["collectives"] == {}
    out = capsys.readouterr().out
    assert ("out of memory" in out) == (where != "text")


def test_a_vocabulary_that_cannot_be_cut_is_refused(counts, tmp_path):
    if len(counts) == 1:
        pytest.skip("one device")
    written = tmp_path / "b.json"
    less = ["--groups", "vocabulary", "--vocabulary-shape", "4x7", "--directions", "fwd"]
    assert main(["scaling", *less, "--devices", "2", *QUICK, "--json", str(written)]) == 0
    one, two = json.loads(written.read_text())["vocabulary"]
    assert one["refused"] == {}
    assert set(two["refused"]) == set(cases.CONTENDERS)


def test_defaults_fit_every_number_of_devices_and_the_memory():
    for shapes in (cases.GPU_SHAPES, cases.CPU_SHAPES):
        assert list(shapes) == list(cases.GROUPS) == list(cases.DTYPES)
        assert shapes["vocabulary"][1] % 8 == 0
    for group in contenders.WEAK:
        # Bytes on the first device: inputs for 1, 2, 4 and 8 devices, and what one call writes.
        item = max(np.dtype(dtype).itemsize for dtype in cases.DTYPES[group])
        assert np.prod(cases.GPU_SHAPES[group]) * item * (4 * 2 + 2) < 64 * 2**30
