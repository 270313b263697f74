"""The suite of linear losses runs at a small size, and its bars. Nothing here depends on how long anything takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("optax")

from bars import judge
from bench_cases import QUICK, measured

from jaxkernels.bench import linear_loss, records
from jaxkernels.bench.__main__ import build_parser, main
from jaxkernels.bench.linear_loss import linear_case

CASE = linear_case(70, 24, 300, "float32", 60_000)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    written = tmp_path_factory.mktemp("bench") / "b.json"
    assert main(["linear_loss", "--shapes", "70x24x300", *QUICK, "--json", str(written)]) == 0
    return written


def test_json(run):
    found = records.read(run, "linear_loss")
    assert [m["dtype"] for m in found.measured] == ["float32", "bfloat16"]
    assert {r.refused for r in found.records} == {""}
    for record in found.records:
        bound = 2e-6 if record.case["dtype"] == "float32" else 0.02
        assert 0 <= max(record.extra["errors"].values()) < bound, record.contender
        assert record.extra["chunks"] == 1
        assert record.extra["temp_bytes"] > 0


def test_table(run, capsys):
    assert main(["linear_loss", "--from-json", str(run), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "**70 x 24 times 24 x 300, bfloat16" in out
    for name in list(linear_loss.NAMES.values())[:3]:
        assert out.count(f"| {name} |") == 2


def results():
    programs = linear_loss.contenders(CASE, build_parser().parse_args(["linear_loss"]))
    (drawn,) = programs["ours"].draw()[:1]
    return programs, drawn


def test_contenders_compute_the_same():
    programs, drawn = results()
    assert set(programs) == set(linear_loss.NAMES)
    found = {name: program.make(drawn)(*drawn) for name, program in programs.items()}
    for got in found.values():
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(found["xla"]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-7)
    assert programs["bounded"].inspect["chunks"](None, drawn) > 1


def test_an_error_is_seen(monkeypatch):
    """Rows of the truth come in parts; a gradient that is wrong by a tenth has a relF of a tenth."""
    monkeypatch.setattr(linear_loss, "_ROWS_OF_TRUTH", 32)
    programs, drawn = results()
    right = programs["ours"].make(drawn)
    look = programs["ours"].inspect["errors"]
    assert max(look(right, drawn).values()) < 2e-6

    def wrong(*arguments):
        loss, (dx, dw) = right(*arguments)
        return loss, (1.1 * dx, dw)

    assert look(wrong, drawn)["dx"] == pytest.approx(0.1, rel=1e-3)


def test_what_a_gpu_measures(monkeypatch):
    options = build_parser().parse_args(["linear_loss"])
    monkeypatch.setattr(linear_loss.jax, "default_backend", lambda: "gpu")
    assert tuple(linear_loss.cases(options)) == linear_loss.GPU_CASES
    case = linear_loss.GPU_CASES[1]
    assert linear_loss._chunks("ours", case) == 8
    assert linear_loss._chunks("bounded", case) == 18
    assert "bounded" not in linear_loss.contenders(linear_loss.GPU_CASES[0], options)
    assert jnp.dtype(case["dtype"]) == jnp.bfloat16


def failed(ours, bounded=None, case=linear_loss.GPU_CASES[0], memory=3_000_000_000):
    seconds = {"xla": 0.05, "logits": 0.03, "ours": ours}
    seconds |= {} if bounded is None else {"bounded": bounded}
    extra = {name: {"temp_bytes": memory} for name in seconds}
    return {
        v.what
        for v in judge("linear_loss", [measured(case, seconds, extra)], "gpu")
        if not v.passed
    }


def test_bars():
    assert failed(0.0229) == set()
    assert failed(0.0231) == {"(4096, 4096, 128256) bfloat16, ms"}
    of_many = linear_loss.GPU_CASES[1]
    assert failed(0.049, 0.06, of_many) == set()
    assert failed(0.051, 0.06, of_many) == {"times faster than optax, least"}
    assert failed(0.049, 0.06, of_many, memory=3_300_000_000) == {"temporary bytes, most"}
