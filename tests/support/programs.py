"""Running other programs from tests, with this interpreter and this repository's files."""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jax

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parent.parent
# As in the tests themselves (conftest.py). Callers remove it for programs that run long.
NOT_OPTIMIZED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"} if jax.default_backend() == "cpu" else {}


def module_of(path):
    """The module of a file that belongs to no package; dataclasses look it up in sys.modules."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_python(*arguments, expect=0, timeout=300, **environment):
    """Runs `python *arguments` in this folder, outside the package's source tree, and returns (stdout, stderr).

    `expect` is the expected exit code; a value of None removes a variable of the environment.
    """
    merged = {**os.environ, **NOT_OPTIMIZED, **environment}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=SUPPORT,
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == expect, (
        f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    )
    return result.stdout, result.stderr


def run_programs(lines, folder, **environment):
    """Runs command lines without an interpreter by `forked_programs.py`. Returns (exit code, output) of each."""
    codes, _ = run_python("forked_programs.py", folder, *lines, timeout=1200, **environment)
    return [(int(code), (folder / str(i)).read_text()) for i, code in enumerate(codes.split())]


def run_texts(texts, folder, **environment):
    """Runs programs by their text, from files in a folder. Returns (exit code, output) of each."""
    paths = [folder / f"{number}.py" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return run_programs([shlex.quote(str(path)) for path in paths], folder, **environment)
