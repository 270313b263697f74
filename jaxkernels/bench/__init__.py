"""Benchmarks: ``python -m jaxkernels.bench <operation> [options]``.

Each operation is a sub-command that measures our kernels beside XLA's own code and beside a plain
device copy, in one process and one run, and prints a table; ``--json`` keeps every number,
``--from-json`` shows an earlier run again without measuring. The tables and pictures of the documents
are made of such files.

Layout:
  ``timing``       how a call is timed (the method is written down there); knows nothing of softmax
  ``environment``  what a number depends on: device, driver, clock and power, versions, date, command
  ``records``      what was measured: one contender in one case, one line of JSON
  ``suite``        one operation's benchmark as a value, and how every suite is measured
  ``programs``     what the programs of several suites are made of: inputs, chains, gradients
  ``tables``       the pivot that makes every table of records, and how it is printed
  ``rows``, ``row_views``
                   what the suites of row operations share: cases and contenders; tables
  ``softmax``, ``logsumexp``, ``losses``, ``sgemm``, ``float32``, ``attention``, ``scaling``
                   the suites; ``torch_losses`` is what ``losses`` runs of torch
  ``sgemm_programs``, ``attention_programs``
                   what these two measure: cases, contenders, inputs
  ``products``, ``families``, ``product_data``
                   which products ``sgemm`` measures, of what operands, and their errors
  ``float32_models``
                   the models of ``float32``, of Flax
  ``maps``         ``map``: the softmax suite's programs at lengths that a seed draws
  ``regress``      ours alone, over the cells that the suites watch: two runs of one machine compared
  ``__main__``     the command line, derived from the suites
"""
