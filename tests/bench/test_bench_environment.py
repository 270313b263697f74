"""What a run says of the machine, and what it does where nothing tells."""

import subprocess

import jax
import pytest

from jaxkernels.bench import environment

ANSWER = "580.159.04, 1830 MHz, 1980 MHz, 612.40 W, 700.00 W\n"
STATE = {
    "driver": "580.159.04",
    "sm_clock": "1830 MHz",
    "most_sm_clock": "1980 MHz",
    "power": "612.40 W",
    "power_limit": "700.00 W",
}


def answering(text):
    """subprocess.run of a machine whose program gives this answer."""

    def run(command, **_):
        assert command[0] == "nvidia-smi"
        fields = "driver_version,clocks.sm,clocks.max.sm,power.draw,enforced.power.limit"
        assert command[1:] == [f"--query-gpu={fields}", "--format=csv,noheader"]
        if isinstance(text, Exception):
            raise text
        return subprocess.CompletedProcess(command, 0, text)

    return run


@pytest.mark.parametrize("gpus", [1, 4])
def test_state_of_the_first_gpu(gpus, monkeypatch):
    monkeypatch.setattr(subprocess, "run", answering(ANSWER + (gpus - 1) * "5, 1, 2, 3, 4\n"))
    assert environment._gpu_state() == STATE


@pytest.mark.parametrize(
    "answer", ["", FileNotFoundError("none here"), subprocess.TimeoutExpired("nvidia-smi", 20)]
)
def test_nothing_tells(answer, monkeypatch):
    monkeypatch.setattr(subprocess, "run", answering(answer))
    assert environment._gpu_state() == dict.fromkeys(STATE)


def test_a_run_says_them():
    found = environment.describe("c")
    assert set(STATE) < set(found)
    if jax.default_backend() == "cpu":
        assert {found[name] for name in STATE} == {None}
        assert "SMs" not in environment.summarise(found)


def test_header():
    about = {"device": "NVIDIA H200", **STATE, "jax": "0.11.2", "jaxkernels": "0.1.0"}
    assert environment.summarise({**about, "date": "today"}) == (
        "NVIDIA H200, SMs at 1830 MHz of 1980 MHz, 612.40 W of 700.00 W, "
        "driver 580.159.04, JAX 0.11.2, jaxkernels 0.1.0, today"
    )
