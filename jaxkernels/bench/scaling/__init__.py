"""``python -m jaxkernels.bench scaling``: arrays sharded over 1, 2, 4, ... devices.

All in one process, over devices of the default backend, timed as written down in
``jaxkernels.bench.timing``:

* Weak scaling, the same rows or the same batch on each device: ``jaxkernels.softmax`` of rows cut
  as P("devices", None), and ``jaxkernels.scaled_masked_softmax`` (scaled, causal) of attention
  scores whose batch is cut. The efficiency is the time on 1 device over the time on n. The numbers
  of devices are the contenders of one case: they are sampled in turn.
* Strong scaling, one array cut along its vocabulary as P(None, "devices"), log_softmax of it:

  - ``ours``: ``jaxkernels.log_softmax``, left to XLA's partitioner.
  - ``gathered``: the same behind a constraint that every device has the whole array, which is what
    a custom call costs of which the partitioner knows nothing.
  - ``xla``: ``jax.nn.log_softmax``.

``fwd`` is y from x; ``both`` is y and the gradient, from x and a given cotangent. The collectives
of every compiled program are counted, so that it shows what was gathered.

The devices of a CPU are simulated and share its cores: each call is waited for, and their
times tell nothing of a GPU.

Layout: ``cases`` (what is measured), ``contenders`` (functions and their inputs), ``measure``,
``report``, ``plot`` and ``command``.
"""
