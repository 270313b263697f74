"""python -m jaxkernels."""

import dataclasses

from programs import run_python

import jaxkernels as jk
from jaxkernels import __main__ as main_module
from jaxkernels import _registry, _selfcheck


def test_report():
    stdout, _ = run_python("-m", "jaxkernels")
    assert f"jaxkernels {jk.__version__}" in stdout
    for word in ("jaxlib", "XLA FFI", "running", "Devices", "Targets", "Self-test"):
        assert word in stdout
    for operation in _registry.OPERATIONS:
        assert f"jaxkernels_{operation}" in stdout
    assert "jaxkernels_sgemm" in stdout
    assert "live" in stdout
    if not _registry.has_cuda_module():
        assert "not live: jaxkernels._cuda was not built" in stdout


def test_a_wrong_result_is_reported(monkeypatch, capsys):
    right = _selfcheck.Check("cpu", "float32", "auto", "softmax_fwd", error=0.5, bound=1.0)
    wrong = dataclasses.replace(right, error=2.0)
    nan = dataclasses.replace(right, error=float("nan"))
    broken = dataclasses.replace(right, problem="no such target")
    for checks, code in (([right], 0), ([right, wrong], 1), ([nan], 1), ([broken], 1), ([], 1)):
        monkeypatch.setattr(_selfcheck, "run", lambda platform, checks=checks: checks)
        assert main_module.main() == code
        assert ("FAILED" in capsys.readouterr().out) == bool(code and checks)
