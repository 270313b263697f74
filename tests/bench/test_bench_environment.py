"""What a run says of the machine, and what it does where nothing tells."""

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
DRIVER = STATE["driver"] + "\n"
ANSWER = ", ".join([*STATE.values()][1:]) + "\n"
_FIELDS = "clocks.sm,clocks.max.sm,power.draw,enforced.power.limit"


def answering(driver, state, gpu="0"):
    """subprocess.run of a machine whose program answers this of the driver, and of the state of a GPU."""

    def run(command, **_):
        assert command[0] == "nvidia-smi"
        answers = {
            ("--query-gpu=driver_version",): driver,
            (f"--id={gpu}", f"--query-gpu={_FIELDS}"): state,
        }
        assert command[-1] == "--format=csv,noheader"
        answer = answers[tuple(command[1:-1])]
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(command, 0, answer)

    return run


@pytest.mark.parametrize(
    ("visible", "gpu"), [(None, "0"), ("", "0"), ("3", "3"), ("2, 1", "2"), ("GPU-7f,0", "GPU-7f")]
)
def test_state_of_the_gpu_that_is_used(visible, gpu, monkeypatch):
    """The first that CUDA may use, of a machine with four."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(subprocess, "run", answering(4 * DRIVER, ANSWER, gpu))
    assert environment._gpu_state() == STATE


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "No devices were found\n",
        FileNotFoundError("none here"),
        subprocess.TimeoutExpired("nvidia-smi", 20),
        subprocess.CalledProcessError(2, "nvidia-smi"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    ],
)
def test_nothing_tells_of_the_state(answer, monkeypatch):
    """The driver is known all the same, if it is told."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(subprocess, "run", answering(DRIVER, answer))
    assert environment._gpu_state() == {**dict.fromkeys(STATE), "driver": STATE["driver"]}
    if isinstance(answer, Exception):
        monkeypatch.setattr(subprocess, "run", answering(answer, answer))
        assert environment._gpu_state() == dict.fromkeys(STATE)


def test_some_values_are_not_known(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    answer = "1830 MHz, [N/A], [Not Supported], 700.00 W\n"
    monkeypatch.setattr(subprocess, "run", answering(DRIVER, answer))
    found = environment._gpu_state()
    assert found == {**STATE, "most_sm_clock": None, "power": None}
    assert environment.summarise(found) == "SMs at 1830 MHz, driver 580.159.04"


def test_a_run_says_them():
    found = environment.describe("c")
    assert {*STATE, "nvcc", "commit", "jax", "optax"} < set(found)
    if jax.default_backend() == "cpu":
        assert {found[name] for name in STATE} == {None}
        assert "SMs" not in environment.summarise(found)


def test_compiler(monkeypatch):
    """Not on the path, but in its usual place."""

    def run(command, **_):
        if command[0] == "nvcc":
            raise FileNotFoundError
        return subprocess.CompletedProcess(
            command, 0, "release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/a"
        )

    monkeypatch.setattr(subprocess, "run", run)
    assert environment._nvcc() == "13.0.88"


def test_header():
    about = {"device": "NVIDIA H200", **STATE, "jax": "0.11.2", "jaxkernels": "0.1.0"}
    assert environment.summarise({**about, "date": "today"}) == (
        "NVIDIA H200, SMs at 1830 MHz of 1980 MHz, 612.40 W of 700.00 W, "
        "driver 580.159.04, JAX 0.11.2, jaxkernels 0.1.0, today"
    )
