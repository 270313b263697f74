"""Every suite runs at tiny sizes without a clock; contenders agree, files and tables are whole."""

import json
import sys
import zlib

import jax
import numpy as np
import pytest

pytest.importorskip("rich")

from bench_cases import without_a_clock

from jaxkernels.bench import losses, records, regress, rows, rungs
from jaxkernels.bench.__main__ import OPERATIONS, SUITES, main
from jaxkernels.bench.options import build_parser

ON_CPU = jax.default_backend() == "cpu"
ROWS = "--cols 33 --elements 2^10"
SHAPES = "--softmax-shape 4x24 --attention-shape 1x2x8x8 --vocabulary-shape 4x64"
RUNS = {
    "softmax": f"softmax {ROWS} --dtypes float32",
    # Few rows are chained, and the sum of 131072 equal ones is infinite in jax.nn's float16.
    "softmax-float16": f"softmax {ROWS} --dtypes float16 --no-few-rows",
    "log_softmax": f"softmax {ROWS} --dtypes float32 --operation log_softmax",
    "logsumexp": f"logsumexp {ROWS}",
    "rms_norm": f"rms_norm {ROWS}",
    "losses": f"losses {ROWS}",
    "losses_more": f"losses {ROWS} --dtypes bfloat16 --directions ids_8 ids_1024 kl kl_mean kl_both",
    "losses_drawn": "losses --drawn 1 --elements 2^18 --dtypes bfloat16 --directions none log_probs",
    "losses_options": f"losses {ROWS} --directions mean --options results mask",
    "linear_loss": "linear_loss --shapes 70x24x300",
    "scores": "attention --groups scores --shapes 1x3x24",
    "layers": "attention --groups layers --layer-shapes 1x2x32x8",
    "attention_drawn": "attention --drawn 2",
    "sgemm": "sgemm --shapes 32 16x24x8 3x8x8x8",
    "sgemm_drawn": "sgemm --drawn 2 --algorithms naive auto",
    "float32": "float32 --models mlp",
    "scaling": f"scaling --devices {min(2, len(jax.devices()))} {SHAPES}",
    "map": "map --cols 33 8200 --bytes 2^16 --dtypes float32",
    "rungs": "rungs --products 5 --algorithms naive pipelined",
    "regress": "regress --groups scores",
}
# They compute something else, or err more.
OTHERS = {"forward", "copy", "row_max", "sum", "piece_max", "tf32", "bf16_x6", "tf32_x3", "float16"}
OTHERS |= set() if ON_CPU else {"default"}  # the precision of products, which is TF32 there
# Their loss of 16-bit logits has 16 bits.
TORCH = {"torch", "compiled"}
# A CPU has none of these, and no XLA product of float16 that sums in float32.
REFUSED = {"cudnn", "ffi_flash", "tf32", "tf32_x3", "bf16_x6"}


def assert_contenders_agree(called):
    """Contenders of a case give the same results. Those with inputs of their own are not compared."""
    same = {key: of for key, of in called.items() if key[1] not in OTHERS}
    for (number, name), (arguments, found) in same.items():
        peers = (of for key, of in same.items() if key[0] == number and of[0] is arguments)
        _, wanted = next(peers)
        is_narrow = {"float16", "bfloat16"} & {x.dtype.name for x in jax.tree.leaves(arguments)}
        for got, want in zip(found, wanted, strict=True):
            assert got.shape == want.shape, name
            assert got.dtype == want.dtype or name in TORCH, name
            got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
            rounding = 0.06 if is_narrow else 2e-5
            atol = rounding * abs(want).max()
            np.testing.assert_allclose(got, want, rounding, atol, err_msg=name)


