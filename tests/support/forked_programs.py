"""Runs programs, each in a fork of a process that has imported what all of them import: imports are what costs.

Arguments: the files of the programs. The output of each is a file of its name and `.out`. Prints the exit codes.
"""

import os
import runpy
import sys

import jax  # noqa: F401

import jaxkernels  # noqa: F401

codes = []
for path in sys.argv[1:]:
    process = os.fork()
    if process == 0:
        output = os.open(f"{path}.out", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = [path]
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
print(*codes)
