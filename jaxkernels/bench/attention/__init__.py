"""``python -m jaxkernels.bench attention``: softmax of attention scores, and whole attention layers.

Compared in one run, timed as written down in ``jaxkernels.bench.timing``:

* Scores (batch, heads, q, k): scale and softmax alone ("plain"), under a boolean mask of padding
  (batch, 1, q, k) ("mask"), and causal ("causal"). ``xla`` is what Flax's layers do, in the
  scores' own type under jit: ``softmax(where(mask, scores * scale, finfo.min))``; the causal mask
  is made inside, in the form most favourable to XLA. ``copy`` is a jitted copy of the scores.

  - ``fwd``: y from the scores.
  - ``both``: y and the gradient, from the scores and a given cotangent, by ``jax.vjp``.
* Layers (batch, length, heads, depth): ``jaxkernels.dot_product_attention`` beside
  ``jax.nn.dot_product_attention``: in float32 at the highest precision, in bfloat16 as it is and
  by cuDNN's fused kernel.

Layout: ``cases`` (what is measured), ``contenders`` (functions and their inputs), ``measure``,
``report``, ``plot`` and ``command``.
"""
