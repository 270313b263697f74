"""Benchmarks: ``python -m jaxkernels.bench <operation> [options]``.

Each operation is a sub-command. It measures our kernels, XLA's own code and a plain device copy in one
process, and prints a table. ``--json`` writes every number to a file, and ``--from-json`` shows such a
file without measuring. The tables and plots of the documents are made from these files.

Layout:
  ``suite``        a benchmark as data, and the engine that measures all of them
  ``timing``       the method of timing a call
  ``records``, ``environment``
                   the numbers of a run, and their conditions
  ``tables``       tables of records, and the summary of many random cases
  ``options``      types of command-line options
  ``programs``     random inputs, chains, gradients, memory and errors of programs
  ``rows``         the row operations' cases, ceilings, programs and tables
  ``__main__``     the command line, derived from the suites
The suites are ``softmax``, ``logsumexp``, ``losses``, ``map`` (``maps``), ``linear_loss``,
``attention``, ``sgemm``, ``float32``, ``scaling``, and ``regress``, which compares two runs.
"""
