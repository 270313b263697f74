"""Running other programs from tests, with this interpreter and this repository's files."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parent.parent
# As in the tests themselves (conftest.py). A program whose time is not compilation removes it.
NOT_OPTIMIZED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"} if jax.default_backend() == "cpu" else {}


def run_python(*arguments, expect=0, timeout=300, **environment):
    """Runs `python *arguments` in this folder, outside the package's source tree, and returns what it printed.

    Args:
      *arguments: of the interpreter.
      expect: the exit code that is right.
      timeout: seconds after which something hangs.
      **environment: variables to add; None removes one.

    Returns:
      (stdout, stderr)
    """
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=SUPPORT,
        env=_merged(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == expect, (
        f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    )
    return result.stdout, result.stderr


def run_python_together(*commands, timeout=120, **environment):
    """Runs programs that wait for one another, each as `run_python` would; all have to succeed.

    Args:
      *commands: for every program the arguments of the interpreter.
      timeout: seconds after which all are ended. Once one has failed the others, which may wait for it, get five more.
      **environment: variables to add; None removes one.

    Returns:
      The output of each program, stdout and stderr together.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Files, because a pipe that nobody reads while another program runs would fill up.
        logs = [Path(folder, str(i)) for i in range(len(commands))]
        programs = []
        try:
            for command, log in zip(commands, logs, strict=True):
                with log.open("w") as file:
                    programs.append(
                        subprocess.Popen(
                            [sys.executable, *map(str, command)],
                            cwd=SUPPORT,
                            env=_merged(environment),
                            stdout=file,
                            stderr=subprocess.STDOUT,
                        )
                    )
            _wait_for_all(programs, timeout)
            codes = [program.poll() for program in programs]
        finally:
            for program in programs:
                program.kill()
                program.wait()
        texts = [log.read_text(errors="replace") for log in logs]
    # None is a program that had to be ended.
    assert codes == [0] * len(codes), "\n".join(
        f"program {i}, exit code {code}:\n{text}"
        for i, (code, text) in enumerate(zip(codes, texts, strict=True))
    )
    return texts


def _wait_for_all(programs, timeout):
    deadline = time.monotonic() + timeout
    while any(program.poll() is None for program in programs) and time.monotonic() < deadline:
        if any(program.poll() for program in programs):
            deadline = min(deadline, time.monotonic() + 5)
        time.sleep(0.05)


def _merged(environment):
    merged = {**os.environ, **NOT_OPTIMIZED, **environment}
    return {name: value for name, value in merged.items() if value is not None}
