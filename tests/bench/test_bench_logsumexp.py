"""The suite of logsumexp runs at a small size, and its bars. Nothing here depends on how long anything takes."""

import argparse
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("rich")

from bars import judge
from bench_cases import QUICK, measured, text_of

import jaxkernels as jk
from jaxkernels.bench import logsumexp, records, rows
from jaxkernels.bench.__main__ import main
from jaxkernels.bench.rows import row_case
from jaxkernels.typing import Tier

SMALL = ["logsumexp", "--cols", "64", "1001", "--elements", "2^13", *QUICK]
READS = {"row_max", "sum", "piece_max"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    written = ["--json", str(folder / "b.json")]
    assert main([*SMALL, *written]) == 0
    return folder


def test_json(run):
    found = records.read(run / "b.json", "logsumexp")
    cases = [(m["dtype"], m["direction"], m["cols"]) for m in found.measured]
    assert cases == [
        (dtype, direction, cols)
        for dtype in ("float32", "bfloat16")
        for direction in ("fwd", "grad", "both")
        for cols in (64, 1001)
    ]
    for m in found.measured:
        assert m["rows"] == 2**13 // m["cols"]
        ceiling = READS if m["direction"] == "fwd" else {"copy"}
        assert {*ceiling, "xla", "auto"} <= set(m.records)
        assert not (READS | {"copy"}) - ceiling & set(m.records)
    assert {r.refused for r in found.records if r.contender in (*READS, "xla", "auto")} == {""}


def test_tables(run, capsys):
    assert main(["logsumexp", "--from-json", str(run / "b.json"), "--markdown"]) == 0
    out = capsys.readouterr().out
    _, *parts = out.split("**")
    detail = dict(zip(parts[:12:2], parts[1:12:2], strict=True))
    assert len(detail) == 6
    for title, table in detail.items():
        assert ("| of read |" in table) == (" fwd, " in title)
        assert ("| of copy |" in table) == (" fwd, " not in title)
    assert main(["logsumexp", "--from-json", str(run / "b.json")]) == 0
    assert "logsumexp grad, bfloat16" in capsys.readouterr().out


def results(direction, rows=4, cols=33, dtype="float32"):
    """What each contender returns, and the x of the ceiling's."""
    case = row_case("logsumexp", direction, dtype, rows, cols)
    programs = logsumexp.contenders(case, argparse.Namespace(tiers=["auto"]))
    drawn = {name: program.draw()[0] for name, program in programs.items()}
    found = {name: program.make(drawn[name])(*drawn[name]) for name, program in programs.items()}
    return found, drawn["row_max" if direction == "fwd" else "copy"][0]


@pytest.mark.parametrize("direction", ["fwd", "grad", "both"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_contenders_compute_the_same(direction, dtype):
    """A comparison of different things is none."""
    found, x = results(direction, dtype=dtype)
    tolerance = 1e-5 if dtype == "float32" else 0.05
    ours, xla = jax.tree.leaves(found["auto"]), jax.tree.leaves(found["xla"])
    shapes = {"fwd": [(4,)], "grad": [(4, 33)], "both": [(4,), (4, 33)]}[direction]
    assert [y.shape for y in ours] == [y.shape for y in xla] == shapes
    for y, peer in zip(ours, xla, strict=True):
        assert y.dtype == peer.dtype == dtype
        assert jnp.allclose(y, peer, rtol=tolerance, atol=tolerance)
    if direction != "grad":
        truth = jnp.log(jnp.exp(x.astype(jnp.float32)).sum(-1))
        assert jnp.allclose(ours[0], truth, rtol=tolerance, atol=tolerance)
    if direction != "fwd":
        assert jnp.array_equal(found["copy"], x)


@pytest.mark.parametrize("shape", [(4, 33), (9, 1000), (2, 4096)])
def test_reads_read_everything(shape):
    """And write next to nothing: a scalar for each row, for all, for every 4096 elements."""
    found, x = results("fwd", *shape)
    x = np.asarray(x)
    assert np.array_equal(found["row_max"], x.max(axis=-1))
    assert np.allclose(found["sum"], x.sum(), rtol=1e-5, atol=1e-3)
    piece = min(4096, x.size)
    pieces = x.ravel()[: x.size // piece * piece].reshape(-1, piece)
    assert np.array_equal(found["piece_max"], pieces.max(axis=-1))


def test_the_backward_pass_runs_no_forward():
    """Both have a reduction in it."""
    case = row_case("logsumexp", "grad", "float32", 4, 33)
    programs = logsumexp.contenders(case, argparse.Namespace(tiers=["auto"]))
    for name in ("xla", "auto"):
        (arguments, *_) = programs[name].draw()
        assert arguments[-1].shape == (4,)
        text = programs[name].make(arguments).lower(*arguments).as_text()
        assert "stablehlo.reduce" not in text, name
    x = jnp.ones((4, 33))
    assert "stablehlo.reduce" in jax.jit(lambda x: jax.nn.logsumexp(x, -1)).lower(x).as_text()


def test_rotations_have_their_own_inputs(monkeypatch):
    monkeypatch.setattr(rows, "rotations", lambda touched: 3)
    case = row_case("logsumexp", "grad", "float32", 4, 33)
    program = logsumexp.contenders(case, argparse.Namespace(tiers=["auto"]))["auto"]
    turns = program.draw()
    assert len(turns) == 3
    for arrays in zip(*turns, strict=True):
        if arrays[0].dtype == jnp.float32:
            assert len({np.asarray(array).tobytes() for array in arrays}) == 3


def made_up(direction="fwd", cols=1024, rows=1024, dtype="float32", tier="warp", **seconds):
    case = row_case("logsumexp", direction, dtype, rows, cols) | {"tier": tier}
    return measured(case, seconds)


def test_forward_by_hand():
    """4 MiB and 4 KiB in 1 microsecond are 4.198 TB/s. The sum moves the 4 MiB alone: 4.194."""
    m = made_up(row_max=2e-6, sum=1e-6, piece_max=3e-6, xla=2e-6, auto=1e-6)
    assert rows.rate(m) == 4 * (1024 * 1024 + 1024) / 1e-6
    assert rows.rate(m, "read") == 4 * 1024 * 1024 / 1e-6
    text = text_of(logsumexp.SUITE, [m])
    assert "['1024', '1024', '4.19', '2.10', '4.20', '1.001', '2.00', 'warp']" in text
    assert "copy" not in text


def test_short_rows_write_a_part_of_what_they_read():
    """9 elements a row of 8: so do the maxima of rows."""
    m = made_up(cols=8, row_max=9e-6, sum=16e-6, auto=10e-6)
    assert rows.rate(m) == pytest.approx(4 * 9 * 1024 / 10e-6)
    assert rows.of_ceiling(m) == pytest.approx(0.9)
    half = made_up(cols=8, dtype="bfloat16", auto=10e-6)
    assert rows.rate(half) == pytest.approx(2 * 9 * 1024 / 10e-6)


def test_gradient_by_hand():
    """It reads x and a scalar for each row and writes dx: 17 elements for a row of 8, a copy 16."""
    m = made_up("grad", cols=8, copy=1.6e-6, xla=3.4e-6, auto=3.4e-6)
    assert rows.rate(m) == pytest.approx(4 * 17 * 1024 / 3.4e-6)
    assert rows.of_ceiling(m) == pytest.approx(0.5)
    text = text_of(logsumexp.SUITE, [m])
    assert "of copy" in text
    assert "of read" not in text


def test_both_move_what_each_of_them_moves():
    sizes = {d: moved.size(made_up(d)) for d, moved in rows.TRAFFIC["logsumexp"].items()}
    assert sizes["both"] == sizes["fwd"] + sizes["grad"]


def test_what_is_the_fastest_read_is_found_in_each_case():
    times = {"row_max": 2.0, "sum": 3.0, "piece_max": 4.0}
    for fastest in times:
        m = made_up(cols=2**20, rows=1, **(times | {fastest: 1.0}))
        assert rows.rate(m, "read") == pytest.approx(2**22, rel=1e-5)
    assert rows.rate(made_up(auto=1.0), "read") is None
    assert rows.of_ceiling(made_up(auto=1.0)) is None


def test_cells_for_regress():
    cells = {logsumexp.SUITE.label(w): cell for cell in logsumexp.watched("cpu") for w in cell[1:2]}
    assert list(cells) == [
        f"logsumexp {direction} {dtype} 1047x1001"
        for dtype in ("float32", "bfloat16")
        for direction in ("fwd", "grad")
    ]
    assert {group for group, *_ in cells.values()} == {"rows"}
    program = cells["logsumexp fwd float32 1047x1001"][2]
    arguments = program.draw()[0]
    assert program.make(arguments)(*arguments).shape == (1047,)
    assert len(list(logsumexp.watched("gpu"))) == 8


@pytest.mark.parametrize(
    ("direction", "never"),
    [("fwd", {"block_smem", "cluster"}), ("grad", {"block_smem", "block_uncached"})],
)
def test_lengths_of_a_gpu_reach_every_tier(direction, never):
    """Float32 rows that shared memory would hold take one read in the forward direction, else a cluster."""
    operation = f"logsumexp_{direction}"
    tiers = {
        str(jk.plan_softmax((8, cols), "float32", operation=operation, device="h200").tier)
        for cols in logsumexp.GPU_COLS
    }
    assert tiers == set(get_args(Tier)) - never


def failed(*cases, platform="gpu"):
    return {v.what for v in judge("logsumexp", cases, platform) if not v.passed}


def reached(of_read, dtype="float32"):
    """A forward at a fraction of the rate of the maxima of rows, which moves as much."""
    return made_up(row_max=1.0, sum=2.0, piece_max=2.0, xla=2.0, auto=1 / of_read, dtype=dtype)


def test_bars():
    backward = made_up("grad", copy=1.0, xla=1.0, auto=5.0)
    assert failed(reached(0.93), reached(0.93, "bfloat16"), backward) == set()
    what = "float32 fwd, of read, least"
    assert failed(reached(0.91), reached(0.99), reached(0.93, "bfloat16")) == {what}
    assert failed(reached(0.91), platform="cpu") == set()
    assert failed(made_up(sum=1.0, xla=1.0, auto=1.0)) == set()
    assert failed(made_up(xla=1.0, auto=1.0)) == {what, "contenders measured"}
    assert failed(made_up("grad", xla=1.0, auto=1.0)) == {"contenders measured"}
    assert failed(made_up("grad", copy=1.0, auto=1.0), platform="cpu") == {"contenders measured"}
