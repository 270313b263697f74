"""The suite of models in float32 runs at a small size. Nothing here depends on how long anything takes."""

import argparse
import importlib.util
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("rich")

from bench_cases import QUICK, measured, text_of

from jaxkernels.bench import float32, records
from jaxkernels.bench.__main__ import main

CASES = [
    {"model": model, "direction": direction, **float32.CPU_SIZES[model]}
    for model in float32.MODELS
    for direction in float32.DIRECTIONS
]
OPTIONS = argparse.Namespace()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What is quick to compile, at the sizes of a CPU."""
    written = tmp_path_factory.mktemp("bench") / "b.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(float32, "GPU_SIZES", float32.CPU_SIZES)
        assert main(["float32", "--models", "mlp", *QUICK, "--json", str(written)]) == 0
    return written


def test_json(run):
    found = records.read(run, "float32").measured
    assert [m.case for m in found] == [case for case in CASES if case["model"] == "mlp"]
    for m in found:
        assert list(m.records) == ["ours", "pipelined", "highest", "default"]
        for name, record in m.records.items():
            assert record.refused == ""
            assert m.extra(name, "temp_bytes") >= 0
            assert len(record.samples) == 2
        assert m.extra("highest", "relF") is None
        assert all(m.extra(name, "relF") < 1e-5 for name in float32.OURS)


def test_table_by_hand(run, capsys):
    assert main(["float32", "--from-json", str(run), "--markdown"]) == 0
    assert capsys.readouterr().out.count("| mlp | ") == 8
    times = {"ours": 2e-3, "highest": 6e-3, "default": 1e-3}
    extra = {name: {"temp_bytes": 1_500_000_000, "relF": 2e-7} for name in times}
    del extra["highest"]["relF"]
    text = text_of(float32.SUITE, [measured(CASES[1], times, extra)])
    for line in (
        "'ours', '2.000', '3.00', '1.500', '2.0e-07'",
        "'highest', '6.000', '1.00', '1.500', '-'",
        "'default', '1.000', '6.00', '1.500', '2.0e-07'",
    ):
        assert f"['attention', 'step', {line}]" in text
    assert "attention: batch 2, length 64, heads 4, depth 16" in text


def made(case):
    programs = float32.contenders(case, OPTIONS)
    arguments = programs["ours"].draw()
    return {name: program.make(arguments[0]) for name, program in programs.items()}, arguments


# Of a forward program and of a step: a linear layer has one product, and two more for its gradients, but
# for that of x in the first; attention has two, and four more.
PRODUCTS = {
    "attention": (4 + 2, 3 * (4 + 2) - 3),
    "mlp": (2, 3 * 2 - 1),
    "char_lm": (8 + 1, 3 * (8 + 1)),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['model']}-{c['direction']}")
def test_contenders_compute_the_same(case):
    """And all products of ours are ours, none of XLA's; those are at their precisions."""
    functions, arguments = made(case)
    results = {name: jax.tree.leaves(f(*arguments[0])) for name, f in functions.items()}
    # A tenth of what TF32 errs by, of the largest number: some gradients are nothing but rounding.
    most = max(float(abs(x).max()) for x in results["highest"])
    for name in float32.OURS:
        for got, want in zip(results[name], results["highest"], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * most)
    texts = {name: str(jax.make_jaxpr(f)(*arguments[0])) for name, f in functions.items()}
    found = {name: text.count("jaxkernels_sgemm[") for name, text in texts.items()}
    ours = PRODUCTS[case["model"]][case["direction"] == "step"]
    assert found == {"ours": ours, "pipelined": ours, "highest": 0, "default": 0}
    for name, rung in {"ours": "auto", "pipelined": "pipelined"}.items():
        assert set(re.findall(r"algorithm='(\w+)'", texts[name])) == {rung}
    plain = {name: text.count("dot_general[") for name, text in texts.items()}
    assert plain == {"ours": 0, "pipelined": 0, "highest": ours, "default": ours}
    assert "HIGHEST" in texts["highest"]
    assert "HIGHEST" not in texts["default"]


@pytest.mark.parametrize("model", float32.MODELS)
def test_inputs_differ_and_parameters_do_not(model, monkeypatch):
    monkeypatch.setattr(float32, "rotations", lambda _: 2)
    case = next(c for c in CASES if c["model"] == model)
    _, arguments = made(case)
    first, second = arguments
    assert first[0] is second[0]
    assert len(first) == 2
    assert not np.array_equal(first[1], second[1])


def test_what_a_gpu_measures(monkeypatch):
    monkeypatch.setattr(float32.jax, "default_backend", lambda: "gpu")
    found = list(float32.cases(OPTIONS))
    assert len(found) == 6
    assert found[0] == {
        "model": "attention",
        "direction": "fwd",
        **{"batch": 4, "length": 2048, "heads": 16, "depth": 64},
    }


@pytest.mark.parametrize("direction", float32.DIRECTIONS)
def test_error_by_hand(direction):
    """Of the result or of the gradients, not of the loss: the norm of (0.3, 0.4) over that of (3, 4)."""

    def giving(loss, *parts):
        found = [jnp.array(part) for part in parts]
        return lambda: (loss, found) if direction == "step" else found

    truth, function = giving(1.0, [3.0], [0.0, 4.0]), giving(2.0, [3.3], [0.0, 4.4])
    error = float32._error({"direction": direction}, lambda: truth, function, ())
    assert error == pytest.approx(0.1)


def test_inputs_alone_are_too_many_for_the_cache(monkeypatch):
    """All calls have the same parameters."""
    counted = []
    monkeypatch.setattr(float32, "rotations", lambda size: counted.append(size) or 1)
    float32._draw(CASES[2])
    sizes = float32.CPU_SIZES["mlp"]
    assert counted == [4 * sizes["rows"] * sizes["features"]]


def test_without_flax(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "flax" else find(name)
    )
    assert main(["float32", "--models", "mlp", *QUICK]) == 0
    assert "ours: Flax is not installed (float32 mlp fwd and 1 more)" in capsys.readouterr().out


def test_a_mistake_of_ours_is_not_a_missing_flax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxkernels.bench.float32_models", None)
    monkeypatch.delattr("jaxkernels.bench.float32_models", raising=False)
    with pytest.raises(ImportError):
        main(["float32", "--models", "mlp", *QUICK])
