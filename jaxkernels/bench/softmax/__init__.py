"""The sub-command ``softmax``: forward and backward over a range of column counts.

Compared in one run: a plain device copy, ``jax.nn.softmax`` (or ``jax.nn.log_softmax``) under
jit, ours as a user gets it (``auto``) and each tier by force. How a call is timed is written down
in ``jaxkernels.bench.timing``; what is timed:

* ``fwd``: y from x. Model bytes: read x, write y.
* ``grad``: dx from y and dy alone; the forward is never run inside. Ours is the function that
  ``jax.vjp`` of our softmax returns, whose only residual is y, jitted as a function of (y, dy).
  For XLA it is the expression to which the autodiff of ``jax.nn`` comes down, in its most
  favourable form (y, not the unnormalised exponentials, as the residual): y * (dy - sum(dy * y))
  for softmax and dy - exp(y) * sum(dy) for log_softmax. Model bytes: read y and dy, write dx.
* ``copy``: a jitted copy of x, read and written once; measured anew beside every case.

Throughput is model bytes over the median time, so a kernel that reads its input twice shows about
two thirds of the copy's rate.
"""
