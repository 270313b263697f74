"""The machine as a run describes it, and values that are not known."""

import importlib.metadata
import importlib.util
import subprocess

import jax
import pytest

from jaxkernels.bench import environment

STATE = {
    "driver": "580.159.04",
    "sm_clock": "1830 MHz",
    "most_sm_clock": "1980 MHz",
    "power": "612.40 W",
    "power_limit": "700.00 W",
}


@pytest.mark.parametrize(
    "answer",
    [
        *("", "[N/A]\n", FileNotFoundError("none here")),
        subprocess.CalledProcessError(2, "nvidia-smi"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    ],
)
def test_state_of_the_gpu_that_is_used(answer, monkeypatch):
    """The first of several that CUDA may use. A value that is not known hides no other."""
    answers = {field: f"{STATE[name]}\n" for name, field in environment._GPU_STATE.items()}
    answers |= {"driver_version": 4 * "580.159.04\n", "power.draw": answer}

    def run(command, **_):
        program, *gpu, query, form = command
        field = query.removeprefix("--query-gpu=")
        assert (program, form) == ("nvidia-smi", "--format=csv,noheader")
        assert gpu == ([] if field == "driver_version" else ["--id=2"])
        if isinstance(answers[field], Exception):
            raise answers[field]
        return subprocess.CompletedProcess(command, 0, answers[field])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 1")
    monkeypatch.setattr(subprocess, "run", run)
    assert environment._gpu_state() == STATE | {"power": None}


def test_a_run_says_them():
    found = environment.describe("c")
    assert {*STATE, "nvcc", "commit", "jax", "optax"} < set(found)
    if importlib.util.find_spec("optax"):
        assert found["optax"] == importlib.metadata.version("optax")
    if jax.default_backend() == "cpu":
        assert {found[name] for name in STATE} == {None}
        assert "SMs" not in environment.summarise(found)


def test_compiler(monkeypatch):
    """Not on the path, but in its usual place."""
    said = {"/usr/local/cuda/bin/nvcc": "release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/a"}
    monkeypatch.setattr(environment, "_answer", lambda command, *_: said.get(command, ""))
    assert environment._nvcc() == "13.0.88"
