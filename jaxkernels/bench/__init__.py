"""Benchmarks: ``python -m jaxkernels.bench <operation> [options]``.

Each operation is a sub-command and a suite. It measures our kernels, XLA's own code and often a plain
device copy in one process, and prints tables. ``--json`` writes every number to a file, and ``--from-json`` shows
such a file without measuring. The tables and plots of the documents are made from these files.

A suite is data (``suite``), which one engine measures by the method of ``timing``; ``options`` is its command line.
``programs`` has what several suites call. ``rows`` has the suites ``softmax``, ``logsumexp`` and ``rms_norm``, and what they
share with ``row_map`` (the suite ``map``) and ``losses``; ``traffic`` has the bytes that they must move. ``attention_sizes``
and ``sgemm_products`` have cases, ``families`` the distributions of operands, ``float32_models`` the models of ``float32``.
``rungs`` draws products for the programs of ``sgemm``. ``records`` and ``environment`` are the numbers of a run and their
conditions; ``tables`` prints them. ``regress`` measures selected cases of other suites, and compares two runs.
"""
