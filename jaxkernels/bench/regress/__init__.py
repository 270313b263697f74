"""``python -m jaxkernels.bench regress``: is any of our kernels slower than it was?

At most 120 cells over all operations: softmax and log_softmax, forward and backward, on many rows and
on few; attention scores, plain, masked and causal; whole attention layers; matrix products. Lengths
are of every tier, odd ones too. Ours alone is timed, as written down in ``jaxkernels.bench.timing``,
the cells of a group in turn; calls of microseconds are chained in one program.

``--json FILE`` keeps a run; ``--against FILE`` compares with an earlier one of the same machine and
lists the cells that are slower by more than 2 % beyond the spread of their samples; the exit code
is then 1. ``--from-json`` compares two files without measuring.

Layout: ``cases`` (the cells, and the record of one), ``measure``, ``compare`` (two runs),
``report`` and ``command``.
"""
