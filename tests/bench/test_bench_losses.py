"""The suite of losses runs at a small size, and its bars. Nothing here depends on how long anything takes."""

import argparse
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("optax")

from bars import judge
from bench_cases import QUICK, measured, text_of

from jaxkernels.bench import losses, records, rows, torch_losses
from jaxkernels.bench.__main__ import build_parser, main
from jaxkernels.bench.rows import row_case

# Where torch is installed, its compiler warns of itself when it is imported, and of how it cuts long rows.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:\\s*Online softmax is disabled:UserWarning"),
]

SMALL = ["losses", "--cols", "64", "1001", "--elements", "2^13", *QUICK]
READS = {"row_max", "sum", "piece_max"}
OURS = {"xla", "log_softmax", "ours"}
OPTIONS = argparse.Namespace()


# These tests need the same run, which takes long.
one_process = pytest.mark.xdist_group("bench losses")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    written = folder / "b.json"
    assert main([*SMALL, "--dtypes", "bfloat16", "--json", str(written)]) == 0
    return written


@one_process
def test_json(run):
    found = records.read(run, "losses")
    many = [m for m in found.measured if rows.is_rows(m)]
    assert [(m["direction"], m["cols"], m["rows"]) for m in many] == [
        (direction, cols, 2**13 // cols)
        for direction in ("loss", "mean", "none", "log_probs")
        for cols in (64, 1001)
    ]
    for m in many:
        ceiling = READS if m["direction"] in ("loss", "log_probs") else {"copy"}
        assert {*ceiling, *OURS} <= set(m.records)
    assert {r.refused for r in found.records} == {""}


@one_process
def test_tables(run, capsys):
    assert main(["losses", "--from-json", str(run), "--markdown"]) == 0
    out = capsys.readouterr().out
    for direction, ceiling in (("loss", "read"), ("mean", "copy"), ("none", "copy")):
        _, table = out.split(f"**losses: {direction}, bfloat16**")
        assert f"| of {ceiling} |" in table.split("**")[0]
        assert "| optax ms |" in table.split("**")[0]


def results(direction, dtype, group="rows"):
    case = row_case("losses", direction, dtype, 6, 133, group)
    programs = losses.contenders(case, OPTIONS)
    (drawn,) = programs["ours"].draw()[:1]
    return {name: programs[name].make(drawn)(*drawn) for name in OURS & set(programs)}, drawn


@pytest.mark.parametrize("direction", rows.TRAFFIC["losses"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_contenders_compute_the_same(direction, dtype):
    """A comparison of different things is none."""
    found, (x, label, *_) = results(direction, dtype)
    for name, of in found.items():
        tolerance = 1e-5 if dtype == "float32" else 0.06
        for got, want in zip(jax.tree.leaves(of), jax.tree.leaves(found["xla"]), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype), name
            assert jnp.allclose(got, want, rtol=tolerance, atol=tolerance), name
    if direction == "loss":
        log_p = jax.nn.log_softmax(x.astype(jnp.float32))
        want = -jnp.take_along_axis(log_p, label[:, None], -1).mean()
        np.testing.assert_allclose(found["ours"], want, rtol=1e-5)


@pytest.mark.parametrize("direction", ["loss", "mean"])
def test_chains_of_few_rows(direction, monkeypatch):
    """A gradient takes the place of the logits, a loss that of the first of them."""
    monkeypatch.setattr(losses, "chain", lambda link: losses_chain(link, 2))
    found, (arguments,) = results(direction, "float32", "few_rows")
    assert set(found) == {"xla", "ours"}
    got, want = found["ours"][0], found["xla"][0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
    assert got.shape == arguments[1].shape
    same = np.asarray(got == arguments[1])
    assert not same[0, 0]
    assert same.sum() == (same.size - 1 if direction == "loss" else 0)


losses_chain = losses.chain


def test_every_link_of_a_chain_computes_its_loss(monkeypatch):
    """XLA would take the log-sum-exp of logits that stay as they are once for all links."""
    monkeypatch.setattr(losses, "chain", lambda link: losses_chain(link, 3))
    case = row_case("losses", "loss", "float32", 6, 133, "few_rows")
    program = losses.contenders(case, OPTIONS)["xla"]
    (drawn,) = program.draw()
    text = program.make(drawn).lower(*drawn).compile().as_text()
    assert text.count(" exponential(") == 3


def chosen(*arguments):
    options = build_parser().parse_args(["losses", *arguments])
    return [case for part in losses.SUITE.chosen(options) for case in part]


def test_what_a_gpu_measures(monkeypatch):
    monkeypatch.setattr(losses.jax, "default_backend", lambda: "gpu")
    found = chosen()
    assert {c["dtype"] for c in found} == {"float32", "bfloat16"}
    lengths = {c["cols"] for c in found}
    assert lengths == {*losses.VOCABULARIES}
    drawn = chosen("--drawn", "10", "--seed", "2")
    assert {c["cols"] for c in drawn} == {*losses.lengths(10, seed=2)}
    assert {c["group"] for c in drawn} == {"rows"}
    assert {2**n for n in (28, 30) for c in found if c["rows"] == 2**n // c["cols"]} == {
        2**28,
        2**30,
    }
    few = [c for c in found if c["group"] == "few_rows"]
    assert {(c["rows"], c["cols"]) for c in few} == {(1, 128256), (8, 128256), (64, 128256)}
    assert len(chosen("--short")) == 2 * 4 * 2 + 2 * 3


def made_up(direction="loss", cols=1024, dtype="float32", **seconds):
    return measured(row_case("losses", direction, dtype, 1024, cols), seconds)


def test_traffic_by_hand():
    """4 MiB in 1 us are 4.194 TB/s; three streams of it at the rate of a copy, which has two, take 1.5 times as long."""
    m = made_up(row_max=1e-6, sum=2e-6, piece_max=2e-6, xla=2e-6, log_softmax=3e-6, ours=1e-6)
    assert rows.rate(m, "ours") == 2**22 / 1e-6
    assert rows.of_ceiling(m, "ours") == pytest.approx(1, abs=1e-3)
    text = text_of(losses.SUITE, [m])
    assert "'0.999', '0.001', '0.002', '0.003', '2.00'" in text
    for direction, slower in (("mean", 1.0), ("none", 1.5)):
        m = made_up(direction, copy=1e-6, ours=slower * 1e-6)
        assert rows.of_ceiling(m, "ours") == pytest.approx(1)


def test_torch_is_compared_where_it_is(monkeypatch):
    """A stand-in: it is given JAX's arrays, its loss and its gradient are asked for, and it is waited for."""
    calls = []

    class Tensor(types.SimpleNamespace):
        def requires_grad_(self, flag):
            self.wants = flag

        def long(self):
            return self

        def detach(self):
            return self

        def backward(self, *cotangent):
            calls.append(("backward", len(cotangent)))

    torch = types.SimpleNamespace(
        from_dlpack=lambda x: Tensor(of=x, grad=None),
        compile=lambda f: lambda *a, **k: (calls.append("compiled"), f(*a, **k))[1],
        cuda=types.SimpleNamespace(
            is_available=lambda: True, synchronize=lambda: calls.append("waited")
        ),
    )
    loss = lambda x, label, reduction: (calls.append((reduction, x.wants)), Tensor())[1]  # noqa: E731
    torch.nn = types.SimpleNamespace(functional=types.SimpleNamespace(cross_entropy=loss))
    monkeypatch.setattr(torch_losses, "is_installed", lambda: True)
    monkeypatch.setattr(torch_losses.importlib, "import_module", lambda name: torch)
    case = row_case("losses", "none", "float32", 6, 133)
    programs = losses.contenders(case, OPTIONS)
    (drawn,) = programs["compiled"].draw()[:1]
    call = programs["compiled"].make(drawn)
    jax.block_until_ready(call(*drawn))
    assert calls == ["compiled", ("none", True), ("backward", 1), "waited"]
    calls.clear()
    eager = losses.contenders({**case, "direction": "loss"}, OPTIONS)["torch"]
    jax.block_until_ready(eager.make(drawn)(*drawn[:2]))
    assert calls == [("mean", False), "waited"]


def test_cells_for_regress():
    cells = {losses.SUITE.label(case): program for _, case, program in losses.watched("cpu")}
    assert list(cells) == [
        f"losses {direction} {dtype} 261x1001"
        for dtype in ("float32", "bfloat16")
        for direction in ("loss", "mean", "none")
    ]
    program = cells["losses mean bfloat16 261x1001"]
    (drawn,) = program.draw()[:1]
    assert program.make(drawn)(*drawn)[1].shape == (261, 1001)


def failed(*cases, platform="gpu"):
    return {v.what for v in judge("losses", cases, platform) if not v.passed}


def reached(direction, part, dtype="float32"):
    moved = rows.TRAFFIC["losses"][direction]
    ceiling = {"row_max": 1.0, "sum": 2.0, "piece_max": 2.0} if moved.writes == 0 else {"copy": 2.0}
    streams = moved.reads + moved.writes
    times = ceiling | {"xla": 9.0, "log_softmax": 9.0, "ours": streams / part}
    return made_up(direction, cols=2**18, dtype=dtype, **times)


def test_bars():
    assert failed(reached("loss", 0.93), reached("mean", 0.95), reached("none", 0.94)) == set()
    assert failed(reached("loss", 0.91)) == {"float32 loss, of read, least"}
    assert failed(reached("mean", 0.93)) == {"float32 mean, of copy, least"}
    assert failed(reached("none", 0.92)) == {"float32 none, of copy, least"}
    assert failed(reached("mean", 0.93), platform="cpu") == set()
    few = measured(
        row_case("losses", "mean", "float32", 8, 128256, "few_rows"), {"xla": 1.0, "ours": 1.1}
    )
    assert failed(few) == {"few rows, times faster than optax, least"}
    assert "contenders measured" in failed(made_up(ours=1.0))
