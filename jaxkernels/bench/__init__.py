"""Benchmarks: ``python -m jaxkernels.bench <operation> [options]``.

Each operation is a sub-command that measures our kernels beside XLA's own code and beside a plain
device copy, in one process and one run, and prints a table; ``--json`` keeps every number,
``--plot`` draws them, ``--from-json`` shows an earlier run again without measuring.

Layout:
  ``timing``       how a call is timed (the method is written down there); knows nothing of softmax
  ``environment``  what a number depends on: device, driver, versions, date, command
  ``console``      progress on stderr, tables on stdout or as Markdown
  ``runner``       what the sub-commands share: options, the JSON file, what becomes of a run
  ``softmax/``     one sub-package per operation: cases, measuring, report and plot
  ``regress/``     ours alone, over all operations, in minutes: two runs of one machine compared
"""