# torch.compile warns of its own calls.
TORCHES = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=TORCHES if n.startswith("losses") else ()) for n in RUNS]
)
def test_a_suite_from_end_to_end(name, monkeypatch, tmp_path, capsys):
    called, path, asked = without_a_clock(monkeypatch), tmp_path / "b.json", RUNS[name].split()
    assert main([*asked, "--json", str(path), "--markdown"]) == 0
    printed = capsys.readouterr().out
    for part in called:
        assert_contenders_agree(part)
    run = records.read(path, asked[0])
    (suite,) = (suite for suite in SUITES if suite.name == run.suite)
    options = build_parser(SUITES).parse_args(asked)
    wanted = [case for part in suite.chosen(options) for case in part]
    assert [m.case for m in run.measured] == json.loads(json.dumps(wanted))
    for m in run.measured:
        assert list(m.records) == list(suite.names(m.case, options))
        refused = {name for name, record in m.records.items() if record.refused}
        allowed = REFUSED | ({"xla"} if m["dtype"] == "float16" else set())
        assert refused <= allowed or not ON_CPU
        operations = (m.extra(name, "operations") or 1 for name in m.records)
        assert all(record.seconds for name, record in m.records.items() if name not in refused)
        assert min(operations) >= 1
    tables = [table for view in suite.views(run) for table in view.tables(run.measured)]
    assert tables
    assert all(f"**{table.title}**" in printed for table in tables)
    assert main([run.suite, "--from-json", str(path), "--markdown"]) == 0
    assert capsys.readouterr().out == printed
    assert {line.split()[0] for line in RUNS.values()} == {suite.name for suite in SUITES}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("softmax --cols 0", "0"),
        ("attention --shapes 4x4", "4x4"),
        ("sgemm --algorithms magic", "magic"),
        ("scaling --devices 4096", "4096"),
        ("losses --directions back", "back"),
        ("sgemm --groups drawn", "nothing to measure"),
        ("sgemm --groups peers --shapes 64", "nothing to measure"),
    ],
)
def test_wrong_arguments(wrong, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(wrong.split())
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


# By command line on a GPU: the number of cells, and a checksum of their names, fields and contenders, in parts.
CELLS = [
    ("softmax", 132, 0xE707BE02),
    ("softmax --operation log_softmax --few-rows --dtypes float16", 66, 0x2A599202),
    ("logsumexp", 126, 0x343F0EA3),
    ("rms_norm", 60, 0x79B75E3A),
    ("losses", 108, 0x04804BAD),
    ("losses --short", 22, 0xD6CB3505),
    ("losses --drawn 10 --seed 3", 160, 0xD16585E4),
    ("linear_loss", 3, 0x19D0F1A5),
    ("attention", 68, 0x3FF4A6C9),
    ("attention --drawn 30 --seed 2 --dtypes float16 bfloat16", 30, 0xA301B9AA),
    ("attention --drawn 30 --seed 2 --dtypes float32", 30, 0xC3976306),
    ("sgemm", 31, 0xFC6BF385),
    ("sgemm --groups families peers", 11, 0x991C84C6),
    ("sgemm --drawn 60 --seed 3", 60, 0x508E3053),
    ("float32", 8, 0x3FCEC52C),
    ("map --seed 3", 450, 0x71B60AD0),
    ("rungs --seed 3", 160, 0x9F2710EE),
    ("regress", 143, 0x72C0E5D3),
]


@pytest.mark.parametrize(("line", "count", "checksum"), CELLS)
def test_cells_of_a_gpu_stay(line, count, checksum, monkeypatch):
    """Runs are compared by the names of cells, and no kernel is tuned on the published seeds."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(rows, "with_tier", lambda case: case)
    monkeypatch.setattr(rungs, "rotations", lambda size: 1)  # depends on the cache
    monkeypatch.setattr(losses.importlib.util, "find_spec", lambda name: None)  # torch
    options = build_parser(SUITES).parse_args(line.split())
    suite = regress.suite_of(OPERATIONS) if line == "regress" else options.suite
    found = [
        [(suite.label(case), case, list(suite.names(case, options))) for case in part]
        for part in suite.chosen(options)
    ]
    assert len({json.dumps(cell) for part in found for cell in part}) == sum(map(len, found))
    assert (sum(map(len, found)), zlib.crc32(json.dumps(found).encode())) == (count, checksum)


def test_without_flax(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "flax", None)
    monkeypatch.delitem(sys.modules, "jaxkernels.bench.float32_models", raising=False)
    monkeypatch.delattr("jaxkernels.bench.float32_models", raising=False)
    assert main(["float32", "--models", "mlp"]) == 0
    printed = capsys.readouterr().out
    assert "flax halted; None in sys.modules (float32 mlp fwd and 1 more)" in printed
