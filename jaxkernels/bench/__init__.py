"""Benchmarks: ``python -m jaxkernels.bench <operation> [options]``.

Each operation is a sub-command that measures our kernels, XLA's own code and a plain device copy in
one process and one run, and prints a table; ``--json`` keeps every number, ``--from-json`` shows an
earlier run again without measuring. Tables and pictures of the documents are made of such files.

Layout:
  ``suite``        a benchmark as data, and the engine that measures all of them
  ``timing``       how a call is timed (the method is written down there)
  ``records``, ``environment``
                   the numbers of a run, and their conditions
  ``tables``       tables of records, and the summary of many drawn cases
  ``options``      types of options of the command line
  ``programs``     random inputs, chains, gradients, memory and errors of programs
  ``rows``         the row operations' cases, ceilings, programs and tables
  ``__main__``     the command line, derived from the suites
The suites: ``softmax``, ``logsumexp``, ``losses``, ``map`` (``maps``), ``linear_loss``,
``attention``, ``sgemm``, ``float32``, ``scaling``, and ``regress``, which compares two runs.
"""
