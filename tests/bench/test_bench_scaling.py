"""The benchmark of scaling runs at a small size.

Nothing here depends on how long anything takes.
"""

import argparse

import pytest

pytest.importorskip("rich")

import jax
import numpy as np
from bench_cases import QUICK

from jaxkernels.bench import records, scaling
from jaxkernels.bench.__main__ import main
from jaxkernels.bench.programs import with_gradient
from jaxkernels.bench.scaling import CONTENDERS, DIRECTIONS, OF_VOCABULARY, is_weak

SMALL = ["--softmax-shape", "4x24", "--attention-shape", "1x2x8x8", "--vocabulary-shape", "4x64"]
SHAPES = {"softmax": [4, 24], "attention": [1, 2, 8, 8], "vocabulary": [4, 64]}


@pytest.fixture(scope="module")
def counts():
    """Numbers of devices that are here: 1, 2 and 8 simulated ones, or what there is of GPUs."""
    return [count for count in (1, 2, 8) if count <= len(jax.devices())]


@pytest.fixture(scope="module")
def run(tmp_path_factory, counts):
    folder = tmp_path_factory.mktemp("scaling")
    written = ["--json", str(folder / "b.json")]
    # 1 is measured whether it is named or not, and each number once.
    named = [str(count) for count in [counts[-1], *counts[1:]]]
    assert main(["scaling", "--devices", *named, *SMALL, *QUICK, *written]) == 0
    return folder


def _is_whole(m, names):
    assert list(m.records) == list(names)
    for record in m.records.values():
        assert record.refused == ""
        assert len(record.samples) == 2
        assert min(record.samples) <= record.seconds <= max(record.samples)


def test_json_of_weak_scaling(run, counts):
    weak = list(filter(is_weak, records.read(run / "b.json", "scaling").measured))
    found = {(m["group"], m["dtype"], m["direction"]) for m in weak}
    kinds = {("softmax", "float32"), ("softmax", "bfloat16"), ("attention", "bfloat16")}
    assert found == {(*kind, direction) for kind in kinds for direction in DIRECTIONS}
    assert len(weak) == len(found)
    for m in weak:
        assert m["shape"] == SHAPES[m["group"]]
        _is_whole(m, map(str, counts))
        # Rows and batches need nothing of each other.
        assert all(m.extra(name, "collectives") == {} for name in m.records)


def test_json_of_a_vocabulary(run, counts):
    found = [m for m in records.read(run / "b.json").measured if not is_weak(m)]
    kinds = [(m["direction"], m["devices"]) for m in found]
    assert sorted(kinds) == sorted((d, count) for d in OF_VOCABULARY for count in counts)
    for m in found:
        assert (m["shape"], m["dtype"]) == ([4, 64], "bfloat16")
        _is_whole(m, CONTENDERS)
        if m["devices"] == 1:
            assert all(m.extra(name, "collectives") == {} for name in CONTENDERS)


