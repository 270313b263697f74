"""This project's demands on a benchmark's numbers: ``python -m tests.bars FILE.json ...``

The benchmarks of the package measure, and judge nothing; the JSON file of a run (``--json``) is
held against the bars here.

* ``bar``: the form of a bar, and the value that was reached.
* ``suites``: the bars of every suite, by platform.
* ``__main__``: the command. It exits with 1 if a bar is not reached, 2 if a file cannot be read.
"""
