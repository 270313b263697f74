"""python -m jaxkernels."""

import re

import gemm_cases
import jax
import jax.numpy as jnp
import pytest
from programs import run_python

import jaxkernels as jk
from jaxkernels import __main__ as main_module
from jaxkernels import _selfcheck
from jaxkernels._core import registry
from jaxkernels.verify.run import Outcome


@pytest.mark.smoke
def test_report():
    stdout, _ = run_python("-m", "jaxkernels")
    assert f"jaxkernels {jk.__version__}" in stdout
    for word in ("jaxlib", "XLA FFI", "running", "Devices", "Targets", "Self-test"):
        assert word in stdout
    for target in registry.TARGETS["cuda"]:
        assert target in stdout
    rungs = re.findall(r"float32 +(\w+) +sgemm .* ok$", stdout, re.MULTILINE)
    on_cuda = gemm_cases.ON_GPU and registry.has_cuda_module()
    assert set(rungs) == {"auto", *(gemm_cases.RUNGS if on_cuda else ())}
    assert "live" in stdout
    if not registry.has_cuda_module():
        why = registry.cpu_module.WHY_NO_CUDA
        assert f"not live: jaxkernels was built without CUDA ({why}). Reinstall" in stdout
        assert stdout.count("Reinstall") == 1
        assert why


def test_help_runs_nothing(capsys):
    for arguments, code, said in ((["--help"], 0, "exit code"), (["--verbose"], 2, "unrecognized")):
        with pytest.raises(SystemExit) as ended:
            main_module.main(arguments)
        assert ended.value.code == code
        printed = capsys.readouterr()
        assert said in printed.out + printed.err
        assert "Devices" not in printed.out


def test_a_wrong_result_is_reported(monkeypatch, capsys):
    problem = next(_selfcheck.problems("cpu"))
    right = Outcome(problem, 1, 0.5)
    wrong = Outcome(problem, 1, 2.0, ((0, "y: 2 times the bound"),))
    for some, code in (([right], 0), ([right, wrong], 1), ([], 1)):
        monkeypatch.setattr(_selfcheck, "run", lambda platform, some=some: some)
        assert main_module.main() == code
        assert ("FAILED: y: 2 times" in capsys.readouterr().out) == (wrong in some)


@pytest.mark.parametrize(
    ("softmax", "said"),
    [
        (lambda x, **options: 1 // 0, "FAILED: ZeroDivisionError"),
        (lambda x, **options: jnp.nan * x, "FAILED: y: "),
        (lambda x, **options: jax.nn.softmax(x), "does not call"),
    ],
    ids=["an exception", "NaN", "no kernel of ours"],
)
def test_a_wrong_function_is_reported(softmax, said, monkeypatch, capsys):
    first = next(_selfcheck.problems("cpu"))
    monkeypatch.setattr(_selfcheck, "problems", lambda platform: [first])
    monkeypatch.setattr(jk, "softmax", softmax)
    assert main_module.main() == 1
    assert said in capsys.readouterr().out
