"""Running other programs from tests, with this interpreter and this repository's files."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_python(*arguments, expect=0, timeout=300, **environment):
    """Runs `python *arguments` outside the source tree and returns what it printed.

    Args:
      *arguments: of the interpreter.
      expect: the exit code that is right.
      timeout: seconds after which something hangs.
      **environment: variables to add; None removes one.

    Returns:
      (stdout, stderr)
    """
    merged = {**os.environ, **environment}
    merged = {name: value for name, value in merged.items() if value is not None}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT / "tests",
        env=merged,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == expect, (
        f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    )
    return result.stdout, result.stderr