def test_tables_again_from_json(run, counts, capsys):
    assert main(["scaling", "--from-json", str(run / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert f"| attention bfloat16 both 1x2x8x8 | {counts[-1]} |" in out
    for direction in OF_VOCABULARY:
        assert f"| vocabulary bfloat16 {direction} 4x64 | {counts[-1]} |" in out
    for word in ("weak scaling", "strong scaling", "efficiency", "x gathered", "x XLA", "| none |"):
        assert word in out


@pytest.mark.parametrize(("group", "cases"), [("softmax", 2), ("attention", 1), ("vocabulary", 1)])
def test_one_device_and_one_group(group, cases, tmp_path, capsys):
    """Less than everything is measured and shown."""
    written = ["--json", str(tmp_path / "b.json")]
    less = ["--groups", group, "--directions", "fwd", "--devices", "1"]
    assert main(["scaling", *SMALL, *QUICK, *less, *written]) == 0
    found = records.read(tmp_path / "b.json").measured
    assert [m["group"] for m in found] == [group] * cases
    assert f"{group} " in capsys.readouterr().out


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


def _vocabulary(direction, devices, dtype="float32"):
    case = {"group": "vocabulary", "dtype": dtype, "direction": direction, "shape": [8, 256]}
    return scaling.contenders(case | {"devices": devices}, argparse.Namespace(devices=None))


@pytest.mark.parametrize("direction", OF_VOCABULARY)
def test_contenders_compute_the_same(direction, cpu_devices, monkeypatch):
    """Of a vocabulary that is cut: results and gradients, each cut as the input is."""
    monkeypatch.setattr(scaling.jax, "devices", lambda *_: cpu_devices)
    found, collectives = {}, {}
    for name, program in _vocabulary(direction, 4).items():
        arguments = program.draw()[0]
        assert len(arguments) == (2 if direction == "both" else 1)
        compiled = program.make(arguments)
        found[name] = jax.tree.leaves(jax.block_until_ready(compiled(*arguments)))
        collectives[name] = program.inspect["collectives"](compiled, arguments)
        assert {r.sharding for r in found[name]} == {scaling.cut(4, 1)}
    assert set(found) == set(CONTENDERS)
    # Values up to 10 and sums of 256 terms of size 1.
    for name in ("gathered", "ours"):
        for result, expected in zip(found[name], found["xla"], strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    # Each operand once: a residual that is gathered again would flatter ours.
    assert collectives["gathered"] == {"all-gather": len(arguments)}
    assert "all-gather" not in collectives["xla"]


@pytest.mark.parametrize("group", scaling.WEAK)
def test_devices_compute_what_one_does(group, cpu_devices, monkeypatch):
    monkeypatch.setattr(scaling.jax, "devices", lambda *_: cpu_devices)
    shape = (8, *SHAPES[group][1:])
    found = []
    for devices in (1, 8):
        ((t, x),) = scaling.draw(shape, "float32", scaling.cut(devices, 0), "both", 1)
        assert {s.data.shape for s in x.addressable_shards} == {(8 // devices, *shape[1:])}
        program = scaling.compiled(with_gradient(scaling.WEAK[group]), (t, x))
        found.append([np.asarray(value) for value in (x, t, *jax.block_until_ready(program(t, x)))])
    for one, eight in zip(*found, strict=True):
        np.testing.assert_array_equal(one, eight)
    x, t, *_ = found[0]
    assert (x != t).any()


def test_what_a_device_has_does_not_depend_on_their_number(counts):
    """Weak scaling: the contender of n devices has n times the rows."""
    case = {"group": "softmax", "dtype": "float32", "direction": "fwd", "shape": [4, 24]}
    programs = scaling.contenders(case, argparse.Namespace(devices=counts))
    for count in counts:
        ((x,), *_) = programs[str(count)].draw()
        assert x.shape == (4 * count, 24)
        assert {s.data.shape for s in x.addressable_shards} == {(4, 24)}


def test_calls_rotate_through_different_inputs(cpu_devices, monkeypatch):
    monkeypatch.setattr(scaling.jax, "devices", lambda *_: cpu_devices)
    drawn = scaling.draw((4, 8), "bfloat16", scaling.cut(2, 0), "both", 3)
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

    def counted(text):
        return scaling.collectives(argparse.Namespace(as_text=lambda: text), ())

    assert counted(text) == {
        "all-gather": 2,
        "all-reduce": 1,
        "all-to-all": 1,
        "collective-permute": 1,
        "reduce-scatter": 1,
    }
    assert counted("%a = f32[8] add(%x, %y)") == {}


@pytest.mark.parametrize("where", ["draw", "compiled", "text"])
@pytest.mark.parametrize("group", ["softmax", "vocabulary"])
def test_run_survives_a_refusal(group, where, monkeypatch, tmp_path, capsys):
    def failing(*arguments, **options):
        raise ValueError("out of memory")

    if where == "text":
        monkeypatch.setattr(jax.stages.Compiled, "as_text", lambda self: None)
    else:
        monkeypatch.setattr(scaling, where, failing)
    written = tmp_path / "b.json"
    less = ["--groups", group, "--devices", "1", "--directions", "fwd"]
    assert main(["scaling", *SMALL, *QUICK, *less, "--json", str(written)]) == 0
    m = records.read(written).measured[0]
    assert list(m.records) == (["1"] if group == "softmax" else list(CONTENDERS))
    for name, record in m.records.items():
        assert record.refused
        assert m.extra(name, "collectives") is None
        assert (record.seconds is None) == (where != "text")
    said = "does not show" if where == "text" else "out of memory"
    assert said in capsys.readouterr().out


def test_a_vocabulary_that_cannot_be_cut_is_refused(counts, tmp_path):
    if len(counts) == 1:
        pytest.skip("one device")
    written = tmp_path / "b.json"
    less = ["--groups", "vocabulary", "--vocabulary-shape", "4x7", "--directions", "fwd"]
    assert main(["scaling", *less, "--devices", "2", *QUICK, "--json", str(written)]) == 0
    one, two = records.read(written).measured
    assert not any(record.refused for record in one.records.values())
    assert all(record.refused for record in two.records.values())
    assert list(two.records) == list(CONTENDERS)


def test_defaults_fit_every_number_of_devices_and_the_memory():
    for shapes in (scaling.GPU_SHAPES, scaling.CPU_SHAPES):
        assert list(shapes) == list(scaling.DTYPES)
        assert shapes["vocabulary"][1] % 8 == 0
    for group in scaling.WEAK:
        # Bytes on the first device: inputs for 1, 2, 4 and 8 devices, and what one call writes.
        item = max(np.dtype(dtype).itemsize for dtype in scaling.DTYPES[group])
        assert np.prod(scaling.GPU_SHAPES[group]) * item * (4 * 2 + 2) < 64 * 2**30


def test_numbers_of_devices_double(monkeypatch):
    for visible, expected in ((8, [1, 2, 4, 8]), (6, [1, 2, 4]), (1, [1])):
        monkeypatch.setattr(scaling.jax, "devices", lambda visible=visible: [None] * visible)
        assert scaling.counts(argparse.Namespace(devices=None)) == expected
    assert scaling.counts(argparse.Namespace(devices=[4, 4])) == [1, 4]
