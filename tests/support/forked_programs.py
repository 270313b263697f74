"""Runs each program in a fork of a process that has imported JAX and this package, because imports take most of the time.

Arguments: a folder, and command lines without an interpreter. Prints the exit codes. The output of each program is a file
in the folder, named by its number.
"""

import os
import runpy
import shlex
import sys

import jax  # noqa: F401

import jaxkernels  # noqa: F401

folder, *lines = sys.argv[1:]
codes = []
for number, line in enumerate(lines):
    process = os.fork()
    if process == 0:
        output = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = shlex.split(line)
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
print(*codes)
